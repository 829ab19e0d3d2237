r"""Taking an answer apart: at marks outside brackets, at the brackets around it, and at its signs.

>>> cut("f(x, y) = 2", "="), split("(1, 2)"), both_signs(r"1 \pm \sqrt{2}")
(['f(x, y)', '2'], (['(1, 2)'], ('(', ')')), ('1 + \\sqrt{2}', '1 - \\sqrt{2}'))
"""

from __future__ import annotations

import re

_OPEN, _CLOSE = ("(", "[", "\\{", "{"), (")", "]", "\\}", "}")
_TOKEN = re.compile(r"\\[{}]|[()\[\]{},;:=]|\\.", re.DOTALL)
_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])")


def cut(text: str, marks: str) -> list[str]:
    """The pieces between those of `,;:=` that are in `marks` and stand outside brackets."""
    pieces, start, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in _OPEN:
            depth += 1
        elif word in _CLOSE:
            depth -= depth > 0
        elif word in marks and not depth:
            pieces.append(text[start : token.start()].strip())
            start = token.end()
    pieces.append(text[start:].strip())
    return pieces


def split(text: str) -> tuple[list[str], tuple[str, str] | None]:
    """Parts between the commas outside brackets; and the outer brackets, if one pair spans the text."""
    text = text.strip()
    return [part for part in cut(text, ",;") if part], _pair(text)


def _pair(text: str) -> tuple[str, str] | None:
    """The bracket that begins the text and the one that closes it, if that ends the text."""
    opening, depth = "", 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in _OPEN:
            if token.start() == 0:
                opening = word
            depth += 1
        elif word in _CLOSE and depth:
            depth -= 1
            if not depth:
                return (opening, word) if opening and token.end() == len(text) else None
    return None


def is_balanced(text: str) -> bool:
    """Whether every bracket of whatever kind is closed by one, as those of `[0, 1)` are."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in _OPEN) - (token[0] in _CLOSE)
        if depth < 0:
            return False
    return depth == 0


def both_signs(text: str) -> tuple[str, ...]:
    r"""What ± stands for, first with the upper signs. Two ± that a ∓ does not link are left as they are."""
    signs = [found[1] for found in _SIGN.finditer(text)]
    if len(signs) != 1 and len(set(signs)) != 2:
        return (text,)
    upper = {"pm": "+", "mp": "-"} if "pm" in signs else {"mp": "+"}
    lower = {word: "-" if sign == "+" else "+" for word, sign in upper.items()}
    return _SIGN.sub(lambda found: upper[found[1]], text), _SIGN.sub(lambda found: lower[found[1]], text)
