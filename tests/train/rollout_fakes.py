"""A team of two without files, and plans for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from typing import Any

from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sandbox.base import Workspace
from mappa_envs.types import Artifact, Episode, Message, Outcome, Role, Task
from mappa_envs.view import View
from mappa_train.rollout import EpisodePlan

TEAM = ("writer_0", "checker_0")
TASKS = tuple(f"task{k}" for k in range(5))


def toy(name: str) -> Task:
    return Task(task_id=name, task_type="toy", split="train", prompt=f"Do {name}.")


class TwoEnv(PipelineEnv):
    """A writer and a checker without required files.

    Each call takes as long as `delays` says: one list for each episode, in turn.
    """

    env_id = "two-v0"

    def __init__(self, delays: Sequence[Sequence[float]] = ((0.0,),), **options: Any) -> None:
        roles = [Role(name=name, title=name, duty="Work.") for name in TEAM]
        tasks = [toy(name) for name in TASKS]
        self.delays, self.mine, self.calls = delays, delays[0], 0
        super().__init__(roles, tasks, **options)

    async def _wait(self) -> None:
        self.calls += 1
        await asyncio.sleep(self.mine[self.calls % len(self.mine)])

    async def areset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.mine = self.delays[(seed or 0) % len(self.delays)]
        await self._wait()
        await super().areset(seed, options)

    async def astep(self, action: Any, *, wait_for_scores: bool = True) -> None:
        await self._wait()
        await super().astep(action, wait_for_scores=wait_for_scores)

    def build_messages(self, view: View) -> Sequence[Message]:
        said = " ".join(turn.action for turn in view.handovers)
        return [Message(role="user", content=f"{view.task.prompt} {said}")]

    async def inspect(
        self, workspace: Workspace, task: Task, known: Mapping[str, Artifact], touched: Set[str]
    ) -> Mapping[str, Artifact]:
        return {}

    async def lay_start(self, workspace: Workspace, task: Task, upstream: Sequence[Role]) -> None:
        pass

    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        return Outcome(value=1.0, success=True, code="ok")


def make_plans(starts: Sequence[str | None]) -> list[EpisodePlan]:
    return [EpisodePlan(index=k, task_id=TASKS[k % 5], start_role=start) for k, start in enumerate(starts)]
