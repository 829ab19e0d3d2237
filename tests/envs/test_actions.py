import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_envs.actions import (
    END_MARKERS,
    extract_code,
    handover_text,
    leaves_block_open,
    sanitize,
    strip_reasoning,
)

T = "```"
PIECES = ["```", "````", "python", "py", "bash", "\n", " ", "  ", "\t", "<think>", "</think>", "x = 1"]
PIECES += ["<|im_end|>", "</s>", "<|im_", "end|>", "<thi", "nk>", "\r\n", "é", "\ud800", "`", "- "]
messages = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", ()),
        ("no code", ()),
        (f"{T}python\nprint(1)\n{T}", ("print(1)",)),
        (f"{T}PY\na\n{T}\n{T}Python3\nb\n{T}", ("a", "b")),
        (f"{T}python\nprint(1){T}", ("print(1)",)),
        (f"Here: {T}py\nx\n{T}", ("x",)),
        (f"{T}python print(1){T} done", ("print(1)",)),
        (f"{T}python\nunclosed\nlast", ("unclosed\nlast",)),
        (f"{T}python\nlast<|im_end|>\n", ("last",)),
        (f"{T}python\na\n{T}<|im_end|>", ("a",)),
        (f"{T}bash\nls\n{T}\n{T}python\na\n{T}", ("a",)),
        (f"{T}\nplain\n{T}", ()),
        (f"{T}pythonic\na\n{T}", ()),
        (f"{T}python\n \n{T}", ()),
        (f"`{T}md\n{T}python\nquoted\n{T}\n`{T}", ()),
        (f"- {T}python\n  if a:\n    b\n  {T}", ("if a:\n  b",)),
        (f"{T}python\r\na\r\nb\r\n{T}", ("a\nb",)),
        (f"{T}python\na\n{T}output\n1\n{T}\n{T}py\nb", ("a", "b")),
        (f"<think>\n{T}python\ndraft\n{T}\n</think>\n{T}python\nfinal\n{T}", ("final",)),
        (f"{T}python\ndraft\n{T}\n</think>\n{T}python\nfinal\n{T}", ("final",)),
        (f"{T}python\nfinal\n{T}<think>{T}python\ndraft\n{T}", ("final",)),
        (f"<think>{T}python\ndraft\n{T}", ()),
        (f"{T}python\nprint('</think>')\n{T}", ("print('</think>')",)),
        (f"{T}python\ns = '<think>'\nprint(s)", ("s = '<think>'\nprint(s)",)),
        (f"{T}python\ndraft{T}</think>{T}python\nfinal{T}", ("final",)),
        (f"Here: {T}python print('<think>')\n1\n{T}", ("print('<think>')\n1",)),
        (f"{T}python 1{T} <think>{T}python\n2\n{T}", ("1",)),
        (f"{T}python\ndraft\n</think>\n{T}python\nfinal\n{T}", ("final",)),
        (f"{T}python\n1\n<think>\nIs that all?", ("1",)),
        (f"{T}python\ndraft\n</think>\nThe answer is 5.", ()),
    ],
)
def test_code(text: str, blocks: tuple[str, ...]) -> None:
    assert extract_code(text) == blocks


def test_reasoning() -> None:
    assert strip_reasoning("<think>a</think>b") == "b"
    assert strip_reasoning("a</think>b") == "b"
    assert strip_reasoning("a<THINK>b") == "a"
    assert strip_reasoning("a<think>b</think>c<think>d</think>e") == "a\nc\ne"
    assert strip_reasoning("a <think> b </think> c\n<think>\nd\n</think>\ne") == "a \n c\n\n\ne"
    assert strip_reasoning("Let me see: <think>\nb\n</think>\n\nc") == "Let me see: \n\n\nc"
    assert strip_reasoning("a.\n<think>\nb") == "a."


@pytest.mark.parametrize(
    "text",
    [
        "I think in `<think>` and stop at `</think>`.",
        'Its tokens are "<think>" and "</think>"',
    ],
)
def test_a_quoted_tag_hides_nothing(text: str) -> None:
    for message in (text, f"{text}\n{T}python\n1\n{T}", f"{T}python\n1\n{T}\n{text}"):
        assert strip_reasoning(message) == message
    assert extract_code(f"{text}\n{T}python\n1\n{T}") == ("1",)


def test_handover_has_no_markers() -> None:
    assert handover_text("<think>x</think> Done.<|im_end|></s>") == "Done."
    assert handover_text("a\ud800b") == "a\ufffdb"


@given(messages)
def test_never_raises_and_is_idempotent(text: str) -> None:
    for clean in (sanitize, strip_reasoning, handover_text):
        assert clean(clean(text)) == clean(text)
    shown = handover_text(text)
    shown.encode()
    assert not any(marker in shown for marker in END_MARKERS)
    assert all(block.strip() for block in extract_code(text))


@given(messages)
def test_the_handed_over_text_has_the_code_that_runs(text: str) -> None:
    assert extract_code(strip_reasoning(text)) == extract_code(text)
    assert leaves_block_open(strip_reasoning(text)) == leaves_block_open(text)


@given(st.text(alphabet="ab\n `.</", max_size=30), st.text(alphabet="ab\n .", max_size=30))
def test_what_stands_in_tags_that_begin_lines_is_never_shown(hidden: str, shown: str) -> None:
    answer = f"{shown}\nThe end."
    for message in (f"<think>Q{hidden}\n</think>\n{answer}", f"Q{hidden}\n</think>\n{answer}"):
        assert strip_reasoning(message) == answer.strip()


@given(st.text(alphabet="abc =()\n\t'", min_size=1).filter(lambda code: code.strip()), messages)
def test_a_fenced_block_comes_back_whole(code: str, reasoning: str) -> None:
    code = code.strip()
    hidden = reasoning.replace("</think>", "")
    assert extract_code(f"<think>{hidden}</think>\n{T}python\n{code}\n{T}\nbye") == (code,)


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("no code", False),
        (f"{T}python\nprint(1)\n{T}", False),
        (f"{T}python\nprint(1)", True),
        (f"Here it is: {T}python\nprint(1)\n{T}\n", False),
        (f"Here it is: {T}python\nprint(1)", True),
        (f"{T}python\nprint(1){T}", False),
        (f"{T}python\nprint(1)\n{T}\nIt prints:\n{T}\n1", True),
        (f"<think>{T}python\n</think>{T}py\n1\n{T}<|im_end|>\n", False),
    ],
)
def test_a_message_that_ends_within_a_block(text: str, is_open: bool) -> None:
    assert leaves_block_open(text) == is_open


SLOW = ["```py a``` ", "x ``` ", "</s>", "`", "<think>", "</think>", "```python\n", "<", "`<think>` "]
SLOW += [" <think>", "</think>a```", "```py\n</think>\n", "'</think>'", "`</think>"]
SLOW += ["``", "x" + "`" * 50_000]


@pytest.mark.parametrize("piece", SLOW)
def test_time_is_linear(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    start = time.process_time()
    extract_code(text)
    handover_text(text)
    assert time.process_time() - start < 10
