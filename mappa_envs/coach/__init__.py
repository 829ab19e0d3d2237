"""Coaches: they look at one action with all its evidence and score it 0–10.

    >>> coach = make_coach("rubric")  # or "llm:gemini/gemini-2.5-flash", with its options
    >>> verdict = await coach.score(request)

Your own: `register_coach("mine", MyCoach)`, then `make_coach("mine", **options)`, or `--coach mine`.
"""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.coach.base import (
    BUDGET_SPENT,
    Coach,
    CoachRequest,
    EpisodeRequest,
    HindsightCoach,
    check_is_coach,
)
from mappa_envs.coach.fake import FakeCoach
from mappa_envs.coach.llm import LLMCoach
from mappa_envs.coach.llm.parse import parse_verdict
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.errors import ConfigError, MappaError

__all__ = [
    "BUDGET_SPENT",
    "Coach",
    "CoachRequest",
    "EpisodeRequest",
    "FakeCoach",
    "HindsightCoach",
    "LLMCoach",
    "RubricCoach",
    "make_coach",
    "parse_verdict",
    "register_coach",
]

_FACTORIES: dict[str, Callable[..., Coach]] = {"rubric": RubricCoach, "fake": FakeCoach, "llm": LLMCoach}


def make_coach(name: str, **options: object) -> Coach:
    """The coach of that name. `name:rest` hands `rest` to its factory as the first argument.

    Raises `ConfigError` for an unknown name, for options that the coach does not have, or for a factory that
    makes no coach.
    """
    kind, colon, rest = name.partition(":")
    if kind not in _FACTORIES:
        known = ", ".join(sorted(_FACTORIES))
        raise ConfigError(
            f"there is no coach {kind!r}; the coaches are {known}. "
            f"Add your own with mappa_envs.coach.register_coach({kind!r}, factory)"
        )
    try:
        made = _FACTORIES[kind](*([rest] if colon else []), **options)
    except MappaError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"coach {name!r} cannot be made with options {sorted(options)}: {error}") from error
    check_is_coach(made)
    return made


def register_coach(name: str, factory: Callable[..., Coach]) -> None:
    """Make `factory` known to `make_coach`. Raises `ConfigError` if the name is taken or has a colon."""
    if not name or ":" in name:
        raise ConfigError(f"a coach's name must not be empty nor have a colon, got {name!r}")
    if name in _FACTORIES:
        raise ConfigError(f"there is a coach {name!r} already")
    _FACTORIES[name] = factory
