"""dsbench-v0 with the real sandbox, rubric and tasks; its prompts; the registry and the command line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import cast

import pytest
from team_fakes import MakeEnv

import mappa_envs
from mappa_envs.__main__ import main
from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.env import _outcome as judge_outcome
from mappa_envs.dsbench.grading import Grade
from mappa_envs.dsbench.prompts import starter_code
from mappa_envs.dsbench.tasks import DSBenchTask, load_tasks
from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.testing import expert_action
from mappa_envs.types import Episode

TASKS = {task.task_id: task for task in load_tasks("embedded", None)}


@pytest.fixture(scope="module")
def real() -> Iterator[DSBenchEnv]:
    env = mappa_envs.make("mappa/dsbench-v0", split=None, prompt_style="starter")
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield cast(DSBenchEnv, env)
    env.close()


def play_code(env: DSBenchEnv, task: DSBenchTask, start_role: str | None = None, *, expert: bool) -> Episode:
    env.reset(seed=0, options={"task_id": task.task_id, "start_role": start_role})
    while env.episode.stop_reason is None:
        agent = env.agent_selection
        messages = env.infos[agent]["messages"]
        example = next(message["content"] for message in messages if message["role"] == "assistant")
        env.step(expert_action(agent, task) if expert else example)
    return env.episode


@pytest.mark.parametrize("task_id", ["iris-species", pytest.param("wine-alcohol", marks=pytest.mark.slow)])
def test_the_expert_succeeds(real: DSBenchEnv, task_id: str) -> None:
    episode = play_code(real, TASKS[task_id], expert=True)
    assert episode.success
    assert (episode.outcome or 0) > 0.8
    assert len(episode.turns) == 3
    assert all((turn.final_score or 0) >= 8 for turn in episode.turns)
    assert Episode.from_json(episode.to_json()) == episode


def test_what_a_later_role_breaks_is_found(real: DSBenchEnv) -> None:
    task = TASKS["iris-species"]
    real.reset(seed=0, options={"task_id": task.task_id})
    fewer = "pd.read_pickle('X_test.pkl').iloc[:, 1:].to_pickle('X_test.pkl')"
    breaks = f"```python\nimport pandas as pd\n{fewer}\n```"
    for agent in ("data_engineer_0", "modeler_0"):
        real.step(expert_action(agent, task))
    assert {a.status for turn in real.episode.turns for a in turn.artifacts} == {"valid"}
    real.step(breaks)
    found = {a.path: a for a in real.episode.turns[-1].artifacts} | real._running.artifacts
    assert (found["X_test.pkl"].status, found["X_test.pkl"].written_by) == ("invalid", 2)
    assert found["model.pkl"].status == "invalid"
    assert (found["X_train.pkl"].status, found["X_train.pkl"].written_by) == ("valid", 0)


def test_the_expert_prepares_a_start_in_the_middle(real: DSBenchEnv) -> None:
    episode = play_code(real, TASKS["penguin-sex"], "modeler_0", expert=True)
    assert [turn.agent for turn in episode.turns] == ["modeler_0", "analyst_0"]
    assert episode.success


def test_a_copied_starter_solves_the_task(real: DSBenchEnv) -> None:
    episode = play_code(real, TASKS["wine-cultivar"], expert=False)
    assert episode.success
    assert len(episode.turns) == 3


@pytest.mark.slow
@pytest.mark.parametrize("task_id", sorted(TASKS))
def test_a_copied_starter_solves_every_task(real: DSBenchEnv, task_id: str) -> None:
    episode = play_code(real, TASKS[task_id], expert=False)
    assert episode.success
    assert [turn.final_score for turn in episode.turns[:2]] == [9, 9]


@pytest.mark.parametrize("seat", ["data_engineer", "modeler", "analyst"])
def test_starters_are_short_python(seat: str) -> None:
    for task in TASKS.values():
        for has_text in (False, True):
            code = starter_code(seat, task.spec, has_text)
            ast.parse(code)
            assert len(code) < 420


def test_the_worked_example_keeps_text_columns(make_env: MakeEnv) -> None:
    seen = {}
    for task_id in ("superstore-profit", "sea-temperature", "wine-cultivar"):
        env = make_env(prompt_style="starter", tasks=[TASKS[task_id]], split=None)
        env.reset(seed=0)
        seen[task_id] = ".rank()" in env.infos["data_engineer_0"]["messages"][2]["content"]
    assert seen == {"superstore-profit": True, "sea-temperature": True, "wine-cultivar": False}


def test_a_starter_prompt_begins_alike_in_every_episode(make_env: MakeEnv) -> None:
    env = make_env(prompt_style="starter")
    prompts = []
    for action in ("One thing.", "Another thing."):
        env.reset(seed=0)
        env.step(action)
        prompts.append(env.infos["modeler_0"]["messages"][1]["content"])
    shared = prompts[0].index("Files:")
    assert prompts[0][:shared] == prompts[1][:shared]
    assert prompts[0] != prompts[1]


def test_answers_are_in_no_prompt(make_env: MakeEnv, task: DSBenchTask) -> None:
    env = make_env()
    env.reset(seed=0)
    assert "answers" not in str(env.observe("analyst_0"))


def test_registry() -> None:
    assert "dsbench-v0" in mappa_envs.list_envs()
    with pytest.raises(ConfigError, match="dsbench-v0"):
        mappa_envs.make("nope-v0")
    with pytest.raises(ConfigError, match="colour"):
        mappa_envs.make("dsbench-v0", colour="red")
    with pytest.raises(ConfigError, match="prompt_style"):
        mappa_envs.make("dsbench-v0", prompt_style="long")


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--split", "val"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["data", "check", "/nowhere/at/all"]) == 2
    assert "no tasks" in capsys.readouterr().err


def test_a_score_too_good_to_be_true_is_flagged() -> None:
    task = TASKS["titanic-age"]
    for score, suspicious in ((0.0, 1.0), (task.reference, 0.0)):
        outcome = judge_outcome(task, Grade(True, "ok", score, (), ""), {})
        assert outcome.success
        assert outcome.metrics["suspicious"] == suspicious
        assert ("suspicious" in outcome.message) == bool(suspicious)
