"""The coach of a run: made from its settings once, tried out before anything is trained, and paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from mappa_envs.coach import Coach, LLMCoach, make_coach
from mappa_envs.coach.base import BUDGET_SPENT, CheckedCoach
from mappa_envs.coach.calibration import CalibratedCoach
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import ConfigError
from mappa_envs.types import Episode
from mappa_train.config import COACH_OPTIONS, Config


def open_coach(config: Config) -> Coach:
    """The coach of the settings. Raises `ConfigError` for a setting that this coach does not have.

    A setting that has its default is not handed to the coach.
    """
    defaults = Config()
    names = [name for name in COACH_OPTIONS if _setting(config, name) != _setting(defaults, name)]
    try:
        return make_coach(config.coach, **{name: _setting(config, name) for name in names})
    except ConfigError as error:
        flags = ", ".join("--coach-" + name.replace("_", "-") for name in names)
        raise ConfigError(f"--coach {config.coach}: {error}{f'; see {flags}' if flags else ''}") from error


def _setting(config: Config, name: str) -> Any:
    return getattr(config, f"coach_{name}")


def try_out(coach: Coach | None) -> None:
    """Let a coach that can say whether it works do so. Raises what its `check` raises."""
    inner = _inner(coach)
    if isinstance(inner, CheckedCoach):
        asyncio.run(inner.check())


def used_by(coach: Coach | None) -> Usage | None:
    """What an LLM coach has used in this run, on verdicts that came to nothing, too; else None."""
    inner = _inner(coach)
    return inner.budget.spent if isinstance(inner, LLMCoach) else None


def count_earlier(coach: Coach | None, lines: Iterable[Mapping[str, Any]]) -> None:
    """The budget is the run's: what its earlier steps cost counts when it is resumed."""
    inner = _inner(coach)
    if isinstance(inner, LLMCoach):
        inner.budget.add(Usage(cost_usd=sum(line.get("coach/cost_usd") or 0.0 for line in lines)))


def _inner(coach: Coach | None) -> Coach | None:
    return coach.coach if isinstance(coach, CalibratedCoach) else coach


def has_budget(coach: Coach | None) -> bool:
    """Whether the coach may still spend something."""
    inner = _inner(coach)
    return not (isinstance(inner, LLMCoach) and inner.budget.is_spent)


def out_of_budget(episode: Episode) -> bool:
    """Whether an action has no score because the coach's budget was spent."""
    return any(turn.unscored_reason == BUDGET_SPENT for turn in episode.turns)
