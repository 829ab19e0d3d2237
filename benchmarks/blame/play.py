"""Plays the cases through the real environments and sandbox, and keeps what a coach is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.blame.cases import Case, tasks_of
from benchmarks.blame.kinds import Messages
from mappa_envs import make
from mappa_envs.coach import CoachRequest
from mappa_envs.errors import CoachError, SandboxError
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sandbox import Limits
from mappa_envs.testing import FaultyTeam, expert_message
from mappa_envs.types import CoachScore, Episode, StopReason

LIMITS = Limits(time_s=10.0)
NUM_CONCURRENT = 6
MAX_INFRA_RETRIES = 2
_OPTIONS: dict[str, dict[str, object]] = {"dsbench-v0": {"max_actions": (1, 1, 1)}}
"""One message a role where it could mend its files: who plants a fault would plant it again."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """A case, the requests of its actions as the environment made them, and the finished episode."""

    case: Case
    requests: tuple[CoachRequest, ...]
    episode: Episode

    def did_job(self, index: int) -> bool:
        """Whether the agent of this action did what it was to do, as far as the record shows.

        Its code ran to the end and all its required files are valid; the action that ends the episode led to
        an answer that the grader took, where there are no required files.
        """
        request = self.requests[index]
        if request.turn.tool is not None and not request.turn.tool.ok:
            return False
        if any(artifact.status != "valid" for artifact in request.turn.artifacts):
            return False
        return bool(request.role.required) or index < len(self.requests) - 1 or self.episode.success


Policy = Callable[[str, Messages], str]


class _Recorder:
    """A coach that keeps the requests and judges nothing."""

    def __init__(self) -> None:
        self.requests: list[CoachRequest] = []

    async def score(self, request: CoachRequest) -> CoachScore:
        self.requests.append(request)
        raise CoachError("only recorded")


async def play_all(cases: Sequence[Case]) -> list[Played]:
    """Many at once, in one sandbox for each environment. The result has the order of `cases`.

    The coach is told the outcome with the last action, in all environments: who caused a failure is asked
    when it is known that there was one. Raises `SandboxError` when the sandbox failed three times on one
    episode.
    """
    done: dict[int, Played] = {}
    for env_id in dict.fromkeys(case.env_id for case in cases):
        env = make(
            env_id,
            tasks=tasks_of(env_id),
            split=None,
            coach=None,
            limits=LIMITS,
            ground_truth="final",
            **_OPTIONS.get(env_id, {}),
        )
        todo = iter([(index, case) for index, case in enumerate(cases) if case.env_id == env_id])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(NUM_CONCURRENT):
                    group.create_task(_work(env, todo, done))
        finally:
            await env.aclose()
    return [done[index] for index in range(len(cases))]


async def _work(env: PipelineEnv, todo: Iterator[tuple[int, Case]], done: dict[int, Played]) -> None:
    for index, case in todo:
        done[index] = await _play(env, case)


async def _play(env: PipelineEnv, case: Case) -> Played:
    team: Policy = partial(_expert, case)
    if case.faults:
        team = FaultyTeam(case.env_id, case.task, case.faults)
    for _ in range(1 + MAX_INFRA_RETRIES):
        recorder = _Recorder()
        mine = env.sibling(recorder)
        try:
            await mine.areset(seed=0, options={"task_id": case.task.task_id})
            while mine.episode.stop_reason is None:
                agent = mine.agent_selection
                await mine.astep(team(agent, mine.infos[agent]["messages"]))
        finally:
            await mine.aclose()
        if mine.episode.stop_reason is not StopReason.INFRA:
            return Played(case=case, requests=tuple(recorder.requests), episode=mine.episode)
    raise SandboxError(f"{case.name}: the sandbox failed {MAX_INFRA_RETRIES + 1} times")


def _expert(case: Case, agent: str, messages: Messages) -> str:
    return expert_message(case.env_id, agent, messages, case.task)
