"""The rubric on pairs of slips in one episode: both of their agents are blamed more than the third."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import maths_slips
import pytest
import table_slips

from benchmarks.blame.cases import Case, Size, pairs, tasks_of
from benchmarks.blame.judge import judge_all
from benchmarks.blame.measure import Record, measure
from benchmarks.blame.play import play_all
from mappa_envs.coach import RubricCoach
from mappa_envs.errors import SandboxUnavailable
from mappa_envs.testing.registry import PlantedFault

pytestmark = pytest.mark.slow

Slips = Callable[[], tuple[PlantedFault, ...]]


async def judged(cases: Sequence[Case]) -> list[Record]:
    """What the rubric says of these episodes."""
    try:
        return await judge_all(RubricCoach(), await play_all(cases))
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.mark.parametrize(
    ("slips", "num_pairs", "stops"),
    [(table_slips.slips, 30, table_slips.STOPS), (maths_slips.slips, 36, frozenset())],
)
def test_of_two_slips_both_are_found(slips: Slips, num_pairs: int, stops: frozenset[str]) -> None:
    size = Size(num_tasks=1, num_pairs=num_pairs, num_clean=0)
    # The earlier slip is none of those after which nobody can work.
    cases = pairs("dev", slips(), size, lambda fault: fault.name.split("-")[-1] not in stops)
    found = measure(asyncio.run(judged(cases)))
    print(*found.failures, sep="\n")
    assert found.values["num_cases"] == num_pairs
    assert (found.values["pair_accuracy"] or 0) >= 0.85
    assert (found.values["false_blame"] or 0) < 0.05


def test_the_same_programs_without_a_slip_are_blamed_for_nothing() -> None:
    task_lists = zip(table_slips.sound(), tasks_of("dsbench-v0"), strict=False)
    cases = [
        Case(group="dev", layout="pair", env_id="dsbench-v0", task=task, faults=team)
        for team, task in task_lists
    ]
    records = asyncio.run(judged(cases))
    assert [record.name for record in records if any(record.blame().values())] == []
    assert min(action.score or 0 for record in records for action in record.actions) >= 8
