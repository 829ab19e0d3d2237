"""Does every held-out kind plant what it says, and destroy as much as it says?

    python -m benchmarks.blame.check [KIND …]

Plays each kind (or those named) on up to five tasks, prints the table of the README, and exits 1 on
a finding.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.blame.cases import Size, singles
from benchmarks.blame.heldout import HELD_OUT
from benchmarks.blame.kinds import Kind
from benchmarks.blame.play import Played, play_all

SIZE = Size(num_tasks=5, num_pairs=0, num_clean=0)
TOLERANCE = 0.25
"""Between a kind's severity and the share of the expert's outcome that it destroys, over its tasks."""


def shows(played: Played, sign: str, expert: Played) -> bool:
    """Whether a sign (see `Kind`) stands in the record."""
    guilty = played.case.faults[0].agent
    turns = [turn for turn in played.episode.turns if turn.agent == guilty]
    others = [turn for turn in played.episode.turns if turn.agent != guilty]
    kind, *words = sign.split()
    if kind in ("artifact", "remark"):
        found = [artifact for turn in turns for artifact in turn.artifacts]
        return any(
            [a.path, a.status] == words if kind == "artifact" else a.path == words[0] and bool(a.problem)
            for a in found
        )
    if kind in ("exception", "limit"):
        return any(turn.tool is not None and getattr(turn.tool, kind) == words[0] for turn in turns)
    if kind == "grade":
        return played.episode.grade_code == words[0]
    return {
        "no code": all(turn.tool is None for turn in turns),
        "handed on": any(turn.tool is not None and not turn.tool.ok for turn in others),
        "recovered": played.episode.success,
        "score": played.episode.success and _outcome(played) < _outcome(expert),
    }[sign]


def lost(played: Played, expert: Played) -> float:
    """The share of the expert's outcome that is gone; less than nothing where there is more."""
    return 1 - _outcome(played) / _outcome(expert)


def findings(kind: Kind, played: Sequence[Played], experts: Mapping[str, Played]) -> list[str]:
    """What is wrong with a kind; [] is good."""
    name, found = kind.fault.name, []
    for one in played:
        expert = experts[one.case.task.task_id]
        if not any(shows(one, sign, expert) for sign in kind.signs):
            last = [
                (t.agent, t.tool and (t.tool.exception, t.tool.limit), t.artifacts) for t in one.episode.turns
            ]
            found.append(f"{one.case.name} shows none of {kind.signs}: {one.episode.grade_code}, {last}")
    share = mean_lost(played, experts)
    # 0.1 is also the severity of what does no damage, because teammates make up for it.
    if abs(max(share, 0.0) - kind.fault.severity) > TOLERANCE:
        found.append(f"{name} destroys {share:.2f} of the outcome, its severity is {kind.fault.severity}")
    return found


def mean_lost(played: Sequence[Played], experts: Mapping[str, Played]) -> float:
    return sum(lost(one, experts[one.case.task.task_id]) for one in played) / len(played)


def _outcome(played: Played) -> float:
    return played.episode.outcome or 0.0


async def check(names: Sequence[str] = ()) -> list[str]:
    """Print the table; the findings."""
    kinds = [kind for kind in HELD_OUT if not names or kind.fault.name in names]
    planted = singles("heldout", [kind.fault for kind in kinds], SIZE)
    cases = [case for case in planted if case.layout == "single"]
    alone = {case.task.task_id: replace(case, layout="clean", faults=()) for case in cases}
    played = await play_all([*alone.values(), *cases])
    experts = dict(zip(alone, played, strict=False))
    of: dict[str, list[Played]] = {kind.fault.name: [] for kind in kinds}
    for one in played[len(alone) :]:
        of[one.case.faults[0].name].append(one)
    found = [f"the experts fail on {name}" for name, one in experts.items() if not one.episode.success]
    print("| kind | guilty | severity | lost | what the agent does |\n|---|---|--:|--:|---|")
    for kind in kinds:
        mine = of[kind.fault.name]
        if not mine:
            found.append(f"{kind.fault.name} fits no task")
            continue
        found += findings(kind, mine, experts)
        print(_row(kind, mean_lost(mine, experts)))
    return found


def _row(kind: Kind, share: float) -> str:
    fault = kind.fault
    told = fault.description + (f" (injection, in `{kind.twin.name}`)" if kind.twin else "")
    return f"| `{fault.name}` | {fault.agent} | {fault.severity:g} | {share:.2f} | {told} |"


if __name__ == "__main__":
    problems = asyncio.run(check(sys.argv[1:]))
    print("\n".join(problems), file=sys.stderr)
    sys.exit(1 if problems else 0)
