"""Rollouts that only wait: messages of the scripted expert at a model's pace, tools and coach that take time.

Nothing is computed that would take a core, so that all variants are played at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.overlap.__main__ import NUM_AT_ONCE, settings
from benchmarks.overlap.coach import LateCoach
from mappa_envs.sandbox.fake import FakeSandbox, FakeWorkspace
from mappa_envs.testing import expert_action, without_times
from mappa_envs.types import ToolResult
from mappa_train.config import Config
from mappa_train.engine.fake import CharTokenizer, FakeStreamEngine, Pace
from mappa_train.plan import make_env
from mappa_train.rollout import collect, plans_of

ACTION_S = 30.0
"""Mean time of an action while 64 are sampled: 95 tokens each at 200 tokens/s for all of them, as in
`benchmarks.overlap`."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long the coach takes for a verdict and the code of an action for its run."""

    name: str
    coach_s: float = 0.0
    tool_s: float = 0.0


NONE = Waits(name="none")
WAITS = (
    Waits(name="coach2s", coach_s=2.0),
    Waits(name="coach10s", coach_s=10.0),
    Waits(name="tool1s", tool_s=1.0),
    Waits(name="coach10s_tool1s", coach_s=10.0, tool_s=1.0),
)


class SlowSandbox(FakeSandbox):
    """Every run takes `tool_s`; no file is ever made."""

    def __init__(self, tool_s: float) -> None:
        super().__init__(inspector=_missing)
        self.tool_s = tool_s

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> FakeWorkspace:
        workspace = _SlowWorkspace(self, dict.fromkeys(files or {}, b""))
        self.workspaces.append(workspace)
        return workspace


class _SlowWorkspace(FakeWorkspace):
    _sandbox: SlowSandbox

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        await asyncio.sleep(self._sandbox.tool_s)
        return await super().run(blocks)


def _missing(script: str, files: dict[str, bytes]) -> dict[str, Any]:
    return {"status": "missing", "kind": "", "shape": None, "nan_share": None}


def measure(num_episodes: int, action_s: float, num_rounds: int) -> dict[str, list[float]]:
    """Seconds of a rollout by kind of waits; all of a round at the same time.

    Raises `RuntimeError` if the episodes of a round are not the same ones.
    """
    config = settings(num_episodes)
    seconds: dict[str, list[float]] = {}
    with ThreadPoolExecutor(1 + len(WAITS)) as threads:
        for _ in range(num_rounds):
            played = list(threads.map(partial(play, config, action_s), (NONE, *WAITS)))
            if any(records != played[0][1] for _, records in played):
                raise RuntimeError("the episodes are not the same ones")
            for waits, (taken_s, _) in zip((NONE, *WAITS), played, strict=True):
                seconds.setdefault(waits.name, []).append(taken_s)
    return seconds


def play(config: Config, action_s: float, waits: Waits) -> tuple[float, list[str]]:
    """The seconds of a rollout, and its episodes as JSON but for times."""
    env = make_env(config, sandbox=SlowSandbox(waits.tool_s), coach=LateCoach(waits.coach_s, NUM_AT_ONCE))
    tasks: dict[str, Any] = {task.task_id: task for task in env.tasks}
    plans = plans_of(1, config, env)
    task_of = {plan.index: tasks[plan.task_id] for plan in plans}
    messages = [expert_action(agent, task) for task in task_of.values() for agent in env.possible_agents]
    mean_chars = fmean(len(message) for message in messages)
    engine = FakeStreamEngine(
        lambda request: expert_action(request.agent, task_of[request.key[2]]),
        Pace(tokens_per_s=mean_chars / action_s),
    )
    rollouts, times = collect(
        plans,
        env=env,
        engine=engine,
        tokenizer=CharTokenizer(),  # type: ignore[arg-type]  # as far as a rollout needs one
        max_prompt_tokens=10**9,
        seed=config.seed,
        step=1,
        policy_version=0,
    )
    return times.rollout, [without_times(rollout.episode).to_json() for rollout in rollouts]
