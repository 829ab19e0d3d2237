"""A coach for tests: a fixed score, or a function's, and failures on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mappa_envs.coach.base import CoachRequest, EpisodeRequest
from mappa_envs.errors import CoachError
from mappa_envs.types import CoachScore


class FakeCoach:
    """Gives `score` (a number, or a function of the request) and keeps every request in `requests`.

    Raises `CoachError` for the turns whose index is in `fail_on`.
    """

    def __init__(
        self,
        score: float | Callable[[CoachRequest], CoachScore | float] = 5.0,
        fail_on: Collection[int] = (),
    ) -> None:
        self._score = score if callable(score) else float(score)
        self._fail_on = frozenset(fail_on)
        self.requests: list[CoachRequest] = []

    async def score(self, request: CoachRequest) -> CoachScore:
        self.requests.append(request)
        if request.turn.index in self._fail_on:
            raise CoachError(f"the fake coach was told to fail on turn {request.turn.index}")
        given = self._score(request) if callable(self._score) else self._score
        if isinstance(given, CoachScore):
            return given
        return CoachScore(score=float(given), reason="a fake score", model="fake")

    async def score_episode(self, request: EpisodeRequest) -> list[CoachScore | None]:
        """What `score` says of each action."""
        scores: list[CoachScore | None] = []
        for index in range(len(request.episode.turns)):
            try:
                scores.append(await self.score(request.action(index)))
            except CoachError:
                scores.append(None)
        return scores
