"""In which portions the episodes of a step go to the workers.

A worker plays one chunk at a time, and what keeps it busy is many episodes at once: so chunks are large. But
a step ends with its slowest worker: so there are more of them than workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mappa_train.rollout import EpisodePlan

Chunk = tuple[EpisodePlan, ...]

ROUNDS = 2
"""Chunks of each worker in a step: a slow or lost one holds up a part of its share only."""


class ChunkQueue:
    """The episodes of a step that are still to be handed out, in the order of the plans.

    Parameters
    ----------
    plans : all episodes of the step.
    num_workers : who share them.
    """

    def __init__(self, plans: Sequence[EpisodePlan], num_workers: int) -> None:
        self._plans = deque(plans)
        self._most = -(-len(plans) // (ROUNDS * num_workers))

    def take(self) -> Chunk:
        """The next chunk; empty if nothing is left.

        Episodes of one task share the beginning of their prompts, so that they are sampled faster together:
        tasks are cut only where they are too large.
        """
        taken: list[EpisodePlan] = []
        while self._plans and len(taken) < self._most:
            size = self._same_task(self._most + 1)
            if taken and len(taken) + size > self._most:
                break
            taken += [self._plans.popleft() for _ in range(min(size, self._most))]
        return tuple(taken)

    def give_back(self, chunk: Chunk) -> None:
        """To be handed out again, before all others."""
        self._plans.extendleft(reversed(chunk))

    def _same_task(self, most: int) -> int:
        """How many episodes at the front are of one task; what is beyond `most` is not looked at."""
        count, first = 0, self._plans[0].task_id
        for plan in self._plans:
            if plan.task_id != first or count == most:
                break
            count += 1
        return count
