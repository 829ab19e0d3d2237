"""Many episodes at once: environments and coach overlap, the model samples in batches.

All episodes run as coroutines. An agent's prompts wait until no other episode can still bring an earlier
agent's prompt, then are sampled together (a turn barrier): which prompts share a batch depends on the
episodes alone, not on timing, so a run repeats exactly. An episode that only waits for its coach has left the
barrier and given its sandbox back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mappa_envs.errors import SandboxError
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sampling import stratified
from mappa_envs.types import StopReason, Task
from mappa_train.engine.base import Engine
from mappa_train.tokens import ChatTokenizer
from mappa_train.types import Action, EpisodeRollout, Generation, GenerationRequest

MAX_INFRA_RETRIES = 2


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """What one episode of a step is: its number in the run, its task and where it starts."""

    index: int
    task_id: str
    start_role: str | None


@dataclass(kw_only=True)
class RolloutTimes:
    """Seconds: wall-clock of the rollout and of sampling; sandbox and coach summed over episodes."""

    rollout: float = 0.0
    generate: float = 0.0
    sandbox: float = 0.0
    coach: float = 0.0


@dataclass
class _Barrier:
    """Collects prompts and samples one agent's batch when every running episode waits for one."""

    engine: Engine
    order: Sequence[str]
    times: RolloutTimes
    running: int
    waiting: list[tuple[GenerationRequest, asyncio.Future[Generation]]] = field(default_factory=list)

    async def ask(self, request: GenerationRequest) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self._flush_if_all_wait()
        return await future

    def leave(self) -> None:
        self.running -= 1
        self._flush_if_all_wait()

    def _flush_if_all_wait(self) -> None:
        if self.waiting and len(self.waiting) == self.running:
            self._task = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        first = min((request.agent for request, _ in self.waiting), key=self.order.index)
        batch = sorted(
            (item for item in self.waiting if item[0].agent == first), key=lambda item: item[0].key
        )
        self.waiting = [item for item in self.waiting if item[0].agent != first]
        start = time.perf_counter()
        try:
            answers = await asyncio.to_thread(self.engine.generate, [request for request, _ in batch])
            pairs = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001  (handed to every episode that waits for it)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        self.times.generate += time.perf_counter() - start
        for (_, future), answer in pairs:
            if not future.done():
                future.set_result(answer)


def plan_step(
    step: int,
    *,
    num_episodes: int,
    samples_per_task: int,
    tasks: Sequence[Task],
    team: Sequence[str],
    exploring_starts: float,
    seed: int,
) -> list[EpisodePlan]:
    """Tasks and starts of the episodes of one step (from 1). A pure function of its arguments.

    Tasks are drawn by `stratified`: the task types in every step as in all tasks. Each task gets
    `samples_per_task` episodes in a row. With probability `exploring_starts` an episode begins at a role
    drawn from the team.
    """
    size = min(samples_per_task, num_episodes)
    drawn = stratified(tasks, -(-num_episodes // size), seed, step)
    plans = []
    for k in range(num_episodes):
        index = (step - 1) * num_episodes + k
        rng = np.random.default_rng([seed, 2, index])
        start = team[int(rng.integers(len(team)))] if rng.random() < exploring_starts else None
        plans.append(EpisodePlan(index=index, task_id=drawn[k // size].task_id, start_role=start))
    return plans


def collect(
    plans: Sequence[EpisodePlan],
    *,
    envs: Sequence[PipelineEnv],
    engine: Engine,
    tokenizer: ChatTokenizer,
    max_prompt_tokens: int,
    seed: int,
    step: int,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[EpisodeRollout], RolloutTimes]:
    """Run the planned episodes at once, one environment each, and return them in plan order.

    An episode whose next prompt has more than `max_prompt_tokens` ends there (`StopReason.CONTEXT`).

    Raises `SandboxError` if the sandbox failed `MAX_INFRA_RETRIES` times on one episode.
    """
    times = RolloutTimes()
    barrier = _Barrier(engine, envs[0].possible_agents, times, len(plans))
    done = 0

    async def one(plan: EpisodePlan, env: PipelineEnv) -> EpisodeRollout:
        nonlocal done
        try:
            for _ in range(1 + MAX_INFRA_RETRIES):
                actions = await _play(plan, env, barrier, tokenizer, max_prompt_tokens, (seed, step))
                if env.episode.stop_reason is not StopReason.INFRA:
                    break
            else:
                raise SandboxError(f"episode {plan.index}: the sandbox failed {MAX_INFRA_RETRIES + 1} times")
        finally:
            barrier.leave()
        await env.scores()
        done += 1
        on_done(done, len(plans))
        return EpisodeRollout(index=plan.index, episode=env.episode, actions=actions)

    async def everything() -> list[EpisodeRollout]:
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(one(p, env)) for p, env in zip(plans, envs, strict=True)]
        except BaseException:
            engine.cancel()
            raise
        return [job.result() for job in jobs]

    start = time.perf_counter()
    try:
        rollouts = asyncio.run(everything())
    except BaseExceptionGroup as group:
        # One reason is enough: the others are the episodes that were cancelled with it.
        raise group.exceptions[0] from None
    times.rollout = time.perf_counter() - start
    turns = [turn for rollout in rollouts for turn in rollout.episode.turns]
    times.sandbox = sum(turn.sandbox_s for turn in turns)
    times.coach = sum(turn.coach_s for turn in turns)
    return rollouts, times


async def _play(
    plan: EpisodePlan,
    env: PipelineEnv,
    barrier: _Barrier,
    tokenizer: ChatTokenizer,
    max_prompt_tokens: int,
    key: tuple[int, int],
) -> tuple[Action, ...]:
    """The whole episode but for scores that are still to come."""
    options = {"task_id": plan.task_id, "start_role": plan.start_role}
    await env.areset(seed=key[0] + plan.index, options=options)
    actions = []
    while env.episode.stop_reason is None:
        agent, turn = env.agent_selection, len(env.episode.turns)
        prompt = tokenizer.encode(env.infos[agent]["messages"])
        if len(prompt) > max_prompt_tokens:
            await env.acut(StopReason.CONTEXT, wait_for_scores=False)
            break
        request = GenerationRequest(agent=agent, prompt_ids=prompt, key=(*key, plan.index, turn))
        answer = await barrier.ask(request)
        actions.append(Action(agent=agent, turn=turn, prompt_ids=prompt, generation=answer))
        await env.astep(tokenizer.decode(answer.token_ids), wait_for_scores=False)
    return tuple(actions)
