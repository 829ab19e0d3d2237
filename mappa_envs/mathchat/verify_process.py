"""math-verify, for `grading`, in a helper process.

The helper imports math-verify once and forks for every question: what hangs, crashes or eats memory is a
copy, which is killed, and the next question finds the helper ready.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from typing import Any

import sympy
from math_verify import parse, verify

from mappa_envs.mathchat.equivalence import same

DIGITS = 60
_EXACT, _FLOAT = sympy.Float("1e-40"), sympy.Float("1e-12")
_VERDICTS = {b"y": "right", b"n": "wrong"}

# It warns that its time-outs are off, which is what we want.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)


def compare(data: bytes, *, golds: Sequence[str], answer: str, limit_s: float) -> str:
    """Whether the answer equals one of the golds: "right", "wrong", or "undecided".

    `limit_s` is of processor time: that the machine has other things to do is not the answer's fault. It is
    the caller who sees to a copy that gets none.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(theirs, golds, answer, limit_s)
    os.close(theirs)
    try:
        # The copy's end of the pipe closes with it: at the latest when its processor time is up.
        return _VERDICTS.get(os.read(ours, 1), "undecided")
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(channel: int, golds: Sequence[str], answer: str, limit_s: float) -> None:
    """The copy's side. It does not return, and says nothing where its time or memory did not suffice."""
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # ends it, also where the helper is killed meanwhile
        os.write(channel, b"y" if any(_same(gold, answer) for gold in golds) else b"n")
    finally:
        os._exit(0)


def _same(gold: str, answer: str) -> bool:
    try:
        return same(gold, answer, ask)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  (whatever hostile text breaks in sympy, it is no match)
        return False


def ask(gold: str, answer: str) -> bool:
    """math-verify's verdict, but for numbers that it only takes for equal because it rounds."""
    wanted, given = _read(f"${gold}$"), _read(f"\\boxed{{{answer}}}")
    if verify(wanted, given, timeout_seconds=None):
        return not _differ(wanted, given)
    # It takes the imaginary unit for an unknown, so that 1/i is not -i.
    numbers = [_as_complex(found) for found in (wanted, given)]
    return None not in numbers and numbers != [wanted[0], given[0]] and not _differ(numbers[:1], numbers[1:])


def _read(text: str) -> list[Any]:
    found: list[Any] = parse(text.replace("%", r"\%"), parsing_timeout=None)
    return found


def _as_complex(found: Sequence[Any]) -> sympy.Expr | None:
    """The number that a text is with i as the imaginary unit; None where it is none even so."""
    if not found or not isinstance(found[0], sympy.Expr):
        return None
    number = found[0].subs({symbol: sympy.I for symbol in found[0].free_symbols if str(symbol) == "i"})
    return number if number.is_number and not number.has(sympy.oo, sympy.zoo, sympy.nan) else None


def _differ(wanted: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether two real or complex numbers are apart by more than rounding at `DIGITS` digits."""
    if not wanted or not given:
        return False
    if not all(isinstance(x, sympy.Expr) and x.is_number for x in (wanted[0], given[0])):
        return False
    left, right = _decimal_as_fraction(wanted[0]), _decimal_as_fraction(given[0])
    if {left.is_rational, right.is_rational} == {True, False}:
        return True
    gap = abs(sympy.N(left - right, DIGITS, maxn=400))
    scale = max(abs(sympy.N(left, DIGITS)), abs(sympy.N(right, DIGITS)))
    tolerance = _FLOAT if (left.has(sympy.Float) or right.has(sympy.Float)) else _EXACT
    return bool(gap > tolerance * scale)


def _decimal_as_fraction(number: sympy.Expr) -> sympy.Expr:
    """A decimal alone is what it says: 6.283185307179586 is not 2 pi."""
    # Turned round, because a negative one may come as a product that is not worked out.
    opposite = -number
    return -sympy.Rational(str(opposite)) if opposite.is_Float else number


# Parsers and sympy's tables are built on first use: here, so that no copy has to do it again.
for _gold, _given in (
    ("(x+1)^2", "x^2+2x+1"),
    ("\\frac{\\sqrt{8}}{2}", "\\sqrt2"),
    ("\\{x,3\\}", "\\{3,y\\}"),
    ("x=3", "2<x"),
):
    ask(_gold, _given)
