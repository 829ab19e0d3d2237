"""When the coach is asked about an episode's actions, and how its verdicts become scores.

- "inline": right after the action, which waits for the verdict.
- "deferred": at the same moment, but the episode goes on; the verdicts are entered at its end.
- "hindsight": once, about the whole finished episode.

Verdicts are entered in turn order, whenever they came, and a coach that reads the scores of earlier turns is
asked only when they are known. So inline and deferred give a coach the same evidence and, if it answers the
same, the same final scores.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from mappa_envs.actions import sanitize
from mappa_envs.coach.base import Coach, CoachRequest, EpisodeRequest, HindsightCoach, check_is_coach
from mappa_envs.coach.returned import checked_score, checked_scores
from mappa_envs.errors import CoachError, ConfigError
from mappa_envs.types import CoachScore, InvalidScore, Turn

Scoring = Literal["inline", "deferred", "hindsight"]
R = TypeVar("R")
Job: TypeAlias = "asyncio.Task[list[Verdict] | Exception]"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of asking about one turn: a score, or why there is none; and how long it took."""

    score: CoachScore | None = None
    unscored_reason: str | None = None
    coach_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Correction:
    """The score of an earlier turn changed, or came late: delta = (new − old) / 10, where no score is 0."""

    turn: int
    agent: str
    delta: float


def check_coach(coach: Coach | None, scoring: Scoring) -> None:
    """Raise `ConfigError` if the coach is none, or cannot score in this way."""
    if coach is None:
        return
    check_is_coach(coach)
    if scoring != "hindsight" and not callable(getattr(coach, "score", None)):
        raise ConfigError(
            f"scoring={scoring!r}: {type(coach).__name__} has no score() for single actions; "
            "take another coach, or scoring='hindsight'"
        )
    if scoring == "hindsight" and not isinstance(coach, HindsightCoach):
        raise ConfigError(
            f"scoring='hindsight': {type(coach).__name__} has no score_episode() to look back at an episode; "
            f"take another coach, or scoring='deferred'"
        )


