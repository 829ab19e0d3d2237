r"""Reading an answer: where it stands in a message, and its LaTeX in a plain form.

>>> find_answer("So $x = 7$. The answer is \\boxed{\\frac{1}{2}}.")
'\\frac{1}{2}'

Every function takes any string, never raises, and needs time linear in its length.
"""

from __future__ import annotations

import re
import unicodedata

from mappa_envs.actions import handover_text

_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*\{?|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\s*([-+]?[\w.]+)")
_JOINT = re.compile(r"[\s$.,;:()*]*(?:\\text\{)?\s*(?:and|or|,|;|\\quad|\\qquad)?\s*\}?[\s$.,;:()*]*")
_SPOKEN = re.compile(
    r"answer[*_\s]*(?:is|are|:|=)[*_\s]*(?:(?:therefore|thus|simply|just|exactly|equal to)\b)?[*_:\s]*"
    r"|final answer[*_\s]*\n\s*",
    re.IGNORECASE,
)
_SPOKEN_END = re.compile(r"\n|\.(?=\s|$)|[!?]|\b(?:because|since|which|where|so|as)\b")
_MATH = re.compile(r"\s*(?:\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\])")


def find_answer(message: str) -> str | None:
    r"""The answer of a whole message; None if it gives none.

    It is what stands in the last `\boxed` outside the reasoning. Boxes with nothing but a comma, "and" or
    "or" between them are one list, so that a guess does not count. A last box that is never closed is no
    answer. Without any box, what follows the last "answer is" or "answer:" counts.
    """
    text = handover_text(message)
    boxes, is_open = _boxes(text)
    if is_open:
        return None
    if not boxes:
        return _spoken(text)
    start, _, answer = boxes.pop()
    parts = [answer]
    while boxes and _JOINT.fullmatch(text, boxes[-1][1], start):
        start, _, other = boxes.pop()
        if other.strip() not in parts:
            parts.insert(0, other.strip())
    return ", ".join(parts).strip() or None


def _boxes(text: str) -> tuple[list[tuple[int, int, str]], bool]:
    """Start, end and content of every outermost box (the innermost content, where boxes are nested).

    The flag says that the last box is never closed.
    """
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[int, int] | None] = []
    num_open, innermost = 0, ""
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
            innermost = innermost or text[box[1] : token.start()].strip()
            if not num_open:
                found.append((box[0], token.end(), innermost))
                innermost = ""
    unclosed = [box for box in stack if box is not None]
    return found, bool(unclosed) and (not found or unclosed[0][0] > found[-1][0])


def _spoken(text: str) -> str | None:
    found = list(_SPOKEN.finditer(text))
    if not found:
        return None
    rest = text[found[-1].end() : found[-1].end() + 2000]
    if math := _MATH.match(rest):
        tail = rest[math.end() :].lstrip(" *")
        if not re.match(r"(?:or|and)\b|,\s*\$", tail):
            return (math[1] or math[2] or math[3] or "").strip() or None
    end = _SPOKEN_END.search(rest)
    return rest[: end.start() if end else None].strip(" \t*_`.,;:") or None


_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SYMBOLS = {
    **{char: f"^{{{digit}}}" for digit, char in enumerate(_SUPERSCRIPTS)},
    **dict.fromkeys("−–—‐‑﹣－", "-"),
    **{char: rf"\frac{{{a}}}{{{b}}}" for char, a, b in zip("½⅓⅔¼¾⅕⅙⅛", "11213111", "23344568", strict=True)},
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/"},
    **{"π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm "},
    **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "…": r"\ldots "},
    **{"°": r"^\circ ", "≈": r"\approx "},
    **{"€": "", "£": "", "\u200b": "", "\ufeff": "", "θ": r"\theta "},
}  # fmt: skip
_SYMBOL = str.maketrans(_SYMBOLS)
_WRITE = (
    # (what, instead); in this order
    (re.compile(r"\\(?:(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![A-Za-z])|!)"), ""),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|(?:quad|qquad|thinspace)(?![A-Za-z]))|~"), " "),
    (re.compile(r"(?<=\d)\}\^\{(?=\d)"), ""),
    (re.compile(r"\\\$|\$|\\[()\[\]]"), ""),
    (re.compile(r"\\(?:d|t|c)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(l|g|n)eq(?![A-Za-z])"), r"\\\1e"),
    (re.compile(r"\\leqslant(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geqslant(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\dots(?![A-Za-z])|\\cdots(?![A-Za-z])|\.\.\.+"), r"\\ldots"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"), r"\\text{degrees}"),
    (re.compile(r"\\sqrt\s*\(([^(){}]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*(\d)(?!\d)"), r"\\sqrt{\1}"),
)
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|operatorname|boldsymbol|bf|rm|"
    r"mbox|hbox)\s*\{([^{}]*)\}"
)
_SAYS = re.compile(r"(?:the\s+)?(?:final\s+)?answer(?:\s+is|\s*:)", re.IGNORECASE)


def plain(latex: str) -> str:
    r"""The same mathematics with one spelling: no `\left`, `\dfrac`, `$`, unusual digits, signs or blanks.

    Words come as `\text{words}`; text that holds a digit or a backslash is unpacked. A degree sign becomes
    the unit `\text{degrees}`.
    """
    if latex.isascii() and latex.isdecimal():
        return latex
    text = unicodedata.normalize("NFKC", latex.translate(_SYMBOL)).translate(_SYMBOL)
    for pattern, instead in _WRITE:
        text = pattern.sub(instead, text)
    text = _TEXT.sub(_unpack, text)
    return text.strip().removesuffix(".").strip(" \t\n,;:*")


def _unpack(found: re.Match[str]) -> str:
    words = _SAYS.sub("", found[1]).strip()
    if not words:
        return " "
    return words if re.search(r"[\d\\]", words) else f"\\text{{{words}}}"
