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

from mappa_envs.mathchat.equations import Contradiction, is_chain, is_numeric, value
from mappa_envs.mathchat.intervals import NAME, REALS, both_bounds, interval, without_points
from mappa_envs.mathchat.latex import plain
from mappa_envs.mathchat.numbers import Number, TooLarge, equal, unit_of, without_bare_unit
from mappa_envs.mathchat.parts import both_signs, cut, is_balanced, split

Ask = Callable[[str, str], bool]
"""`ask(gold, answer)`: are these two, neither a plain number nor words, the same?"""

MAX_PARTS = 60
MAX_DEPTH = 8

_FORMULA = re.compile(
    r"(?:\\(?:frac|sqrt|binom|cdot|times|div|pi|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|ln|log|exp|[lr](?:floor|ceil|vert)"
    r"|sum|prod|int|lim|max|min|gcd|infty|to)(?![A-Za-z])|[A-Za-z\d\s.,=|{}()\[\]+*/^!_%-])+"
)
_LOOSE = re.compile(
    r"(?<![\d_])\d+\s+\d|(?<![A-Za-z\\])(?:or|and|[A-Za-z]{4,})(?![A-Za-z])|_\s*\\|\A[^|]*(?:\|[^|]*\|[^|]*)*\|[^|]*\Z"
)
"""In a formula, two numbers side by side, words, or half a pair of bars."""
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_OR = re.compile(
    r"\\text\{\s*,?\s*\(?(?i:or|and)\b\)?\s*([^{}]*)\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])"
    r"|\\(?:lor|vee)(?![A-Za-z])"
)
_EITHER = re.compile(r"\\text\{\s*,?\s*\(?(?i:or)\b|(?<![A-Za-z\\])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' .,-]*")
_CHOICE = re.compile(r"\(?\s*([A-Ja-j])\s*\)?")
_OPTION = re.compile(r"\A(?:option|choice)\s+", re.IGNORECASE)
_ARTICLE = re.compile(r"\A(?:there (?:is|are) |(?:a|an|the) (?=\w{3}))")
_SOLUTIONS = re.compile(r"\bsolutions\b")
_MISSING = re.compile(r"dne|d n e|(?:it |(?:such an? |this )?\w+ )?(?:does not|doesn['’]t) exist")
_CHOICE_AND_MORE = re.compile(r"(?:\\text\{)?\s*(?:\((?=[A-Ja-j]\))|(?=[A-J][.):][\s}]))([A-Ja-j])")
_OTHER_CHOICE = re.compile(
    r"(?:[().,;:/]|\b(?:or|and|no|not|but|maybe|perhaps)\b)\s*(?:\\text\{)?\s*\(?[A-HJ](?![\w'’])\s*"
    r"(?:[).,;:}]|\\text\{\s*(?:or|and)\b|(?:or|and)\b|\Z)"
)
"""A second choice after the first: a guess."""
_IS_WORD = re.compile(r"[A-Za-z]{4}|\b(?i:yes|no|odd)\b|\A[A-Z]{3}\Z")
_ASSIGNED = re.compile(r"([A-Za-z])(?:_\{?\w+\}?)?\s*=")
_EQUATION = re.compile(rf"(?!{NAME}\s*=)[^=]+=[^=]+")
"""What is no assignment: as a gold, the whole of it is the answer."""
_SUCH_THAT = re.compile(
    rf"\\{{\s*{NAME}\s*(?:\\in\s*\\mathbb\s*\{{?R\}}?\s*)?(?:\||:|\\(?:mid|vert)(?![A-Za-z]))(.+)\\}}"
)
_MEMBER = re.compile(
    rf"(?:{NAME}|\(\s*{NAME}(?:\s*,\s*{NAME})+\s*\))\s*(?:\\in(?![A-Za-z])|=)\s*(?=[(\[{{]|\\{{)"
)
"""What names a tuple, set or interval: `x \\in`, `A =`, `(x, y) =`."""
_SIGNED = re.compile(r"([-+])\s*(?=\()")
_ROUNDED = re.compile(
    r"(.+?)(?:\\approx|\(\s*\\approx(?=.*\)\Z))\s*(?=[-+.\d])([-+]?\d*(?:\.(\d+))?)(?:\s*\\ldots)?"
    r"(?:\s*\\text\{[^{}]*\}(?:\^\{?[23]\}?)?)?\s*\)?"
)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([-/])\d{1,2}\1\d{4}")
_MEASURE = re.compile(r"([-+]?\d[\d.,/]*\s*(?:(\\text\{[^{}]*\})|([A-Za-z]{2,})))[\s,]*(?:and\s+)?")
_RATIO = re.compile(r"[\d})]\s*:")
_COORDINATE = re.compile(r"([xyz])\s*=")
_RETRACTED = re.compile(
    r"\b(?:not|never|wrong|incorrect|false|maybe|perhaps|probably|possibly|likely|guess|unsure|most|least|more|"
    r"less|about|approximately|roughly|nearly|almost|around|(?:hundred|thousand|million|billion|trillion|dozen)s?)"
    r"\b|n['’]t\b"
)
"""Words beside an answer that make it another one, or none."""
_RELATION = re.compile(r"\\(?:approx|sim|cong|equiv|to|mapsto|ne|iff|(?:L|l)eftrightarrow)(?![A-Za-z])|\?")
_BELOW = re.compile(r"_\{[^{}]*\}")
_BETWEEN = re.compile(
    r"[\d})]\s*\\text\{\s*(?!(?:for|where|with|when|if|such that)\b)([^{}]*?)\s*\}\s*(?=[-+\d\\(])"
)
_BASE = re.compile(r"\d_(?:(\w)|\{(\w+)\})")
_MEASURED = re.compile(
    r"(?:\\text\{([^{}]*)\}|(?<![A-Za-z\\])((?:sq\. ?)?[A-Za-z][A-Za-z /]*))\s*(?:\^\s*\{?([23])\}?)?\Z"
)
"""The unit at the end, and its power."""
_GREEK = re.compile(r"\\(?:gamma|delta|theta|lambda|sigma|phi|psi|omega)(?![A-Za-z])", re.IGNORECASE)
_CUP = re.compile(r"\\cup(?![A-Za-z])")


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
        exact = value(before)
    except (TooLarge, Contradiction):
        return answer
    half = Fraction(1, 2 * 10 ** len(found[3] or ""))
    is_rounded = exact is None or abs(exact.value - Fraction(found[2])) <= half
    return before if is_rounded else answer


