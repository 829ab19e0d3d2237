"""The registry of planted faults, and the teams that plant them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from mappa_envs import make
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.mathchat.templates import template_named
from mappa_envs.testing import (
    FAULTS,
    MATH_FAULTS,
    ExpertTeam,
    FakeSandbox,
    FaultyTeam,
    PlantedFault,
    expert_action,
    expert_message,
    planted_faults,
    register_expert,
    register_fault,
    registry,
)
from mappa_envs.types import Task

TABLES = load_tasks("embedded", None)
TABLE = next(task for task in TABLES if task.task_id == "penguin-sex")
DRAWN = template_named("power_mod").draw(Random(0), level=1)
PROBLEM = MathTask(
    task_id="power", task_type="power_mod", split="test", prompt=DRAWN.prompt, golds=(str(DRAWN.answer),)
)
ASKED = [{"role": "user", "content": PROBLEM.prompt}]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_FAULTS", dict(registry._FAULTS))
    monkeypatch.setattr(registry, "_EXPERTS", dict(registry._EXPERTS))


def named(name: str) -> PlantedFault:
    return next(fault for fault in planted_faults() if fault.name == name)


def sleepy(agent: str, messages: Sequence[dict[str, str]], task: Task) -> str:
    return "zzz"


SLEEPY = PlantedFault(
    name="naps/sleepy", env_id="naps-v0", agent="guard_0", severity=1.0, description="sleeps", message=sleepy
)


def test_both_environments_have_their_kinds() -> None:
    assert len(planted_faults("dsbench-v0")) == len(FAULTS) == 55
    assert len(planted_faults("mathchat-v0")) == len(MATH_FAULTS) >= 16
    assert len(planted_faults()) == len(FAULTS) + len(MATH_FAULTS)
    assert max(Counter(fault.name for fault in planted_faults()).values()) == 1
    assert {fault.severity for fault in planted_faults()} <= set(registry.SEVERITIES)
    assert {fault.agent for fault in planted_faults() if fault.injection} == {
        "problem_solver_0",
        "code_executor_0",
        "verifier_0",
    }


def test_a_kind_of_ones_own_comes_last_and_once() -> None:
    register_fault(SLEEPY)
    assert planted_faults()[-1] is SLEEPY
    assert planted_faults("naps-v0") == (SLEEPY,)
    with pytest.raises(ConfigError, match="'naps/sleepy' already"):
        register_fault(replace(SLEEPY, description="sleeps again"))
    with pytest.raises(ConfigError, match=r"severity must be in \(0, 1\], got 0"):
        replace(SLEEPY, severity=0)


def test_another_environment_brings_its_expert() -> None:
    task = Task(task_id="night", task_type="watch", split="train", prompt="Watch.")
    with pytest.raises(ConfigError, match="'naps-v0' has no scripted expert; known: dsbench-v0, mathchat-v0"):
        FaultyTeam("naps-v0", task, [SLEEPY])
    register_expert("naps-v0", lambda agent, messages, task: f"{agent} is awake")
    team = FaultyTeam("naps-v0", task, [SLEEPY])
    assert [team(agent, []) for agent in ("guard_0", "guard_1")] == ["zzz", "guard_1 is awake"]
    with pytest.raises(ConfigError, match="has a scripted expert already"):
        register_expert("naps-v0", sleepy)


def test_the_expert_finds_the_task_by_its_prompt() -> None:
    env = make("dsbench-v0", tasks=TABLES, split=None, coach=None, sandbox=FakeSandbox())
    for policy in (ExpertTeam(env), ExpertTeam("dsbench-v0")):
        for task in TABLES[::12]:
            env.reset(options={"task_id": task.task_id})
            said = policy("data_engineer_0", env.infos["data_engineer_0"]["messages"])
            assert said == expert_action("data_engineer_0", task)
    with pytest.raises(DataError, match="holds none of the 38 tasks of dsbench-v0"):
        ExpertTeam(env)("modeler_0", ASKED)


def test_only_the_guilty_deviate() -> None:
    team = FaultyTeam("dsbench-v0", TABLE, [named("dsbench/own_class"), named("dsbench/semicolons")])
    assert team("data_engineer_0", []) == expert_action("data_engineer_0", TABLE)
    assert "class Wrapper" in team("modeler_0", [])
    assert 'sep=";"' in team("analyst_0", [])
    team = FaultyTeam("mathchat-v0", PROBLEM, [named("mathchat/off_by_one")])
    for agent in ("problem_solver_0", "verifier_0"):
        assert team(agent, ASKED) == expert_message("mathchat-v0", agent, ASKED, PROBLEM)
    assert team("code_executor_0", ASKED) != expert_message("mathchat-v0", "code_executor_0", ASKED, PROBLEM)


def test_senseless_teams_say_so() -> None:
    crash, bracket = named("mathchat/crash_early"), named("mathchat/syntax_error")
    for faults in ([], [crash, bracket], [crash, crash, crash]):
        with pytest.raises(ConfigError, match="one is needed, or two of different agents"):
            FaultyTeam("mathchat-v0", PROBLEM, faults)
    with pytest.raises(ConfigError, match="belongs to mathchat-v0, not to dsbench-v0"):
        FaultyTeam("dsbench-v0", TABLE, [crash])
    with pytest.raises(ConfigError, match="makes no sense for task 'penguin-sex'"):
        FaultyTeam("dsbench-v0", TABLE, [named("dsbench/probabilities_for_labels")])
    with pytest.raises(ConfigError, match="the expert plays DSBenchTask"):
        expert_message("dsbench-v0", "modeler_0", [], PROBLEM)


def test_a_fault_fits_the_tasks_of_its_own_environment() -> None:
    for fault in planted_faults():
        assert not fault.fits(PROBLEM if fault.env_id == "dsbench-v0" else TABLE)
    for fault in planted_faults("mathchat-v0"):
        assert fault.fits(PROBLEM)
        assert not fault.fits(replace(PROBLEM, prompt="How far is the moon?"))
