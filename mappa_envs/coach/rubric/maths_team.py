"""A team without required files at one of its turns: who computed what, and what reached the acting role."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.maths_facts import Facts, asks_for_code
from mappa_envs.coach.rubric.maths_values import agree, number_of


@dataclass(frozen=True, kw_only=True)
class Team:
    """The acting turn `own`, and the turns `past` before it, as facts."""

    request: CoachRequest
    own: Facts
    past: tuple[Facts, ...]

    @property
    def me(self) -> str:
        return self.request.role.name

    @property
    def is_last(self) -> bool:
        return self.request.role == self.request.team[-1]

    @property
    def computed(self) -> Facts | None:
        """The last earlier turn whose program computed a value and printed it."""
        return next((one for one in reversed(self.past) if one.computed), None)

    @property
    def handed(self) -> Facts | None:
        """The message of the last role before this one that was to compute."""
        coders = {role.name for role in self.request.team if asks_for_code(role)}
        return next(
            (one for one in reversed(self.past) if one.turn.agent in coders and one.turn.agent != self.me),
            None,
        )

    @property
    def misreports(self) -> bool:
        """Whether the one who was to compute handed over another value than its program printed."""
        handed, run = self.handed, self.computed
        if (
            handed is None
            or run is None
            or handed.turn.tool is not None
            or handed.turn.agent != run.turn.agent
        ):
            return False
        return misreports(handed, run)

    @property
    def shown(self) -> str | None:
        """The value that reached this role: what was named to it, else what was printed."""
        handed, run = self.handed, self.computed
        if handed is None:
            return run.printed if run else None
        if handed.turn.tool is not None:
            return handed.printed
        is_own = run is not None and run.turn.agent == handed.turn.agent
        return run.printed if run is not None and is_own and not self.misreports else handed.named

    def contradicts(self, answer: str) -> bool:
        """Whether what reached this role says for certain that the answer is another one."""
        handed, run = self.handed, self.computed
        source = handed if handed is not None and handed.turn.tool is not None else run
        if handed is not None and agree(answer, handed.named):
            return False
        if source is not None and not self.misreports and source.turn.agent == (handed or source).turn.agent:
            return source.refutes(answer)
        numbers = [number_of(one) for one in (answer, self.shown or "")]
        return None not in numbers and not agree(answer, self.shown)

    @property
    def coder(self) -> str | None:
        return next((role.name for role in self.request.team if asks_for_code(role)), None)

    def origin(self, answer: str | None) -> Facts | None:
        """The first turn that stated or computed this value, else that had it among others."""
        for has in (_is_result, Facts.shows, _is_named):
            found = next((one for one in self.past if has(one, answer)), None)
            if found is not None:
                return found
        return None


def _is_result(one: Facts, answer: str | None) -> bool:
    return agree(answer, one.stated) or agree(answer, one.printed)


def _is_named(one: Facts, answer: str | None) -> bool:
    return one.turn.tool is None and agree(answer, one.named)


def misreports(handed: Facts, run: Facts) -> bool:
    """Whether a message names another value than the program printed, and that one nowhere."""
    return run.refutes(handed.named) and not handed.mentions(run)