def _same(gold: str, answer: str, ask: Ask, depth: int) -> bool:
    if not answer or depth > MAX_DEPTH:
        return False
    if _squeezed(gold) == _squeezed(answer):
        return True
    if _DATE.fullmatch(gold):
        return False
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
        wanted = None if _EQUATION.fullmatch(gold) else value(gold)
    except (TooLarge, Contradiction):
        wanted = None
    try:
        given = value(answer)
    except (TooLarge, Contradiction):
        return False
    if wanted is not None and given is not None:
        is_other = _on_another_axis(gold, answer) or _has_another_power(gold, answer)
        return equal(wanted, given) and not is_other
    return _compare_parts(gold, answer, wanted, ask, depth)


def _compare_parts(gold: str, answer: str, wanted: Number | None, ask: Ask, depth: int) -> bool:
    left, right = _group(gold), _group(answer)
    if left is not None or right is not None:
        left, right = left or _Group("", (gold,)), right or _Group("", (answer,))
        return _same_groups(left, right, ask, depth + 1)
    if wanted is not None and (not _FORMULA.fullmatch(answer) or _LOOSE.search(answer)):
        return False
    if is_balanced(gold) and not is_balanced(answer):
        return False
    if len(sides := cut(answer, "=")) > max(1, gold.count("=") + 1):
        if not is_chain(sides) or (_is_rival(sides[0], gold) and not _same(gold, sides[0], ask, depth + 1)):
            return False
        if "=" not in gold and (numeric := list(filter(is_numeric, sides))):
            return all(_same(gold, side, ask, depth + 1) for side in numeric)
    if _RATIO.search(answer):
        terms, given_terms = cut(gold, ":"), cut(answer, ":")
        return len(terms) == len(given_terms) and all(
            _same(term, other, ask, depth + 1) for term, other in zip(terms, given_terms, strict=True)
        )
    said, replied = _texts(gold), _texts(answer)
    # math-verify passes over text, the base of a number, primes and the case of letters.
    if (said and replied and said != replied) or _bases(answer) - _bases(gold):
        return False
    if _has_another_power(gold, answer):
        return False
    if "=" not in gold + answer and (gold.count("'") != answer.count("'") or _other_case(gold, answer)):
        return False
    if any(_RETRACTED.search(words) for words in replied - said) or _is_told_of_two(gold, answer, said):
        return False
    bare = without_bare_unit(answer)
    return ask(gold, answer) or (bare != answer and ask(gold, bare))


def _is_told_of_two(gold: str, answer: str, said: set[str]) -> bool:
    """Whether a relation or words that the gold has not stand between two values: one of them is a guess."""
    relations = [_RELATION.search(_BELOW.sub("", text)) for text in (gold, answer)]
    if relations[1] and not relations[0] and "mod" not in answer:
        return True
    return any(not unit_of(words) and words not in said for words in _BETWEEN.findall(answer.lower()))


def _is_rival(side: str, gold: str) -> bool:
    """Whether the first side of an equation is no name, but a value or choice: `x - 1 = x + 1`, `A = B`."""
    if _CHOICE.fullmatch(gold):
        return _CHOICE.fullmatch(side) is not None
    letters = set(_LETTER.findall(side))
    return bool(letters) and letters <= set(_LETTER.findall(gold)) and not re.fullmatch(NAME, side)


def _on_another_axis(gold: str, answer: str) -> bool:
    """Whether one is `x = 3` and the other `y = 3`."""
    axes = [_COORDINATE.match(text) for text in (gold, answer)]
    return axes[0] is not None and axes[1] is not None and axes[0][1] != axes[1][1]


def _has_another_power(gold: str, answer: str) -> bool:
    """Whether one is in metres and the other in square or cubic metres."""
    wanted, given = _unit_power(gold), _unit_power(answer)
    return bool(wanted and given and wanted[0] == given[0] and wanted[1] != given[1])


