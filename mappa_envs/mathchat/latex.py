r"""Reading an answer: where it stands in a message, and its LaTeX in a plain form.

>>> find_answer("So $x = 7$. The answer is \\boxed{\\frac{1}{2}}.")
'\\frac{1}{2}'

Every function takes any string, never raises, and needs time linear in its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from mappa_envs.actions import handover_text

_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*\{?|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\s*([-+]?[\w.]+)")
_FILLING = re.compile(r"(?:[\s$.,;:()*/|&}-]|\\(?:text\{|[,;: ()\[\]]|(?:quad|qquad|lor|vee)(?![A-Za-z])))+")
_NAMED = re.compile(r"(?<![A-Za-z\\])([A-Za-z])(?:_\{?\w\}?)? ?=[ $]*\Z")
"""What stands before a box that gives the value of a letter: "x =", "x_1 ="."""
_JOINTS = frozenset(
    " ".join((first, second)).strip()
    for first in ("", "and", "or", "and or")
    for second in ("", "else", "maybe", "perhaps", "possibly", "also", "alternatively")
)
"""What between two boxes, besides `_FILLING`, makes one list of them."""

_SPOKEN = re.compile(
    r"answer(?P<of>\s(?:to|of|for)\b[^.:=\n]{0,80}?)?[*_\s]*(?:is|are|:|=)[*_\s]*"
    r"(?:(?:therefore|thus|simply|just|exactly|equal to)\b)?[*_:\s]*"
    r"|(?:final answer|^#+\s*answer)[*_\s]*\n\s*"
    r"|<answer>\s*|^####\s+(?=[-+$]?[\d,./]+\s*$)",
    re.IGNORECASE | re.MULTILINE,
)
_VALUE = re.compile(r"[-+]?[\d.$\\(\[{]")
_SPOKEN_END = re.compile(r"\n|</|\.(?=\s|$)|[!?]|\b(?:because|since|which|where|so|as)\b")
_MATH = re.compile(r"\s*(?:\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\])")


def find_answer(message: str) -> str | None:
    r"""The answer of a whole message; None if it gives none.

    It is what stands in the last `\boxed` outside the reasoning. Boxes with nothing but a comma, "and" or
    "or" between them are one list, so that a guess does not count. A last box that is never closed is no
    answer. Without any box, what follows the last "answer is" or "answer:" counts, or `<answer>`, or a number
    after `####`.
    """
    text = handover_text(message)
    boxes, is_open = _boxes(text)
    if not boxes and "\\\\boxed" in text:
        # Escaped once too often, as in a string of JSON.
        text = text.replace("\\\\", "\\")
        boxes, is_open = _boxes(text)
    if is_open:
        return None
    if not boxes:
        return _spoken(text)
    start, _, answer = boxes.pop()
    parts = [answer]
    while boxes and _is_joint(text, *boxes[-1][:2], start):
        start, _, other = boxes.pop()
        if other.strip() not in parts:
            parts.insert(0, other.strip())
    return ", ".join(parts).strip() or None


def _is_joint(text: str, first: int, end: int, second: int) -> bool:
    """Whether the boxes that begin at `first`, which ends at `end`, and at `second` are one list."""
    between = text[end:second]
    names = [_NAMED.search(text, max(0, at - 20), at) for at in (first, second)]
    if names[0] and names[1] and names[0][1] == names[1][1]:
        between = text[end : max(end, names[1].start())]
    return _FILLING.sub(" ", between).strip().lower() in _JOINTS


def _boxes(text: str) -> tuple[list[tuple[int, int, str]], bool]:
    """Start, end and content of every outermost box: that of the boxes in it, where there are any.

    The flag says that the last box is never closed.
    """
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[int, int] | None] = []
    num_open, inner, last_inner = 0, dict[str, None](), 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word.startswith(("\\boxed", "\\fbox")):
            if word.endswith("{"):
                stack.append((token.start(), token.end()))
                num_open += 1
            elif not num_open and (bare := _BARE.match(text, token.end())):
                found.append((token.start(), bare.end(), bare[1].rstrip(".")))
        elif word == "{":
            stack.append(None)
        elif word == "}" and stack and (box := stack.pop()):
            num_open -= 1
            if box[0] >= last_inner:  # no box within
                inner[text[box[1] : token.start()].strip()] = None
                last_inner = token.end()
            if not num_open:
                found.append((box[0], token.end(), ", ".join(filter(None, inner))))
                inner = {}
    unclosed = [box for box in stack if box is not None]
    return found, bool(unclosed) and (not found or unclosed[0][0] > found[-1][0])


def _spoken(text: str) -> str | None:
    found = list(_SPOKEN.finditer(text))
    if not found:
        return None
    # "I hope the answer to your question is clear" states none.
    stated = [one for one in found if not one["of"] or _VALUE.match(text, one.end())]
    start = (stated or found)[-1].end()
    rest = text[start : start + 2000]
    if math := _MATH.match(rest):
        tail = rest[math.end() :].lstrip(" *")
        if not re.match(r"(?:or|and)\b|,\s*(?:\$|or\b|and\s+[$\d\\])", tail):
            return (math[1] or math[2] or math[3] or "").strip() or None
    if rest.startswith("~"):
        rest = f"\\approx {rest[1:]}"
    end = _SPOKEN_END.search(rest)
    return rest[: end.start() if end else None].lstrip(" \t*_`,;:").rstrip(" \t*_`.,;:") or None


_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ", "0123456789+-nix")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙₖᵢₘ", "0123456789+-nkim")
_UP, _DOWN = (f"([{''.join(map(chr, table))}]+)" for table in (_RAISED, _LOWERED))
_RAISED_RUN, _LOWERED_RUN, _SMALL_FRACTION = map(re.compile, (_UP, _DOWN, f"{_UP}[\u2044\u2215/]{_DOWN}"))
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))?")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_FRACTIONS = {
    char: rf"\frac{{{above}}}{{{below}}}"
    for char in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
    for above, below in [unicodedata.normalize("NFKC", char).split("\u2044")]
}
_SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒﹣－", "-"),
    **_FRACTIONS,
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/"},
    **{"π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm "},
    **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "…": r"\ldots "},
    **{"°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "≈": r"\approx "},
    **{"€": "", "£": "", "¢": "", "θ": r"\theta "},
    **{char: rf"\mathbb{{{letter}}}" for char, letter in zip("ℝℤℚℕℂ", "RZQNC", strict=True)},
    **dict.fromkeys(map(chr, (0xAD, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F))), ""),
    **dict.fromkeys(map(chr, range(0x2060, 0x2070)), ""),
}  # fmt: skip
_SYMBOL = str.maketrans(_SYMBOLS)


def _as_frac(found: re.Match[str]) -> str:
    above, below = (found[1], found[2]) if found[1] else (found[3], found[4])
    return rf"\frac{{{above.strip()}}}{{{below.strip()}}}"


_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip

_DOLLARS = re.compile(r"\A\s*(?:\\text\{\s*)?(?:([-+])\s*)?\\\$\s*((?:\d|\{,\}|[,.](?=\d))+)\.?\s*\}?\s*\Z")
_FUNCTIONS = "sin|cos|tan|cot|sec|csc"
_UPPER = r"((?:(?!\\{0}(?![A-Za-z]))[^{{}}])+)\\{0}(?![A-Za-z])([^{{}}]+)"
"""What stands above and below the first `\\over` of a group."""
_WRITE: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # (what, instead); in this order
    (re.compile(r"\\(?:(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![A-Za-z])|!)"), ""),
    (re.compile(r"\\(?:textcolor|color)\s*\{[^{}]*\}(?=\s*\{)"), r"\\underline"),
    (re.compile(r"\\(?:textcolor|color|phantom)\s*\{[^{}]*\}"), ""),
    (re.compile(r"\\(?:mathbf|boldsymbol|bm|pmb)\s*(?=\{[^{}]*\{)"), r"\\underline"),
    (re.compile(r"(?<![\w}^\\])\{\s*\\(?:bf|rm|it)(?![A-Za-z])\s*([^{}]*)\}"), r"\\underline{\1}"),
    (re.compile(r"(?<=\d)\{\s*\\rm(?![A-Za-z])\s*([A-Za-z]+)\}"), r"\\text{\1}"),
    (re.compile(r"(?:\\\\|\\q?quad(?![A-Za-z]))\s*(?=[A-Za-z](?:_\{?\w+\}?)?\s*=)"), ", "),
    (re.compile(r"\\colon(?![A-Za-z])"), ":"),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|(?:quad|qquad|thinspace)(?![A-Za-z])|hspace\*?\{[^{}]*\})|~"), " "),
    (_DOLLARS, r"\1\2\\text{ dollars}"),
    (re.compile(r"\\\$|\$|\\[()\[\]]"), ""),
    (
        re.compile(
            r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|ensuremath|therefore|square|blacksquare|"
            r"checkmark)(?![A-Za-z])"
        ),
        "",
    ),
    (re.compile(r"(?<!\\)\\+\s*\Z|\A\s*(?:=|\\(?:implies|Rightarrow)(?![A-Za-z]))"), ""),
    (re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<=[\w)}])\*\*(\d+)"), r"^{\1}"),
    (
        re.compile(rf"_\s*\{{\s*\\(?:text|textrm|mathrm)\{{({'|'.join(_BASES)})\}}\s*\}}"),
        lambda found: f"_{{{_BASES[found[1]]}}}",
    ),
    (re.compile(r"\((\w+)\)(?=_\s*[\d{])"), r"\1"),
    (re.compile(r"_\s*\{\s*(\w)\s*\}"), r"_\1"),
    (re.compile(r"(?<=[\d.])\\(?:bar|dot)\s*\{(\d+)\}"), r"\\overline{\1}"),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"\\(?:d|t|c|nice|s)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(\\frac\s*(?:\{[^{}]*\}|\d)?)\s*(\\pi)(?![A-Za-z])\s*"), r"\1{\2}"),
    (re.compile(rf"\{{{_UPPER.format('over')}\}}|\A{_UPPER.format('over')}\Z"), _as_frac),
    (re.compile(rf"\{{{_UPPER.format('choose')}\}}"), r"\\binom{\1}{\2}"),
    (
        re.compile(r"\\(?:mathbb|Bbb)\s*([A-Z])(?![A-Za-z])|\\Bbb(?![A-Za-z])\s*\{([A-Z])\}"),
        r"\\mathbb{\1\2}",
    ),
    (re.compile(r"\\pmod\s*(\d)(?!\d)"), r"\\pmod{\1}"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"(?<![\w)}])\+\s*\\infty(?![A-Za-z])"), r"\\infty"),
    (re.compile("<="), r"\\le "),
    (re.compile(">="), r"\\ge "),
    (re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\(l|g|n)eq(?![A-Za-z])"), r"\\\1e"),
    (re.compile(r"\\leqslant(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geqslant(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\dots(?![A-Za-z])|\\cdots(?![A-Za-z])|\.\.\.+"), r"\\ldots "),
    (re.compile(r"\^\s*(\\frac\s*(?:\d|\{[^{}]*\})\s*(?:\d|\{[^{}]*\}))"), r"^{\1}"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{([,:])\}"), r"\1"),
    (
        re.compile(
            rf"(?<![A-Za-z\\])(arc(?:sin|cos|tan)|{_FUNCTIONS}|ln|log|exp|sqrt)"
            r"(?=\s*[({^_\d]|\s+(?:\\|[A-Za-z](?![A-Za-z])))"
        ),
        r"\\\1",
    ),
    (
        # math-verify takes the sine of 30 degrees for that of 30.
        re.compile(
            rf"(\\(?:{_FUNCTIONS})(?![A-Za-z])\s*(?:\^\s*(?:\{{\s*\d+\s*\}}|\d)\s*)?[({{]?\s*-?)"
            r"(\d+(?:\.\d+)?)\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z]))"
        ),
        r"\1\\frac{\2\\pi}{180}",
    ),
    (
        re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"),
        r"\\text{degrees}",
    ),
    (re.compile(r"(?<=\\text\{degrees\})\s*([CF])(?![A-Za-z])"), r"\\text{\1}"),
    (re.compile(r"\\sqrt\s*(\[\d\])?\s*\(([^(){}]*)\)"), r"\\sqrt\1{\2}"),
    (re.compile(r"\\sqrt\s*(\[\d\])?\s*(\d)(?!\d)"), r"\\sqrt\1{\2}"),
)
_TEXT_COMMAND = (
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|operatorname|boldsymbol|"
    r"texttt|bm|pmb|emph|mbox|hbox|bf|rm|it|underline)\s*\{"
)
_TEXT = re.compile(_TEXT_COMMAND + r"([^{}]*)\}")
_TEXT_IN_TEXT = re.compile(_TEXT_COMMAND + r"\s*(\\text\{[^{}]*\})\s*\}")
_WORDS = re.compile(r"\([A-Ja-j]\)|[A-Za-z]{2}[A-Za-z' .,-]*")
_FACE = re.compile(r"\\(?:bf|rm|it|underline)(?![A-Za-z])")
_SAYS = re.compile(
    r"(?:the\s+)?(?:final\s+)?answer(?:\s+is\b|\s*[:=])|\bis\s+the\s+(?:final\s+)?answer", re.IGNORECASE
)
_LABEL = re.compile(
    r"\A\s*\\text\{(?![^{}]*\b(?:not|\w+n['’]t|never|least|most|about|approximately|nearly|than|twice)\b)"
    r"(?![^{}]*\b(?:wrong|incorrect|false|half|double|triple|negative)(?:\s*[:,]|\s+(?:is|of|the|that|it)\b))"
    r"(?![^{}]*\bno\s*[:,])"
    r"(?!\s*(?:the\s+|its\s+)?square(?:\s+is\b|\s*:))"
    r"(?:[^{}]*(?::|\bis|\bare|\bequals|\btotal of)|(?:so|thus|hence|therefore)\s*,?)\}",
    re.IGNORECASE,
)
"""Words that lead to what comes, and change nothing of it."""
_QUOTES = "\"'`“”‘’"
_MONEY = re.compile(r"\A\s*(?:\\text\{)?(?:USD?|EUR|GBP|INR|Rs\.?)\}?\s*(?=[\d.])")
_TIME = re.compile(r"\A(\d{1,2}(?::\d\d)?)\s*(?:\\text\{\s*)?([ap])\.?\s?m\.?\s*\}?\.?\Z", re.IGNORECASE)
_TEXTS = re.compile(r"\\text\{([^{}]*)\}\s*\\text\{(?!\s*,?\s*(?:or|and)\b)([^{}]*)\}")


def plain(latex: str) -> str:
    r"""The same mathematics with one spelling: no `\left`, `\dfrac`, `$`, unusual digits, signs or blanks.

    Words come as `\text{words}`; text that holds a digit or a backslash, or is a sign, is unpacked. A degree
    sign becomes the unit `\text{degrees}`. What only says that this is the answer is left out.
    """
    if latex.isascii() and latex.isdecimal():
        return latex
    text = latex if latex.isascii() else _in_ascii(latex)
    for pattern, instead in _WRITE:
        text = pattern.sub(instead, text)
    text = _TEXT_IN_TEXT.sub(r"\1", _TEXT.sub(_unpack, text))
    text = _TEXT.sub(_unpack, text)  # again, for what stood around another
    text = _FACE.sub("", text)
    text = _TEXTS.sub(r"\\text{\1 \2}", text)
    text = _LABEL.sub("", _SAYS.sub("", text))
    text = _TIME.sub(lambda found: f"{found[1]}\\text{{ {found[2].lower()}m}}", _MONEY.sub("", text).strip())
    if text.startswith(tuple(_QUOTES)) and text.endswith(tuple(_QUOTES)):
        text = text.strip(_QUOTES)
    return text.removesuffix(".").strip(" \t\n,;:*")


def _in_ascii(text: str) -> str:
    """Signs, digits and letters of other scripts as LaTeX writes them, where it can; no invisible marks."""
    text = _SMALL_FRACTION.sub(
        lambda found: rf"\frac{{{found[1].translate(_RAISED)}}}{{{found[2].translate(_LOWERED)}}}", text
    )
    text = _RAISED_RUN.sub(lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
    text = _LOWERED_RUN.sub(lambda found: f"_{{{found[0].translate(_LOWERED)}}}", text)
    text = _ROOT.sub(lambda found: _ROOTS[found[1]] + (f"{{{found[2]}}}" if found[2] else ""), text)
    return unicodedata.normalize("NFKC", text.translate(_SYMBOL)).translate(_SYMBOL)


def _unpack(found: re.Match[str]) -> str:
    words = _SAYS.sub("", found[1]).strip()
    if not words:
        return " "
    is_formula = found[0].startswith(("\\bf", "\\it", "\\underline")) and not _WORDS.fullmatch(words)
    if not is_formula and not re.search(r"[\d\\]|\A[-+%?:]+\Z", words):
        return f"\\text{{{words}}}"
    is_argument = found.string.endswith(("^", "_", "\\frac"), 0, found.start())
    return f"{{{words}}}" if is_argument else words
