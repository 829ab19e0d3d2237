"""Every fault of the table, in a real sandbox, shows where and how the table says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.submission import CODES
from mappa_envs.dsbench.tasks import DSBenchTask, load_tasks
from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.sandbox import Limits
from mappa_envs.testing import (
    FAULTS,
    FakeCoach,
    Fault,
    SaboteurPolicy,
    fault_named,
    faults_for,
    saboteur_action,
)
from mappa_envs.testing.expert import ExpertPolicy, expert_action
from mappa_envs.testing.faults import table
from mappa_envs.types import Episode, Turn

SIGN = re.compile(
    r"artifact \S+ (missing|invalid|unverifiable)|remark \S+|file \S+ (changed|deleted)"
    r"|exception \w+|limit time|grade (" + "|".join(CODES) + r")|score"
)
TASK_IDS = ("penguin-species", "penguin-sex", "penguin-body-mass")
"""Labels, probabilities of one class, numbers; with text and gaps in all."""
CASES = [
    (task_id, fault)
    for task_id in TASK_IDS
    for fault in FAULTS
    # Probabilities share all but these with labels.
    if task_id != "penguin-sex" or (fault.families and Family.LABEL not in fault.families)
]


@cache
def task_of(task_id: str) -> DSBenchTask:
    return next(task for task in load_tasks("embedded", None) if task.task_id == task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[DSBenchEnv]:
    """One message a role, so that nobody can mend the fault."""
    yield from opened(time_s=10)


@pytest.fixture(scope="module")
def hasty() -> Iterator[DSBenchEnv]:
    """The same for faults that last until they are stopped."""
    yield from opened(time_s=3)


def opened(time_s: float) -> Iterator[DSBenchEnv]:
    env = DSBenchEnv(
        [task_of(task_id) for task_id in TASK_IDS], None, max_actions=(1, 1, 1), coach=FakeCoach(5.0),
        sandbox="namespace", limits=Limits(time_s=time_s),
    )  # fmt: skip
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield env
    env.close()


@pytest.fixture(scope="module")
def honest(env: DSBenchEnv) -> dict[str, Episode]:
    """The expert's episodes, by task."""
    return {task_id: play(env, task_id, ExpertPolicy()) for task_id in TASK_IDS}


def play(env: DSBenchEnv, task_id: str, policy: SaboteurPolicy | ExpertPolicy) -> Episode:
    env.reset(seed=0, options={"task_id": task_id})
    while env.episode.stop_reason is None:
        env.step(policy(env.agent_selection, task_of(task_id)))
    return env.episode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_id", "fault"),
    [
        pytest.param(
            task_id, fault, id=f"{task_id}-{fault.name}",
        )
        for task_id, fault in CASES
    ],
)  # fmt: skip
def test_a_fault_shows_as_documented(
    env: DSBenchEnv, hasty: DSBenchEnv, honest: dict[str, Episode], task_id: str, fault: Fault
) -> None:
    task = task_of(task_id)
    if fault not in faults_for(task):
        with pytest.raises(ConfigError, match="makes no sense for"):
            saboteur_action(fault.guilty, task, fault)
        return
    episode = play(hasty if fault.sign == "limit time" else env, task_id, SaboteurPolicy(fault))
    assert [turn.agent for turn in episode.turns] == ["data_engineer_0", "modeler_0", "analyst_0"]
    if fault.surfaces_at != "outcome":
        turn = next(turn for turn in episode.turns if turn.agent == f"{fault.surfaces_at}_0")
        assert shows(turn, fault.sign), (turn.tool, turn.artifacts)
    elif fault.sign == "score":
        assert episode.success, episode.grade_message
        name = task.spec.metric
        mine, best = episode.metrics[name], honest[task_id].metrics[name]
        assert mine is not None
        assert best is not None
        assert mine != best
        assert (mine < best) == metrics.higher_is_better(name), f"{mine} is not worse than {best}"
    else:
        assert f"grade {episode.grade_code}" == fault.sign, episode.grade_message
    _nobody_before_is_at_fault(episode, fault)
    assert episode.outcome is not None
    # A severity is a median over tasks: a single task may be a step of the scale away.
    assert 1 - episode.outcome / (honest[task_id].outcome or 0.0) == pytest.approx(fault.severity, abs=0.3)


def _nobody_before_is_at_fault(episode: Episode, fault: Fault) -> None:
    for turn in episode.turns:
        if turn.agent == fault.guilty:
            return
        assert turn.tool is not None
        assert turn.tool.ok
        assert all(artifact.status == "valid" for artifact in turn.artifacts)


def shows(turn: Turn, sign: str) -> bool:
    kind, *words = sign.split()
    files = turn.tool.files if turn.tool else ()
    if kind == "artifact":
        return any([a.path, a.status] == words for a in turn.artifacts)
    if kind == "remark":
        return any(a.path == words[0] and a.status == "valid" and a.problem for a in turn.artifacts)
    if kind == "file":
        return any([file.path, file.change] == words for file in files)
    return (
        turn.tool is not None and [turn.tool.exception if kind == "exception" else turn.tool.limit] == words
    )


def test_the_table_is_sound() -> None:
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    count = Counter(fault.role for fault in FAULTS)
    assert count["data_engineer"] >= 15
    assert count["modeler"] >= 12
    assert count["analyst"] >= 12
    for fault in FAULTS:
        assert SIGN.fullmatch(fault.sign), fault.sign
        assert fault.guilty == f"{fault.role}_0"
        assert fault.has_code or not (fault.before or fault.ending)
    assert {fault.surfaces_at for fault in FAULTS} == {"data_engineer", "modeler", "analyst", "outcome"}


def test_the_table_of_the_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "dsbench.md"
    assert table() in page.read_text(encoding="utf-8"), "print mappa_envs.testing.faults.table()"


def test_a_message_is_the_experts_with_one_slip() -> None:
    task = task_of("penguin-body-mass")
    for fault in faults_for(task):
        action = saboteur_action(fault.guilty, task, fault)
        assert action != expert_action(fault.guilty, task)
        assert action.count("```") == (2 if fault.has_code else 0)
        assert not re.search(r"\b(ID|TARGETS|MODEL)\b|KIND\b", action)
        assert fault.name not in action
    policy = SaboteurPolicy(fault_named("own_class"))
    assert policy("data_engineer_0", task) == expert_action("data_engineer_0", task)
    assert "class Wrapper" in policy("modeler_0", task)


def test_a_column_called_like_a_placeholder_is_left_alone() -> None:
    from dataclasses import replace

    task = task_of("penguin-body-mass")
    odd = replace(task, spec=replace(task.spec, id_column="ID"))
    action = saboteur_action("analyst_0", odd, fault_named("index_ids"))
    assert "submission['ID'] = range(" in action
    assert "{'ID': pd.read_csv(\"test.csv\")['ID']}" in action


def test_wrong_names_and_roles_say_so() -> None:
    with pytest.raises(ConfigError, match="unknown fault 'sloth'; known: no_test_table"):
        fault_named("sloth")
    with pytest.raises(ConfigError, match="is planted by modeler, not by 'analyst_0'"):
        saboteur_action("analyst_0", task_of("penguin-sex"), fault_named("own_class"))
    with pytest.raises(ConfigError, match="knows no role 'poet_0'"):
        SaboteurPolicy(FAULTS[0])("poet_0", task_of("penguin-sex"))
