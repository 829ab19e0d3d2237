"""Texts and line charts for `report.html`: inline SVG, no script, colours from the page's style sheet."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float | None]]
NUM_COLOURS = 6
_WIDTH, _HEIGHT = 420.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 10.0, 26.0
_MAX_POINTS = 300
# Control characters, and marks that turn the direction of text or hide it.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def text(value: object) -> str:
    """Any value as harmless HTML text."""
    return escape(_UNSEEN.sub("", str(value)))


def chart(
    title: str, series: Mapping[str, Points], *, low: float | None = None, high: float | None = None
) -> str:
    """One chart with a legend; undefined points are gaps. "" if there is no point at all.

    `series` maps a name to (step, value) pairs in ascending order; `low` and `high` fix the ends of the y
    axis where the quantity has natural ones.
    """
    kept = {name: _thin(points) for name, points in series.items()}
    values = [y for points in kept.values() for _, y in points if y is not None]
    if not values:
        return ""
    steps = [x for points in kept.values() for x, _ in points]
    left, right = min(steps), max(steps)
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    ticks = nice_ticks(bottom, top)
    bottom, top = min(bottom, ticks[0]), max(top, ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - bottom) / (top - bottom)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_tick(place(left, tick)[1], tick) for tick in ticks]
    parts += [_step_label(place(x, bottom)[0], x) for x in sorted({left, right})]
    legend = []
    for k, (name, points) in enumerate(kept.items()):
        colour = f"c{k % NUM_COLOURS}"
        legend.append(f'<span class="{colour}">{escape(name)}</span>')
        parts.append(_line(colour, [None if y is None else place(x, y) for x, y in points]))
        if len(points) <= 60:
            parts += [
                _dot(colour, place(x, y), f"{name}, step {x:g}: {y:.4g}") for x, y in points if y is not None
            ]
    box = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(title)}"'
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return (
        f'<figure>{caption}<svg {box}>{"".join(parts)}</svg><p class="legend">{" ".join(legend)}</p></figure>'
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that enclose [low, high]; two different ones at least."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) / 2 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def _thin(points: Points) -> Points:
    """Every n-th point of a long run, the last one always."""
    if len(points) <= _MAX_POINTS:
        return points
    stride = -(-len(points) // _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _tick(y: float, value: float) -> str:
    line = f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return (
        f'{line}<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{value:.4g}</text>'
    )


def _step_label(x: float, step: float) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8:g}" text-anchor="middle" font-size="11">{step:g}</text>'


def _line(colour: str, points: Sequence[tuple[float, float] | None]) -> str:
    path, pen_down = [], False
    for point in points:
        if point is not None:
            path.append(f"{'L' if pen_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        pen_down = point is not None
    return f'<path class="{colour}" fill="none" stroke="currentColor" d="{" ".join(path)}"/>'


def _dot(colour: str, point: tuple[float, float], text: str) -> str:
    place = f'cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2.6"'
    return f'<circle class="{colour}" {place}><title>{escape(text)}</title></circle>'
