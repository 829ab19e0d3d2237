"""A coach that answers as the rubric does, but as late as a model behind a network."""

from __future__ import annotations

import asyncio

from mappa_envs.coach import CoachRequest, EpisodeRequest, RubricCoach
from mappa_envs.types import CoachScore


class LateCoach:
    """Each call takes `delay_s`; at most `num_at_once` run at a time, the others queue. For one rollout."""

    reads_scores = False

    def __init__(self, delay_s: float, num_at_once: int) -> None:
        self.delay_s = delay_s
        self._free = asyncio.Semaphore(num_at_once)
        self._rubric = RubricCoach()

    async def score(self, request: CoachRequest) -> CoachScore:
        await self._think()
        return await self._rubric.score(request)

    async def score_episode(self, request: EpisodeRequest) -> list[CoachScore | None]:
        """One call for the whole episode."""
        await self._think()
        return [await self._rubric.score(request.action(k)) for k in range(len(request.episode.turns))]

    async def _think(self) -> None:
        async with self._free:
            await asyncio.sleep(self.delay_s)
