"""The benchmark of a slow coach: its parts, and a small run of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.overlap import __main__ as overlap
from benchmarks.overlap.coach import LateCoach
from mappa_envs.coach import CoachRequest
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Episode, Role, Task, Turn


def _request() -> CoachRequest:
    role = Role(name="solver_0", title="Solver", duty="Solve.")
    task = Task(task_id="t", task_type="toy", split="train", prompt="Solve.")
    episode = Episode(env_id="toy-v0", task_id="t", task_type="toy", split="train", seed=0)
    turn = Turn(index=0, agent="solver_0", messages=(), action="It is 4.")
    return CoachRequest(task=task, team=(role,), role=role, episode=episode, turn=turn)


def test_the_late_coach_takes_so_many_calls_at_a_time() -> None:
    async def check() -> None:
        coach, loop = LateCoach(0.02, 2), asyncio.get_running_loop()
        start = loop.time()
        await asyncio.gather(*(coach.score(_request()) for _ in range(6)))
        assert loop.time() - start >= 0.06

    asyncio.run(check())


def test_slowdowns_are_medians_of_ratios_within_a_round() -> None:
    seconds = {"instant": [10.0, 20.0, 10.0], "deferred": [11.0, 30.0, 12.0], "inline": [], "hindsight": []}
    assert overlap.slowdowns(seconds) == {
        "slowdown_deferred_5s": pytest.approx(1.2),
        "slowdown_inline_5s": None,
        "slowdown_hindsight_5s": None,
        "instant_s": 10.0,
    }


def test_a_variant_with_other_scores_is_no_measurement() -> None:
    records: Any = iter([["a"], ["a"], ["b"]])

    def play(variant: overlap.Variant) -> Any:
        episodes = [Episode(env_id=e, task_id="", task_type="", split="", seed=0) for e in next(records)]
        return [type("Rollout", (), {"episode": episode}) for episode in episodes], 1.0

    with pytest.raises(RuntimeError, match="inline: the episodes are not the same"):
        overlap.compare(play, overlap.LATE[:2], 1)


@pytest.mark.slow
def test_a_small_run_has_the_agreed_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(overlap, "open_sandbox", lambda *_, **__: FakeSandbox(inspector=_nothing))
    monkeypatch.setattr(overlap, "TOKENS_PER_S", 1e6)
    late = [overlap.Variant(name=v.name, scoring=v.scoring, delay_s=0.05) for v in overlap.LATE]
    monkeypatch.setitem(overlap.SIZES, "quick", (2, tuple(late)))
    overlap.main(["--episodes", "4", "--json", str(tmp_path / "out.json")])
    figures = json.loads((tmp_path / "out.json").read_text())
    assert list(figures) == [
        "slowdown_deferred_5s",
        "slowdown_inline_5s",
        "slowdown_hindsight_5s",
        "instant_s",
    ]
    assert all(value > 0 for value in figures.values())


def _nothing(script: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {"status": "missing", "kind": "", "shape": None, "nan_share": None}