class Scorer:
    """Asks the coach about one episode: at once with `judge`, or in the background.

    What is begun in the background runs in the event loop of the caller, which has to go on until `verdicts`
    or `cancel` was awaited there.
    """

    def __init__(self, coach: Coach | None) -> None:
        self._coach = coach
        self._reads_scores = bool(getattr(coach, "reads_scores", True))
        self._jobs: list[Job] = []

    @property
    def is_open(self) -> bool:
        """Whether something was begun that is neither entered nor cancelled."""
        return bool(self._jobs)

    async def judge(self, request: CoachRequest) -> list[Verdict]:
        """The verdict on one action, alone in its list."""
        if self._coach is None:
            return [Verdict(unscored_reason="there is no coach")]
        if not self._reads_scores:
            bare = tuple(map(_unscored, request.episode.turns))
            request = replace(request, episode=replace(request.episode, turns=bare))
        start = time.monotonic()
        try:
            found = await asked(self._coach, "score", request)
            score = checked_score(self._coach, found, [role.name for role in request.team])
            _check_revisions(score, request.turn.index)
        except CoachError as error:
            return [Verdict(unscored_reason=sanitize(str(error)), coach_s=time.monotonic() - start)]
        return [Verdict(score=score, coach_s=time.monotonic() - start)]

    async def look_back(self, request: EpisodeRequest) -> list[Verdict]:
        """One verdict an action, in their order; each takes an equal part of the time."""
        assert isinstance(self._coach, HindsightCoach)  # `check_coach` saw to it
        start, num_turns = time.monotonic(), len(request.episode.turns)
        reason, scores = "the coach has no verdict on this action", list[CoachScore | None]()
        try:
            found = await asked(self._coach, "score_episode", request)
            scores = checked_scores(self._coach, found, [role.name for role in request.team])
            if len(scores) != num_turns:
                raise CoachError(f"the coach gave {len(scores)} verdicts on {num_turns} actions")
        except CoachError as error:
            reason, scores = sanitize(str(error)), [None] * num_turns
        part_s = (time.monotonic() - start) / num_turns
        return [
            Verdict(
                # Scores in hindsight are final already.
                score=score and replace(score, revisions=()),
                unscored_reason=reason if score is None else None,
                coach_s=part_s,
            )
            for score in scores
        ]

    def begin_judging(self, request: CoachRequest) -> None:
        """`judge` in the background, after the turns before it if the coach reads their scores."""
        earlier = tuple(self._jobs) if self._reads_scores else ()

        async def in_order(request: CoachRequest) -> list[Verdict]:
            turns = request.episode.turns
            for index, verdict in enumerate(await _answers(earlier)):
                turns, _ = enter(turns, index, verdict)
            return await self.judge(replace(request, episode=replace(request.episode, turns=turns)))

        self._jobs.append(asyncio.create_task(_settled(in_order, request)))

    def begin_looking_back(self, request: EpisodeRequest) -> None:
        """`look_back` in the background."""
        self._jobs.append(asyncio.create_task(_settled(self.look_back, request)))

    async def verdicts(self) -> list[Verdict]:
        """Wait for all that was begun. If the caller is cancelled, the coach goes on.

        Raises what a coach raised besides `CoachError`, and `RuntimeError` in another event loop.
        """
        return await _answers(self._jobs)

    async def cancel(self) -> None:
        """End and forget all that was begun."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.cancel()
        await asyncio.gather(*(job for job in jobs if not job.done()), return_exceptions=True)

    def forget(self) -> None:
        """The verdicts were entered."""
        self._jobs = []


_STOPPED = "the coach was stopped, or asked in another event loop: play an episode in one loop, to its end"


def enter(
    turns: tuple[Turn, ...], index: int, verdict: Verdict
) -> tuple[tuple[Turn, ...], tuple[Correction, ...]]:
    """Put the verdict on its turn and apply its revisions to the turns before."""
    score = verdict.score
    entered, corrections = list(turns), []
    for revision in score.revisions if score else ():
        old = entered[revision.turn]
        if revision.cap and (old.final_score is None or old.final_score <= revision.score):
            continue
        delta = (revision.score - (old.final_score or 0.0)) / 10
        corrections.append(Correction(turn=revision.turn, agent=old.agent, delta=delta))
        entered[revision.turn] = replace(old, final_score=revision.score)
    entered[index] = replace(
        entered[index],
        score=score,
        final_score=None if score is None else score.score,
        unscored_reason=verdict.unscored_reason,
        coach_s=verdict.coach_s,
    )
    return tuple(entered), tuple(corrections)


def _unscored(turn: Turn) -> Turn:
    return replace(turn, score=None, final_score=None, unscored_reason=None, coach_s=0.0)


async def _answers(jobs: Sequence[Job]) -> list[Verdict]:
    if waiting := [job for job in jobs if not job.done()]:
        if waiting[0].get_loop() is not asyncio.get_running_loop():
            raise RuntimeError(_STOPPED)
        await asyncio.wait(waiting)
    found: list[Verdict] = []
    for job in jobs:
        if job.cancelled():
            raise RuntimeError(_STOPPED)
        answer = job.result()
        if isinstance(answer, Exception):
            raise answer
        found += answer
    return found


async def _settled(asking: Callable[[R], Awaitable[list[Verdict]]], request: R) -> list[Verdict] | Exception:
    # An exception kept as a value is raised where the scores are awaited, and nowhere if they are not.
    try:
        return await asking(request)
    except Exception as error:  # noqa: BLE001
        return error


async def asked(coach: object, method: str, request: CoachRequest | EpisodeRequest) -> object:
    """What the coach answers. Raises `ConfigError` where the method is no coroutine or its score is none."""
    who = f"{type(coach).__name__}.{method}"
    try:
        answer = getattr(coach, method)(request)
        if not inspect.isawaitable(answer):
            raise ConfigError(f"{who} is a plain method: write `async def {method}(self, request)`")
        return await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Of the coach's own making: a task group would take it for an episode that ended well.
        raise RuntimeError(f"{who} raised CancelledError") from error
    except InvalidScore as error:
        raise ConfigError(f"{who} returned a CoachScore with {error}") from error
    except Exception as error:
        if not isinstance(error, CoachError | ConfigError):
            error.add_note(f"(raised by {who})")
        raise


def _check_revisions(score: CoachScore, index: int) -> None:
    for revision in score.revisions:
        if not 0 <= revision.turn < index or not 0 <= revision.score <= 10:
            raise CoachError(f"the coach revised turn {revision.turn} to {revision.score} at turn {index}")
