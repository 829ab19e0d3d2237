"""How good is a team? Whole episodes on tasks of a split, graded by the environment, without a coach.

    >>> result = mappa_envs.evaluate("dsbench-v0", policy, split="test", episodes=64)
    >>> result.table.overall.success_rate, result.table.overall.figures["fair_accuracy"]
    (0.656, 0.719)
    >>> rich.print(result.table)

A policy is called as `policy(agent, messages)` and returns the agent's whole message.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never, TypeVar

from mappa_envs.blocking import CallThread, wait_for
from mappa_envs.errors import ConfigError, PromptTooLong, SandboxError
from mappa_envs.registry import make
from mappa_envs.stats import bootstrap_interval, mean, wilson
from mappa_envs.types import Episode, StopReason

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from mappa_envs.pipeline import PipelineEnv

MAX_INFRA_RETRIES = 2

T = TypeVar("T")

log = logging.getLogger(__name__)

Policy = Callable[[str, list[dict[str, str]]], str | Awaitable[str]]
"""`policy(agent, messages)` with chat messages `{"role", "content"}` → the agent's whole message."""

Figures = Callable[[Sequence[Episode]], Mapping[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """What some episodes showed: all, those of a task type, or those of a task.

    `success_interval` is Wilson's, which takes episodes as independent; `outcome_interval` a bootstrap over
    tasks (over the episodes, where there is one task alone), None of a single value. Both are for 95 %.
    `valid_artifacts` is the share of required files that were valid after each role's last action. `figures`
    are those of the environment. Undefined = None.
    """

    name: str
    task_type: str | None = None
    num_episodes: int
    num_tasks: int
    num_successes: int
    success_rate: float | None
    success_interval: tuple[float, float]
    outcome: float | None
    outcome_interval: tuple[float, float] | None
    valid_artifacts: float | None
    figures: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, episodes: Sequence[Episode], figures: Figures, task_type: str | None = None
    ) -> EvalRow:
        """The row of these episodes."""
        groups: dict[str, list[float]] = {}
        for episode in episodes:
            groups.setdefault(episode.task_id, []).append(episode.outcome or 0.0)
        num_successes = sum(episode.success for episode in episodes)
        return cls(
            name=name,
            task_type=task_type,
            num_episodes=len(episodes),
            num_tasks=len(groups),
            num_successes=num_successes,
            success_rate=mean(episode.success for episode in episodes),
            success_interval=wilson(num_successes, len(episodes)),
            outcome=mean(value for values in groups.values() for value in values),
            outcome_interval=bootstrap_interval(list(groups.values())),
            valid_artifacts=artifact_rate(episodes),
            figures=dict(figures(episodes)),
        )

    def to_json(self) -> dict[str, Any]:
        """A flat dict; intervals as `…_low` and `…_high`."""
        outcome_low, outcome_high = self.outcome_interval or (None, None)
        return {
            **self.figures,
            "task_type": self.task_type,
            "num_episodes": self.num_episodes,
            "num_tasks": self.num_tasks,
            "num_successes": self.num_successes,
            "success_rate": self.success_rate,
            "success_low": self.success_interval[0],
            "success_high": self.success_interval[1],
            "outcome": self.outcome,
            "outcome_low": outcome_low,
            "outcome_high": outcome_high,
            "valid_artifacts": self.valid_artifacts,
        }


@dataclass(frozen=True, kw_only=True)
class EvalTable:
    """The rows of an evaluation, task types and tasks in alphabetical order. `rich.print` shows it."""

    overall: EvalRow
    task_types: tuple[EvalRow, ...]
    tasks: tuple[EvalRow, ...]

    @classmethod
    def of(cls, episodes: Sequence[Episode], figures: Figures = lambda episodes: {}) -> EvalTable:
        """The table of finished episodes. Those whose sandbox failed count nowhere."""
        counted = [episode for episode in episodes if episode.stop_reason is not StopReason.INFRA]
        kinds, tasks = _grouped(counted, "task_type"), _grouped(counted, "task_id")
        return cls(
            overall=EvalRow.of("all", counted, figures),
            task_types=tuple(EvalRow.of(name, mine, figures, name) for name, mine in kinds),
            tasks=tuple(EvalRow.of(name, mine, figures, mine[0].task_type) for name, mine in tasks),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dicts: `overall`, and by name `task_types` and `tasks`. No NaN."""
        return {
            "overall": self.overall.to_json(),
            "task_types": {row.name: row.to_json() for row in self.task_types},
            "tasks": {row.name: row.to_json() for row in self.tasks},
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from mappa_envs.evaluation_view import evaluation_tables

        return evaluation_tables(self, options.max_width)


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The episodes in the order of the plan, and their table."""

    episodes: tuple[Episode, ...] = field(repr=False)
    table: EvalTable


def evaluate(
    env: PipelineEnv | str,
    policies: Policy | Mapping[str, Policy],
    *,
    split: str | None = None,
    episodes: int | None = None,
    num_concurrent: int = 8,
    seed: int = 0,
    **unknown: Never,
) -> EvalResult:
    """Play whole episodes with a team of policies and sum up what the grader says of them.

    Nobody scores the actions: the env's coach is not asked. Many episodes run at once, in one sandbox.

    Parameters
    ----------
    env : an id for `make`, or an environment, which stays open and as it is.
    policies : one for all agents, or one each by agent name. A coroutine function runs for many episodes at
        the same time; a plain function is called in a thread, once at a time.
    split : only tasks of this split; None = "test" for an id, all tasks of an environment.
    episodes : how many, the tasks in turn, in an order that `seed` shuffles; None = each task once.
    num_concurrent : episodes at once.

    Raises `ConfigError` on arguments that make no sense, `SandboxError` when the sandbox failed
    `MAX_INFRA_RETRIES` + 1 times on one episode, and whatever a policy raises, with its traceback; but
    `PromptTooLong` ends the episode alone.
    """
    return wait_for(
        aevaluate(
            env, policies, split=split, episodes=episodes, num_concurrent=num_concurrent, seed=seed, **unknown
        )
    )


async def aevaluate(
    env: PipelineEnv | str,
    policies: Policy | Mapping[str, Policy],
    *,
    split: str | None = None,
    episodes: int | None = None,
    num_concurrent: int = 8,
    seed: int = 0,
    **unknown: Never,
) -> EvalResult:
    """`evaluate` in the caller's event loop."""
    if unknown:
        name = next(iter(unknown))
        raise ConfigError(
            f"evaluate has no argument {name}; if it is an environment's, make one with it first: "
            f"evaluate(make('dsbench-v0', {name}=…), policy)"
        )
    _check_arguments(env, policies, episodes, num_concurrent, seed)
    subject = make(env, split=split or "test", coach=None) if isinstance(env, str) else env
    try:
        by_agent = _by_agent(policies, subject.possible_agents)
        plan = _plan(subject, split, episodes, seed)
        done = await _play_all(subject, by_agent, plan, num_concurrent)
        return EvalResult(episodes=tuple(done), table=EvalTable.of(done, subject.figures))
    finally:
        if subject is not env:
            await subject.aclose()


def artifact_rate(episodes: Sequence[Episode]) -> float | None:
    """The share of required files that were valid after the last action of each role that acted."""
    marks: list[float] = []
    for episode in episodes:
        last = {turn.agent: turn for turn in episode.turns}
        marks += [artifact.status == "valid" for turn in last.values() for artifact in turn.artifacts]
    return mean(marks)


def _check_arguments(env: Any, policies: Any, episodes: Any, num_concurrent: Any, seed: Any) -> None:
    """Raise `ConfigError` on what can be seen before an environment is made."""
    if not isinstance(env, str) and not callable(getattr(env, "sibling", None)):
        raise ConfigError(f"env: an environment or an id such as 'dsbench-v0' is needed, got {env!r}")
    by_name = policies if isinstance(policies, Mapping) else {"policies": policies}
    for name, policy in by_name.items():
        where = f"policies[{name!r}]" if by_name is policies else name
        if not callable(policy):
            raise ConfigError(f"{where}: a function policy(agent, messages) is needed, got {policy!r}")
        _check_parameters(where, policy)
    counts = {"episodes": (episodes, 1), "num_concurrent": (num_concurrent, 1), "seed": (seed, 0)}
    for name, (number, least) in counts.items():
        if name == "episodes" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ConfigError(f"{name} must be an int, at least {least}, got {number!r}")


def _check_parameters(where: str, policy: Policy) -> None:
    try:
        signature = inspect.signature(policy)
    except ValueError:  # some callables written in C do not tell
        return
    try:
        signature.bind("agent", [])
    except TypeError as error:
        raise ConfigError(
            f"{where}: it is called as policy(agent, messages), but {policy!r} takes {signature}: {error}"
        ) from None


def _by_agent(policies: Policy | Mapping[str, Policy], agents: Sequence[str]) -> dict[str, Policy]:
    if not isinstance(policies, Mapping):
        return dict.fromkeys(agents, policies)
    if set(policies) != set(agents):
        got = ", ".join(map(str, policies)) or "none"
        raise ConfigError(f"policies: one for each of {', '.join(agents)} is needed, got {got}")
    return dict(policies)


def _plan(env: PipelineEnv, split: str | None, episodes: int | None, seed: int) -> list[tuple[str, int]]:
    """Task and seed of each episode."""
    tasks = [task.task_id for task in env.tasks if split in (None, task.split)]
    if not tasks:
        have = ", ".join(sorted({task.split for task in env.tasks}))
        raise ConfigError(f"split: the environment has no task of {split!r}, only of {have}")
    random.Random(seed).shuffle(tasks)
    return [(tasks[k % len(tasks)], seed + k) for k in range(episodes or len(tasks))]


async def _play_all(
    env: PipelineEnv, policies: Mapping[str, Policy], plan: Sequence[tuple[str, int]], num_concurrent: int
) -> list[Episode]:
    todo: Iterator[tuple[int, tuple[str, int]]] = iter(enumerate(plan))
    done: dict[int, Episode] = {}
    # One thread: a plain function need not stand being called twice at a time.
    thread = CallThread("mappa-policy")

    async def work() -> None:
        mine = env.sibling(coach=None)
        try:
            for index, (task_id, seed) in todo:
                done[index] = await _play(mine, policies, task_id, seed, thread)
        finally:
            await mine.aclose()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(num_concurrent, len(plan))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        # One reason is enough: the others are the episodes that were cancelled with it.
        raise errors.exceptions[0] from None
    finally:
        thread.close()
    return [done[index] for index in range(len(plan))]


async def _play(
    env: PipelineEnv, policies: Mapping[str, Policy], task_id: str, seed: int, thread: CallThread
) -> Episode:
    """One episode that no fault of the sandbox ended."""

    async def attempt() -> Episode:
        while env.episode.stop_reason is None:
            agent = env.agent_selection
            try:
                action = await _ask(policies[agent], agent, env.infos[agent]["messages"], thread)
            except PromptTooLong:
                await env.acut(StopReason.CONTEXT)
            else:
                await env.astep(action)
        return env.episode

    options = {"task_id": task_id}
    episode, _ = await with_reruns(env, attempt, name=f"task {task_id}", seed=seed, options=options)
    return episode


async def with_reruns(
    env: PipelineEnv, play: Callable[[], Awaitable[T]], *, name: str, seed: int, options: Mapping[str, Any]
) -> tuple[T, int]:
    """Reset an environment and play its episode, again for as long as a fault of the sandbox ends it.

    Returns what `play` gave for the episode that none ended, and how often it was run again. Raises
    `SandboxError`, under the `name` of the episode, after `MAX_INFRA_RETRIES` times in vain.
    """
    fault: SandboxError | None = None
    for num_reruns in range(1 + MAX_INFRA_RETRIES):
        if fault is not None:
            log.info("%s: run again, since the sandbox failed: %s", name, fault)
        try:
            await env.areset(seed=seed, options=options)
        except SandboxError as error:  # before there was an episode that it could have ended
            fault = error
            continue
        played = await play()
        if env.episode.stop_reason is not StopReason.INFRA:
            return played, num_reruns
        reason = env.episode.turns[-1].unscored_reason if env.episode.turns else None
        fault = SandboxError(reason or "the sandbox failed at its end")
    raise SandboxError(f"{name}: the sandbox failed {MAX_INFRA_RETRIES + 1} times: {fault}") from fault


async def _ask(policy: Policy, agent: str, messages: list[dict[str, str]], thread: CallThread) -> Any:
    try:
        if inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(type(policy).__call__):
            answer: Any = policy(agent, messages)
        else:
            answer = await thread.call(lambda: _call(policy, agent, messages))
        return await answer if inspect.isawaitable(answer) else answer
    except (asyncio.CancelledError, CancelledError) as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Of the policy's own making: a task group would take it for an episode that ended well.
        raise RuntimeError(f"the policy of {agent} raised CancelledError") from error


def _call(policy: Policy, agent: str, messages: list[dict[str, str]]) -> Any:
    try:
        return policy(agent, messages)
    except StopIteration as error:
        # A future cannot carry one: whoever waits for it would wait for ever.
        raise RuntimeError(f"the policy of {agent} raised StopIteration") from error


def _grouped(episodes: Sequence[Episode], key: str) -> list[tuple[str, list[Episode]]]:
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(getattr(episode, key), []).append(episode)
    return sorted(groups.items())
