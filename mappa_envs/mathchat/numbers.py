r"""Exact values of plain numbers: integers, decimals, fractions, percent, powers, factorials, roots, sums.

>>> read_number(r"1\frac{1}{2}").value, read_number("2^{10}").value, read_number("12.5%").percent
(Fraction(3, 2), Fraction(1024, 1), True)

No floats, so no two different numbers are ever taken for equal. The input is what `latex.plain` makes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_BITS = 30_000
"""Larger numbers are refused (`TooLarge`): a power tower must not cost a second."""
MAX_DEPTH = 40

_INTEGER = re.compile(r"[-+]?\d{1,400}")
_NUMBER = re.compile(
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)?"
    r"(?:\.(?:\d*\\overline\{\d+\}|\d+)|(?<=\d)\.(?!\d))?(?:[eE][-+]?\d{1,5}(?![\d.]))?"
)
_MANTISSA = re.compile(r"\d|\.\d|\.\\overline")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
_MIXED = re.compile(r"([-+]?)\s*(\d+) +(\d+)/(\d+)")
_TIMES = ("\\times", "\\cdot", "*")
_OVER = ("/", "\\div")

_SIZES = {
    "length": "mm millimeter/cm centimeter/m meter metre/km kilometer/in inch inche/ft foot feet/"
    "yard/mi mile",
    "time": "s sec second/min minute/h hr hour/day/week/month/year yr",
    "mass": "mg milligram/g gram/kg kilogram/oz ounce/lb pound",
    "volume": "mL ml milliliter millilitre/L liter litre/gallon",
    "money": "dollar USD/cent",
    "angle": "degree deg/rad radian",
    "": "unit/people/person/way/point/pair/solution",
}
UNITS = {
    word + plural: (kind, group.split()[0])
    for kind, groups in _SIZES.items()
    for group in groups.split("/")
    for word in group.split()
    for plural in ("", "s")
}
"""Words after a number that do not change it → what they measure, and in what size."""
UNITS["mph"] = ("length/time", "mi/h")
UNITS.update(
    (f"{degree} {scale}", ("temperature", scale[0]))
    for degree in ("degree", "degrees", "deg")
    for scale in ("C", "F", "Celsius", "Fahrenheit")
)

_NO_UNIT, _PERCENT = ("", ""), ("", "percent")
_NOT_UNITS = re.compile(
    r"\b(?:or|and|not|cannot|never|without|\w+n['’]t|maybe|either|(?:thousand|million|billion|trillion|hundred|"
    r"dozen|lakh|crore)s?|mille|basis|half|halves|halved|doubled|tripled|twice|(?<!-)zero|mod|modulo|base|if|"
    r"am|pm|a\.m|p\.m|more|less|than|over|above|below|plus|minus|times|divided|multiplied|raised|reduced|"
    r"increased|decreased|about|approximately|roughly|nearly|almost|around|at|"
    r"unless|except|squared|cubed|factorial|choose|i|pi|e|alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|"
    r"(?:var)?theta|iota|kappa|lambda|mu|nu|xi|omicron|rho|sigma|tau|upsilon|(?:var)?phi|chi|omega|infinity|"
    r"sqrt|root|log|ln|exp|sin|cos|tan|is|are|was|were|wrong|incorrect|false|probably|possibly|perhaps|likely|guess|"
    r"unsure|percentage|thirds?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|twentie|hundred|thousand|million)ths?|"
    r"score|gross)\b|\b(?:negative|binary|octal|hexadecimal|reciprocal|inverse|double|triple)\Z",
    re.IGNORECASE,
)
_SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_SCALED = re.compile(
    rf"(.*?[\d.}})!])\s*(\\text\{{\s*)?({'|'.join(_SCALES)})s?(?:\s+([A-Za-z ]*?))?\s*(\}})?\.?", re.DOTALL
)
_POWER_OF_UNIT = r"(?:\^\{?[23]\}?)?"
_TEXT_TAIL = re.compile(r"(.*?[\d.})!%])\s*\\text\{([^{}\d\\]*)\}\s*" + _POWER_OF_UNIT, re.DOTALL)
_BARE_TAIL = re.compile(
    r"(.*?(?:[\d.})!]|\\pi ?))\s*((?:(?:square|cubic|sq\.?)\s+)?[A-Za-z]+(?:/[A-Za-z]+)?)\.?"
    + _POWER_OF_UNIT,
    re.DOTALL,
)
_BARE_WORDS = re.compile(r"(.*?[\d.})!])\s+([A-Za-z]{4,}(?:\s+[A-Za-z]{2,})*)\.?", re.DOTALL)


class TooLarge(ArithmeticError):
    """A number of more than `MAX_BITS` bits, or in more than `MAX_DEPTH` brackets."""


@dataclass(frozen=True)
class Number:
    """An exact value. `percent`: it is written with a percent sign, which `value` does not contain yet."""

    value: Fraction
    percent: bool = False
    unit: tuple[str, str] = _NO_UNIT

    @property
    def share(self) -> Fraction:
        """The value with the percent sign worked in."""
        return self.value / 100 if self.percent else self.value


def equal(gold: Number, answer: Number) -> bool:
    """Whether they are the same number. "60%" as gold also takes 60 and 0.6; a gold of 60 does not take 60%.

    Units are optional, but 5 cm is not 5 m.
    """
    if gold.unit[0] == answer.unit[0] and gold.unit != answer.unit and gold.unit[0]:
        return False
    if gold.percent and not answer.percent:
        return answer.value in (gold.value, gold.share)
    if answer.percent and not gold.percent and gold.value.denominator == 1:
        return False
    return gold.share == answer.share


def read_number(text: str) -> Number | None:
    """The number, if the text is one and nothing else. Raises `TooLarge`."""
    if _INTEGER.fullmatch(text):
        return Number(Fraction(int(text)))
    text = text.strip()
    mixed = _MIXED.fullmatch(text)
    if mixed and int(mixed[4]):
        size = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return Number(-size if mixed[1] == "-" else size)
    scale = 1
    if (found := _SCALED.fullmatch(text)) and bool(found[2]) == bool(found[5]):
        scale, text = _SCALES[found[3]], f"{found[1]}\\text{{{found[4]}}}" if found[4] else found[1]
    text, unit = _without_unit(text)
    percent = text.endswith("%") or unit is _PERCENT
    value = _Reader(text.removesuffix("%").strip()).whole()
    return None if value is None else Number(value * scale, percent, _NO_UNIT if percent else unit)


def _without_unit(text: str) -> tuple[str, tuple[str, str]]:
    """The text before a unit, and the entry of `UNITS`."""
    if found := _TEXT_TAIL.fullmatch(text):
        words = found[2].strip(" .")
        if words in ("percent", "per cent", "percents"):
            return found[1], _PERCENT
        if not _NOT_UNITS.search(words):
            return found[1].strip(), unit_of(words) or _NO_UNIT
    elif found := _BARE_TAIL.fullmatch(text):
        words = re.sub(r"\s+", " ", found[2])
        if words == "percent":
            return found[1], _PERCENT
        if unit := unit_of(words):
            return found[1].strip(), unit
    if (found := _BARE_WORDS.fullmatch(text)) and not _NOT_UNITS.search(found[2]):
        return found[1].strip(), unit_of(found[2]) or _NO_UNIT
    return text, _NO_UNIT


def unit_of(words: str) -> tuple[str, str] | None:
    """What `square cm`, `m/s` or `miles per hour` measures, and in what size; None for other words."""
    words = re.sub(r"\A(?:square|cubic|sq\.?)\s+", "", " ".join(words.split()))
    parts = [UNITS.get(part) for part in re.split(r" ?/ ?| per ", words)]
    kinds, sizes = [part[0] for part in parts if part], [part[1] for part in parts if part]
    return ("/".join(kinds), "/".join(sizes)) if None not in parts and len(parts) <= 2 else None


def without_bare_unit(text: str) -> str:
    r"""`6\pi cm` without the unit, which must be a word: a letter may be a factor."""
    found = _BARE_TAIL.fullmatch(text)
    is_unit = found and len(found[2]) > 1 and found[2].split()[-1] in UNITS
    return found[1] if found and is_unit else text


class _Reader:
    """A calculator for LaTeX, by recursive descent: `None` means "not a plain number"."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def whole(self) -> Fraction | None:
        if len(self.text) > 4000 or not re.search(r"\d", self.text):
            return None
        try:
            value = self._sum()
        except (_NotPlain, ZeroDivisionError):
            return None
        self._skip()
        return value if self.at == len(self.text) else None

    def _sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = _checked(value + other if sign == "+" else value - other)
        self.depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            if self._take(*_TIMES):
                value = _checked(value * self._signed())
            elif self._take(*_OVER):
                value = _checked(value / self._signed())
            elif self._peek("("):
                value = _checked(value * self._power())
            else:
                return value

    def _signed(self) -> Fraction:
        negative = False
        while sign := self._take("+", "-"):
            negative ^= sign == "-"
        value = self._power()
        return -value if negative else value

    def _power(self) -> Fraction:
        base = self._atom()
        while self._take("!"):
            base = _factorial(base)
        if not self._take("^"):
            return base
        value = _power(base, self._argument())
        if self._peek("^"):
            raise _NotPlain
        return value

    def _atom(self) -> Fraction:
        self._skip()
        if self._take("("):
            return self._closed(")")
        if self._take("{"):
            return self._closed("}")
        if self._take("\\frac"):
            above = self._argument()
            return _checked(above / self._argument())
        if self._take("\\sqrt"):
            return _root(self._argument())
        if self._take("\\binom"):
            return _binomial(self._argument(), self._argument())
        return self._number()

    def _number(self) -> Fraction:
        found = _NUMBER.match(self.text, self.at)
        if not found or not _MANTISSA.match(found[0]):
            raise _NotPlain
        self.at = found.end()
        value = _decimal(found[0])
        if found[0].isdecimal() and self._take("\\frac"):
            above, below = self._argument(), self._argument()
            if not 0 < above < below:
                raise _NotPlain
            return value + above / below
        return value

    def _argument(self) -> Fraction:
        """A group in braces, or one digit, as LaTeX reads `\\frac12`."""
        self._skip()
        if self._take("{"):
            return self._closed("}")
        digit = self.text[self.at : self.at + 1]
        if not (digit.isascii() and digit.isdecimal()):
            raise _NotPlain
        self.at += 1
        return Fraction(int(digit))

    def _closed(self, bracket: str) -> Fraction:
        value = self._sum()
        if not self._take(bracket):
            raise _NotPlain
        return value

    def _take(self, *words: str) -> str:
        self._skip()
        for word in words:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return word
        return ""

    def _peek(self, word: str) -> bool:
        self._skip()
        return self.text.startswith(word, self.at)

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1


