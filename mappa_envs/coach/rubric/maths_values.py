r"""The values in a program's output, and whether another value is one of them.

A program may print steps, labels, tables and formulas, so every line and every number of its output may be
its result. A value is refuted only if the last line is plainly a number, the value is a number, too, and none
of the output may be it, rounded or not. Formulas are never refuted: `sqrt(3)/2` may be written in many ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from mappa_envs.coach.rubric.injection import without_address
from mappa_envs.mathchat.equations import Contradiction, value
from mappa_envs.mathchat.equivalence import same
from mappa_envs.mathchat.latex import plain

NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,400})(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:/\d+)?"
NOISE = Fraction(1, 10**6)
"""What floating-point arithmetic may change, as a share."""
MAX_CHARS, MAX_LINES, MAX_NUMBERS, MAX_TEXTS = 4000, 40, 400, 40

_PLAIN = re.compile(
    rf"(?:[^\n]{{0,150}}?(?:[:=]|\b(?:is|are)\b))?\s*[$€]?\s*({NUMBER})\s*(?:[A-Za-z%°]{{1,20}}\s*){{0,3}}\.?"
)
_LABEL = re.compile(r"[^:=]{1,100}[:=]\s*(?=\S)")
_ANY_NUMBER = re.compile(rf"{NUMBER}|\d+")
_PYTHON = (
    (r"\*\*", "^"),
    (r"\bsqrt\b|\\sqrt", "sqrt"),
    (r"\\(?:left|right|[,;! ])|[\s{}()\[\]*]|\\cdot", ""),
)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a program printed: what may be the result, all values in it, whether it ends in a plain number."""

    results: tuple[str, ...]
    values: tuple[str, ...]
    is_plain: bool

    @property
    def result(self) -> str:
        """The likely one."""
        return self.results[-1]

    @cached_property
    def numbers(self) -> dict[str, Fraction]:
        """The numbers in it, by how they are written."""
        found = {one: number_of(one) for one in self.values if re.fullmatch(NUMBER, one)}
        return {text: number for text, number in found.items() if number is not None}

    def shows(self, answer: str | None) -> bool:
        """Whether the value is in it."""
        wanted = None if answer is None else number_of(answer)
        if wanted is not None:
            return any(_is_noise(wanted, one) for one in self.numbers.values())
        texts = [one for one in self.values if one not in self.numbers]
        return any(agree(answer, one) for one in texts[-MAX_TEXTS:])

    def refutes(self, answer: str | None) -> bool:
        """Whether the value is certainly another one than all that are in it."""
        wanted = None if answer is None else number_of(answer)
        if answer is None or wanted is None or not self.is_plain:
            return False
        return not any(_may_be(answer, wanted, *one) for one in self.numbers.items())


def output_of(text: str) -> Output | None:
    """Read an output; None for an empty one."""
    lines = [line.strip()[:300] for line in without_address(text[-MAX_CHARS:]).splitlines() if line.strip()]
    if not lines:
        return None
    lines = lines[-MAX_LINES:]
    found = [(_PLAIN.fullmatch(line) or _PLAIN.fullmatch(_without_remark(line))) for line in lines]
    numbers = [match[1] for match in found if match]
    values = []
    for line in lines:
        values += [line, _LABEL.sub("", line, count=1).rstrip(".")]
    values += _ANY_NUMBER.findall("\n".join(lines))[-MAX_NUMBERS:]
    return Output(
        results=tuple(numbers) or (lines[-1][:200],),
        values=tuple(dict.fromkeys(values)),
        is_plain=found[-1] is not None,
    )


def agree(first: str | None, second: str | None) -> bool:
    """Whether both are there and the same: by the exact rules, but for floating-point noise."""
    if first is None or second is None:
        return False
    first, second = first[:2000], second[:2000]
    if re.fullmatch(r"-?\d{1,18}", first) and re.fullmatch(r"-?\d{1,18}", second):
        return int(first) == int(second)
    is_formula = re.search(r"[A-Za-z,(\\[{]", first) is not None
    if (is_formula and _squeezed(first) == _squeezed(second)) or same(first, second, lambda *_: False):
        return True
    one, other = number_of(first), number_of(second)
    return one is not None and other is not None and _is_noise(one, other)


@lru_cache(maxsize=4096)
def number_of(text: str) -> Fraction | None:
    """The number that a text is."""
    try:
        found = value(plain(text[:500]))
    except (ArithmeticError, Contradiction, ValueError):
        return None
    return None if found is None else found.share


def numbers_in(text: str) -> list[str]:
    """The numbers of a text, as they stand there."""
    return _ANY_NUMBER.findall(text[-MAX_CHARS:])[-MAX_NUMBERS:]


def hedges(boxed: str, output: Output | None) -> bool:
    """Whether the box leaves open which of several numbers it is: no tuple, no list that was computed."""
    numbers = re.findall(rf"(?<![\w.]){NUMBER}", boxed[:500])
    if len(numbers) < 2 or (output is not None and all(map(output.shows, numbers))):
        return False
    if re.search(r"\bor\b", boxed):
        return output is None or output.is_plain
    is_list = re.search(r",|;|\\quad", boxed) is not None and not re.match(
        r"\s*(?:\\left|\\)?\s*[(\[{]", boxed
    )
    return is_list and output is not None and output.is_plain and len(set(numbers_in(output.result))) == 1


def _may_be(answer: str, wanted: Fraction, other: str, found: Fraction) -> bool:
    """Whether a value may be the other one, rounded, or in per cent."""
    if _is_noise(wanted, found):
        return True
    if wanted.denominator == 1 == found.denominator:
        return False
    whole, part = (wanted, found) if found.denominator > 1 else (found, wanted)
    if whole.denominator == 1:
        return abs(whole - part) < 1 or whole == 100 * part
    places = min(len(text.partition(".")[2]) for text in (answer, other))
    return abs(wanted - found) <= Fraction(1, 10**places) and places > 0


def _is_noise(one: Fraction, other: Fraction) -> bool:
    if one == other:
        return True
    is_float = one.denominator > 1 or other.denominator > 1
    return is_float and abs(one - other) <= NOISE * max(abs(one), abs(other))


def _squeezed(text: str) -> str:
    """A formula without what Python and LaTeX write differently."""
    text = re.sub(r"\\[dt]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\bI\b", "i", text.replace("\\pi", "pi").replace("\\infty", "oo"))
    for pattern, instead in _PYTHON:
        text = re.sub(pattern, instead, text)
    return text.strip("$.")


def _without_remark(line: str) -> str:
    return re.sub(r"\s*\([^()]*\)\.?\Z", "", line)
