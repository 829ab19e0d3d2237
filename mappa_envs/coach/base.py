"""What a coach is: it looks at one action with all its evidence and scores it 0–10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from mappa_envs.errors import ConfigError
from mappa_envs.types import Artifact, CoachScore, Episode, Outcome, Role, StopReason, Task, Turn

BUDGET_SPENT = "budget"
"""The `unscored_reason` of actions that a coach did not look at because its budget is spent."""


@dataclass(frozen=True, kw_only=True)
class CoachRequest:
    """All the evidence about one action.

    `turn` is the action under judgement, still unscored; `episode` holds the turns before it, with their
    scores as far as this coach reads scores (see `Coach`).
    `before` and `after` give the state of every required file of the team, by path, around the
    action. `last_action` says that the role cannot act again. `outcome` is the metric report on the
    finished episode: None while it goes on, or where ground truth is off.
    """

    task: Task
    team: tuple[Role, ...]
    role: Role
    episode: Episode
    turn: Turn
    before: Mapping[str, Artifact] = field(default_factory=dict)
    after: Mapping[str, Artifact] = field(default_factory=dict)
    last_action: bool = True
    outcome: Outcome | None = None


class Coach(Protocol):
    """Anything with this method can coach.

    One that does not look at the scores of earlier turns says so with an attribute `reads_scores = False`.
    Its requests hold none, and where scores are deferred they need not wait for the verdicts before them.
    """

    async def score(self, request: CoachRequest) -> CoachScore:
        """Score one action. Raises `CoachError` when there is no usable verdict (unscored)."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpisodeRequest:
    """All the evidence about one finished episode of n actions, for a look in hindsight.

    `episode` is complete but for its scores. `states` are the states of the team's required files, by path:
    n + 1 of them, before the first action and after each. `outcome` is None where ground truth is off.
    """

    task: Task
    team: tuple[Role, ...]
    episode: Episode
    states: tuple[Mapping[str, Artifact], ...]
    outcome: Outcome | None = None

    def action(self, index: int) -> CoachRequest:
        """What a coach would have been asked right after the action of that index.

        The outcome is in the request of the action that ended the episode, if that was the end of the team's
        work: elsewhere it is not that action's doing.
        """
        turns = self.episode.turns
        turn = turns[index]
        stop, is_last = self.episode.stop_reason, index == len(turns) - 1
        by_limit = stop in (StopReason.MAX_TURNS, StopReason.TIME) and turn.agent == self.team[-1].name
        closes = is_last and (stop is StopReason.DONE or by_limit)
        return CoachRequest(
            task=self.task,
            team=self.team,
            role=next(role for role in self.team if role.name == turn.agent),
            episode=replace(
                self.episode,
                turns=turns[:index],
                outcome=None,
                success=False,
                metrics={},
                grade_code=None,
                grade_message="",
                stop_reason=None,
            ),
            turn=turn,
            before=self.states[index],
            after=self.states[index + 1],
            last_action=turn.handed_over,
            outcome=self.outcome if closes else None,
        )


@runtime_checkable
class HindsightCoach(Protocol):
    """A coach that can also look back at a whole episode."""

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        """One verdict an action, in their order; None where there is none for that action.

        The scores are final: `revisions` are not looked at. Raises `CoachError` when nothing can be used.
        """
        ...


@runtime_checkable
class CheckedCoach(Protocol):
    """A coach that can be tried out before it is needed."""

    async def check(self) -> None:
        """Raises `UnavailableError` or `ConfigError`, which say what to do."""
        ...


def check_is_coach(coach: object) -> None:
    """Raise `ConfigError` on what can score nothing: a function, a class in place of its instance."""
    if isinstance(coach, type):
        raise ConfigError(f"coach: {coach.__name__} is a class; give an instance of it: {coach.__name__}(…)")
    if not any(callable(getattr(coach, name, None)) for name in ("score", "score_episode")):
        raise ConfigError(
            f"coach: {coach!r} has no method score(); a coach is an object with "
            "`async def score(self, request)` that returns a CoachScore"
        )
