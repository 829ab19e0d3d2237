"""The tricky pairs of `grading_cases`, graded by bare math-verify: the tables of docs/mathchat.md.

python tests/mathchat/bare_math_verify.py

Bare means as its README shows: `verify(parse("$gold$"), parse(message))`. It takes half a minute, since some
pairs take it as long as its time-out of 5 s allows: here of processor time, so that a busy machine changes no
verdict.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context

from grading_cases import ALL, message
from math_verify import parse, verify

from mappa_envs.mathchat import grade

Judged = tuple[str, object, str, bool, bool, bool]
"""Kind, gold, message, right?, our verdict, that of math-verify."""


def judged() -> list[Judged]:
    """Every pair with both verdicts."""
    # Of processes, since math-verify's time-outs are alarms, which a main thread alone can have.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        bare = pool.map(_bare, [case[1] for case in ALL], [case[2] for case in ALL])
        ours = [grade(case[2], case[1]) for case in ALL]  # type: ignore[arg-type]
        return [(*case, mine, its) for case, mine, its in zip(ALL, ours, bare, strict=True)]


@contextlib.contextmanager
def alarms_of_processor_time() -> Iterator[None]:
    """Whoever asks for an alarm gets one that counts this process's work, and not the machine's."""
    alarm, number = signal.alarm, signal.SIGALRM
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)  # type: ignore[assignment]
    signal.SIGALRM = signal.SIGPROF  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        signal.alarm, signal.SIGALRM = alarm, number  # type: ignore[misc]


def _bare(gold: object, said: str) -> bool:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    with alarms_of_processor_time():
        return bool(verify(parse(f"${gold}$"), parse(said)))


def summary(pairs: list[Judged]) -> str:
    """How often each is wrong, by kind."""
    lines = [
        f"| kind | cases | wrong here | wrong by math-verify {version('math-verify')} |",
        "|---|--:|--:|--:|",
    ]
    for kind in [*dict.fromkeys(pair[0] for pair in pairs), "all"]:
        mine = [pair for pair in pairs if kind in (pair[0], "all")]
        ours, bare = (sum(pair[place] is not pair[3] for pair in mine) for place in (4, 5))
        lines.append(f"| {kind} | {len(mine)} | {ours} | {bare} |")
    return "\n".join(lines)


def differences(pairs: list[Judged]) -> str:
    """Every pair on which the two differ."""
    lines = ["| kind | gold | message | here | math-verify |", "|---|---|---|---|---|"]
    for kind, gold, said, _, ours, bare in pairs:
        if ours is not bare:
            verdicts = ("right" if verdict else "wrong" for verdict in (ours, bare))
            lines.append(f"| {' | '.join((kind, _code(gold), _code(said), *verdicts))} |")
    return "\n".join(lines)


def _code(text: object) -> str:
    """As code in a Markdown table, shortened, without the words around a box."""
    shown = str(text)
    if shown.startswith(start := message("").removesuffix("}$")):
        shown = shown.removeprefix(start).removesuffix("}$")
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown).replace("|", "\\|")
    return f"`{shown if len(shown) <= 60 else shown[:59] + '…'}`"


if __name__ == "__main__":
    found = judged()
    print(f"{summary(found)}\n\n{differences(found)}")
