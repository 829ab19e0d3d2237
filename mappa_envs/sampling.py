"""Which tasks an episode and a training step draw."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from mappa_envs.errors import ConfigError
from mappa_envs.types import Task

AnyTask = TypeVar("AnyTask", bound=Task)


def pick(tasks: Sequence[AnyTask], task_id: object, seed: int) -> AnyTask:
    """The task of this id, or the one that the seed draws. Raises `ConfigError` on an id of none."""
    if task_id is None:
        return tasks[int(np.random.default_rng(seed).integers(len(tasks)))]
    for task in tasks:
        if task.task_id == task_id:
            return task
    known = ", ".join(sorted(task.task_id for task in tasks)[:20])
    raise ConfigError(f"task_id: no task {task_id!r} among the {len(tasks)} of this env ({known} …)")


def stratified(tasks: Sequence[AnyTask], count: int, seed: int, step: int) -> list[AnyTask]:
    """The `count` tasks of a training step (from 1), the task types in every step as in all tasks.

    Every task is drawn once before any is drawn again, and no task twice in a step of up to `len(tasks)`. A
    pure function: each pass over the tasks has an order of its own, which follows from `seed`.

    >>> tasks = load_tasks(split="train")  # of DSBench
    >>> [task.task_type for task in stratified(tasks, 4, seed=0, step=1)]
    ['classification', 'regression', 'classification', 'regression']
    """
    if not tasks or count < 1 or step < 1:
        got = f"{len(tasks)} tasks, count {count}, step {step}"
        raise ConfigError(f"stratified: {got}; each must be 1 or more")
    waiting: list[AnyTask] = []
    drawn: list[AnyTask] = []
    passes = 0
    for _ in range(step):
        drawn = []
        while len(drawn) < count:
            if not waiting:
                fresh = _one_pass(tasks, seed, passes)
                passes += 1
                taken = {task.task_id for task in drawn}
                # What this step has already comes last, so that it is not drawn twice in it.
                waiting = sorted(fresh, key=lambda task: task.task_id in taken)
            drawn.append(waiting.pop(0))
    return drawn


def _one_pass(tasks: Sequence[AnyTask], seed: int, number: int) -> list[AnyTask]:
    """Every task once, the types spread evenly, each type in a random order."""

    def draw(task: AnyTask) -> str:
        return hashlib.sha256(f"{seed}|{number}|{task.task_id}".encode()).hexdigest()

    places = []
    for kind in sorted({task.task_type for task in tasks}):
        of_kind = sorted((task for task in tasks if task.task_type == kind), key=draw)
        places += [((i + 0.5) / len(of_kind), kind, task) for i, task in enumerate(of_kind)]
    return [task for _, _, task in sorted(places, key=lambda place: place[:2])]
