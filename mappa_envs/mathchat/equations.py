r"""What an equation says of one thing, as `x = 60` or `59 + 1 = 60` do; which say it of two, or not at all.

>>> value("n = 3 \\cdot 4 = 12").value, value("x = 3 or x = 4"), is_chain(["x", "5 y", "12"])
(Fraction(12, 1), None, False)

The input is what `latex.plain` makes.
"""

from __future__ import annotations

import re

from mappa_envs.mathchat.intervals import NAME
from mappa_envs.mathchat.numbers import Number, read_number
from mappa_envs.mathchat.parts import cut, split

_NUMERIC = re.compile(
    r"(?:\\(?:frac|sqrt|binom|pi|cdot|times|sin|cos|tan|ln|log)(?![A-Za-z])|[\d\s.,:{}()\[\]+*/^!_-])+"
    r"(?:\\text\{[^{}\d]*\}(?:\^\{?[23]\}?)?)?"
)
_DENIED = re.compile(
    r"\?|\\(?:pm|mp|ne|neg|lnot|not|approx|sim|le|ge|in)(?![A-Za-z])|(?<![A-Za-z])(?:not|never)(?![A-Za-z])"
    r"|n['’]t(?![A-Za-z])"
)
_JOINED = re.compile(
    r"\?|\\(?:lor|vee|land|wedge)(?![A-Za-z])|(?<![A-Za-z\\])(?:or|and|but|not)(?![A-Za-z])"
    rf"|(?<![A-Za-z_^])[(\[{{]\s*{NAME}\s*="
)
_APART = re.compile(
    r"[,;<>&]|\A[^|]*\|[^|]*\Z|\\\\|\\(?:text|mid|vert)(?![A-Za-z])"
    r"|(?<![A-Za-z\\])(?:if|when|where|while|for|with|given|so|then|mod)(?![A-Za-z])"
)
"""What ends one statement and begins another, between two equals signs."""
_SECOND_NAME = re.compile(
    r"(?:(?:(?<![\^_\d])\d[\d.]*|(?<!\^)\{[^{}]*\}|\))\s+|(?<![A-Za-z\\])[A-Za-z]{2,}\s+|[^A-Za-z0-9\s)}\]+*/^_\\-]\s*"
    r"|\\(?!(?:cdot|times|div|pi|alpha|beta|theta|rho|sigma|Rightarrow|implies|Longrightarrow)\s)[A-Za-z]+\s+)"
    rf"(?<![A-Za-z\\]){NAME}\Z"
)
"""A letter that begins another equation: that of `13 y` in `x = 13 y = 12`."""
_OPERATED = re.compile(rf"(.+?)\s*[-+/]\s*{NAME}")


class Contradiction(Exception):
    """An equation between two different numbers."""


def value(text: str) -> Number | None:
    """The number that a text states, alone or in an equation; None for other texts.

    Raises `TooLarge`, and `Contradiction` on `59 = 60`.
    """
    if "=" not in text:
        return read_number(text)
    sides = cut(text, "=")
    values = [read_number(side) for side in sides]
    known = [number for number in values if number is not None]
    unknown = [side for number, side in zip(values, sides, strict=True) if number is None]
    if not known or not all(map(_is_expression, unknown)) or not is_chain(sides):
        return None
    if any(number.share != known[-1].share for number in known):
        raise Contradiction
    return known[-1]


def is_numeric(side: str) -> bool:
    """Whether a side of an equation has nothing but numbers in it, with roots, functions and a unit."""
    return _NUMERIC.fullmatch(side) is not None and re.search(r"\d|\\pi", side) is not None


def is_chain(sides: list[str]) -> bool:
    """Whether they say of one thing what it is: not of two, as in `x = 3 or x = 4`, nor what it is not.

    Raises `TooLarge`.
    """
    first, *middle, last = sides
    unknown = [side for side in middle if read_number(side) is None]
    if any(map(_DENIED.search, (first, *middle))) or any(map(_JOINED.search, (*unknown, last))):
        return False
    if any(_APART.search(side) or _SECOND_NAME.search(side) or _is_operated(side) for side in unknown):
        return False
    again = re.compile(rf"(?:\A|[^A-Za-z\\]){re.escape(first)}\Z")
    return not (re.fullmatch(NAME, first) and any(map(again.search, unknown)))


def _is_operated(side: str) -> bool:
    """`13 / y`, whose parts may well be those of two equations."""
    found = _OPERATED.fullmatch(side)
    return found is not None and is_numeric(found[1])


def _is_expression(side: str) -> bool:
    """Whether a side of an equation without a known value may be one: letters, no list, no relation, no ±."""
    is_one = len(split(side)[0]) == 1 and not re.search(r"[<>]|\\(?:pm|mp)(?![A-Za-z])", side)
    return is_one and re.search("[A-Za-z]", side) is not None
