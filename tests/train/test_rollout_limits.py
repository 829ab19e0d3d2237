"""Time limits, cancellation and the watchdog: nothing hangs, and what was held is freed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console
from rollout_fakes import TASKS, TwoEnv, make_plans

from mappa_envs.errors import ConfigError
from mappa_envs.sandbox import open_sandbox
from mappa_envs.sandbox.base import Sandbox
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import StopReason, ToolResult
from mappa_train.engine.choice import check_engine
from mappa_train.engine.fake import CharTokenizer, FakeBatchEngine, FakeStreamEngine, Pace, random_words
from mappa_train.rollout import RolloutLimits, collect
from mappa_train.settings import resolve
from mappa_train.types import EpisodeRollout, GenerationRequest
from mappa_train.watchdog import Watchdog

NEVER = Pace(hangs=lambda request: True)
CODE = "```python\nprint(1)\n```"


def run(
    engine: FakeBatchEngine | FakeStreamEngine,
    *,
    num_episodes: int = 3,
    sandbox: Sandbox | None = None,
    env: TwoEnv | None = None,
    **limits: Any,
) -> list[EpisodeRollout]:
    rollouts, _ = collect(
        make_plans([None] * num_episodes),
        env=env or TwoEnv(sandbox=sandbox or FakeSandbox(), coach=FakeCoach(), scoring="deferred"),
        engine=engine,
        tokenizer=CharTokenizer(),  # type: ignore[arg-type]
        seed=7,
        step=3,
        max_prompt_tokens=10**6,
        policy_version=0,
        limits=RolloutLimits(**limits),
    )
    return rollouts


def episode_is(number: int) -> Callable[[GenerationRequest], bool]:
    return lambda request: request.key[2] == number


def test_an_action_is_cut_at_its_time_limit_and_played_as_far_as_it_came() -> None:
    slow = Pace(tokens_per_s=1000)
    rollouts = run(FakeStreamEngine(lambda request: "x" * 100_000, slow), action_timeout_s=0.05)
    for rollout in rollouts:
        assert rollout.episode.stop_reason is StopReason.DONE
        assert [action.generation.truncated for action in rollout.actions] == [True, True]
        assert [turn.truncated for turn in rollout.episode.turns] == [True, True]
        assert [turn.action for turn in rollout.episode.turns] == ["x" * 50] * 2


def test_an_episode_ends_at_its_time_limit_and_the_others_go_on() -> None:
    engine = FakeStreamEngine(random_words(seed=0), Pace(hangs=episode_is(1)))
    rollouts = run(engine, episode_timeout_s=0.5)
    ends = [rollout.episode.stop_reason for rollout in rollouts]
    assert ends == [StopReason.DONE, StopReason.TIME, StopReason.DONE]
    assert rollouts[1].actions == ()
    assert rollouts[1].episode.outcome == 1.0  # what is there is graded
    assert engine.num_running == 0


def test_time_in_the_sandbox_counts_and_time_of_the_coach_does_not() -> None:
    def late(blocks: Any, files: Any) -> ToolResult:
        time.sleep(0.55)
        return ToolResult()

    slow_tool = run(
        FakeStreamEngine(lambda request: CODE),
        num_episodes=1,
        sandbox=FakeSandbox(script=late),
        episode_timeout_s=0.5,
    )
    assert [r.episode.stop_reason for r in slow_tool] == [StopReason.TIME]
    assert len(slow_tool[0].actions) == len(slow_tool[0].episode.turns) == 1

    def slow_verdict(request: Any) -> float:
        time.sleep(0.55 if request.turn.index == 0 else 0.0)
        return 5.0

    env = TwoEnv(sandbox=FakeSandbox(), coach=FakeCoach(slow_verdict), scoring="inline")
    slow_coach = run(FakeStreamEngine(lambda request: CODE), num_episodes=1, env=env, episode_timeout_s=0.5)
    assert [r.episode.stop_reason for r in slow_coach] == [StopReason.DONE]
    assert len(slow_coach[0].actions) == 2


@pytest.mark.parametrize("limit", ["action_timeout_s", "episode_timeout_s"])
def test_time_limits_are_refused_where_a_run_repeats_exactly(limit: str) -> None:
    with pytest.raises(ConfigError, match="samples prompts together"):
        run(FakeBatchEngine(random_words(seed=0)), **{limit: 5.0})
    flag = "--" + limit.replace("_", "-")
    words = re.escape(f"{flag} 5: with --engine transformers a run repeats exactly")
    with pytest.raises(ConfigError, match=words):
        check_engine(resolve({limit: "5", "engine": "transformers"}))


def test_the_slowest_episodes_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mappa_train")
    run(FakeStreamEngine(lambda request: "a" * (request.key[2] + 1), Pace(tokens_per_s=100)), num_episodes=7)
    (line,) = [record.getMessage() for record in caplog.records if "slowest" in record.getMessage()]
    found = re.findall(r"episode (\d+) \(task '(\w+)'\) ([\d.]+) s, of which ([\d.]+) s for samples", line)
    assert [int(index) for index, *_ in found] == [6, 5, 4, 3, 2]
    assert {task for _, task, *_ in found} == set(TASKS)


def until(holds: Callable[[], bool]) -> None:
    """Wait for something, 20 s at most."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)


