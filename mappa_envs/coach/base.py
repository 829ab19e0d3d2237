"""What a coach is: it looks at one action with all its evidence and scores it 0–10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from mappa_envs.types import Artifact, CoachScore, Episode, Outcome, Role, Task, Turn


@dataclass(frozen=True, kw_only=True)
class CoachRequest:
    """All the evidence about one action.

    `turn` is the action under judgement, still unscored; `episode` holds the turns before it.
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
    """Anything with this method can coach."""

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

        Only the last action's request has the outcome.
        """
        turns = self.episode.turns
        turn = turns[index]
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
            outcome=self.outcome if index == len(turns) - 1 else None,
        )


@runtime_checkable
class HindsightCoach(Protocol):
    """A coach that can also look back at a whole episode."""

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        """One verdict an action, in their order; None where there is none for that action.

        The scores are final: `revisions` are not looked at. Raises `CoachError` when nothing can be used.
        """
        ...
