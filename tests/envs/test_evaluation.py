"""Evaluation of a team of policies, on fakes: what is played, who is asked, and what is counted."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from team_fakes import DATA, MODEL, SUBMIT, MakeEnv, inspect_list, run_list, write

from mappa_envs.coach.base import CoachRequest
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import ConfigError, PromptTooLong, SandboxError
from mappa_envs.evaluation import EvalTable, aevaluate, evaluate
from mappa_envs.stats import bootstrap_interval
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import Artifact, Episode, StopReason, ToolResult, Turn

SCRIPT = {"data_engineer_0": DATA, "modeler_0": MODEL, "analyst_0": SUBMIT}


def good(agent: str, messages: Sequence[dict[str, str]]) -> str:
    return SCRIPT[agent]


def many_tasks(task: DSBenchTask, count: int) -> list[DSBenchTask]:
    return [replace(task, task_id=f"t{k}", split="val" if k % 2 else "test") for k in range(count)]


def make_episode(task_id: str, outcome: float, task_type: str = "regression", **fields: Any) -> Episode:
    known: dict[str, Any] = {"success": outcome > 0, "stop_reason": StopReason.DONE}
    names = {"env_id": "x-v0", "task_id": task_id, "task_type": task_type, "split": "test", "seed": 0}
    return Episode(**names, outcome=outcome, **(known | fields))


def test_each_task_is_played_once_by_whole_pipelines(make_env: MakeEnv, task: DSBenchTask) -> None:
    result = evaluate(make_env(tasks=many_tasks(task, 5)), good, num_concurrent=2)
    assert sorted(episode.task_id for episode in result.episodes) == ["t0", "t1", "t2", "t3", "t4"]
    assert all(episode.success and len(episode.turns) == 3 for episode in result.episodes)
    row = result.table.overall
    assert (row.num_episodes, row.num_tasks, row.num_successes, row.outcome) == (5, 5, 5, 1.0)
    assert row.success_interval == (pytest.approx(0.5655, abs=1e-4), 1.0)
    assert row.valid_artifacts == 1.0
    assert row.figures["fair_rmse_pct"] == 0.0


def test_a_number_of_episodes_takes_the_tasks_in_turn_in_a_seeded_order(
    make_env: MakeEnv, task: DSBenchTask
) -> None:
    def played(seed: int) -> list[str]:
        env = make_env(tasks=many_tasks(task, 4))
        return [episode.task_id for episode in evaluate(env, good, episodes=10, seed=seed).episodes]

    assert sorted(played(0)[:4]) == sorted(played(0)[4:8]) == ["t0", "t1", "t2", "t3"]
    assert played(0)[8:] == played(0)[:2]
    assert played(0) == played(0)
    assert len({tuple(played(seed)) for seed in range(5)}) > 1


def test_only_the_tasks_of_a_split(make_env: MakeEnv, task: DSBenchTask) -> None:
    env = make_env(tasks=many_tasks(task, 4))
    assert {episode.task_id for episode in evaluate(env, good, split="val").episodes} == {"t1", "t3"}
    with pytest.raises(ConfigError, match="no task of 'train', only of test, val"):
        evaluate(env, good, split="train")


def test_an_id_means_its_test_split_and_is_closed_at_the_end(
    make_env: MakeEnv, task: DSBenchTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    closed: list[bool] = []

    def make(env_id: str, **arguments: Any) -> Any:
        asked.append({"env_id": env_id, **arguments})
        env = make_env(tasks=many_tasks(task, 2))

        async def aclose() -> None:
            closed.append(True)

        env.aclose = aclose  # type: ignore[method-assign]
        return env

    monkeypatch.setattr("mappa_envs.evaluation.make", make)
    assert len(evaluate("dsbench-v0", good, split="val").episodes) == 1
    evaluate("dsbench-v0", good, episodes=1, split=None)
    assert [item["split"] for item in asked] == ["val", "test"]
    assert all(item["coach"] is None for item in asked)
    assert closed


def test_nobody_asks_the_coach_and_the_environment_stays_as_it_was(make_env: MakeEnv) -> None:
    coach = FakeCoach(9.0)
    env = make_env(coach=coach)
    env.reset(seed=0)
    env.step(DATA)
    before = env.episode
    result = evaluate(env, good, episodes=3)
    assert len(coach.requests) == 1  # the step before
    assert {turn.unscored_reason for e in result.episodes for turn in e.turns} == {"there is no coach"}
    assert env.episode == before
    env.step(MODEL)
    assert env.episode.turns[1].final_score == 9.0
    sandbox: Any = env._sandbox
    assert not sandbox.closed
    assert all(workspace.closed for workspace in sandbox.workspaces[1:])


def test_an_environment_without_a_coach_scores_nobody(make_env: MakeEnv) -> None:
    env = make_env(coach=None)
    env.reset(seed=0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        assert reward == 0.0
        assert info["unscored"] is bool([turn for turn in env.episode.turns if turn.agent == agent])
        env.step(None if terminated or truncated else SCRIPT[agent])
    assert env.episode.success
    assert Episode.from_json(env.episode.to_json()) == env.episode


def test_policies_may_be_per_agent_and_async(make_env: MakeEnv, task: DSBenchTask) -> None:
    waiting, most, three = 0, 0, asyncio.Barrier(3)

    async def slow(agent: str, messages: Sequence[dict[str, str]]) -> str:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.wait_for(three.wait(), 60)
        waiting -= 1
        assert messages[0]["role"] == "system"
        return SCRIPT[agent]

    class Callable:
        async def __call__(self, agent: str, messages: Sequence[dict[str, str]]) -> str:
            return SCRIPT[agent]

    policies = {"data_engineer_0": slow, "modeler_0": good, "analyst_0": Callable()}
    env = make_env(tasks=many_tasks(task, 6))
    result = asyncio.run(aevaluate(env, policies, num_concurrent=3))
    assert result.table.overall.num_successes == 6
    assert most == 3
    for wrong in ({"modeler_0": good}, {**policies, "critic_0": good}):
        with pytest.raises(ConfigError, match="one for each of data_engineer_0, modeler_0, analyst_0"):
            evaluate(env, wrong)


def test_a_plain_function_is_called_once_at_a_time_and_holds_nobody_up(
    make_env: MakeEnv, task: DSBenchTask
) -> None:
    lock, threads = threading.Lock(), set()

    def policy(agent: str, messages: Sequence[dict[str, str]]) -> str:
        assert lock.acquire(blocking=False), "called twice at a time"
        threads.add(threading.get_ident())
        # Another environment from within a policy: it needs the loop that evaluate() waits in.
        inner = make_env()
        inner.reset(seed=0)
        lock.release()
        return SCRIPT[agent]

    evaluate(make_env(tasks=many_tasks(task, 4)), policy, num_concurrent=4)
    assert len(threads) == 1


def test_a_policy_that_raises_ends_it_with_its_own_traceback(make_env: MakeEnv, task: DSBenchTask) -> None:
    def broken_inside() -> str:
        raise LookupError("no such model")

    def broken(agent: str, messages: Sequence[dict[str, str]]) -> str:
        return broken_inside() if agent == "modeler_0" else SCRIPT[agent]

    async def broken_too(agent: str, messages: Sequence[dict[str, str]]) -> str:
        return broken_inside()

    for policy in (broken, broken_too):
        env = make_env(tasks=many_tasks(task, 4))
        with pytest.raises(LookupError, match="no such model") as caught:
            evaluate(env, policy)
        assert "broken_inside" in "".join(traceback.format_tb(caught.value.__traceback__))
        sandbox: Any = env._sandbox
        assert all(workspace.closed for workspace in sandbox.workspaces)


def test_a_script_that_runs_out_does_not_hang(make_env: MakeEnv) -> None:
    script = iter([DATA, MODEL])
    with pytest.raises(RuntimeError, match="policy of analyst_0 raised StopIteration"):
        evaluate(make_env(), lambda agent, messages: next(script))


def test_an_answer_that_is_no_text_names_the_agent(make_env: MakeEnv) -> None:
    with pytest.raises(TypeError, match="data_engineer_0 must be a str"):
        evaluate(make_env(), lambda agent, messages: 3)  # type: ignore[arg-type, return-value]


def test_an_episode_is_run_again_when_the_sandbox_failed(make_env: MakeEnv) -> None:
    faults = iter([True, True, False])

    def flaky(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
        if "model.pkl" in blocks[0] and next(faults, False):
            raise SandboxError("the worker is gone")
        return run_list(blocks, files)

    env = make_env(sandbox=FakeSandbox(script=flaky, inspector=inspect_list))
    result = evaluate(env, good, episodes=1)
    assert (result.table.overall.num_episodes, result.table.overall.num_successes) == (1, 1)
    with pytest.raises(SandboxError, match=r"task tiny: the sandbox failed 3 times.*worker is gone"):
        evaluate(make_env(), lambda agent, messages: write("crash"), episodes=1)


def test_a_workspace_that_does_not_open_is_tried_again(make_env: MakeEnv) -> None:
    env = make_env()
    sandbox: Any = env._sandbox
    opened, failures = sandbox.open, [SandboxError("busy"), SandboxError("busy")]

    async def flaky(files: Any = None) -> Any:
        if failures:
            raise failures.pop()
        return await opened(files)

    sandbox.open = flaky
    assert evaluate(env, good, episodes=1).table.overall.num_successes == 1
    failures += [SandboxError("no space")] * 3
    with pytest.raises(SandboxError, match="failed 3 times: no space"):
        evaluate(env, good, episodes=1)


def test_a_sandbox_that_fails_before_the_first_action_is_told_of(make_env: MakeEnv) -> None:
    env = make_env()
    sandbox: Any = env._sandbox
    opened = sandbox.open

    async def read(path: str, max_bytes: int) -> bytes:
        raise SandboxError("the worker is gone")

    async def unreadable(files: Any = None) -> Any:
        workspace = await opened(files)
        workspace.read = read
        return workspace

    def too_long(agent: str, messages: Sequence[dict[str, str]]) -> str:
        raise PromptTooLong("a prompt of 9 tokens")

    sandbox.open = unreadable
    with pytest.raises(SandboxError, match="the sandbox failed 3 times: the sandbox failed at its end"):
        evaluate(env, too_long, episodes=1)


def test_a_failed_run_is_counted_and_named(make_env: MakeEnv) -> None:
    def idle(agent: str, messages: Sequence[dict[str, str]]) -> str:
        return "I have nothing to add."

    table = evaluate(make_env(), idle, episodes=4).table
    assert (table.overall.success_rate, table.overall.outcome) == (0.0, 0.0)
    assert table.overall.success_interval == (0.0, pytest.approx(0.4899, abs=1e-4))
    assert table.overall.valid_artifacts == 0.0
    assert (table.overall.figures["rmse_pct"], table.overall.figures["fair_rmse_pct"]) == (None, 50.0)


def test_the_table_has_rows_for_all_for_types_and_for_tasks() -> None:
    episodes = [make_episode("b", 1.0), make_episode("b", 0.0), make_episode("a", 0.5, "text")]
    lost = make_episode("c", 0.0, stop_reason=StopReason.INFRA)
    table = EvalTable.of([*episodes, lost], lambda chosen: {"count": float(len(chosen))})
    assert [row.name for row in (table.overall, *table.task_types, *table.tasks)] == [
        *("all", "regression", "text"),
        *("a", "b"),
    ]
    assert table.overall.outcome == pytest.approx(0.5)
    assert table.overall.num_tasks == 2
    assert table.overall.figures == {"count": 3.0}
    assert (table.tasks[1].num_successes, table.tasks[1].success_rate) == (1, 0.5)
    assert table.tasks[0].task_type == "text"
    assert table.tasks[0].outcome_interval is None


def test_the_outcome_interval_draws_tasks_not_episodes() -> None:
    easy = [make_episode("easy", 1.0) for _ in range(50)]
    hard = [make_episode("hard", 0.0) for _ in range(50)]
    row = EvalTable.of(easy + hard).overall
    assert row.outcome_interval == (0.0, 1.0)
    assert row.outcome_interval == bootstrap_interval([[1.0] * 50, [0.0] * 50])
    assert EvalTable.of(easy + hard) == EvalTable.of(easy + hard)


def test_the_artifacts_after_each_roles_last_action_count() -> None:
    def turn(index: int, status: Any) -> Turn:
        artifacts = (Artifact(path="m.pkl", status=status),)
        return Turn(index=index, agent="a_0", messages=(), action="", artifacts=artifacts)

    mended = make_episode("a", 1.0, turns=(turn(0, "invalid"), turn(1, "valid")))
    broken = make_episode("b", 0.0, turns=(turn(0, "valid"), turn(1, "unverifiable")))
    assert EvalTable.of([mended, broken]).overall.valid_artifacts == 0.5
    assert EvalTable.of([make_episode("c", 0.0)]).overall.valid_artifacts is None


def test_the_json_is_plain_and_without_nan() -> None:
    figures = {"accuracy": 0.25, "roc_auc": None}
    table = EvalTable.of([make_episode("a", 1.0), make_episode("b", 0.0)], lambda chosen: figures)
    plain = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert plain == table.to_json()
    assert plain["overall"]["success_rate"] == 0.5
    assert plain["overall"]["accuracy"] == 0.25
    assert plain["tasks"]["a"]["outcome_low"] is None
    assert plain["task_types"]["regression"]["num_tasks"] == 2
    assert EvalTable.of([]).to_json()["overall"]["success_rate"] is None


def test_the_table_on_a_terminal_takes_no_markup_and_no_escapes_from_tasks() -> None:
    evil = make_episode("[red]x[/nope]\x1b[31m\u202e", 0.5, "[bold]kind")
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(EvalTable.of([evil] * 4, lambda chosen: {"fair_f1": 0.5, "f1": None}))
    shown = capture.get()
    assert "[red]x[/nope]?[31m?" in shown
    assert "[bold]kind" in shown
    assert "\x1b" not in shown
    assert "100 [51, 100]" in shown
    assert "fair f1" in shown


@pytest.mark.parametrize("width", [80, 50])
def test_the_table_shows_every_figure_whole(width: int) -> None:
    values = [74312345.678, -1.2345e-05, 0.3283, -1.3612e08, 6.61, 12345.6, 18.9, 101.0, 2.5e-300]
    figures = {f"figure_{k}_pct": value for k, value in enumerate(values)}
    for names in (["regression"], [f"kind_{k}" for k in range(6)]):  # beside each other, and below
        episodes = [make_episode(f"a-task-with-a-name-{kind}", 0.8765, kind) for kind in names]
        console = Console(width=width, force_terminal=False)
        with console.capture() as capture:
            console.print(EvalTable.of(episodes, lambda chosen: figures))
        words = re.findall(r"[^\s│]+", capture.get())
        for value in values:
            # In the row of all, in that of each type, and in that of each task.
            assert words.count(f"{value:.3g}") == 1 + 2 * len(names)
        assert "…" not in capture.get()
        assert max(map(len, capture.get().splitlines())) <= width


@pytest.mark.parametrize(("num_tasks", "shown"), [(4, "0.25"), (5, "0.20 [0.00, 0.60]")])
def test_a_few_tasks_have_no_interval_over_tasks(num_tasks: int, shown: str) -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(EvalTable.of([make_episode(f"t{k}", float(k == 0)) for k in range(num_tasks)]))
    line = next(line for line in capture.get().splitlines() if "outcome (0–1)" in line)
    assert line.split("│")[2].strip() == shown


def test_a_coach_that_would_fail_is_no_matter(make_env: MakeEnv) -> None:
    def fail(request: CoachRequest) -> float:
        raise AssertionError("the coach was asked")

    assert evaluate(make_env(coach=FakeCoach(fail)), good).table.overall.success_rate == 1.0
