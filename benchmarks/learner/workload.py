"""The actions that both learners train on, and what a measured process tells."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import NoReturn

import numpy as np
import torch

from mappa_train.packing import Sample

PROMPT, ANSWER = (300, 900), (60, 112)
"""Shortest and longest, in tokens: what the roles of the two environments show."""
ROLE_TOKENS = 120
"""The role's own instructions, which begin all prompts of an agent."""
TEMPERATURE, BETA, LR, RANK, ALPHA = 0.5, 0.01, 1e-3, 16, 32
MODEL = "smollm2-135m"
_FIRST_ID, _LAST_ID = 100, 49_000
"""Ordinary words of the model's vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One agent's actions of a step: `num_tasks` × `episodes_per_task`.

    All prompts of a task are alike but for the last `own` of them (a share), as the hand-overs are of
    which a later agent's prompt ends; 0 for the first agent. `scale` multiplies all lengths.
    """

    num_tasks: int
    episodes_per_task: int
    own: float
    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What one process is to do."""

    workload: Workload
    num_agents: int = 1
    num_updates: int = 1
    token_budget: int = 1024
    micro_batch: int = 1
    checkpointing: bool = False

    def to_json(self) -> str:
        """The inverse of `from_json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Spec:
        """The spec that a process is started with."""
        table = json.loads(text)
        return Spec(**{**table, "workload": Workload(**table["workload"])})


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of an update (the quickest), trained (answer) tokens of it, and the process's peak memory.

    `cpu_s`: of all its threads. With one thread it is what an idle machine would take, however busy this is.
    """

    update_s: float
    cpu_s: float
    trained_tokens: int
    peak_mb: float

    @property
    def tokens_per_s(self) -> float:
        return self.trained_tokens / self.update_s


def make_samples(work: Workload) -> list[Sample]:
    """Random ids: what a token costs does not depend on what it is.

    Tasks have prompts of evenly spaced lengths. Task k, and its episode n, are the same however many episodes
    there are.
    """

    def ids(count: float, rng: np.random.Generator) -> torch.Tensor:
        size = max(2, round(count * work.scale))
        return torch.from_numpy(rng.integers(_FIRST_ID, _LAST_ID, size))

    role = ids(ROLE_TOKENS, np.random.default_rng(work.seed))
    samples = []
    for k in range(work.num_tasks):
        task = np.random.default_rng([work.seed, k, 1])
        length = PROMPT[0] + (PROMPT[1] - PROMPT[0]) * (k + 0.5) / work.num_tasks
        shared = torch.cat([role, ids(length * (1 - work.own) - ROLE_TOKENS, task)])
        for n in range(work.episodes_per_task):
            episode = np.random.default_rng([work.seed, k, 2, n])
            answer = ids(episode.integers(*ANSWER, endpoint=True), episode)
            own = [ids(length * work.own, episode)] if work.own else []
            samples.append(Sample(prompt=torch.cat([shared, *own]), response=answer))
    return samples


def rewards(count: int) -> list[float]:
    """Scores that differ within every task."""
    return [(7 * k % 11) / 10 for k in range(count)]


def peak_mb() -> float:
    """Most memory that this process had resident, in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class Clock:
    """Times updates one after the other."""

    def __init__(self) -> None:
        self.updates: list[tuple[float, float]] = []

    def begin(self) -> None:
        """An update begins."""
        self._start = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """It ends."""
        wall, cpu = self._start
        self.updates.append((time.perf_counter() - wall, time.process_time() - cpu))


def tell(clock: Clock, trained_tokens: int) -> NoReturn:
    """Print what was measured of all but the first update, as the last line of this process, and end it."""
    wall, cpu = zip(*clock.updates[1:], strict=True)
    measured = Measured(update_s=min(wall), cpu_s=min(cpu), trained_tokens=trained_tokens, peak_mb=peak_mb())
    print(json.dumps(asdict(measured)), flush=True)
    # Threads of libraries that are still at work must not hold the process up.
    sys.stdout.flush()
    os._exit(0)
