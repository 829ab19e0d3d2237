"""Episodes that are cut, run out of time or do not begin: what is paid, shown and left behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from team_fakes import DATA, MODEL, SUBMIT, MakeEnv, inspect_list, run_list, write

from mappa_envs import attempt, scoring
from mappa_envs.coach.base import CoachRequest
from mappa_envs.errors import SandboxError
from mappa_envs.scoring import Scoring
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import StopReason


@pytest.mark.parametrize("mode", ["inline", "deferred", "hindsight"])
def test_a_cut_in_place_of_a_step_pays_nothing_twice(make_env: MakeEnv, mode: Scoring) -> None:
    env = make_env(coach=FakeCoach(8.0), scoring=mode)
    env.reset(seed=0)
    todo, totals = iter([write("notes.txt")]), dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        totals[agent] += reward
        if terminated or truncated:
            env.step(None)
        elif (action := next(todo, None)) is not None:
            env.step(action)
        else:
            env.cut(StopReason.CONTEXT)
    assert totals == pytest.approx({"data_engineer_0": 0.8, "modeler_0": 0.0, "analyst_0": 0.0})


def test_the_closing_line_of_a_cut_is_printed(make_env: MakeEnv, capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env(render_mode="human")
    env.reset(seed=0)
    env.step(DATA)
    capsys.readouterr()
    env.cut(StopReason.CONTEXT)
    assert capsys.readouterr().out == "=== context: outcome 0 (no_file), success False ===\n"


def test_a_time_limit_leaves_an_inline_coachs_time_out(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def thinks(request: CoachRequest) -> float:
        nonlocal now
        now += 100
        return 5.0

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(attempt, "time", clock)
    monkeypatch.setattr(scoring, "time", clock)
    env = make_env(coach=FakeCoach(thinks), time_limit_s=50.0)
    env.reset(seed=0)
    for action in (DATA, MODEL):
        env.step(action)
        assert env.episode.stop_reason is None
    env.step(SUBMIT)
    assert str(env.episode.stop_reason) == "done"
    env.reset(seed=0)
    now += 51
    env.step(DATA)
    assert str(env.episode.stop_reason) == "time"


def test_a_reset_that_fails_leaves_no_episode_to_play(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env()
    env.reset(seed=0)
    env.step(DATA)
    sandbox: Any = env._sandbox
    opening = sandbox.open

    async def fails(files: Any) -> Any:
        raise SandboxError("no room")

    monkeypatch.setattr(sandbox, "open", fails)
    with pytest.raises(SandboxError, match="no room"):
        env.reset(seed=0)
    assert env.agents == []
    with pytest.raises(RuntimeError, match="reset"):
        env.step(MODEL)
    monkeypatch.setattr(sandbox, "open", opening)
    env.reset(seed=0)
    env.step(DATA)
    assert [turn.agent for turn in env.episode.turns] == ["data_engineer_0"]


def test_a_file_that_could_not_be_looked_at_is_looked_at_again(make_env: MakeEnv) -> None:
    looks = 0

    def slow_at_first(script: str, files: dict[str, bytes]) -> Any:
        nonlocal looks
        if '"path": "X_train.pkl"' in script and "X_train.pkl" in files:
            looks += 1
            if looks == 1:
                return None
        return inspect_list(script, files)

    env = make_env(sandbox=FakeSandbox(script=run_list, inspector=slow_at_first))
    env.reset(seed=0)
    env.step(write("X_train.pkl"))
    assert env.episode.turns[0].artifacts[0].status == "unverifiable"
    env.step(write("notes.txt"))
    found = env.episode.turns[1].artifacts[0]
    assert (found.status, found.written_by) == ("valid", 0)
