"""In which portions the episodes of a step go to the workers.

A step ends with its slowest worker, and what keeps a worker busy is many episodes at once. So a worker that
plays one chunk at a time gets large ones, and one that plays several side by side gets ever smaller ones
(guided self-scheduling, Polychronopoulos and Kuck 1987), so that all of them end together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mappa_train.rollout import EpisodePlan

Chunk = tuple[EpisodePlan, ...]

ROUNDS = 2
"""Chunks of a worker that plays one at a time: a slow or lost one holds up a part of its share only."""
GUIDED = 6
"""Beside others, a chunk is at most this part of what each worker would have to play of the rest."""


class ChunkQueue:
    """The episodes of a step that are still to be handed out, in the order of the plans.

    Parameters
    ----------
    plans : all episodes of the step.
    num_workers : who share them.
    at_once : episodes that a worker plays at once, in chunks side by side; 0: it plays one chunk at a time.
    """

    def __init__(self, plans: Sequence[EpisodePlan], num_workers: int, at_once: int = 0) -> None:
        self._plans, self._num_workers, self._at_once = deque(plans), num_workers, at_once
        self._share = -(-len(plans) // (ROUNDS * num_workers))

    def room(self, num_playing: int) -> int:
        """How many episodes a worker can take that is playing so many."""
        if self._at_once:
            return self._at_once - num_playing
        return 0 if num_playing else self._share

    def take(self, room: int) -> Chunk:
        """The next chunk, of `room` at most; empty if nothing is left.

        Episodes of one task share the beginning of their prompts, so that they are sampled faster together:
        tasks are cut only where they are too large.
        """
        most = room
        if self._at_once:
            most = min(room, -(-len(self._plans) // (GUIDED * self._num_workers)))
        taken: list[EpisodePlan] = []
        while self._plans and len(taken) < most:
            size = self._same_task(most + 1)
            if taken and len(taken) + size > most:
                break
            taken += [self._plans.popleft() for _ in range(min(size, most))]
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
