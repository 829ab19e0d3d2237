"""What agents wrote as HTML text that can neither act, hide nor leave its place; and figures as text."""

from __future__ import annotations

import re
import unicodedata
from html import escape

MAX_CHARS = 6000
"""Longest text shown of one message or output; head and tail are kept."""

# Sequences of terminals: CSI, then the strings that end with BEL or ST (OSC, DCS, …), then the short ones.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?")
_NEWLINE = re.compile(r"\r\n?")
# What nobody sees, and what turns the direction of text: Unicode's categories Cc (but for tab and newline),
# Cf and Cs, its property Default_Ignorable_Code_Point, which selectors of variants have, and the empty cell
# of braille. A selector behind an emoji is left, as it only says how that is drawn.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "(?<![#*0-9\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff][\ufe0e\ufe0f])"
)
_MARKS = "".join(
    char for char in map(chr, range(0x300, 0x1F000)) if unicodedata.category(char) in ("Mn", "Me")
)
# Marks are drawn over each other, so that enough of them reach the lines above. Burmese words have four.
_TOWER = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")
# Where one may be: re finds characters below U+10000 at once, and compares others with each range of a set.
_SUSPECT = "[" + "".join(char for char in _MARKS if char < "\U00010000") + "\U00010000-\U0001efff]"
_TOWERS = re.compile(f"{_SUSPECT}{_SUSPECT}{{4,}}")


def text(value: object) -> str:
    """Any value as harmless HTML text. What cannot be seen becomes U+FFFD; colours of a terminal vanish."""
    shown = _NEWLINE.sub("\n", _TERMINAL.sub("", str(value)))
    shown = _UNSEEN.sub("\ufffd", shown)
    return escape(_TOWERS.sub(lambda found: _TOWER.sub(r"\1", found[0]), shown))


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
