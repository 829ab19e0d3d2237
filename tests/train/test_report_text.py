"""What agents wrote, as text of a page: nothing acts, hides, or leaves its line."""

from __future__ import annotations

import re
import sys
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_train.report.text import MAX_CHARS, pre, short, text


class Shown(HTMLParser):
    """The text of some HTML, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.data += data


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_text_only(content: str) -> None:
    shown = Shown(f"<b>{text(content)}</b>")
    assert shown.tags == ["b"]
    assert f'"{text(content)}"'.count('"') == 2  # nor does it leave an attribute
    shown.data.encode()  # no half of a surrogate pair
    assert all(
        unicodedata.category(char) not in ("Cc", "Cf", "Cs") for char in re.sub("[\n\t]", "", shown.data)
    )


def test_every_character_that_controls_or_hides_is_replaced() -> None:
    hidden = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs") and chr(code) not in "\t\n\r\x1b"
    ]
    assert len(hidden) > 2000
    assert set(text("".join(hidden))) == {"\ufffd"}
    assert text("a\u202eb\u200bc") == "a\ufffdb\ufffdc"


def test_blank_letters_and_selectors_are_replaced_but_for_those_of_emoji() -> None:
    blank = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2065\u2800\u3164\uffa0\ufff0\U000e0fff"
    selectors = [chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))]
    assert set(text(blank + "".join(selectors))) == {"\ufffd"}
    assert text("a\ufe0f b\ufe00") == "a\ufffd b\ufffd"
    assert text("✔\ufe0f ⚠\ufe0e 1\ufe0f\u20e3 🖥\ufe0f") == "✔\ufe0f ⚠\ufe0e 1\ufe0f\u20e3 🖥\ufe0f"
    assert text("✔\ufe0f\ufe0f\ufe0e ✔\ufe05") == "✔\ufe0f\ufffd\ufffd ✔\ufffd"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;196;1mx\x1b[2J\x1b[H", "x"),
        ("\x1b]0;a title\x07rest", "rest"),
        ("\x1b]8;;http://a.b\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;never ended", ""),
        ("\x1bPq#0\x1b\\x\x1bc\x1b", "x"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("[red]markup[/red]", "[red]markup[/red]"),
    ],
)
def test_codes_of_terminals_vanish(written: str, shown: str) -> None:
    assert text(written) == shown


def test_marks_are_not_heaped_up() -> None:
    for heap in ("\u0301\u0489", "\u0e49", "\u05b0", "\u0f7b", "\u20dd", "\U0001e944"):
        assert text("a" + heap * 500) == "a" + (heap * 4)[:4]
    assert text("🖥📄" * 9) == "🖥📄" * 9
    for words in ("é ü n\u0303", "שָׁלוֹם", "ที่นี้", "နှုံ့", "हिन्दी"):
        assert text(words) == words


def test_long_texts_keep_head_and_tail() -> None:
    content = "a" * 20_000 + "b" * 20_000
    shown = short(content)
    assert shown.startswith("a" * 3000)
    assert shown.endswith("b" * 3000)
    assert f"{40_000 - MAX_CHARS} characters left out" in pre(content)
    assert short("x" * MAX_CHARS) == "x" * MAX_CHARS
