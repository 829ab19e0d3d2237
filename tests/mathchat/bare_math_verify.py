"""The tricky pairs of `grading_cases`, graded by bare math-verify: the tables of docs/mathchat.md.

python tests/mathchat/bare_math_verify.py

Bare means as its README shows: `verify(parse("$gold$"), parse(message))`. It takes half a minute, since some
pairs take it as long as its time-out of 5 s allows.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

from grading_cases import ALL, message
from math_verify import parse, verify

from mappa_envs.mathchat import grade

Judged = tuple[str, object, str, bool, bool, bool]
"""Kind, gold, message, right?, our verdict, that of math-verify."""


def judged() -> list[Judged]:
    """Every pair with both verdicts. In the main thread only: math-verify's time-outs are alarms."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return [(*case, grade(case[2], case[1]), _bare(case[1], case[2])) for case in ALL]  # type: ignore[arg-type]


def _bare(gold: object, said: str) -> bool:
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
    shown = shown.replace("|", "\\|")
    return f"`{shown if len(shown) <= 60 else shown[:59] + '…'}`"


if __name__ == "__main__":
    found = judged()
    print(f"{summary(found)}\n\n{differences(found)}")
