"""Many episodes at once: environments and coach overlap with sampling.

A pool of places plays the planned episodes, each place one after the other, so that a rollout of any length
needs the memory of its pool (and of its records). How prompts reach the engine is in `asking.py`. An episode
that only waits for its coach has given back its workspace and its place; but where as many as there are
places wait so, the next ones begin when the coach has caught up.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from mappa_envs.errors import ConfigError
from mappa_envs.evaluation import with_reruns
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sampling import stratified
from mappa_envs.types import StopReason, Task
from mappa_train.asking import Asker, Barrier, Direct
from mappa_train.beside import run_beside
from mappa_train.config import Config
from mappa_train.engine.base import BatchEngine, StreamEngine
from mappa_train.router import up_to_last_learner
from mappa_train.tokens import ChatTokenizer
from mappa_train.types import Action, EpisodeRollout, Generation, GenerationRequest
from mappa_train.watchdog import Watchdog

NUM_SLOWEST = 5
"""Episodes of a step whose times go to run.log."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """What one episode of a step is: its number in the run, its task and where it starts."""

    index: int
    task_id: str
    start_role: str | None


@dataclass(frozen=True, kw_only=True)
class RolloutLimits:
    """How much goes on at once, and how long it may take: seconds, 0 = no limit.

    `action_timeout_s` cuts a message, which is played as far as it came; without a single token it ends the
    episode, as `episode_timeout_s` does (`StopReason.TIME`): there sampling and sandbox count, with their
    queues, and the coach does not. A message that is not there by then is dropped; code that runs then may
    end. Both need an engine that samples each prompt on its own.
    """

    concurrent_episodes: int = 64
    action_timeout_s: float = 0.0
    episode_timeout_s: float = 0.0
    watchdog_s: float = 0.0

    @classmethod
    def of(cls, config: Config) -> RolloutLimits:
        """Those of the settings."""
        return cls(**{item.name: getattr(config, item.name) for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class RolloutTimes:
    """Wall-clock seconds of the rollout, and of the sync of the engine's weights before it."""

    rollout: float
    sync: float = 0.0


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
    `samples_per_task` episodes in a row. A share `exploring_starts` of the episodes, spread evenly over the
    step, begins at a later role, and the later roles take turns (systematic sampling: each episode is drawn
    with that probability, and no role of a small step is left out by bad luck).
    """
    size = min(samples_per_task, num_episodes)
    drawn = stratified(tasks, -(-num_episodes // size), seed, step)
    starts = _starts(num_episodes, team[1:], exploring_starts, np.random.default_rng([seed, 2, step]))
    first = (step - 1) * num_episodes
    return [
        EpisodePlan(index=first + k, task_id=drawn[k // size].task_id, start_role=start)
        for k, start in enumerate(starts)
    ]


def _starts(count: int, roles: Sequence[str], share: float, rng: np.random.Generator) -> list[str | None]:
    """The start of each of `count` episodes, None for the beginning."""
    offset, turn = rng.random(), int(rng.integers(max(1, len(roles))))
    before = np.floor(np.arange(count + 1) * share + offset).astype(int)
    is_drawn = np.diff(before) > 0
    return [
        roles[(turn + int(before[k])) % len(roles)] if is_drawn[k] and roles else None for k in range(count)
    ]


def plans_of(step: int, config: Config, env: PipelineEnv) -> list[EpisodePlan]:
    """`plan_step` with the settings of a run. None begins where nobody learns any more."""
    return plan_step(
        step,
        num_episodes=config.episodes_per_step,
        samples_per_task=config.samples_per_task,
        tasks=env.tasks,
        team=up_to_last_learner(config, env.possible_agents),
        exploring_starts=config.exploring_starts,
        seed=config.seed,
    )


def collect(
    plans: Sequence[EpisodePlan],
    *,
    env: PipelineEnv,
    engine: BatchEngine | StreamEngine,
    tokenizer: ChatTokenizer,
    max_prompt_tokens: int,
    seed: int,
    step: int,
    policy_version: int,
    limits: RolloutLimits | None = None,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[EpisodeRollout], RolloutTimes]:
    """Run the planned episodes, each in a sibling of `env`, and return them in plan order.

    `step` is that of training, from 1; 0 is an evaluation.

    An episode whose next prompt has more than `max_prompt_tokens` ends there (`StopReason.CONTEXT`). Whatever
    ends a rollout early, Ctrl-C included, ends what the engine samples and closes every workspace first.

    Raises `SandboxError` if the sandbox failed on one episode as often as `with_reruns` says, `RuntimeError`
    if the engine sampled from another policy version than `policy_version`, and `ConfigError` if there are
    time limits, but the engine has a turn barrier.
    """
    limits = limits or RolloutLimits()
    where = f"rollout of step {step}" if step else "evaluation"
    num_places = min(limits.concurrent_episodes, len(plans))
    rollout = _Rollout(
        plans=plans,
        env=env,
        engine=engine,
        asker=_asker(engine, env.possible_agents, num_places, limits),
        tokenizer=tokenizer,
        max_prompt_tokens=max_prompt_tokens,
        key=(seed, step),
        policy_version=policy_version,
        limits=limits,
        watchdog=Watchdog(limits.watchdog_s, where),
        on_done=on_done,
    )
    start = time.perf_counter()
    try:
        run_beside(lambda: rollout.run(num_places), rollout.asker.serve)
    except BaseExceptionGroup as group:
        # One reason is enough: the others are the episodes that were cancelled with it.
        raise group.exceptions[0] from None
    rollouts = [rollout.finished[plan.index] for plan in plans]
    log.info("%s: the slowest episodes: %s", where, "; ".join(rollout.slowest()))
    return rollouts, RolloutTimes(rollout=time.perf_counter() - start)


def _asker(
    engine: BatchEngine | StreamEngine, order: Sequence[str], num_places: int, limits: RolloutLimits
) -> Asker:
    if isinstance(engine, StreamEngine):
        return Direct(engine, limits.action_timeout_s)
    if limits.action_timeout_s or limits.episode_timeout_s:
        raise ConfigError(
            f"{type(engine).__name__} samples prompts together and repeats a run exactly, which "
            f"time limits would undo; bound actions by --max-new-tokens and --max-actions"
        )
    return Barrier(engine, order, num_places)


@dataclass(frozen=True, kw_only=True)
class _Played:
    """An episode that is over but for its scores. `sampling_s` is how long it waited for samples."""

    plan: EpisodePlan
    env: PipelineEnv
    actions: tuple[Action, ...]
    total_s: float
    sampling_s: float
    num_reruns: int = 0

    def __str__(self) -> str:
        sandbox_s = sum(turn.sandbox_s for turn in self.env.episode.turns)
        return (
            f"episode {self.plan.index} (task {self.plan.task_id!r}) {self.total_s:.1f} s, of which "
            f"{self.sampling_s:.1f} s for samples and {sandbox_s:.1f} s in the sandbox"
        )


@dataclass(kw_only=True)
class _Rollout:
    """One call of `collect`: the pool, and what it has finished so far, by the index of the plan."""

    plans: Sequence[EpisodePlan]
    env: PipelineEnv
    engine: BatchEngine | StreamEngine
    asker: Asker
    tokenizer: ChatTokenizer
    max_prompt_tokens: int
    key: tuple[int, int]
    policy_version: int
    limits: RolloutLimits
    watchdog: Watchdog
    on_done: Callable[[int, int], None]
    finished: dict[int, EpisodeRollout] = field(default_factory=dict)
    _times: list[tuple[float, str]] = field(default_factory=list)

    def slowest(self) -> list[str]:
        """The episodes that took longest, the longest first."""
        return [told for _, told in heapq.nlargest(NUM_SLOWEST, self._times)]

    async def run(self, num_places: int) -> None:
        todo, room = iter(self.plans), asyncio.Semaphore(num_places)
        try:
            with self.watchdog:
                async with asyncio.TaskGroup() as group:
                    for _ in range(num_places):
                        group.create_task(self._work(todo, room, group))
        except BaseException:
            # Now: the loop, and so the rollout, ends when nothing is being sampled any more.
            self.engine.cancel()
            raise

    async def _work(
        self, todo: Iterator[EpisodePlan], room: asyncio.Semaphore, group: asyncio.TaskGroup
    ) -> None:
        """One place of the pool. It stays at the barrier until the plans are used up.

        So whoever takes which plan, and when: all places bring a prompt, or are gone, before any is sampled.
        """
        played = None
        try:
            for plan in todo:
                if played is not None:
                    await room.acquire()
                    group.create_task(self._settle(played)).add_done_callback(lambda _: room.release())
                played = await self._play(plan)
        finally:
            self.asker.leave()
        if played is not None:
            await self._settle(played)

    async def _play(self, plan: EpisodePlan) -> _Played:
        """An episode that no fault of the sandbox ended, but for its scores."""
        env = self.env.sibling(self.env.coach)
        self.watchdog.waits(plan.index, "the sandbox")
        try:
            played, num_reruns = await with_reruns(
                env,
                lambda: self._attempt(plan, env),
                name=f"episode {plan.index}",
                seed=self.key[0] + plan.index,
                options={"task_id": plan.task_id, "start_role": plan.start_role},
            )
        except BaseException:
            await env.aclose()
            raise
        self.watchdog.waits(plan.index, "the coach")
        return replace(played, num_reruns=num_reruns)

    async def _settle(self, played: _Played) -> None:
        try:
            await played.env.scores()
        finally:
            await played.env.aclose()
        episode, index = played.env.episode, played.plan.index
        turns = tuple(
            replace(turn, truncated=action.generation.truncated)
            for turn, action in zip(episode.turns, played.actions, strict=True)
        )
        self.finished[index] = EpisodeRollout(
            index=index,
            episode=replace(episode, turns=turns),
            actions=played.actions,
            num_reruns=played.num_reruns,
        )
        self._times.append((played.total_s, str(played)))
        self.watchdog.done(index)
        self.on_done(len(self.finished), len(self.plans))

    async def _attempt(self, plan: EpisodePlan, env: PipelineEnv) -> _Played:
        actions: list[Action] = []
        start, sampling_s = time.monotonic(), 0.0
        while env.episode.stop_reason is None:
            request = self._request(plan, env)
            if len(request.prompt_ids) > self.max_prompt_tokens:
                await env.acut(StopReason.CONTEXT, wait_for_scores=False)
                break
            # What an inline coach took is known by now; a deferred one takes nothing from the episode.
            coach_s = sum(turn.coach_s for turn in env.episode.turns)
            asked = time.monotonic()
            answer = await self._sample(request, asked - start - coach_s)
            sampling_s += time.monotonic() - asked
            self.watchdog.waits(plan.index, "the sandbox")
            if answer is None:
                await env.acut(StopReason.TIME, wait_for_scores=False)
                break
            actions.append(
                Action(
                    agent=request.agent,
                    turn=len(env.episode.turns),
                    prompt_ids=request.prompt_ids,
                    generation=answer,
                )
            )
            await env.astep(self.tokenizer.decode(answer.token_ids), wait_for_scores=False)
        total_s = time.monotonic() - start
        return _Played(plan=plan, env=env, actions=tuple(actions), total_s=total_s, sampling_s=sampling_s)

    def _request(self, plan: EpisodePlan, env: PipelineEnv) -> GenerationRequest:
        agent = env.agent_selection
        return GenerationRequest(
            agent=agent,
            prompt_ids=self.tokenizer.encode(env.infos[agent]["messages"]),
            key=(*self.key, plan.index, len(env.episode.turns)),
        )

    async def _sample(self, request: GenerationRequest, spent_s: float) -> Generation | None:
        """The answer; None if time is over before there is any.

        `spent_s` of the episode's time are gone. An action's own time counts as over without a single token.
        """
        left_s = self.limits.episode_timeout_s - spent_s if self.limits.episode_timeout_s else None
        if left_s is not None and left_s <= 0:
            return None
        self.watchdog.waits(request.key[2], f"samples of {request.agent}")
        limit = asyncio.timeout(left_s)
        try:
            async with limit:
                answer = await self.asker.ask(request)
        except TimeoutError:
            if limit.expired():
                return None
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError(
                f"the engine gave up a request of {request.agent}; nobody told it to"
            ) from None
        if answer.policy_version != self.policy_version:
            raise RuntimeError(
                f"the engine sampled for {request.agent} with policy version {answer.policy_version}, not "
                f"{self.policy_version}: its weights were not synced"
            )
        return answer if len(answer.token_ids) else None
