"""The four parts of the benchmark: latency, throughput, memory, robustness."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sandbox import owner, processes
from benchmarks.sandbox.figures import BASELINES, CONCURRENCY, SANDBOXES, STEPS, Measured
from benchmarks.sandbox.variants import (
    HEAVY,
    SEED,
    TRIVIAL,
    UNAVAILABLE,
    VARIANTS,
    Step,
    Unmeasurable,
    connect_docker,
    make_csv,
)
from mappa_envs.sandbox import Limits, Sandbox, Workspace, open_sandbox
from mappa_envs.sandbox.container import OWNER_LABEL

CODES = dict(zip(STEPS, (TRIVIAL, HEAVY), strict=True))
EVERY_STEP_FAILED = "every step failed"
NUM_IDLE = 32
IDLE_S = 0.05
"""Before each timed step: agents think between steps."""

_SETTLE_S = 1.0
_DEATH_S = 2.0
_LIMIT_S = 1.0
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How often things are measured. Steps are in all, by how many run at a time."""

    num_rounds: int
    num_cold: dict[int, int]
    num_namespace: dict[int, int]
    num_comparisons: int
    num_created: int
    num_timeouts: int


SIZES = {
    "quick": Size(
        num_rounds=11,
        num_cold={8: 16, 32: 32},
        num_namespace={8: 80, 32: 128},
        num_comparisons=3,
        num_created=100,
        num_timeouts=5,
    ),
    "full": Size(
        num_rounds=45,
        num_cold={8: 48, 32: 96},
        num_namespace={8: 320, 32: 640},
        num_comparisons=7,
        num_created=300,
        num_timeouts=15,
    ),
}


async def measure_latency(measured: Measured, size: Size) -> None:
    """Medians of single steps, all variants in turn in one run, in a new order each round."""
    async with AsyncExitStack() as stack:
        steps: dict[str, Step] = {}
        for name in VARIANTS:
            try:
                steps[name] = await _warm(name, stack)
            except UNAVAILABLE as error:
                measured.reasons |= {f"{kind}_{name}_ms": str(error) for kind in STEPS}
        cells = [(kind, name) for name in steps for kind in STEPS]
        times: dict[str, list[float]] = {f"{kind}_{name}_ms": [] for kind, name in cells}
        order = random.Random(SEED)
        for _ in range(size.num_rounds):
            order.shuffle(cells)
            for kind, name in cells:
                await asyncio.sleep(IDLE_S)
                start = time.perf_counter()
                problem = await steps[name](CODES[kind])
                duration_ms = (time.perf_counter() - start) * 1000
                _count_failure(measured, name, problem)
                if problem is None:
                    times[f"{kind}_{name}_ms"].append(duration_ms)
        for key, durations in times.items():
            if durations:
                measured.values[key] = statistics.median(durations)
            else:
                measured.reasons[key] = EVERY_STEP_FAILED


async def _warm(name: str, stack: AsyncExitStack) -> Step:
    """The variant's step, after one of each kind that is not timed: file caches are warm for all."""
    (step,) = await stack.enter_async_context(VARIANTS[name](1))
    for kind, code in CODES.items():
        problem = await step(code)
        if problem is not None:
            raise Unmeasurable(f"its first {kind} step failed: {problem}")
    return step


def _count_failure(measured: Measured, name: str, problem: str | None) -> None:
    """A sandbox's failure is a result; without its baseline there is nothing to compare with."""
    if problem is not None and name in BASELINES:
        raise RuntimeError(f"{name}: a step failed: {problem}")
    if name in SANDBOXES:
        measured.count("failures", problem is not None)


