"""How a team takes turns and is scored, checked when it is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from mappa_envs.errors import ConfigError
from mappa_envs.sandbox import check_kind
from mappa_envs.scoring import Scoring
from mappa_envs.types import Role, Task
from mappa_envs.view import Visibility

Handover = Literal["artifacts", "message"]
GroundTruth = Literal["final", "off"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`PipelineEnv` documents each. Raises `ConfigError` on a senseless one; the team is checked already."""

    team: tuple[Role, ...]
    max_turns: int
    time_limit_s: float | None
    visibility: Visibility
    handover: Handover
    ground_truth: GroundTruth
    scoring: Scoring

    def __post_init__(self) -> None:
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


def check_parts(
    team: Any, tasks: Any, sandbox: Any, limits: object, packages: object
) -> tuple[tuple[Role, ...], tuple[Task, ...]]:
    """Team and tasks. Raises `ConfigError` if a part has a wrong type, or does not go with the others."""
    _check_sandbox(sandbox, limits, packages)
    return _checked_team(team), _checked_tasks(tasks)


def _checked_team(team: Any) -> tuple[Role, ...]:
    roles = _members("team", team, "a list of Role")
    for role in roles:
        if not isinstance(role, Role):
            raise ConfigError(f"team: each member must be a Role(name=…, title=…, duty=…), got {role!r}")
        _check_count(f"max_actions of {role.name}", role.max_actions)
        files = role.required
        # Of a text, each letter would be a file.
        if not isinstance(files, tuple | list) or not all(isinstance(path, str) for path in files):
            example = files if isinstance(files, str) else "model.pkl"
            raise ConfigError(
                f"required of {role.name} must be a tuple of names, such as ({example!r},), got {files!r}"
            )
    names = [role.name for role in roles]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"team: needs at least one role, each with its own name; got {names}")
    return roles


def choose_team(
    team: Sequence[Role] | None, max_actions: Sequence[int] | None, standard: Callable[..., Sequence[Role]]
) -> Sequence[Role]:
    """The given team, or the standard one with these numbers of actions.

    Raises `ConfigError` where both are given: the numbers would count for nothing.
    """
    if team is None:
        return standard() if max_actions is None else standard(max_actions)
    if max_actions is not None:
        raise ConfigError(
            f"max_actions: {max_actions!r} is for the standard team, not for one of your own; "
            "leave it out and give each Role its max_actions"
        )
    return team


def seat_counts(max_actions: Any, example: tuple[int, ...]) -> tuple[int, ...]:
    """The most actions of each seat of a standard team. Raises `ConfigError` unless there are enough."""
    wanted = f"one number for each of the {len(example)} roles, such as {example},"
    counts = _members("max_actions", max_actions, wanted)
    if len(counts) != len(example):
        raise ConfigError(f"max_actions: {wanted} is needed, got {max_actions!r}")
    return counts


def _checked_tasks(tasks: Any) -> tuple[Task, ...]:
    found = _members("tasks", tasks, "a list of Task")
    if not found:
        raise ConfigError("tasks: there are none")
    for task in found:
        if not isinstance(task, Task):
            raise ConfigError(f"tasks: each must be a Task, as load_tasks returns them, got {task!r}")
    return found


def _check_sandbox(sandbox: Any, limits: object, packages: object) -> None:
    if isinstance(packages, str):
        raise ConfigError(f"packages must be a list of names, such as [{packages!r}], got {packages!r}")
    if isinstance(sandbox, str):
        check_kind(sandbox)
    elif isinstance(sandbox, type) or not callable(getattr(sandbox, "open", None)):
        raise ConfigError(f"sandbox: a Sandbox or a kind such as 'auto' is needed, got {sandbox!r}")
    elif limits is not None or packages:
        raise ConfigError("limits and packages belong to the given sandbox: set them where it is opened")


def _members(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise ConfigError(f"{name}: {wanted} is needed, got {value!r}") from None


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
