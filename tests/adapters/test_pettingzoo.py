"""PettingZoo's own test suite on every environment, as it is and inside PettingZoo's wrappers."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from pettingzoo.test import api_test, performance_benchmark, render_test, seed_test
from pettingzoo.utils import AssertOutOfBoundsWrapper, OrderEnforcingWrapper
from toy_team import make_toy

import mappa_envs
from mappa_envs.registry import _ENVS
from mappa_envs.testing import FakeCoach, FakeSandbox

Make = Callable[..., Any]

WRAPPERS: dict[str, Make] = {
    "none": lambda env: env,
    "order": OrderEnforcingWrapper,
    "bounds": AssertOutOfBoundsWrapper,
    "both": lambda env: OrderEnforcingWrapper(AssertOutOfBoundsWrapper(env)),
}
CASES = [("raw_env", "none"), ("env", "order"), ("env", "bounds"), ("env", "both")]


def cases(*chosen: tuple[str, str]) -> Any:
    """Every environment in each of these forms."""
    made = [(env_id, *case) for env_id in mappa_envs.list_envs() for case in chosen]
    return pytest.mark.parametrize(("env_id", "kind", "wrapper"), made)


everywhere = cases(*CASES)
raw_and_wrapped = cases(CASES[0], CASES[-1])


@pytest.fixture
def make(env_id: str, kind: str, wrapper: str) -> Make:
    made = getattr(import_module(_ENVS[env_id]), kind)

    def make_env(**options: Any) -> Any:
        return WRAPPERS[wrapper](made(sandbox=FakeSandbox(), coach=FakeCoach(7.0), **options))

    return make_env


@pytest.fixture(autouse=True)
def no_warnings_about_text() -> Any:
    """PettingZoo warns about every observation that is no array."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@everywhere
def test_api(make: Make) -> None:
    env = make()
    api_test(env, num_cycles=30)
    env.close()


@raw_and_wrapped
def test_seeds(make: Make) -> None:
    seed_test(make, num_cycles=20)


@cases(CASES[-1])
def test_render(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    render_test(make, custom_tests={"ansi": lambda shown: shown.startswith("task ")})
    assert "_0" in capsys.readouterr().out


@everywhere
def test_performance(make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The benchmark runs for five seconds of this clock, which passes one at each look.
    seconds = itertools.count()
    module = import_module("pettingzoo.test.performance_benchmark")
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: float(next(seconds))))
    env = make()
    performance_benchmark(env)
    env.close()
    turns = re.search(r"(\S+) turns per second", capsys.readouterr().out)
    assert turns is not None
    assert float(turns[1]) > 0


@raw_and_wrapped
def test_state(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    space = env.unwrapped.state_space
    assert space.contains(env.state())
    env.step("I hand over.")
    state = env.state()
    assert space.contains(state)
    assert state["turn"] == 1
    assert "I hand over." in state["transcript"]


def test_the_wrappers_see_what_they_are_for() -> None:
    env = OrderEnforcingWrapper(AssertOutOfBoundsWrapper(make_toy()))
    with pytest.raises(Exception, match="reset"):
        env.step("too early")
    env.reset(seed=0)
    with pytest.raises(AssertionError, match="action space"):
        env.step(3)
