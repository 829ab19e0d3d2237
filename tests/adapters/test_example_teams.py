"""The teams of the examples, which a newcomer copies, in every library's own test suite."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, render_test, seed_test
from pettingzoo.utils import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from mappa_envs.adapters.gymnasium import SeatEnv

EXAMPLES = Path(__file__).parents[2] / "examples"
Make = Callable[..., Any]


@pytest.fixture(params=["five_role_team", "shared_policy_team"])
def make_env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    made: Make = import_module(request.param).make_env
    return made


@pytest.fixture(autouse=True)
def no_warnings_about_text() -> Any:
    """PettingZoo and Gymnasium warn about every observation that is no array."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_pettingzoo(make_env: Make, capsys: pytest.CaptureFixture[str]) -> None:
    api_test(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(make_env())), num_cycles=30)
    seed_test(make_env, num_cycles=20)
    render_test(make_env, custom_tests={"ansi": lambda shown: shown.startswith("task ")})
    assert "_0" in capsys.readouterr().out


def test_gymnasium_in_every_seat(make_env: Make) -> None:
    for seat in make_env().possible_agents:
        env = SeatEnv(make_env(), seat, lambda agent, messages: "right")
        check_env(env)
        assert env.reset(seed=0)[0] in env.observation_space
        env.close()


def test_torchrl(make_env: Make) -> None:
    pytest.importorskip("torchrl", reason="needs the extra train")
    from torchrl.envs import check_env_specs

    from mappa_envs.adapters.torchrl import TeamEnv

    env = TeamEnv(make_env())
    check_env_specs(env, seed=0)
    assert env.rollout(3).batch_size[0] in (1, 2, 3)
    env.close()
