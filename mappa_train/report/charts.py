"""Line charts for the page: inline SVG, no script, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mappa_train.report.text import text

Points = Sequence[tuple[float, float | None]]
"""(step, value) in ascending order; None where the value is undefined."""
Intervals = Sequence[tuple[float, float, float]]
"""(step, low, high)."""
NUM_COLOURS = 6
MAX_LINES = 8
"""Most lines of a chart; of more, those with the most points."""
_WIDTH, _HEIGHT = 420.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 10.0, 26.0
_MAX_POINTS = 300
_MANY = 30
"""From so many points on, a running mean is drawn over the noise."""


def chart(
    title: str,
    series: Mapping[str, Points],
    *,
    low: float | None = None,
    high: float | None = None,
    intervals: Mapping[str, Intervals] | None = None,
) -> str:
    """One chart with a legend; undefined points are gaps. "" if there is no point at all.

    `low` and `high` fix the ends of the y axis where the quantity has natural ones; `intervals` are drawn at
    their steps, in the colour of the series of that name.
    """
    kept = {name: _thin(points) for name, points in _busiest(series).items()}
    bars = {name: (intervals or {}).get(name, ()) for name in kept}
    values = [y for points in kept.values() for _, y in points if y is not None]
    if not values:
        return ""
    values += [end for some in bars.values() for _, *ends in some for end in ends]
    steps = [x for points in kept.values() for x, _ in points]
    frame = _Frame(steps, min(values) if low is None else low, max(values) if high is None else high)
    parts, legend = frame.axes(), []
    for k, (name, points) in enumerate(kept.items()):
        colour = f"c{k % NUM_COLOURS}"
        legend.append(f'<span class="{colour}">{text(name)}</span>')
        parts += _series(colour, name, points, frame)
        parts += [_bar(colour, frame.place(x, a), frame.place(x, b)) for x, a, b in bars[name]]
    if len(kept) < len(series):
        legend.append(f"{len(kept)} of {len(series)}")
    box = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{text(title)}"'
    return (
        f"<figure><figcaption>{text(title)}</figcaption><svg {box}>{''.join(parts)}</svg>"
        f'<p class="legend">{" ".join(legend)}</p></figure>'
    )


class _Frame:
    """The axes of a chart: where a point lies."""

    def __init__(self, steps: Sequence[float], low: float, high: float) -> None:
        self.left, self.right = min(steps), max(steps)
        self.ticks = nice_ticks(low, high)
        self.bottom, self.top = min(low, self.ticks[0]), max(high, self.ticks[-1])

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        up = (y - self.bottom) / (self.top - self.bottom)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        """Grid lines with their values, and some of the steps."""
        parts = [_tick(self.place(self.left, tick)[1], tick) for tick in self.ticks]
        inner = [tick for tick in nice_ticks(self.left, self.right) if tick == int(tick)]
        gap = (self.right - self.left) / 8
        shown = {x for x in inner if self.left + gap < x < self.right - gap} | {self.left, self.right}
        return parts + [_step_label(self.place(x, self.bottom)[0], x) for x in sorted(shown)]


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


def running_mean(points: Points, window: int) -> list[tuple[float, float | None]]:
    """At each point the mean of the defined ones among the last `window`; None where it is undefined."""
    means: list[tuple[float, float | None]] = []
    for k, (x, y) in enumerate(points):
        near = [value for _, value in points[max(0, k - window + 1) : k + 1] if value is not None]
        means.append((x, None if y is None else math.fsum(near) / len(near)))
    return means


def _busiest(series: Mapping[str, Points]) -> dict[str, Points]:
    """The lines to draw, in their order."""
    counts = {name: sum(y is not None for _, y in points) for name, points in series.items()}
    chosen = sorted((name for name in series if counts[name]), key=lambda name: -counts[name])[:MAX_LINES]
    return {name: points for name, points in series.items() if name in chosen}


def _thin(points: Points) -> Points:
    """Every n-th point of a long run, the last one always."""
    if len(points) <= _MAX_POINTS:
        return points
    stride = -(-len(points) // _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _series(colour: str, name: str, points: Points, frame: _Frame) -> list[str]:
    defined = [(x, y) for x, y in points if y is not None]
    if len(defined) > _MANY:
        mean = running_mean(points, window=max(5, len(points) // 15))
        return [_line(f"{colour} faint", points, frame), _line(colour, mean, frame)]
    dots = [_dot(colour, frame.place(x, y), f"{name}, step {x:g}: {y:.4g}") for x, y in defined]
    return [_line(colour, points, frame), *dots]


def _tick(y: float, value: float) -> str:
    line = f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{_tick_text(value)}</text>'


def _tick_text(value: float) -> str:
    """Short enough for the margin."""
    if value and abs(value) < 0.01:
        return f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")
    return f"{value / 1000:.4g}k" if abs(value) >= 10_000 else f"{value:.4g}"


def _step_label(x: float, step: float) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8:g}" text-anchor="middle">{step:g}</text>'


def _line(classes: str, points: Points, frame: _Frame) -> str:
    path, pen_down = [], False
    for x, y in points:
        if y is not None:
            across, down = frame.place(x, y)
            path.append(f"{'L' if pen_down else 'M'}{across:.1f} {down:.1f}")
        pen_down = y is not None
    return f'<path class="{classes}" d="{" ".join(path)}"/>'


def _bar(colour: str, low: tuple[float, float], high: tuple[float, float]) -> str:
    return f'<path class="{colour} bar" d="M{low[0]:.1f} {low[1]:.1f}L{high[0]:.1f} {high[1]:.1f}"/>'


def _dot(colour: str, point: tuple[float, float], words: str) -> str:
    place = f'cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2.6"'
    return f'<circle class="{colour}" {place}><title>{text(words)}</title></circle>'
