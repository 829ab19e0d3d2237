r"""When two answers say the same: our own rules, and a question to math-verify where they have no verdict.

>>> same("[0, 1)", "0 \\le x < 1", ask=never)
True

Numbers compare exactly, texts as words, tuples and intervals in order and with their brackets, sets and bare
lists in any order. An answer with more parts than the gold is wrong: a guess among several does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from mappa_envs.mathchat.latex import plain
from mappa_envs.mathchat.numbers import Number, TooLarge, equal, read_number, unit_of, without_bare_unit

Ask = Callable[[str, str], bool]
"""`ask(gold, answer)`: are these two, neither a plain number nor words, the same?"""

MAX_PARTS = 60
MAX_DEPTH = 8

_HEDGE = re.compile(
    r"\\(?:ldots|le|ge|ne|neg|lnot|not|pm|mp|approx|sim|cup|in)(?![A-Za-z])|[<>?‰]|(?<![\d_])\d+\s+\d|\bor\b|\\text|[^\W\d_]{4,}"
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_OR = re.compile(
    r"\\text\{\s*,?\s*(?:or|and)\b\s*([^{}]*)\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])"
    r"|\\(?:lor|vee)(?![A-Za-z])"
)
_AND = re.compile(r"\\text\{\s*,?\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_NO_END, _NO_START = re.compile(r"([(\[].+),\\infty\)"), re.compile(r"\(-\\infty,(.+[)\]])")
"""Intervals with one end, and that end with its bracket."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z' .,-]*")
_CHOICE = re.compile(r"\(?\s*([A-Ja-j])\s*\)?")
_OPTION = re.compile(r"\A(?:option|choice)\s+", re.IGNORECASE)
_ARTICLE = re.compile(r"\A(?:there (?:is|are) |(?:a|an|the) (?=\w{3}))")
_SOLUTIONS = re.compile(r"\bsolutions\b")
_CHOICE_AND_MORE = re.compile(r"(?:\\text\{)?\s*(?:\((?=[A-Ja-j]\))|(?=[A-J][.):][\s}]))([A-Ja-j])")
_OTHER_CHOICE = re.compile(
    r"(?:[().,;:/]|\b(?:or|and|no|not|but|maybe|perhaps)\b)\s*(?:\\text\{)?\s*\(?[A-HJ](?![\w'’])\s*"
    r"(?:[).,;:}]|\\text\{\s*(?:or|and)\b|(?:or|and)\b|\Z)"
)
"""A second choice after the first: a guess."""
_IS_WORD = re.compile(r"[A-Za-z]{4}|\b(?i:yes|no|odd)\b|\A[A-Z]{3}\Z")
_NAME = r"[A-Za-z](?:_\{?\w+\}?)?"
_ASSIGNED = re.compile(r"([A-Za-z])(?:_\{?\w+\}?)?\s*=")
_EQUATION = re.compile(rf"(?!{_NAME}\s*=)[^=]+=[^=]+")
"""What is no assignment: as a gold, the whole of it is the answer."""
_BELOW = re.compile(rf"{_NAME}\s*(\\le|<)(.+)|(.+)(\\ge|>)\s*{_NAME}")
_ABOVE = re.compile(rf"{_NAME}\s*(\\ge|>)(.+)|(.+)(\\le|<)\s*{_NAME}")
_BETWEEN = re.compile(rf"(.+?)(\\le|<)\s*{_NAME}\s*(\\le|<)(.+)")
_FALLING = re.compile(rf"(.+?)(\\ge|>)\s*{_NAME}\s*(\\ge|>)(.+)")
_BUT = re.compile(rf"{_NAME}\s*\\ne(?![A-Za-z])([^,;]+)")
_REALS = re.compile(
    rf"(?:{_NAME}\s*\\in\s*)?\\mathbb\s*(?:R|\{{\s*R\s*\}})|(?:\\text\{{)?all real numbers\}}?", re.IGNORECASE
)
_ALL_BUT = re.compile(
    rf"(?:{_NAME}\s*\\in\s*)?\\mathbb\s*(?:R|\{{\s*R\s*\}})\s*(?:\\setminus|\\backslash|-)\s*\\\{{(.+)\\\}}"
    rf"|(?:\\text\{{)?all real numbers except\}}?\s*(?:{_NAME}\s*=\s*)?([^\s,;][^,;]*)",
    re.IGNORECASE,
)
"""The real numbers without some: `\\mathbb{R} \\setminus \\{0\\}`."""
_TURNED = re.compile(r"([\[\]])([^\[\](){},;]+),([^\[\](){},;]+)([\[\]])")
"""An interval with brackets turned outwards where an end is left out: `]0, 1]`."""
_SUCH_THAT = re.compile(
    rf"\\{{\s*{_NAME}\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?(?:\||:|\\(?:mid|vert)(?![A-Za-z]))(.+)\\}}"
)
_MEMBER = re.compile(
    rf"(?:{_NAME}|\(\s*{_NAME}(?:\s*,\s*{_NAME})+\s*\))\s*(?:\\in(?![A-Za-z])|=)\s*(?=[(\[{{]|\\{{)"
)
"""What names a tuple, set or interval: `x \\in`, `A =`, `(x, y) =`."""
_ROUNDED = re.compile(r"(.+?)\\approx\s*([-+]?\d*(?:\.(\d+))?)")
_BASE = re.compile(r"\d_(?:(\w)|\{(\w+)\})")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_OPEN, _CLOSE = ("(", "[", "\\{", "{"), (")", "]", "\\}", "}")
_BRACKET = re.compile(r"\\[{}]|[()\[\]{},;]|\\.", re.DOTALL)


