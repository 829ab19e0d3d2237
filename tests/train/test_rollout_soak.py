"""A rollout of a thousand episodes needs the memory of its pool and of its records, and leaves nothing."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil
import pytest

from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import ToolResult
from mappa_train.engine.fake import CharTokenizer, FakeStreamEngine, Pace, random_words
from mappa_train.plan import make_env
from mappa_train.rollout import RolloutLimits, collect, plan_step
from mappa_train.settings import resolve
from mappa_train.types import EpisodeRollout, GenerationRequest

NUM_EPISODES = 1000


def missing(script: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"status": "missing", "kind": "", "shape": None, "nan_share": None}


class ForgetfulSandbox(FakeSandbox):
    """Does not keep its workspaces for tests to look at."""

    async def open(self, files: Any = None) -> Any:
        workspace = await super().open(files)
        self.workspaces.clear()
        return workspace


def play(on_done: Any) -> list[EpisodeRollout]:
    words = random_words(seed=1, mean_words=30)

    def reply(request: GenerationRequest) -> str:
        return f"{words(request)}\n```python\nprint(1)\n```"

    sandbox = ForgetfulSandbox(lambda blocks, files: ToolResult(stdout="1\n" * 50), missing)
    config = resolve({"max_actions": "2"})
    env = make_env(config, sandbox=sandbox, coach=FakeCoach())
    plans = plan_step(
        1,
        num_episodes=NUM_EPISODES,
        samples_per_task=1,
        tasks=env.tasks,
        team=env.possible_agents,
        exploring_starts=0.0,
        seed=0,
    )
    rollouts, _ = collect(
        plans,
        env=env,
        engine=FakeStreamEngine(reply, Pace(tokens_per_s=100_000)),
        tokenizer=CharTokenizer(),  # type: ignore[arg-type]
        max_prompt_tokens=10**9,
        seed=0,
        step=1,
        policy_version=0,
        limits=RolloutLimits(concurrent_episodes=32, episode_timeout_s=600, watchdog_s=300),
        on_done=on_done,
    )
    return rollouts


@pytest.mark.slow
def test_memory_stays_flat_in_a_thousand_episodes() -> None:
    """In a new process: threads of other tests have left free memory in many places of this one."""
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "records" in done.stdout


def soak() -> None:
    process, rss = psutil.Process(), dict[int, int]()

    def look(done: int, total: int) -> None:
        if done in (200, NUM_EPISODES):
            gc.collect()
            rss[done] = process.memory_info().rss

    held = (len(os.listdir("/proc/self/fd")), threading.active_count())
    rollouts = play(look)
    first = dict(rss)
    assert len(rollouts) == NUM_EPISODES
    assert all(len(rollout.actions) == 6 for rollout in rollouts)
    records = sum(len(pickle.dumps(rollout)) for rollout in rollouts[200:])
    grown = first[NUM_EPISODES] - first[200]
    print(f"{grown / 2**20:.1f} MiB more after 800 episodes, whose records are {records / 2**20:.1f} MiB")
    assert grown < 2 * records + 16 * 2**20
    # Another thousand in the place of these: all that they held is free again.
    del rollouts
    play(look)
    assert rss[NUM_EPISODES] - first[NUM_EPISODES] < 16 * 2**20
    end = time.monotonic() + 60
    while (now := (len(os.listdir("/proc/self/fd")), threading.active_count())) != held:
        assert time.monotonic() < end, (now, held)
        time.sleep(0.05)


if __name__ == "__main__":
    soak()
