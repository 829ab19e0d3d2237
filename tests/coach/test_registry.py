"""Coaches by name, and the fake one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from mappa_envs import coach
from mappa_envs.coach import CoachRequest, FakeCoach, RubricCoach, make_coach, register_coach
from mappa_envs.errors import CoachError, ConfigError
from mappa_envs.types import CoachScore, Episode, Role, Task, Turn

ROLE = Role(name="a_0", title="", duty="")


def request(index: int = 0) -> CoachRequest:
    return CoachRequest(
        task=Task(task_id="t", task_type="c", split="train", prompt=""),
        team=(ROLE,),
        role=ROLE,
        episode=Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0),
        turn=Turn(index=index, agent="a_0", messages=(), action="hi"),
    )


def test_known_names() -> None:
    assert isinstance(make_coach("rubric"), RubricCoach)
    assert isinstance(make_coach("fake", score=3), FakeCoach)


def test_unknown_names_and_options_say_what_there_is() -> None:
    with pytest.raises(
        ConfigError, match=r"no coach 'oracle'; the coaches are .*fake, llm, rubric.*register_coach"
    ):
        make_coach("oracle")
    with pytest.raises(ConfigError, match="options"):
        make_coach("rubric", mood="kind")
    with pytest.raises(ConfigError, match=r"coach 'fake:high' cannot be made.*'high'"):
        make_coach("fake:high")


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coach, "_FACTORIES", dict(coach._FACTORIES))
    register_coach("mine", lambda level="5", **_: FakeCoach(float(level)))
    assert asyncio.run(make_coach("mine:7").score(request())).score == 7
    with pytest.raises(ConfigError, match="already"):
        register_coach("rubric", FakeCoach)
    with pytest.raises(ConfigError, match="colon"):
        register_coach("a:b", FakeCoach)


def test_a_factory_that_makes_no_coach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coach, "_FACTORIES", dict(coach._FACTORIES))
    makes: tuple[tuple[Any, str], ...] = (
        (None, "None has no method score"),
        (FakeCoach, "FakeCoach is a class"),
    )
    for number, (made, words) in enumerate(makes):
        register_coach(f"mine-{number}", lambda made=made: made)
        with pytest.raises(ConfigError, match=words):
            make_coach(f"mine-{number}")


def test_the_fake_coach_scores_fails_and_remembers() -> None:
    fixed = FakeCoach(4, fail_on=[1])
    assert asyncio.run(fixed.score(request())).score == 4
    with pytest.raises(CoachError, match="turn 1"):
        asyncio.run(fixed.score(request(1)))
    assert [r.turn.index for r in fixed.requests] == [0, 1]
    assert asyncio.run(FakeCoach(lambda r: len(r.turn.action)).score(request())).score == 2
    verdict = CoachScore(score=1, reason="bad", blame={"a_0": 1.0})
    assert asyncio.run(FakeCoach(lambda _: verdict).score(request())) is verdict


def test_importing_stays_light() -> None:
    code = "import sys, mappa_envs.coach, mappa_envs.dsbench.artifacts, mappa_envs.testing.expert\n"
    code += "print(*{'torch', 'pandas', 'sklearn', 'scipy', 'joblib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
