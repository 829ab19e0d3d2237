"""What agents wrote as HTML text that can neither act, hide nor leave its place; and figures as text."""

from __future__ import annotations

import re
from html import escape

MAX_CHARS = 6000
"""Longest text shown of one message or output; head and tail are kept."""

# Sequences of terminals: CSI, then the strings that end with BEL or ST (OSC, DCS, …), then the short ones.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?")
_NEWLINE = re.compile(r"\r\n?")
# The categories Cc (but for tab and newline), Cf and Cs of Unicode: controls, marks that turn the direction
# of text or hide in it, halves of surrogate pairs; then letters that look like nothing.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001-\U000e007f\u115f\u1160\u3164\uffa0]"
)
_MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
# Marks are drawn over each other, so that enough of them reach the lines above.
_TOWER = re.compile(f"({_MARK}{{3}}){_MARK}+")


def text(value: object) -> str:
    """Any value as harmless HTML text. What cannot be seen becomes U+FFFD; colours of a terminal vanish."""
    shown = _NEWLINE.sub("\n", _TERMINAL.sub("", str(value)))
    return escape(_TOWER.sub(r"\1", _UNSEEN.sub("\ufffd", shown)))


def short(content: str) -> str:
    """The text with its middle left out where it is too long."""
    if len(content) <= MAX_CHARS:
        return content
    half = MAX_CHARS // 2
    return f"{content[:half]}\n… {len(content) - 2 * half} characters left out …\n{content[-half:]}"


def pre(content: str) -> str:
    """A message or an output in a box of its own."""
    return f"<pre>{text(short(content))}</pre>"


def figure(value: object) -> str:
    """A number with three digits, a dash where it is undefined."""
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else text(value)


def share(value: float | None) -> str:
    """A share in [0, 1] in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"
