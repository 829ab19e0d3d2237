"""The coach of a run: made from its settings once, tried out before anything is trained, and paid for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mappa_envs.coach import Coach, LLMCoach, make_coach
from mappa_envs.coach.base import BUDGET_SPENT, CheckedCoach
from mappa_envs.coach.calibration import CalibratedCoach
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.types import Episode
from mappa_train.config import COACH_OPTIONS, Config
from mappa_train.files import disk_errors, write_atomically

if TYPE_CHECKING:
    from mappa_train.checkpoint import RunFolder
    from mappa_train.distributed import Ranks

_WITHOUT_OPTIONS = ("rubric", "fake")
SPENT = "coach_cost.json"
"""In the run folder: what the coach has cost the run, in USD."""


def open_coach(config: Config) -> Coach:
    """The coach of the settings. Raises `ConfigError` for a setting that this coach does not have.

    A setting that has its default is not handed to the coach.
    """
    defaults = Config()
    names = [name for name in COACH_OPTIONS if _setting(config, name) != _setting(defaults, name)]
    flags = ", ".join("--coach-" + name.replace("_", "-") for name in names)
    if names and config.coach in _WITHOUT_OPTIONS:
        raise ConfigError(f"{flags}: only for llm: coaches, and --coach is {config.coach}")
    try:
        return make_coach(config.coach, **{name: _setting(config, name) for name in names})
    except ConfigError as error:
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


def count_earlier(coach: Coach | None, run: RunFolder) -> None:
    """The budget is the run's: what it has cost so far counts when it is resumed.

    Raises `DataError` if the record of it is damaged.
    """
    inner = _inner(coach)
    if isinstance(inner, LLMCoach):
        inner.budget.add(Usage(cost_usd=_read_spent(run)))


def divided(config: Config, size: int) -> Config:
    """The settings of one of several processes, whose coaches together keep the limits."""
    defaults = Config()
    names = [f"coach_{name}" for name in ("concurrency", "rpm", "tpm")]
    # What has its default is not handed to a coach without limits, and must stay so.
    chosen = [
        name
        for name in names
        if config.coach.startswith("llm:") or getattr(config, name) != getattr(defaults, name)
    ]
    values = {name: getattr(config, name) for name in chosen}
    return replace(config, **{name: max(1, value // size) for name, value in values.items() if value})


@contextlib.contextmanager
def share_of_budget(coach: Coach | None, size: int) -> Iterator[None]:
    """Within this the coach of each of several processes may spend its part of what is left, and no more."""
    inner = _inner(coach)
    if size == 1 or not isinstance(inner, LLMCoach) or not inner.budget.limit_usd:
        yield
        return
    budget, limit = inner.budget, inner.budget.limit_usd
    spent = budget.spent.cost_usd or 0.0
    budget.limit_usd = spent + (limit - spent) / size
    try:
        yield
    finally:
        budget.limit_usd = limit


def used_since(coach: Coach | None, before: Usage | None, ranks: Ranks) -> Usage | None:
    """What the coaches of all ranks have used since; each budget counts it from now on."""
    inner = _inner(coach)
    if before is None or not isinstance(inner, LLMCoach):
        return None
    first, *others = ranks.gather_objects(inner.budget.spent - before)
    total = sum(others, first)
    if others:
        inner.budget.spent = before + total
    return total


def keep_spent(coach: Coach | None, run: RunFolder) -> None:
    """Record what the coach has cost this run, whatever came of it: steps that are repeated count twice."""
    used = used_by(coach)
    if used is not None:
        text = json.dumps({"cost_usd": used.cost_usd or 0.0})
        with disk_errors(run.path, "free some space, then resume", "make it writable, then resume"):
            write_atomically(run.path / SPENT, text.encode() + b"\n")


def _read_spent(run: RunFolder) -> float:
    path = run.path / SPENT
    try:
        spent = json.loads(path.read_bytes())["cost_usd"]
    except FileNotFoundError:
        return sum(line.get("coach/cost_usd") or 0.0 for line in run.read_metrics())
    except (ValueError, TypeError, KeyError, RecursionError):
        spent = None
    if type(spent) not in (int, float) or not 0 <= spent < math.inf:
        raise DataError(
            f'{path}: damaged; write what the run has cost so far, in USD, such as {{"cost_usd": 1.5}}'
        )
    return float(spent)


def _inner(coach: Coach | None) -> Coach | None:
    return coach.coach if isinstance(coach, CalibratedCoach) else coach


def has_budget(coach: Coach | None) -> bool:
    """Whether the coach may still spend something."""
    inner = _inner(coach)
    return not (isinstance(inner, LLMCoach) and inner.budget.is_spent)


def out_of_budget(episode: Episode) -> bool:
    """Whether an action has no score because the coach's budget was spent."""
    return any(turn.unscored_reason == BUDGET_SPENT for turn in episode.turns)
