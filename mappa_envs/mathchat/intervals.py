r"""Intervals that a text means but does not write as such: inequalities, the real numbers without some.

>>> interval(r"2 \le x < 5"), interval(r"\mathbb{R} \setminus (-2, 3]"), without_points(r"x \ne 0, 1")
('[2 , 5)', '(-\\infty,-2],(3,\\infty)', '(-\\infty,0),(0,1),(1,\\infty)')

The input is what `latex.plain` makes. Several intervals come apart by commas, in their order on the line.
"""

from __future__ import annotations

import re
from itertools import pairwise

from mappa_envs.mathchat.numbers import TooLarge, read_number
from mappa_envs.mathchat.parts import both_signs, split

NAME = r"[A-Za-z](?:_\{?\w+\}?)?"
AND = re.compile(r"\\text\{\s*,?\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_NO_END, _NO_START = re.compile(r"([(\[].+),\\infty\)"), re.compile(r"\(-\\infty,(.+[)\]])")
"""Intervals with one end, and that end with its bracket."""
_BELOW = re.compile(rf"{NAME}\s*(\\le|<)(.+)|(.+)(\\ge|>)\s*{NAME}")
_ABOVE = re.compile(rf"{NAME}\s*(\\ge|>)(.+)|(.+)(\\le|<)\s*{NAME}")
_BETWEEN = re.compile(rf"(.+?)(\\le|<)\s*{NAME}\s*(\\le|<)(.+)")
_FALLING = re.compile(rf"(.+?)(\\ge|>)\s*{NAME}\s*(\\ge|>)(.+)")
_BUT = re.compile(rf"({NAME})\s*\\ne(?![A-Za-z])")
_RELATION = re.compile(r"[=<>]|\\(?:[lgn]e|in|text)(?![A-Za-z])")
_R = rf"(?:{NAME}\s*\\in\s*)?\\mathbb\{{R\}}"
REALS = re.compile(rf"{_R}|(?:\\text\{{)?(?:all |the )?(?:real numbers|real values|reals)\}}?", re.IGNORECASE)
_ALL_BUT = re.compile(
    rf"{_R}\s*(?:\\setminus|\\backslash|-)\s*(.+)"
    rf"|(?:\\text\{{)?all real numbers except\}}?\s*(?:{NAME}\s*=\s*)?([^\s,;][^,;]*)",
    re.IGNORECASE,
)
"""The real numbers without some: `\\mathbb{R} \\setminus \\{0\\}`."""
_TURNED = re.compile(r"([\[\]])([^\[\](){},;]+),([^\[\](){},;]+)([\[\]])")
"""An interval with brackets turned outwards where an end is left out: `]0, 1]`."""


def interval(text: str) -> str | None:
    """The interval or intervals that a text without a list in it means; None for anything else."""
    if found := _TURNED.fullmatch(text):
        return "(["[found[1] == "["] + f"{found[2]},{found[3]}" + ")]"[found[4] == "]"]
    if len(split(text)[0]) > 1:
        return None
    if REALS.fullmatch(text):
        return "(-\\infty,\\infty)"
    if found := _ALL_BUT.fullmatch(text):
        return _without([found[2]]) if found[2] else _complement(found[1])
    if found := _BETWEEN.fullmatch(text):
        return _brackets(found[2]) + f"{found[1]},{found[4]}" + _brackets(found[3], closing=True)
    if found := _FALLING.fullmatch(text):
        return _brackets(found[3]) + f"{found[4]},{found[1]}" + _brackets(found[2], closing=True)
    if found := _BELOW.fullmatch(text):
        return "(-\\infty," + (found[2] or found[3]) + _brackets(found[1] or found[4], closing=True)
    if found := _ABOVE.fullmatch(text):
        return _brackets(found[1] or found[4]) + (found[2] or found[3]) + ",\\infty)"
    return without_points(text)


def both_bounds(text: str) -> str:
    """`x > 0 and x < 1` as the interval (0,1): "and" narrows, where "or" adds. Else unchanged."""
    sides = [side.strip() for side in AND.split(text)]
    if len(sides) != 2 or not set.intersection(*(set(_LETTER.findall(side)) for side in sides)):
        return text
    for one, other in (sides, sides[::-1]):
        above, below = _NO_END.fullmatch(interval(one) or ""), _NO_START.fullmatch(interval(other) or "")
        if above and below:
            return f"{above[1]},{below[1]}"
    return text


def without_points(text: str) -> str | None:
    r"""What `x \ne 0, 1` leaves of the real numbers, also written `x \ne 0 and x \ne 1`."""
    if not (first := _BUT.match(text)):
        return None
    points, _ = split(AND.sub(",", text[first.end() :]))
    for at, point in enumerate(points):
        again = _BUT.match(point)
        if again and again[1] == first[1]:
            points[at] = point[again.end() :].strip()
    return None if any(_RELATION.search(point) for point in points) else _without(points)


def _complement(text: str) -> str | None:
    """The real numbers without those of a set of numbers or of an interval."""
    _, pair = split(text)
    if pair is None:
        return None
    inner, _ = split(text.strip()[len(pair[0]) : -len(pair[1])])
    if pair == ("\\{", "\\}"):
        return _without(inner)
    if len(inner) != 2 or pair[0] not in ("(", "[") or pair[1] not in (")", "]") or not _rises(*inner):
        return None
    low, high = inner
    left = [f"(-\\infty,{low}" + ("]" if pair[0] == "(" else ")")] if low != "-\\infty" else []
    right = [("[" if pair[1] == ")" else "(") + f"{high},\\infty)"] if high != "\\infty" else []
    return ",".join(left + right) or None


def _rises(low: str, high: str) -> bool:
    """Whether nothing is known to be wrong with the order of two ends."""
    try:
        ends = [read_number(low), read_number(high)]
    except TooLarge:
        return False
    return ends[0] is None or ends[1] is None or ends[0].share < ends[1].share


def _without(points: list[str]) -> str | None:
    """The real numbers without these, as intervals; None where their order is not known."""
    points = [sign for point in points for sign in both_signs(point)]
    try:
        values = [read_number(point) for point in points]
    except TooLarge:
        return None
    known = [value.share for value in values if value is not None]
    if not points or (len(known) < len(points) != 1):
        return None
    if len(known) == len(points):
        points = [point for _, point in sorted(zip(known, points, strict=True))]
    ends = ["-\\infty", *points, "\\infty"]
    return ",".join(f"({low},{high})" for low, high in pairwise(ends))


def _brackets(relation: str, *, closing: bool = False) -> str:
    return "()"[closing] if relation in "<>" else "[]"[closing]
