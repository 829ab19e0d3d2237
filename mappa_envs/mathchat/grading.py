r"""Is an answer right? Our own exact rules first; math-verify, in a process that can be killed, for the rest.

>>> grade("The sum is \\boxed{\\frac{120}{2}}.", 60)
True

`judge` and `judge_apart` say why and what was read. math-verify's own time-outs are alarms, which fail in
threads and cancel the caller's: it runs without any, in a helper process that forks for each
question, with `TIMEOUT_S` for all golds.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal

from mappa_envs.child import HelperOutOfMemory, HelperPool, HelperTimeout
from mappa_envs.errors import SandboxError, boundary
from mappa_envs.mathchat.equivalence import same
from mappa_envs.mathchat.latex import find_answer

TIMEOUT_S = 1.5
"""Of processor time for math-verify; then the comparison is undecided."""

STALL_S = 30.0
"""After this the machine is at fault, not the answer."""

MEMORY_MB = 2048
MAX_ANSWER_CHARS = 2000

Gold = str | int | float | Sequence[Any]
Code = Literal["right", "wrong", "no_answer", "too_long", "undecided"]

_EITHER = re.compile(r"\s*\\text\{\s*,?\s*or\s*\}\s*|\s+or\s+", re.IGNORECASE)
_NOTE = re.compile(r"\A\s*either\s+|\s*\((?:both|either|any|all)\b[^()]*\)\s*\Z", re.IGNORECASE)
_REMARK = re.compile(r"(?<=\S)\s+\((?=[^()]*[A-Z]{3})[A-Z][A-Z ,.;:'’-]*\)\s*\Z", re.IGNORECASE)
"""What may be said of several golds, after the last of them."""
_ACCEPTED = re.compile(
    r"\((?:both|either|any|all)\b[^()]*\b(?:accept\w*|allowed|correct|counts?|suffices?|fine|ok)\b[^()]*\)\s*\Z",
    re.IGNORECASE,
)
"""A note that says of golds with "or" between them that each is one."""
_helpers = HelperPool("mappa_envs.mathchat.verify_process", memory_mb=MEMORY_MB)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the grader found. `answer` is what it read, None without an answer.

    Codes: `right`, `wrong`, `no_answer` (nothing boxed, no "answer is"), `too_long`, and `undecided`: the
    comparison took too much time or memory, which counts as wrong.
    """

    code: Code
    answer: str | None = None

    @property
    def right(self) -> bool:
        return self.code == "right"


def grade(response: str, gold: Gold) -> bool:
    """Whether a whole message gives the right answer; of several golds, any.

    Takes at most 2 s of processor time, apart from the start of the helper process. Never raises: where no
    helper can be had the answer counts as wrong, and the log says so.
    """
    try:
        return judge(response, read_golds(gold)).right
    except SandboxError as error:
        _log.error("an answer counts as wrong because math-verify could not be asked: %s", error)
        return False


def judge(response: str, golds: Sequence[str]) -> Verdict:
    """The verdict on a whole message. Raises `SandboxError` when the helper process failed."""
    answer = _judge_here(response, golds)
    if isinstance(answer, Verdict):
        return answer
    with boundary(SandboxError, "asking math-verify", HelperTimeout, HelperOutOfMemory):
        code = _helpers.call("compare", _question(golds, answer), timeout_s=STALL_S)
    return Verdict(code=code, answer=answer)


async def judge_apart(response: str, golds: Sequence[str]) -> Verdict:
    """`judge` for an event loop."""
    answer = _judge_here(response, golds)
    if isinstance(answer, Verdict):
        return answer
    with boundary(SandboxError, "asking math-verify", HelperTimeout, HelperOutOfMemory):
        code = await _helpers.acall("compare", _question(golds, answer), timeout_s=STALL_S)
    return Verdict(code=code, answer=answer)


def read_golds(gold: Gold) -> tuple[str, ...]:
    """The accepted answers as text; () for what is no answer.

    >>> read_golds("080 or 081 (both were accepted)"), read_golds(142.0), read_golds([7, "x+1"])
    (('080', '081'), ('142',), ('7', 'x+1'))
    """
    if isinstance(gold, str):
        gold = " ".join(gold.split())
        # "x = 1 or x = 2" is one answer, with two parts.
        is_one = re.search(r"[\\=<>]", gold) and not _ACCEPTED.search(gold)
        parts = [gold] if is_one else _EITHER.split(_NOTE.sub("", gold))
        if len(parts) > 1:
            parts[-1] = _REMARK.sub("", parts[-1])
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(gold, (list, tuple)):
        return tuple(text for one in gold for text in read_golds(one))
    if isinstance(gold, float):
        if not math.isfinite(gold):
            return ()
        return (str(int(gold)),) if gold.is_integer() else _decimal_golds(gold)
    if isinstance(gold, Integral) and not isinstance(gold, bool) and int(gold).bit_length() < 10_000:
        return (str(int(gold)),)
    return ()


def _decimal_golds(gold: float) -> tuple[str, ...]:
    """0.3333333333333333 is how a float says 1/3: both are accepted."""
    written = repr(float(gold))
    simple = Fraction(gold).limit_denominator(10_000)
    is_cut_off = len(written.lstrip("-0.").replace(".", "")) >= 15 and float(simple) == gold
    return (written, str(simple)) if is_cut_off else (written,)


class _LeftOpen(Exception):
    """The exact rules have no verdict."""


def _ask_later(gold: str, answer: str) -> bool:
    raise _LeftOpen


def _judge_here(response: str, golds: Sequence[str]) -> Verdict | str:
    """The verdict, or the answer that math-verify has to look at."""
    answer = find_answer(response) if isinstance(response, str) else None
    if answer is None:
        return Verdict(code="no_answer")
    if len(answer) > max([MAX_ANSWER_CHARS, *(2 * len(gold) for gold in golds)]):
        return Verdict(code="too_long", answer=answer[:MAX_ANSWER_CHARS])
    is_open = False
    for gold in golds:
        try:
            if same(gold, answer, _ask_later):
                return Verdict(code="right", answer=answer)
        except _LeftOpen:
            is_open = True
    return answer if is_open else Verdict(code="wrong", answer=answer)


def _question(golds: Sequence[str], answer: str) -> dict[str, Any]:
    return {"golds": list(golds), "answer": answer, "limit_s": TIMEOUT_S}