def _unit_power(text: str) -> tuple[tuple[str, str], int] | None:
    """The unit behind a number and its power; None where letters before it say that it is a variable."""
    found = _MEASURED.search(text, max(len(text) - 100, 0))
    if not found or re.search(r"(?<![A-Za-z\\])[A-Za-z]", text[: found.start()]):
        return None
    first, *rest = (found[1] or found[2] or " ").lower().split() or [""]
    named = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3}.get(first)
    unit = unit_of(" ".join([first, *rest]))
    return (unit, int(found[3] or named or 1)) if unit else None


def _other_case(gold: str, answer: str) -> bool:
    """Whether they have the same letters, but for the case: R is not r."""
    wanted, given = (set(_LETTER.findall(text) + _GREEK.findall(text)) for text in (gold, answer))
    return wanted != given and set(map(str.lower, wanted)) == set(map(str.lower, given))


def _bases(text: str) -> set[str]:
    return {one or other for one, other in _BASE.findall(text)} - {"10"}


def _texts(text: str) -> set[str]:
    """The words of every `\\text{…}` in lower case, a unit by its size."""
    said = (" ".join(words.replace(".", "").split()) for words in _TEXT.findall(text.lower()))
    return {unit[1] if (unit := unit_of(words)) else words for words in said}


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
    if len(gold.parts) == 2 and bool(gold.brackets) != bool(answer.brackets) and _is_interval(gold, answer):
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


def _is_interval(*groups: _Group) -> bool:
    """Whether brackets say so: `[1, 2]` is no list of two numbers."""
    return any(bracket in group.brackets for group in groups for bracket in "[]")


def _by_letter(parts: tuple[str, ...]) -> dict[str, str]:
    """The parts by the letter that each says the value of, where these are different letters; else {}."""
    found = {name[1]: part for part in parts if (name := _ASSIGNED.match(part))}
    return found if len(found) == len(parts) else {}


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
    if _WORDS.fullmatch(body) and (inner or _IS_WORD.search(body)) and not REALS.fullmatch(body):
        words = " ".join(re.sub(r"[.,]", " ", body).split()).lower()
        words = _SOLUTIONS.sub("solution", _ARTICLE.sub("", words))
        return "does not exist" if _MISSING.fullmatch(words) else words
    return None


def _group(text: str) -> _Group | None:
    """The parts of a list, tuple, interval, set or union; None for anything else."""
    if found := _SUCH_THAT.fullmatch(text):
        text = found[1].strip()
    elif found := _MEMBER.match(text):
        text = text[found.end() :]
    elif len(sides := cut(text, "=")) == 2 and split(sides[1])[1] and not re.search(r"[\d,]", sides[0]):
        text = sides[1] if is_chain(sides) else text
    text = without_points(text) or both_bounds(text)
    if signed := _SIGNED.match(text):
        inner = _bracketed(text[signed.end() :])
        if inner is not None and inner.brackets == "()":
            negative = signed[1] == "-"
            return _Group("()", tuple(f"-({part})" if negative else part for part in inner.parts))
    if len(measures := _measures(text)) > 1:
        return _Group("", measures)
    is_choice = _EITHER.search(text) is not None
    text = _OR.sub(lambda found: f", {found[1] or ''}", text)
    united = [part.strip() for part in _CUP.split(text)]
    if len(united) > 1 and all(
        split(part)[1] or interval(part) or _LETTER.fullmatch(part) for part in united
    ):
        text = ",".join(interval(part) or part for part in united)
    text = interval(text) or text
    found_group = _bracketed(text)
    if found_group is None or found_group.ordered:
        signs = both_signs(text)
        return _Group("", signs) if len(signs) > 1 else found_group
    parts = [sign for part in found_group.parts for sign in both_signs(part)]
    # "3 or 4" is no pair, and "x = 3, x = 4" is none.
    names = [name[0].replace(" ", "") for part in parts if (name := _ASSIGNED.match(part))]
    is_set = is_choice or len(set(names)) < len(names)
    return _Group(found_group.brackets or ("\\{\\}" if is_set else ""), tuple(parts))


def _measures(text: str) -> tuple[str, ...]:
    """The parts of `2 hours 30 minutes`; () for other texts."""
    found = list(_MEASURE.finditer(text))
    is_all = "".join(one[0] for one in found) == text and all(one[2] or unit_of(one[3]) for one in found)
    return tuple(one[1].rstrip(" ,") for one in found) if is_all else ()


def _bracketed(text: str) -> _Group | None:
    for _ in range(MAX_DEPTH):
        parts, whole = split(text)
        if len(parts) > 1:
            return _Group("", tuple(parts))
        if whole is None:
            return None
        opening, closing = whole
        inner, _pair = split(text[len(opening) : len(text) - len(closing)])
        if opening in ("(", "{") and len(inner) == 1:
            text = inner[0]  # brackets around one expression
            continue
        # Whoever forgets the backslashes means a set all the same.
        return _Group("\\{\\}" if opening == "{" else opening + closing, tuple(inner))
    return None