@dataclass(frozen=True)
class _Group:
    """Parts and the brackets around them; "" for a bare list. Braces and bare lists have no order."""

    brackets: str
    parts: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets not in ("", "\\{\\}")


def same(gold: str, answer: str, ask: Ask) -> bool:
    """Whether the answer, in LaTeX, is right. `ask` decides what these rules leave open."""
    return _same(plain(gold), _exact(plain(answer)), ask, 0)


def _exact(answer: str) -> str:
    r"""Without what rounds it, as in `\frac{1}{3} \approx 0.33`; unchanged where that is no such thing."""
    found = _ROUNDED.fullmatch(answer)
    if not found or not re.search(r"\d", found[2]):
        return answer
    before = found[1].strip()
    try:
        exact = _value(before)
    except (TooLarge, _Contradiction):
        return answer
    half = Fraction(1, 2 * 10 ** len(found[3] or ""))
    is_rounded = exact is None or abs(exact.value - Fraction(found[2])) <= half
    return before if is_rounded else answer


def _same(gold: str, answer: str, ask: Ask, depth: int) -> bool:
    if not answer or depth > MAX_DEPTH:
        return False
    if _squeezed(gold) == _squeezed(answer):
        return True
    words = _as_words(gold)
    choice = _CHOICE_AND_MORE.match(answer)
    if words is None and _CHOICE.fullmatch(gold) and (choice or _as_words(answer)):
        words = gold.lower()
    if words is not None:
        if len(words) > 1 or (choice and _OTHER_CHOICE.search(answer, choice.end())):
            choice = None
        given_words = choice[1].lower() if choice else _as_words(answer)
        return words == (given_words or _as_words(f"\\text{{{answer}}}"))
    try:
        wanted = None if _EQUATION.fullmatch(gold) else _value(gold)
    except (TooLarge, _Contradiction):
        wanted = None
    try:
        given = _value(answer)
    except (TooLarge, _Contradiction):
        return False
    if wanted is not None and given is not None:
        return equal(wanted, given)
    return _compare_parts(gold, answer, wanted, ask, depth)


def _compare_parts(gold: str, answer: str, wanted: Number | None, ask: Ask, depth: int) -> bool:
    left, right = _group(gold), _group(answer)
    if left is not None or right is not None:
        left, right = left or _Group("", (gold,)), right or _Group("", (answer,))
        return _same_groups(left, right, ask, depth + 1)
    if wanted is not None and _HEDGE.search(_COMMAND.sub(_kept_command, answer)):
        return False
    said, replied = _texts(gold), _texts(answer)
    # math-verify passes over text, and over the base of a number.
    if (said and replied and said != replied) or _bases(answer) - _bases(gold):
        return False
    bare = without_bare_unit(answer)
    return ask(gold, answer) or (bare != answer and ask(gold, bare))


def _bases(text: str) -> set[str]:
    return {one or other for one, other in _BASE.findall(text)} - {"10"}


def _texts(text: str) -> set[str]:
    """The words of every `\\text{…}` in lower case, a unit by its size."""
    said = (" ".join(words.replace(".", "").split()) for words in _TEXT.findall(text.lower()))
    return {unit[1] if (unit := unit_of(words)) else words for words in said}


