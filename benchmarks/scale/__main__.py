"""Weak scaling: each worker gets the same number of episodes, the driver gets more and more workers.

    python -m benchmarks.scale --size quick --json scale.json

README.md says what is simulated, what is real, and what the figures mean.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.scale.simulated import MODEL, Pacing, SimulatedCoach, SimulatedWorker
from mappa_train.cluster.chunks import ChunkQueue
from mappa_train.cluster.desk import CoachRelay
from mappa_train.cluster.pool import WorkerPool
from mappa_train.cluster.weights import Weights
from mappa_train.rollout import EpisodePlan

PACING = Path(__file__).with_name("pacing.json")
SAMPLES_PER_TASK = 8
CONCURRENT_EPISODES = 16
"""Of a worker, which has one CPU for their sandboxes."""
MOST_PROCESSES = 8
"""Workers beyond share processes: 64 of them would measure this machine's memory."""
STORE_BYTES = 200 << 20
AGREED = ("efficiency_64", "ideal_efficiency_64", "driver_mb_per_1000_episodes")
COLUMNS = {
    "workers": "workers",
    "episodes": "episodes",
    "episodes_per_s": "a second",
    "ideal_episodes_per_s": "ideal",
    "efficiency": "share",
    "ideal_efficiency": "ideal",
    "driver_ms_per_episode": "ms each",
    "driver_mb_per_1000_episodes": "MB/1000",
}


@dataclass(frozen=True, kw_only=True)
class Size:
    workers: tuple[int, ...]
    steps: int
    episodes_per_worker: int
    speed: float


SIZES = {
    "smoke": Size(workers=(1, 2), steps=2, episodes_per_worker=48, speed=20.0),
    "quick": Size(workers=(1, 64), steps=2, episodes_per_worker=96, speed=1.0),
    "full": Size(workers=(1, 2, 4, 8, 16, 32, 64), steps=4, episodes_per_worker=96, speed=1.0),
}


def measure(num_workers: int, size: Size, pacing: Pacing) -> dict[str, float]:
    """Play `size.steps` steps on that many workers; rates, and the driver's CPU and memory per episode."""
    import ray

    coach = SimulatedCoach(pacing, concurrency=10_000, rpm=0)
    relay = CoachRelay(coach)
    actor: Any = ray.remote(SimulatedWorker).options(num_cpus=0, max_concurrency=10_000)
    actors = [
        actor.remote(pacing, relay.worker_coach, CONCURRENT_EPISODES)
        for _ in range(min(num_workers, MOST_PROCESSES))
    ]
    pool = WorkerPool(
        lambda number: actors[number % len(actors)],
        num_workers,
        model_sha256=MODEL,
        timeout_s=600.0,
        concurrent_episodes=CONCURRENT_EPISODES,
    )
    try:
        pool.start()
        row = _play_steps(pool, num_workers, size)
    finally:
        pool.close()
        relay.close()
    seconds = sum(ideal_s(num_workers, _plans(step, num_workers, size), pacing) for step in range(size.steps))
    return row | {"ideal_episodes_per_s": row["episodes"] / seconds}


def ideal_s(num_workers: int, plans: Sequence[EpisodePlan], pacing: Pacing) -> float:
    """How long the step takes where driver, Ray and machine cost nothing: until the last chunk is played.

    The more workers there are, the later the slowest of them ends, whoever drives them.
    """
    queue, ends = ChunkQueue(plans, num_workers), [0.0] * num_workers
    while chunk := queue.take():  # whoever is free first gets the next one
        heapq.heappush(ends, heapq.heappop(ends) + pacing.chunk_s(chunk, CONCURRENT_EPISODES))
    return max(ends)


def _plans(step: int, num_workers: int, size: Size) -> list[EpisodePlan]:
    per_step = size.episodes_per_worker * num_workers
    return [
        EpisodePlan(index=step * per_step + k, task_id=f"task{k // SAMPLES_PER_TASK}", start_role=None)
        for k in range(per_step)
    ]


def _play_steps(pool: WorkerPool, num_workers: int, size: Size) -> dict[str, float]:
    per_step = size.episodes_per_worker * num_workers
    cpu_s, resident = _cpu_s(), []
    start = time.perf_counter()
    for step in range(size.steps):
        plans = _plans(step, num_workers, size)
        pool.sync(Weights(version=step, parts={}, digests={}))
        rollouts, _ = pool.collect(plans, step)
        if [item.index for item in rollouts] != [plan.index for plan in plans]:
            raise RuntimeError(f"step {step}: episodes were lost or doubled")
        del rollouts
        gc.collect()
        resident.append(_resident_mb())
    seconds, count = time.perf_counter() - start, per_step * size.steps
    later = per_step * (size.steps - 1)
    return {
        "workers": num_workers,
        "episodes": count,
        "episodes_per_s": count / seconds,
        "driver_ms_per_episode": 1000 * (_cpu_s() - cpu_s) / count,
        "driver_mb_per_1000_episodes": 1000 * (resident[-1] - resident[0]) / later,
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def compare(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """The rows, with each one's rate as a share of as many times the first one's."""
    one = rows[0]

    def efficiency(row: dict[str, float], rate: str) -> float:
        return row[rate] * one["workers"] / (row["workers"] * one[rate])

    return [
        row
        | {
            "efficiency": efficiency(row, "episodes_per_s"),
            "ideal_efficiency": efficiency(row, "ideal_episodes_per_s"),
        }
        for row in rows
    ]


def flatten(rows: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """The agreed figures, which are those of the most workers, and all of each row by its workers."""
    figures: dict[str, float | None] = dict.fromkeys(AGREED)
    for row in rows:
        figures["driver_mb_per_1000_episodes"] = row["driver_mb_per_1000_episodes"]
        figures |= {f"{name}_{row['workers']}": row[name] for name in COLUMNS if name != "workers"}
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    pacing = Pacing.read(PACING, size.speed)
    rows: list[dict[str, float]] = []
    if find_spec("ray") is None:
        print("not measured: Ray is not installed; pip install -e '.[ray]'")
    else:
        rows = compare(_measure_all(size, pacing))
        table = Table(*COLUMNS.values())
        for row in rows:
            table.add_row(*(f"{row[name]:.4g}" for name in COLUMNS))
        Console().print(table, "ideal: driver and machine cost nothing; ms, MB: the driver's, of episodes")
    if options.json:
        options.json.write_text(json.dumps(flatten(rows), indent=1) + "\n")


def _measure_all(size: Size, pacing: Pacing) -> list[dict[str, float]]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        include_dashboard=False,
    )
    try:
        return [measure(num_workers, size, pacing) for num_workers in size.workers]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
