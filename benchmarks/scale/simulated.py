"""Workers that wait instead of sampling, and a coach that waits instead of thinking.

Everything between them is real: Ray, the queue of `WorkerPool`, the desk, the limits of an LLM coach.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mappa_envs.coach import CoachRequest
from mappa_envs.coach.llm.limits import Pace
from mappa_envs.types import CoachScore, Episode, Message, Role, StopReason, Task, Turn
from mappa_train.cluster.weights import Weights
from mappa_train.cluster.worker import Joined
from mappa_train.rollout import EpisodePlan
from mappa_train.types import Action, EpisodeRollout, Generation

AGENTS = ("data_engineer_0", "modeler_0", "analyst_0")
MODEL = "simulated"
MESSAGE_CHARS = 1500
"""Of a prompt, as the starter prompts have."""


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """Quantiles (0 to 1, evenly spaced) of what an action of a real run took, and the rate of sampling.

    `speed` divides all times: more than 1 asks more of the driver than a real run would.
    """

    tokens: Sequence[float]
    sandbox_s: Sequence[float]
    coach_s: Sequence[float]
    tokens_per_s: float
    speed: float

    @classmethod
    def read(cls, path: Path, speed: float) -> Pacing:
        """From a file with the fields above, but for `speed`."""
        known = json.loads(path.read_text("utf-8"))
        names = ("tokens", "sandbox_s", "coach_s", "tokens_per_s")
        return cls(speed=speed, **{name: known[name] for name in names})

    def work(self, episode: int, turn: int) -> tuple[int, float]:
        """Tokens of an action, and seconds in the sandbox before `speed`: always the same for that action."""
        rng = np.random.default_rng([7, episode, turn])
        return max(1, round(_draw(self.tokens, rng))), _draw(self.sandbox_s, rng)

    def work_s(self, tokens: int, sandbox_s: float) -> float:
        """What an action takes before its coach is asked."""
        return (tokens / self.tokens_per_s + sandbox_s) / self.speed

    def verdict_s(self, episode: int, turn: int) -> float:
        """How long the coach thinks about an action."""
        return _draw(self.coach_s, np.random.default_rng([3, episode, turn])) / self.speed

    def episode_s(self, episode: int) -> tuple[float, float]:
        """How long an episode plays, and how long it is until its last verdict, which come beside it.

        As everything that is computed here: where nothing else costs anything.
        """
        now, end = 0.0, 0.0
        for turn in range(len(AGENTS)):
            now += self.work_s(*self.work(episode, turn))
            end = max(end, now + self.verdict_s(episode, turn))
        return now, end

    def chunk_s(self, plans: Sequence[EpisodePlan], concurrent_episodes: int) -> float:
        """How long a worker takes over a chunk: so many episodes play at once, the others follow in order.

        Who waits for verdicts only has left its place. That as many as there are places wait so, which would
        hold up the next ones, is left out: coaches are faster.
        """
        free, end = [0.0] * min(concurrent_episodes, len(plans)), 0.0
        for plan in plans:
            start = heapq.heappop(free)
            played_s, scored_s = self.episode_s(plan.index)
            heapq.heappush(free, start + played_s)
            end = max(end, start + scored_s)
        return end


def _draw(quantiles: Sequence[float], rng: np.random.Generator) -> float:
    return float(np.interp(rng.random(), np.linspace(0, 1, len(quantiles)), quantiles))


class SimulatedWorker:
    """An async actor with the methods of `RolloutWorker`; one can stand for several."""

    def __init__(self, pacing: Pacing, coach: Any, concurrent_episodes: int) -> None:
        self._pacing, self._coach, self._version = pacing, coach, -1
        self._concurrent = concurrent_episodes
        torch.set_num_threads(1)

    async def join(self, weights: Weights | None) -> Joined:
        """Take over the version; there are no weights."""
        version = None if weights is None else weights.version
        self._version = -1 if version is None else version
        return Joined(node="simulated", pid=os.getpid(), model_sha256=MODEL, version=version)

    async def play(self, plans: Sequence[EpisodePlan], step: int) -> list[EpisodeRollout]:
        """A chunk, as `rollout.collect` plays it with an engine that takes each prompt on its own."""
        todo, finished = iter(plans), dict[int, EpisodeRollout]()
        num_places = min(self._concurrent, len(plans))
        room = asyncio.Semaphore(num_places)
        async with asyncio.TaskGroup() as group:
            for _ in range(num_places):
                group.create_task(self._work(todo, room, group, finished))
        return [finished[plan.index] for plan in plans]

    async def close(self) -> None:
        """There is nothing to close."""

    async def _work(
        self,
        todo: Iterator[EpisodePlan],
        room: asyncio.Semaphore,
        group: asyncio.TaskGroup,
        finished: dict[int, EpisodeRollout],
    ) -> None:
        """One place: an episode leaves it to wait for its coach, where no more than `room` do so already."""
        for plan in todo:
            actions, asking = await self._play(plan)
            await room.acquire()
            waiting = group.create_task(self._settle(plan, actions, asking, finished))
            waiting.add_done_callback(lambda _: room.release())

    async def _play(self, plan: EpisodePlan) -> tuple[list[Action], list[asyncio.Future[CoachScore]]]:
        """The actions of an episode, and the verdicts on them, which are still to come."""
        actions, asking = [], []
        for k, agent in enumerate(AGENTS):
            count, sandbox_s = self._pacing.work(plan.index, k)
            await asyncio.sleep(self._pacing.work_s(count, sandbox_s))
            actions.append(self._action(agent, k, count))
            turn = _turn(agent, k, count, sandbox_s)
            asking.append(asyncio.ensure_future(self._coach.score(_request(plan, agent, turn))))
        return actions, asking

    async def _settle(
        self,
        plan: EpisodePlan,
        actions: Sequence[Action],
        asking: Sequence[asyncio.Future[CoachScore]],
        finished: dict[int, EpisodeRollout],
    ) -> None:
        scores = await asyncio.gather(*asking)
        turns = tuple(
            _turn(agent, k, len(actions[k].generation.token_ids), 0.0, score)
            for k, (agent, score) in enumerate(zip(AGENTS, scores, strict=True))
        )
        finished[plan.index] = EpisodeRollout(
            index=plan.index, episode=_episode(plan, turns), actions=tuple(actions)
        )

    def _action(self, agent: str, turn: int, count: int) -> Action:
        answer = Generation(
            token_ids=torch.zeros(count, dtype=torch.int64),
            logprobs=torch.zeros(count),
            truncated=False,
            policy_version=self._version,
        )
        prompt = torch.zeros(MESSAGE_CHARS // 4, dtype=torch.int64)
        return Action(agent=agent, turn=turn, prompt_ids=prompt, generation=answer)


class SimulatedCoach:
    """Answers after a drawn time, within the limits of a real LLM coach. Lives in the driver."""

    reads_scores = False

    def __init__(self, pacing: Pacing, *, concurrency: int, rpm: int) -> None:
        self._pacing = pacing
        self._pace = Pace(concurrency=concurrency, rpm=rpm, tpm=0)
        self.num_asked = 0

    async def score(self, request: CoachRequest) -> CoachScore:
        """Always the same score."""
        self.num_asked += 1
        async with self._pace.slot():
            await self._pace.wait(MESSAGE_CHARS)
            await asyncio.sleep(self._pacing.verdict_s(request.episode.seed, request.turn.index))
        return CoachScore(score=5.0, reason="It does what the role has to do, no more.", model=MODEL)


def _turn(agent: str, index: int, count: int, sandbox_s: float, score: CoachScore | None = None) -> Turn:
    return Turn(
        index=index,
        agent=agent,
        messages=(Message(role="user", content="x" * MESSAGE_CHARS),),
        action="y" * (4 * count),
        sandbox_s=sandbox_s,
        score=score,
        final_score=None if score is None else score.score,
    )


def _request(plan: EpisodePlan, agent: str, turn: Turn) -> CoachRequest:
    task = Task(task_id=plan.task_id, task_type="simulated", split="train", prompt="Do it.")
    team = tuple(Role(name=name, title=name, duty="Work.") for name in AGENTS)
    role = next(role for role in team if role.name == agent)
    return CoachRequest(task=task, team=team, role=role, episode=_episode(plan, ()), turn=turn)


def _episode(plan: EpisodePlan, turns: tuple[Turn, ...]) -> Episode:
    return Episode(
        env_id="simulated-v0",
        task_id=plan.task_id,
        task_type="simulated",
        split="train",
        seed=plan.index,
        turns=turns,
        stop_reason=StopReason.DONE if turns else None,
    )