async def measure_throughput(measured: Measured, size: Size) -> None:
    """Heavy steps per second, as many at a time as there are workspaces, each as fast as it can."""
    for num in CONCURRENCY:
        totals = {"namespace": size.num_namespace[num] // 2, "cold": size.num_cold[num]}
        durations_s, num_done = dict.fromkeys(totals, 0.0), dict.fromkeys(totals, 0)
        # One before and one after: a load that comes and goes is not to count for one side alone.
        for name in ("namespace", "cold", "namespace"):
            async with VARIANTS[name](num) as steps:
                await steps[0](HEAVY)
                duration_s, problems = await run_closed_loop(steps, totals[name])
            durations_s[name] += duration_s
            num_done[name] += problems.count(None)
            for problem in problems:
                _count_failure(measured, name, problem)
        for name, done in num_done.items():
            key = f"heavy{num}_{name}_per_s"
            if done:
                measured.values[key] = done / durations_s[name]
            else:
                measured.reasons[key] = EVERY_STEP_FAILED


async def run_closed_loop(steps: Sequence[Step], total: int) -> tuple[float, list[str | None]]:
    """How many seconds `total` heavy steps take, and what went wrong in each."""
    waiting = iter(range(total))
    problems: list[str | None] = []

    async def work(step: Step) -> None:
        for _ in waiting:
            problems.append(await step(HEAVY))

    start = time.perf_counter()
    await asyncio.gather(*(work(step) for step in steps))
    return time.perf_counter() - start, problems


async def measure_memory(measured: Measured, size: Size) -> None:
    """Memory of all processes below this one, without an episode and with many idle ones.

    Medians of several comparisons: a process elsewhere that maps the same libraries and ends, or starts,
    shifts a reading by megabytes.
    """
    files = {"train.csv": make_csv()}
    totals_mb, differences_mb = [], []
    async with open_sandbox("namespace") as box:
        async with await box.open(files) as first:
            await first.run(HEAVY)
        for _ in range(size.num_comparisons):
            without_mb = await _settled_mb()
            async with AsyncExitStack() as stack:
                for _ in range(NUM_IDLE):
                    workspace = await stack.enter_async_context(await box.open(files))
                    await workspace.run(HEAVY)
                totals_mb.append(await _settled_mb())
            differences_mb.append(totals_mb[-1] - without_mb)
    measured.values["total32_mb"] = statistics.median(totals_mb)
    measured.values["idle_mb"] = statistics.median(differences_mb) / NUM_IDLE


async def _settled_mb() -> float:
    await asyncio.sleep(_SETTLE_S)
    return processes.pss_mb(processes.descendants(os.getpid()))


async def measure_robustness(measured: Measured, size: Size) -> None:
    """Opening and closing, the time limit, and what outlives an owner that is killed."""
    async with open_sandbox("namespace", Limits(time_s=_LIMIT_S)) as box:
        measured.values["create_close_ms"] = await _create_close_ms(box, size.num_created)
        async with await box.open() as workspace:
            overshoots = [await _overshoot_s(workspace) for _ in range(size.num_timeouts)]
        measured.values["timeout_overshoot_s"] = max(overshoots)
    for kind in SANDBOXES:
        try:
            left = await _count_survivors(kind)
        except UNAVAILABLE as error:
            measured.reasons[f"survivors_{kind}"] = str(error)
        else:
            measured.values[f"survivors_{kind}"] = left
            measured.count("survivors", left)


async def _create_close_ms(box: Sandbox, num: int) -> float:
    """The first one, which starts the sandbox, does not count."""
    durations = []
    for _ in range(num + 1):
        start = time.perf_counter()
        await (await box.open()).close()
        durations.append((time.perf_counter() - start) * 1000)
    return statistics.median(durations[1:])


async def _overshoot_s(workspace: Workspace) -> float:
    start = time.perf_counter()
    result = await workspace.run("while True: pass")
    duration_s = time.perf_counter() - start
    if result.limit != "time":
        raise RuntimeError(f"an endless loop ended by itself: {result}")
    return duration_s - _LIMIT_S


async def _count_survivors(kind: str) -> int:
    """Processes, zombies and containers that are still there a while after their owner was killed."""
    killed = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(owner.__file__)), kind, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert killed.stdout is not None
        line = (await asyncio.wait_for(killed.stdout.readline(), _START_TIMEOUT_S)).decode().strip()
        if line != "ready":
            raise Unmeasurable(line or "the owner died before its sandbox was ready")
        own = processes.descendants(killed.pid)
        containers = _containers(killed.pid) if kind == "docker" else set()
        if not (containers if kind == "docker" else own):
            raise RuntimeError(f"{kind}: nothing of the sandbox is to be found while it runs")
    finally:
        if killed.returncode is None:
            killed.kill()
        await killed.wait()
    left = await asyncio.to_thread(processes.survivors, own, _DEATH_S)
    return len(left) + (len(_containers(killed.pid)) if kind == "docker" else 0)


def _containers(owner_pid: int) -> set[str]:
    """Those that say that this process owns them, running or not."""
    client = connect_docker()
    try:
        found = client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)
        return {item.id for item in found if item.labels[OWNER_LABEL].split("/")[1] == str(owner_pid)}
    finally:
        client.close()


@dataclass(frozen=True, kw_only=True)
class Part:
    """What measures, and the names of what it measures besides `failures`."""

    measure: Callable[[Measured, Size], Awaitable[None]]
    names: tuple[str, ...]


PARTS = {
    "latency": Part(
        measure=measure_latency,
        names=tuple(f"{kind}_{name}_ms" for kind in STEPS for name in VARIANTS),
    ),
    "throughput": Part(
        measure=measure_throughput,
        names=tuple(f"heavy{num}_{name}_per_s" for num in CONCURRENCY for name in ("cold", "namespace")),
    ),
    "memory": Part(measure=measure_memory, names=("idle_mb", "total32_mb")),
    "robustness": Part(
        measure=measure_robustness,
        names=(
            "create_close_ms",
            "timeout_overshoot_s",
            "survivors",
            *(f"survivors_{kind}" for kind in SANDBOXES),
        ),
    ),
}
