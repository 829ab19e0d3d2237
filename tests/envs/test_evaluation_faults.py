"""What a caller may get wrong in an evaluation: senseless arguments, and policies that end badly."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hangs import soon
from team_fakes import DATA, MODEL, SUBMIT, MakeEnv

from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import ConfigError
from mappa_envs.evaluation import aevaluate, evaluate

SCRIPT = {"data_engineer_0": DATA, "modeler_0": MODEL, "analyst_0": SUBMIT}


def good(agent: str, messages: Any) -> str:
    return SCRIPT[agent]


def raising(error: BaseException, is_async: bool) -> Callable[[str, Any], Any]:
    def plain(agent: str, messages: Any) -> str:
        raise error

    async def coroutine(agent: str, messages: Any) -> str:
        await asyncio.sleep(0)
        raise error

    return coroutine if is_async else plain


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("stop")])
def test_a_policy_that_exits_ends_the_evaluation(
    make_env: MakeEnv, task: DSBenchTask, error: BaseException, is_async: bool
) -> None:
    env = make_env(tasks=[replace(task, task_id=f"t{k}") for k in range(4)])
    with pytest.raises(type(error)) as caught:
        soon(lambda: evaluate(env, raising(error, is_async)))
    assert caught.value is error
    sandbox: Any = env._sandbox
    assert all(workspace.closed for workspace in sandbox.workspaces)
    assert soon(lambda: evaluate(make_env(), good)).table.overall.num_successes == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), concurrent.futures.CancelledError()])
def test_a_cancellation_of_the_policys_own_is_an_error(
    make_env: MakeEnv, error: BaseException, is_async: bool
) -> None:
    with pytest.raises(RuntimeError, match="the policy of data_engineer_0 raised CancelledError"):
        soon(lambda: evaluate(make_env(), raising(error, is_async)))


def test_a_cancelled_evaluation_is_cancelled(make_env: MakeEnv) -> None:
    async def endless(agent: str, messages: Any) -> str:
        await asyncio.sleep(60)
        return ""

    async def main() -> None:
        running = asyncio.create_task(aevaluate(make_env(), endless))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    soon(lambda: asyncio.run(main()))


def test_a_coroutine_policy_that_uses_the_synchronous_api_is_told_so(make_env: MakeEnv) -> None:
    async def policy(agent: str, messages: Any) -> str:
        make_env().reset(seed=0)
        return SCRIPT[agent]

    with pytest.raises(RuntimeError, match="await areset, astep, aclose or aevaluate"):
        soon(lambda: evaluate(make_env(), policy))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"env": None}, "env: an environment or an id such as 'dsbench-v0' is needed, got None"),
        ({"env": "nothing-v0"}, "there is no environment 'nothing-v0'; known: dsbench-v0"),
        ({"policies": None}, r"policies: a function policy\(agent, messages\) is needed, got None"),
        (
            {"policies": lambda agent: ""},
            r"policies: it is called as policy\(agent, messages\).* takes \(agent\)",
        ),
        (
            {"policies": dict.fromkeys(SCRIPT, lambda: "")},
            r"policies\['data_engineer_0'\]: it is called as policy\(agent, messages\).* takes \(\)",
        ),
        ({"coach": "rubric"}, r"no argument coach; .* evaluate\(make\('dsbench-v0', coach=…\), policy\)"),
        ({"tasks": "mine"}, r"no argument tasks; .*make\('dsbench-v0', tasks=…\)"),
        ({"policies": "good"}, "policies: a function .* is needed, got 'good'"),
        ({"policies": dict.fromkeys(SCRIPT)}, r"policies\['data_engineer_0'\]: a function .* got None"),
        ({"policies": {"modeler_0": good}}, "policies: one for each of data_engineer_0, .*, got modeler_0"),
        ({"policies": {}}, "policies: one for each of data_engineer_0, .*, got none"),
        ({"episodes": 0}, "episodes must be an int, at least 1, got 0"),
        ({"episodes": True}, "episodes must be an int, at least 1, got True"),
        ({"episodes": 2.0}, r"episodes must be an int, at least 1, got 2\.0"),
        ({"num_concurrent": 0}, "num_concurrent must be an int, at least 1, got 0"),
        ({"num_concurrent": None}, "num_concurrent must be an int, at least 1, got None"),
        ({"seed": -1}, "seed must be an int, at least 0, got -1"),
        ({"seed": None}, "seed must be an int, at least 0, got None"),
        ({"seed": "0"}, "seed must be an int, at least 0, got '0'"),
    ],
)
def test_a_senseless_argument_is_named(make_env: MakeEnv, arguments: dict[str, Any], words: str) -> None:
    given = {"env": make_env(), "policies": good, **arguments}
    with pytest.raises(ConfigError, match=words):
        evaluate(given.pop("env"), given.pop("policies"), **given)
