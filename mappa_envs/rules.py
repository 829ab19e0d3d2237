"""How a team takes turns and is scored, checked when it is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from mappa_envs.errors import ConfigError
from mappa_envs.scoring import Scoring
from mappa_envs.types import Role
from mappa_envs.view import Visibility

Handover = Literal["artifacts", "message"]
GroundTruth = Literal["final", "off"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`PipelineEnv` documents each. Raises `ConfigError` on a senseless one."""

    team: tuple[Role, ...]
    max_turns: int
    time_limit_s: float | None
    visibility: Visibility
    handover: Handover
    ground_truth: GroundTruth
    scoring: Scoring

    def __post_init__(self) -> None:
        names = [role.name for role in self.team]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"team: needs at least one role, each with its own name; got {names}")
        for role in self.team:
            _check_count(f"max_actions of {role.name}", role.max_actions)
        _check_count("max_turns", self.max_turns)
        limit = self.time_limit_s
        if limit is not None and not (_is_a(Real, limit) and limit > 0):
            raise ConfigError(f"time_limit_s must be a number of seconds above 0, or None, got {limit!r}")
        check_choice("visibility", self.visibility, get_args(Visibility))
        check_choice("handover", self.handover, get_args(Handover))
        check_choice("ground_truth", self.ground_truth, get_args(GroundTruth))
        check_choice("scoring", self.scoring, get_args(Scoring))

    @property
    def required(self) -> tuple[str, ...]:
        """The required files of the whole team."""
        return tuple(dict.fromkeys(path for role in self.team for path in role.required))

    def role(self, name: str) -> Role:
        for role in self.team:
            if role.name == name:
                return role
        raise KeyError(f"no agent {name!r}; the team is {', '.join(role.name for role in self.team)}")

    def start(self, name: Any) -> str | None:
        """The role to start with; None for the first one, with which an episode is an ordinary one.

        Raises `ConfigError` for a role that there is not.
        """
        names = [role.name for role in self.team]
        if name is not None and name not in names:
            raise ConfigError(f"start_role: no role {name!r}; known: {', '.join(names)}")
        return None if name == names[0] else name

    def upstream(self, name: str) -> tuple[Role, ...]:
        """The roles before this one in the list."""
        return self.team[: self.team.index(self.role(name))]


def _is_a(kind: type, value: object) -> bool:
    """Whether it is such a number; Python counts truth values among them."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_count(name: str, value: Any) -> None:
    if not _is_a(Integral, value) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_reset(seed: Any, options: object) -> None:
    """Raise `ConfigError` if these cannot be what `reset` takes."""
    if seed is not None and not (_is_a(Integral, seed) and seed >= 0):
        raise ConfigError(f"seed must be a whole number from 0, or None, got {seed!r}")
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f'options must be a mapping such as {{"task_id": …}}, or None, got {options!r}')


def most_turns(team: Sequence[Role]) -> int:
    """All actions that the team has; four times as many if a role names who follows."""
    num_actions = sum(role.max_actions for role in team)
    return num_actions if all(role.next is None for role in team) else 4 * num_actions


def check_choice(name: str, value: object, known: Sequence[object]) -> None:
    """Raise `ConfigError` if the value is none of the known ones."""
    if value not in known:
        raise ConfigError(f"{name}: unknown value {value!r}; known: {', '.join(map(repr, known))}")