def interrupt_when(holds: Callable[[], bool]) -> threading.Thread:
    """What Ctrl-C does, as soon as something holds."""

    def look() -> None:
        until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=look)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", [FakeBatchEngine, FakeStreamEngine])
def test_ctrl_c_frees_what_is_sampled_and_every_workspace(
    kind: type[FakeBatchEngine] | type[FakeStreamEngine],
) -> None:
    engine, sandbox = kind(random_words(seed=0), NEVER), FakeSandbox()
    thread = interrupt_when(lambda: engine.num_running == 3)
    with pytest.raises(KeyboardInterrupt):
        run(engine, sandbox=sandbox)
    thread.join()
    assert engine.num_running == 0
    assert len(sandbox.workspaces) == 3
    assert all(workspace.closed for workspace in sandbox.workspaces)


@pytest.mark.slow
def test_ctrl_c_in_a_real_sandbox_ends_what_runs_there() -> None:
    """Episode 0 hangs in the engine, the others in their code; nothing of it is left."""
    hang = "open('/proc/self/comm', 'w').write('sleepyhead')\nimport time; time.sleep(1000)"
    engine = FakeStreamEngine(lambda request: f"```python\n{hang}\n```", Pace(hangs=episode_is(0)))
    sandbox = open_sandbox("auto")
    env = TwoEnv(sandbox=sandbox, coach=FakeCoach(), scoring="deferred")
    try:
        seen: list[int] = []

        def both_sleep() -> bool:
            seen.append(num_sleepers())
            return engine.num_running == 1 and seen[-1] == 2

        thread = interrupt_when(both_sleep)
        with pytest.raises(KeyboardInterrupt):
            run(engine, env=env)
        thread.join()
        assert seen[-1] == 2
        assert engine.num_running == 0
        until(lambda: num_sleepers() == 0)  # who was killed may still be giving back its memory
        assert num_sleepers() == 0
    finally:
        asyncio.run(sandbox.close())


def num_sleepers() -> int:
    """Processes of ours that took this name."""
    names = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            names.append(process.name())
    return names.count("sleepyhead")


def test_an_error_in_one_episode_frees_the_others() -> None:
    def reply(request: GenerationRequest) -> str:
        if request.key[2] == 2:
            raise RuntimeError("out of memory")
        return "done"

    engine, sandbox = FakeStreamEngine(reply, Pace(action_s=math.inf)), FakeSandbox()
    with pytest.raises(RuntimeError, match="out of memory"):
        run(engine, sandbox=sandbox)
    assert engine.num_running == 0
    assert all(workspace.closed for workspace in sandbox.workspaces)


def test_the_watchdog_tells_who_waits_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeStreamEngine(random_words(seed=0), Pace(hangs=episode_is(1)))
    run(engine, watchdog_s=0.05, episode_timeout_s=0.5)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all("rollout of step 3: no episode has got any further for" in line for line in told)
    # On a busy machine something else may take as long, before or after.
    words = r"Waiting: 1 episode for samples of writer_0 \(episode 1, for \d+ s\)$"
    assert any(re.search(words, line) for line in told)


def test_the_watchdog_speaks_on_the_screen_and_in_run_log(tmp_path: Path) -> None:
    from mappa_train.run_log import log_to

    screen = io.StringIO()
    log_to(tmp_path / "run.log", Console(file=screen, width=1000))
    engine = FakeStreamEngine(random_words(seed=0), Pace(hangs=episode_is(1)))
    run(engine, watchdog_s=0.05, episode_timeout_s=0.5)
    for shown in (screen.getvalue(), (tmp_path / "run.log").read_text()):
        assert re.search(
            r"rollout of step 3: no episode has got any further for \d+ s; .*Waiting: 1 episode for samples",
            shown,
        )


def test_the_watchdog_groups_the_largest_first_and_names_the_oldest() -> None:
    watchdog = Watchdog(0, "step 1")
    for episode, whom in enumerate(["the coach", "the sandbox", "the sandbox"]):
        watchdog.waits(episode, whom)
    assert re.search(
        r"Waiting: 2 episodes for the sandbox \(longest: episode 1, for 0 s\); "
        r"1 episode for the coach \(episode 0, for 0 s\)$",
        watchdog.report(),
    )
    for episode in range(3):
        watchdog.done(episode)
    assert watchdog.report().endswith("Waiting: no episode is under way")


def test_the_watchdog_says_nothing_while_episodes_move(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 0.0, list[float]()

    class Clock(threading.Event):
        """The watchdog's pauses, which take no time here; an episode moves in the middle of each."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            pauses.append(timeout or 0.0)
            now += pauses[-1] / 2
            watchdog.waits(0, "the sandbox")
            now += pauses[-1] / 2
            return len(pauses) > 8

    monkeypatch.setattr("mappa_train.watchdog.time", SimpleNamespace(monotonic=lambda: now))
    watchdog = Watchdog(8.0, "step 1")
    watchdog._ended = Clock()
    watchdog._watch()
    assert not caplog.records
    assert pauses[:3] == [8.0, 4.0, 6.0]  # each to the soonest moment at which there may be something to say
