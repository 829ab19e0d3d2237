"""Checks what a coach returned: a coach may be anybody's, and its verdicts go into every record."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa_envs.actions import sanitize
from mappa_envs.errors import ConfigError
from mappa_envs.types import CoachScore, ScoreRevision

_TYPES: Mapping[str, tuple[type, ...]] = {
    "reason": (str,),
    "blame": (Mapping,),
    "correct": (bool, type(None)),
    "correction": (str, type(None)),
    "revisions": (tuple,),
    "model": (str, type(None)),
    "prompt_tokens": (int,),
    "completion_tokens": (int,),
    "cached": (bool,),
}


def checked_score(coach: object, found: object, agents: Collection[str]) -> CoachScore:
    """The verdict that `coach.score` returned, with texts that any record can carry.

    Raises `ConfigError`, which names the coach's class, if it is none or blames somebody not among `agents`.
    """
    return _checked(f"{type(coach).__name__}.score", found, agents)


def checked_scores(coach: object, found: object, agents: Collection[str]) -> list[CoachScore | None]:
    """The same for what `coach.score_episode` returned; how many they are is not looked at."""
    who = f"{type(coach).__name__}.score_episode"
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise ConfigError(
            f"{who} returned {_shown(found)}: return a list with a CoachScore or None for each action"
        )
    return [None if item is None else _checked(who, item, agents) for item in found]


def _checked(who: str, found: object, agents: Collection[str]) -> CoachScore:
    if not isinstance(found, CoachScore):
        raise ConfigError(
            f"{who} returned {_shown(found)}: return a CoachScore, or raise CoachError "
            "where there is no verdict"
        )
    for name, kinds in _TYPES.items():
        value = getattr(found, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ConfigError(f"{who} returned a CoachScore with {name} {_shown(value)}: it must be {wanted}")
    return replace(
        found,
        score=_number(who, "score", found.score),
        raised=None if found.raised is None else _number(who, "raised", found.raised),
        lowered=None if found.lowered is None else _number(who, "lowered", found.lowered),
        cost_usd=_number(who, "cost_usd", found.cost_usd),
        latency_s=_number(who, "latency_s", found.latency_s),
        reason=sanitize(found.reason),
        correction=None if found.correction is None else sanitize(found.correction),
        model=None if found.model is None else sanitize(found.model),
        blame=_blame(who, found.blame, agents),
        revisions=tuple(_revision(who, item) for item in found.revisions),
    )


def _blame(who: str, blame: Mapping[Any, Any], agents: Collection[str]) -> dict[str, float]:
    for name in blame:
        if name not in agents:
            raise ConfigError(
                f"{who} returned blame of {_shown(name)}, who is not in the team: {', '.join(agents)}"
            )
    shares = {str(name): _number(who, f"blame of {name}", share) for name, share in blame.items()}
    if any(share < 0 for share in shares.values()):
        raise ConfigError(f"{who} returned blame {_shown(shares)}: shares must not be negative")
    return shares


def _revision(who: str, found: object) -> ScoreRevision:
    if not isinstance(found, ScoreRevision):
        raise ConfigError(f"{who} returned {_shown(found)} among the revisions: each is a ScoreRevision")
    if type(found.turn) is not int or not isinstance(found.reason, str):
        raise ConfigError(f"{who} returned {_shown(found)}: its turn must be an int, its reason a str")
    return replace(
        found, score=_number(who, "a revision's score", found.score), reason=sanitize(found.reason)
    )


def _number(who: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ConfigError(
            f"{who} returned a CoachScore with {name} {_shown(value)}: it must be a finite number"
        )
    return float(value)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:200] if value is not None else "None"
