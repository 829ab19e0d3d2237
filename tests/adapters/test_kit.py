"""The public kit passes what keeps its promises, and names what does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from toy_team import TASKS, TEAM, ToyEnv, judge, make_toy

import mappa_envs
from mappa_envs.attempt import Step
from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox.base import Workspace
from mappa_envs.scoring import Correction
from mappa_envs.testing import FakeCoach, FakeSandbox, api_test
from mappa_envs.types import Episode, Message, Outcome, Task
from mappa_envs.view import View


@pytest.mark.parametrize("env_id", mappa_envs.list_envs())
def test_every_environment_passes(env_id: str) -> None:
    api_test(lambda: mappa_envs.make(env_id, sandbox=FakeSandbox(), coach=FakeCoach()))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", mappa_envs.list_envs())
def test_every_environment_passes_as_it_is_made(env_id: str) -> None:
    env = mappa_envs.make(env_id)
    try:
        api_test(env, num_episodes=1)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    finally:
        env.close()


def test_a_toy_passes_and_stays_open() -> None:
    sandbox = FakeSandbox()
    env = make_toy(sandbox=sandbox)
    api_test(env, num_episodes=2)
    assert not sandbox.closed
    env.reset(seed=0)
    assert env.episode.turns == ()


class Leaks(ToyEnv):
    async def _close_workspace(self) -> None:
        self._workspace = None


class LosesCorrections(ToyEnv):
    def _show(self, step: Step) -> None:
        super()._show(replace(step, corrections=()))


class PaysTheNextAgent(ToyEnv):
    def _accumulate_rewards(self) -> None:
        acting = self.episode.turns[-1].agent
        following = self.possible_agents[(self.possible_agents.index(acting) + 1) % len(TEAM)]
        self.rewards[following], self.rewards[acting] = self.rewards[acting], 0.0
        super()._accumulate_rewards()


class PaysUnscoredActions(ToyEnv):
    def _accumulate_rewards(self) -> None:
        turn = self.episode.turns[-1]
        if turn.final_score is None:
            self.rewards[turn.agent] = 0.5
        super()._accumulate_rewards()


class HidesUnscoredActions(ToyEnv):
    def _update_infos(self, corrections: Sequence[Correction]) -> None:
        super()._update_infos(corrections)
        for info in self.infos.values():
            info["unscored"] = False


class HidesPendingScores(ToyEnv):
    def _update_infos(self, corrections: Sequence[Correction]) -> None:
        super()._update_infos(corrections)
        for info in self.infos.values():
            info["pending"] = False


class KeepsLateScores(ToyEnv):
    def _pay(self, corrections: Sequence[Correction]) -> None:
        super()._pay(())


class CountsCalls(ToyEnv):
    calls = itertools.count()

    def build_messages(self, view: View) -> list[Message]:
        return [*super().build_messages(view), Message(role="user", content=f"call {next(self.calls)}")]


class ForgetsSeeds(ToyEnv):
    calls = itertools.count()

    async def areset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        drawn = TASKS[next(self.calls) % 3 % 2].task_id
        await super().areset(seed, {**(options or {}), "task_id": drawn})


class NamesByNumber(ToyEnv):
    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        metrics: Any = {1: 0.5}
        return replace(await super().grade(workspace, task, episode), metrics=metrics)


class DiffersInStep(ToyEnv):
    def step(self, action: Any) -> None:
        super().step(None if action is None else action + "!")


class TakesLettersOnly(ToyEnv):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.action_spaces = {agent: gymnasium.spaces.Text(50) for agent in self.possible_agents}


class MakesSpacesAnew(ToyEnv):
    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return type(self.action_spaces[agent])()


class ForgetsToGrade(ToyEnv):
    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Leaks, "outlives its episode"),
        (LosesCorrections, "rewards of first_0 sum to"),
        (PaysTheNextAgent, r"first_0 got 0\.0, not"),
        (PaysUnscoredActions, r"got 0\.5, not 0\.0"),
        (HidesUnscoredActions, "infos hide that"),
        (HidesPendingScores, "infos of first_0: wrong 'pending'"),
        (KeepsLateScores, r"got 0\.0, not"),
        (CountsCalls, "is not pure"),
        (ForgetsSeeds, "the same seed"),
        (NamesByNumber, "broke the record"),
        (DiffersInStep, "areset"),
        (TakesLettersOnly, "does not contain"),
        (MakesSpacesAnew, "exact same space object"),
        (ForgetsToGrade, "was not graded"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_breaks_a_promise_is_named(kind: Callable[..., ToyEnv], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        api_test(kind(TEAM, TASKS, coach=FakeCoach(judge), sandbox=FakeSandbox()))