class _NotPlain(Exception):
    """The text is no plain number."""


def _decimal(text: str) -> Fraction:
    digits = re.sub("[, ]", "", text)
    if found := _REPEATING.fullmatch(digits):
        whole, fixed, period = found.groups()
        ones = 10 ** len(fixed)
        tail = Fraction(int(period), ones * (10 ** len(period) - 1))
        return Fraction(int(whole or "0")) + Fraction(int(fixed or "0"), ones) + tail
    mantissa, _, exponent = digits.lower().partition("e")
    # 10 ** 9000 has 30 000 bits.
    if exponent and abs(int(exponent)) > 9000:
        raise TooLarge
    return _checked(Fraction(mantissa.removesuffix(".")) * Fraction(10) ** int(exponent or "0"))


def _checked(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooLarge
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NotPlain
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(exponent) * bits > MAX_BITS and base not in (0, 1, -1):
        raise TooLarge
    if base == 0 and exponent <= 0:
        raise _NotPlain
    return _checked(base ** (int(exponent) % 2 if base in (1, -1) else int(exponent)))


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise _NotPlain
    if value > 3000:
        raise TooLarge
    return _checked(Fraction(math.factorial(int(value))))


def _root(value: Fraction) -> Fraction:
    above, below = math.isqrt(max(value.numerator, 0)), math.isqrt(value.denominator)
    if value < 0 or above**2 != value.numerator or below**2 != value.denominator:
        raise _NotPlain
    return Fraction(above, below)


def _binomial(above: Fraction, below: Fraction) -> Fraction:
    if above.denominator != 1 or below.denominator != 1 or min(above, below) < 0:
        raise _NotPlain
    if above > 3000:
        raise TooLarge
    return _checked(Fraction(math.comb(int(above), int(below))))
