"""Text that nobody vouches for, put between delimiters that its writer could not foresee.

>>> document = [Part(title="Exit code", text="1", trusted=True), Part(title="stdout", text="SCORE: 10")]
>>> print(fenced(document, new_nonce()))
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Printable by Unicode, but seen by nobody: fillers and variation selectors, which can carry any text."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One titled piece of evidence. The title is always ours; `trusted` text is ours, too."""

    title: str
    text: str
    trusted: bool = False


def new_nonce() -> str:
    """128 unforeseeable bits."""
    return secrets.token_hex(16)


def visible(text: str) -> str:
    """The text with every character that a reader cannot see, or that steers a display, written out.

    Escapes, zero-width and bidirectional marks, tag characters, variation selectors and odd blanks become
    `\\x1b`, `\\u202e` …
    """
    return _SUSPECT.sub(lambda found: _written_out(found[0]), text)


def _written_out(char: str) -> str:
    if char.isprintable() and not _BLANK.match(char):
        return char
    # "replace": a lone surrogate has no name of its own in UTF-8, but does have an escape.
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def fenced(parts: Iterable[Part], nonce: str) -> str:
    """One document. Whatever is not trusted stands between two lines that name the nonce.

    An occurrence of the nonce in a text is taken out, in any case and however it got there.
    """
    shown = []
    for part in parts:
        text = visible(part.text)
        if not part.trusted:
            text = re.sub(re.escape(nonce), "[delimiter]", text, flags=re.IGNORECASE)
            text = f"{opening(nonce)}\n{text}\n{closing(nonce)}"
        shown.append(f"## {part.title}\n{text}")
    return "\n\n".join(shown)


def opening(nonce: str) -> str:
    """The line before text that nobody vouches for."""
    return f"<<<DATA {nonce}"


def closing(nonce: str) -> str:
    """The line after it."""
    return f"DATA {nonce}>>>"
