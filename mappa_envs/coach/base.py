"""What a coach is: it looks at one action with all its evidence and scores it 0–10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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
