"""Reading an agent's message: its reasoning, its code, and what it hands over.

>>> extract_code("<think>maybe ```python\\n1/0\\n```</think>Here:\\n```Python\\nprint(1)")
('print(1)',)

Every function takes any string, never raises, and needs time linear in its length.
"""

from __future__ import annotations

import re
import textwrap

CODE_TAGS = ("python", "py", "python3")

END_MARKERS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)

_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_MARKER = re.compile("|".join(map(re.escape, END_MARKERS)))
_SURROGATE = re.compile("[\ud800-\udfff]")
_FENCE = re.compile(r"`{3,}")
_TAG = re.compile(r"[ \t]*([A-Za-z]\w*)?(?![^\s`])")
"""What may follow a fence: a tag, then a blank, another fence or the end of the line."""


def sanitize(text: str) -> str:
    """The text with lone surrogates, which no JSON or UTF-8 can carry, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def strip_reasoning(text: str) -> str:
    """The text outside `<think>` … `</think>`, without blanks around it.

    Before a `</think>` that nothing opened, all is reasoning (many chat templates open it in the prompt);
    after a `<think>` that nothing closes, too. A tag in quotes is a mention, as in `print("</think>")`.
    """
    kept: list[str] = []
    position, is_inside = 0, False
    for tag in _THINK.finditer(text):
        if not is_inside and _is_quoted(text, *tag.span()):
            continue
        if not is_inside:
            kept.append(text[position : tag.start()])
        if tag[1] and not is_inside:
            kept.clear()
        is_inside, position = not tag[1], tag.end()
    if not is_inside:
        kept.append(text[position:])
    # A line break between the pieces: joined without one, two halves could make up a tag.
    return "\n".join(piece for piece in kept if piece).strip()


def _is_quoted(text: str, start: int, end: int) -> bool:
    mark = text[max(start - 1, 0) : start]
    is_fence = "``" in (text[max(start - 2, 0) : start], text[end : end + 2])
    return mark in ('"', "'", "`") and text[end : end + 1] == mark and not is_fence


def handover_text(text: str) -> str:
    """What teammates get to read: no reasoning, no end-of-turn marker, nothing that breaks JSON."""
    return _MARKER.sub(" ", strip_reasoning(sanitize(text))).strip()


def extract_code(text: str) -> tuple[str, ...]:
    """The blocks of Python outside the reasoning, in order; empty ones are left out.

    A block begins with a fence of three or more backticks and one of `CODE_TAGS`, in any case, also in
    the middle of a line. It ends at a fence of at least that length at the start or the end of a line, or
    with the text. Code on the opening line counts. Blocks in other languages are passed over.
    """
    scanner = _scan(text)
    scanner.close()
    return tuple(scanner.blocks)


def leaves_block_open(text: str) -> bool:
    """Does the message end within a block, of Python or of something else?"""
    return _scan(text).fence > 0


def _scan(text: str) -> _Scanner:
    body = _without_last_marker(strip_reasoning(text)).replace("\r\n", "\n")
    scanner = _Scanner()
    for line in body.split("\n"):
        scanner.feed(line)
    return scanner


def _without_last_marker(text: str) -> str:
    end, before = len(text), -1
    while end != before:
        before = end
        while end and text[end - 1].isspace():
            end -= 1
        end -= next((len(marker) for marker in END_MARKERS if text.endswith(marker, 0, end)), 0)
    return text[:end]


class _Scanner:
    """Line by line: outside a block, inside a Python block, or inside some other block."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.fence = 0
        """Length of the fence that opened the current block; 0 outside."""
        self.lines: list[str] | None = None
        self.indent = 0

    def feed(self, line: str) -> None:
        if not self.fence:
            self._outside(line)
            return
        found = _FENCE.match(line.lstrip())
        if found and len(found[0]) >= self.fence:
            self.close()
            at = line.index("`")
            if _tag(line, at + found.end()) and not line[at + found.end()].isspace():
                self._open(line, at, len(found[0]))
        elif self.lines is not None and line.rstrip().endswith("```") and _num_ticks(line) >= self.fence:
            self.lines.append(line.rstrip().rstrip("`"))
            self.close()
        elif self.lines is not None:
            self.lines.append(line)

    def close(self) -> None:
        """End the current block, if there is one, and keep its code."""
        if self.lines is not None:
            code = "\n".join(_unindent(self.lines, self.indent))
            if code.strip():
                self.blocks.append(code)
        self.fence, self.lines, self.indent = 0, None, 0

    def _outside(self, line: str) -> None:
        start = len(line) - len(line.lstrip())
        for found in _FENCE.finditer(line):
            starts_line = found.start() == start
            if starts_line or _is_python(line, found.end()):
                self._open(line, found.start(), len(found[0]))
                return

    def _open(self, line: str, at: int, fence: int) -> None:
        self.fence = fence
        self.indent = at if not line[:at].strip() else 0
        if not _is_python(line, at + fence):
            return
        head, inline, _ = line[at + fence :].lstrip().partition("`" * fence)
        code = head[len(_tag(head, 0)) :].strip()
        self.lines = [" " * self.indent + code] if code else []
        if inline:
            self.close()


def _num_ticks(line: str) -> int:
    """How many backticks end the line."""
    text = line.rstrip()
    return len(text) - len(text.rstrip("`"))


def _tag(line: str, position: int) -> str:
    found = _TAG.match(line, position)
    return (found[1] or "") if found else ""


def _is_python(line: str, position: int) -> bool:
    return _tag(line, position).lower() in CODE_TAGS


def _unindent(lines: list[str], indent: int) -> list[str]:
    """Take off the fence's own indentation, as in Markdown lists; a wholly indented block, too."""
    cut = [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines]
    first = next((line for line in cut if line.strip()), "")
    return textwrap.dedent("\n".join(cut)).split("\n") if first[:1].isspace() else cut