def _kept_command(found: re.Match[str]) -> str:
    return found[0] if _HEDGE.fullmatch(found[0]) else " "


def _same_groups(gold: _Group, answer: _Group, ask: Ask, depth: int) -> bool:
    if max(len(gold.parts), len(answer.parts)) > MAX_PARTS:
        return False
    if gold.brackets and answer.brackets and gold.brackets != answer.brackets:
        return False
    if len(gold.parts) == 1 and answer.parts and not answer.ordered:
        # The same said twice, as in "3/4 or 0.75".
        return all(_same(gold.parts[0], part, ask, depth) for part in answer.parts)
    if len(gold.parts) != len(answer.parts):
        return False
    wanted, given = _by_letter(gold.parts), _by_letter(answer.parts)
    if wanted and given and wanted.keys() == given.keys() and not answer.ordered:
        return all(_same(part, given[letter], ask, depth) for letter, part in wanted.items())
    if gold.ordered or answer.ordered or wanted:
        return all(_same(a, b, ask, depth) for a, b in zip(gold.parts, answer.parts, strict=True))
    left = list(answer.parts)
    for part in gold.parts:
        match = next((other for other in left if _same(part, other, ask, depth)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _by_letter(parts: tuple[str, ...]) -> dict[str, str]:
    """The parts by the letter that each says the value of, where these are different letters; else {}."""
    found = {name[1]: part for part in parts if (name := _ASSIGNED.match(part))}
    return found if len(found) == len(parts) else {}


class _Contradiction(Exception):
    """An equation between two different numbers."""


def _value(text: str) -> Number | None:
    """The number that a text states, as `60`, `x = 60`, `60 = x` or `59 + 1 = 60`.

    Raises `TooLarge`, and `_Contradiction` on `59 = 60`.
    """
    if "=" not in text:
        return read_number(text)
    sides = [side.strip() for side in text.split("=")]
    values = [read_number(side) for side in sides]
    known = [value for value in values if value is not None]
    unknown = [side for value, side in zip(values, sides, strict=True) if value is None]
    if not known or any(not re.search("[A-Za-z]", side) or re.search("[,<>]", side) for side in unknown):
        return None
    if any(value.share != known[-1].share for value in known):
        raise _Contradiction
    return known[-1]


def _squeezed(text: str) -> str:
    """Without blanks, but for those between digits, and whether a word stands in `\\text` or not."""
    return re.sub(r"\s+", "", re.sub(r"(?<=\d)\s+(?=\d)", "_", _TEXT.sub(r"\1", text)))


def _as_words(text: str) -> str | None:
    r"""The text in lower case, if it is `\text{…}`, a word of four letters or more, or a choice `(B)`."""
    body = text.strip()
    if body == "\\emptyset":
        return "no solution"
    choice = _CHOICE.fullmatch(body)
    if choice and "(" in body:
        return choice[1].lower()
    inner = re.fullmatch(r"\\text\{([^{}]*)\}", body)
    body = inner[1].strip() if inner else body
    named = _OPTION.sub("", body)
    if (inner or named != body) and (choice := _CHOICE.fullmatch(named)):
        return choice[1].lower()
    if _WORDS.fullmatch(body) and (inner or _IS_WORD.search(body)):
        words = " ".join(re.sub(r"[.,]", " ", body).split()).lower()
        return _SOLUTIONS.sub("solution", _ARTICLE.sub("", words))
    return None


def _group(text: str) -> _Group | None:
    """The parts of a list, tuple, interval, set or union; None for anything else."""
    if found := _SUCH_THAT.fullmatch(text):
        text = found[1].strip()
    elif found := _MEMBER.match(text):
        text = text[found.end() :]
    text = _both_bounds(text)
    text = _OR.sub(lambda found: f", {found[1] or ''}", text)
    united = [part.strip() for part in _CUP.split(text)]
    if len(united) > 1 and all(
        _split(part)[1] or _interval(part) or _LETTER.fullmatch(part) for part in united
    ):
        text = ",".join(_interval(part) or part for part in united)
    text = _interval(text) or text
    found_group = _bracketed(text)
    if text.count("\\pm") == 1 and (found_group is None or found_group.ordered):
        return _Group("", _both_signs(text))
    if found_group is None or found_group.ordered:
        return found_group
    parts = [sign for part in found_group.parts for sign in _both_signs(part)]
    return _Group(found_group.brackets, tuple(parts))


def _both_bounds(text: str) -> str:
    """`x > 0 and x < 1` as the interval (0,1): "and" narrows, where "or" adds. Else unchanged."""
    sides = [side.strip() for side in _AND.split(text)]
    if len(sides) != 2 or not set.intersection(*(set(_LETTER.findall(side)) for side in sides)):
        return text
    for one, other in (sides, sides[::-1]):
        above, below = _NO_END.fullmatch(_interval(one) or ""), _NO_START.fullmatch(_interval(other) or "")
        if above and below:
            return f"{above[1]},{below[1]}"
    return text


def _both_signs(text: str) -> tuple[str, ...]:
    if text.count("\\pm") != 1:
        return (text,)
    return text.replace("\\pm", "+"), text.replace("\\pm", "-")


def _bracketed(text: str) -> _Group | None:
    for _ in range(MAX_DEPTH):
        parts, whole = _split(text)
        if len(parts) > 1:
            return _Group("", tuple(parts))
        if whole is None:
            return None
        opening, closing = whole
        inner, _pair = _split(text[len(opening) : len(text) - len(closing)])
        if opening in ("(", "{") and len(inner) == 1:
            text = inner[0]  # brackets around one expression
            continue
        # Whoever forgets the backslashes means a set all the same.
        return _Group("\\{\\}" if opening == "{" else opening + closing, tuple(inner))
    return None


def _interval(text: str) -> str | None:
    """The interval that a text means but does not write as one."""
    if found := _TURNED.fullmatch(text):
        return "(["[found[1] == "["] + f"{found[2]},{found[3]}" + ")]"[found[4] == "]"]
    if len(_split(text)[0]) > 1:
        return None
    if _REALS.fullmatch(text):
        return "(-\\infty,\\infty)"
    if found := _BUT.fullmatch(text):
        return _without([found[1]])
    if found := _ALL_BUT.fullmatch(text):
        return _without(_split(found[1] or found[2])[0])
    if found := _BETWEEN.fullmatch(text):
        return _brackets(found[2]) + f"{found[1]},{found[4]}" + _brackets(found[3], closing=True)
    if found := _FALLING.fullmatch(text):
        return _brackets(found[3]) + f"{found[4]},{found[1]}" + _brackets(found[2], closing=True)
    if found := _BELOW.fullmatch(text):
        return "(-\\infty," + (found[2] or found[3]) + _brackets(found[1] or found[4], closing=True)
    if found := _ABOVE.fullmatch(text):
        return _brackets(found[1] or found[4]) + (found[2] or found[3]) + ",\\infty)"
    return None


def _without(points: list[str]) -> str | None:
    """The real numbers without these, as intervals; None where their order is not known."""
    try:
        values = [_value(point) for point in points]
    except (TooLarge, _Contradiction):
        return None
    known = [value.share for value in values if value is not None]
    if len(known) == len(points):
        points = [point for _, point in sorted(zip(known, points, strict=True))]
    elif len(points) != 1:
        return None
    ends = ["-\\infty", *points, "\\infty"]
    return ",".join(f"({low},{high})" for low, high in pairwise(ends))


def _brackets(relation: str, *, closing: bool = False) -> str:
    return "()"[closing] if relation in "<>" else "[]"[closing]


def _split(text: str) -> tuple[list[str], tuple[str, str] | None]:
    """Parts between the commas outside brackets; and the outer brackets, if one pair spans the text."""
    stack: list[str] = []
    parts, start, pair = [], 0, None
    text = text.strip()
    for token in _BRACKET.finditer(text):
        word = token[0]
        if word in _OPEN:
            stack.append(word)
        elif word in _CLOSE and stack:
            opening = stack.pop()
            if not stack and token.end() == len(text) and text.startswith(opening) and _first_end(text):
                pair = (opening, word)
        elif word in ",;" and not stack:
            parts.append(text[start : token.start()].strip())
            start = token.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part], pair


def _first_end(text: str) -> bool:
    """Whether the bracket that begins the text is closed by the one that ends it, and not before."""
    depth = 0
    for token in _BRACKET.finditer(text):
        if token[0] in _OPEN:
            depth += 1
        elif token[0] in _CLOSE:
            depth -= 1
            if depth == 0:
                return token.end() == len(text)
    return False
