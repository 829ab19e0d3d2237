"""A coach that learns: its scores on logged episodes are set against the outcomes that followed.

    >>> calibration = fit(episodes, Origin(env="dsbench-v0", coach="rubric", ground_truth="final"))
    >>> write_calibration(calibration, Path("calibration.json"))
    >>> env = mappa_envs.make("dsbench-v0", coach=calibrated(make_coach("rubric"), calibration))

It predicts the episode's outcome from the coach's score of one action and from what the record of that
action shows: role, kind of task, how the code ended, valid files, length, position. The score enters, for
each role on its own, as a piecewise linear curve that cannot fall: what the coach scored higher never becomes
worth less by that alone. A calibration is a table of numbers, kept as JSON; `mappa_envs.coach.fitting` makes
one.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mappa_envs.coach.base import Coach, CoachRequest, EpisodeRequest, HindsightCoach
from mappa_envs.coach.returned import checked_score, checked_scores
from mappa_envs.coach.rubric.evidence import OWN_BUGS, UNPARSED
from mappa_envs.errors import ConfigError
from mappa_envs.scoring import Verdict, asked, enter
from mappa_envs.stats import Correlation, mean
from mappa_envs.types import CoachScore, ScoreRevision, Turn

Scored = TypeVar("Scored", CoachScore, ScoreRevision)

SCHEMA = 1
SCORE = "score "
"""How the names of the features begin that make the curve of a role's score."""
KNOTS = (0.0, 2.5, 5.0, 7.5, 10.0)
"""Where the curve of a role's score may bend."""
MOST_WEIGHT = 1e6
"""More than any feature of a fit adds to an outcome in [0, 1], and far from what floats cannot add up."""
_DATA_BUGS = frozenset(
    {"KeyError", "ValueError", "TypeError", "IndexError", "AttributeError", "FileNotFoundError"}
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Whose scores were learned from: a calibration fits these and no others.

    `coach` is the name that `make_coach` knows. `scoring` is "hindsight", or "inline", which stands for
    "deferred", too, where the same evidence gives the same scores.
    """

    env: str
    coach: str
    ground_truth: str
    scoring: str = "inline"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One column: its values are clipped to those that were seen, then standardised."""

    name: str
    low: float
    high: float
    mean: float
    scale: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Bias:
    """How a coach's scores of a role on a kind of task lie to the calibrated ones, all 0–10.

    `bias` = score − calibrated: above 0, the coach is too kind to it.
    """

    role: str
    task_type: str
    num_actions: int
    score: float
    calibrated: float
    outcome: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Scores before and calibrated scores after, each judged by a model that has not seen its task.

    Correlations are Spearman's with the outcome, by role and under "all"; the errors are root mean squares of
    score − 10 × outcome.
    """

    before: Mapping[str, Correlation | None]
    after: Mapping[str, Correlation | None]
    error_before: float
    error_after: float
    biases: tuple[Bias, ...]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A fitted calibration; `data_sha256` is the digest of the episodes, in their order."""

    schema: int = SCHEMA
    origin: Origin
    roles: tuple[str, ...]
    data_sha256: str
    num_episodes: int
    num_tasks: int
    num_actions: int
    intercept: float
    features: tuple[Feature, ...] = field(repr=False)
    fit: Fit = field(repr=False)

    def score(self, turn: Turn, task_type: str, raw: float) -> float:
        """The calibrated score, 0–10, of an action that the coach scored `raw`."""
        return predict(self.features, self.intercept, describe(turn, task_type, raw))

    def check(self, origin: Origin, roles: Iterable[str]) -> None:
        """Raise `ConfigError` if it was fitted for another coach, environment or team."""
        pairs = [(name, value, getattr(origin, name)) for name, value in vars(self.origin).items()]
        pairs.append(("roles", ", ".join(self.roles), ", ".join(sorted(roles))))
        other = [f"{name} {mine!r}, not {wanted!r}" for name, mine, wanted in pairs if mine != wanted]
        if other:
            raise ConfigError(
                f"the calibration was fitted for {'; '.join(other)}: fit one on runs with these settings"
            )


def describe(turn: Turn, task_type: str, raw: float) -> dict[str, float]:
    """The features of an action: from its record and its raw score, so the same in a log and for a coach.

    Neither the outcome nor anything after the action is looked at. What is left out is 0.
    """
    tool = turn.tool
    values = {
        f"role {turn.agent}": 1.0,
        f"task {task_type}": 1.0,
        "code": float(tool is not None),
        "code ran": float(tool is not None and tool.ok),
        "limit": float(tool is not None and tool.limit is not None),
        "valid files": mean(item.status == "valid" for item in turn.artifacts) or 0.0,
        "log length": math.log1p(len(turn.action)),
        "position": float(turn.index),
    }
    if tool is not None and tool.exception is not None:
        values[f"exception {exception_group(tool.exception)}"] = 1.0
    for low, high in itertools.pairwise(KNOTS):
        values[f"{SCORE}{turn.agent} from {low:g}"] = min(max((raw - low) / (high - low), 0.0), 1.0)
    return values


def predict(features: Sequence[Feature], intercept: float, values: Mapping[str, float]) -> float:
    """The calibrated score, 0–10, of an action with these values; a feature without one has 0."""
    total = intercept
    for item in features:
        value = min(max(values.get(item.name, 0.0), item.low), item.high)
        total += item.weight * (value - item.mean) / item.scale
    return round(10 * min(max(total, 0.0), 1.0), 4)


def exception_group(name: str) -> str:
    """syntax, name, data or other: what kind of slip an exception speaks of."""
    if name in UNPARSED:
        return "syntax"
    return "name" if name in OWN_BUGS else "data" if name in _DATA_BUGS else "other"


def calibrated(coach: Coach, calibration: Calibration) -> CalibratedCoach:
    """The coach with calibrated scores; it looks back at whole episodes if the coach does."""
    if isinstance(coach, HindsightCoach):
        return CalibratedHindsightCoach(coach, calibration)
    return CalibratedCoach(coach, calibration)


class CalibratedCoach:
    """Gives `coach`'s verdicts with calibrated scores; the reason keeps the raw one.

    Scores that the coach gives to earlier actions are calibrated as scores of those. It is shown its own
    scores of earlier actions, not the calibrated ones.
    """

    def __init__(self, coach: Coach, calibration: Calibration) -> None:
        self.coach, self.calibration = coach, calibration
        self.reads_scores = getattr(coach, "reads_scores", True)

    async def score(self, request: CoachRequest) -> CoachScore:
        turns, task_type = request.episode.turns, request.task.task_type
        shown = replace(request.episode, turns=_as_given(turns) if self.reads_scores else turns)
        found = await asked(self.coach, "score", replace(request, episode=shown))
        verdict = checked_score(self.coach, found, [role.name for role in request.team])
        revisions = tuple(
            # One of a turn that is not there is left for the environment to refuse.
            self._convert(item, turns[item.turn], task_type) if 0 <= item.turn < len(turns) else item
            for item in verdict.revisions
        )
        return replace(self._convert(verdict, request.turn, task_type), revisions=revisions)

    def _convert(self, given: Scored, turn: Turn, task_type: str) -> Scored:
        score = self.calibration.score(turn, task_type, given.score)
        return replace(given, score=score, reason=_told(given.reason, given.score, score))


class CalibratedHindsightCoach(CalibratedCoach):
    """The same for a coach that also looks back at whole episodes."""

    coach: Any

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        found = await asked(self.coach, "score_episode", request)
        verdicts = checked_scores(self.coach, found, [role.name for role in request.team])
        turns, task_type = request.episode.turns, request.task.task_type
        if len(verdicts) != len(turns):
            return verdicts  # for the environment to refuse
        return [
            verdict and self._convert(verdict, turn, task_type)
            for verdict, turn in zip(verdicts, turns, strict=True)
        ]


_TOLD = re.compile(r"\(Raw score (\S+), calibrated \S+\)\Z")


def _told(reason: str, raw: float, score: float) -> str:
    return f"{reason} (Raw score {raw:.6g}, calibrated {score:.6g})"


def _raw(reason: str, score: float) -> float:
    """The raw score at the end of a reason; `score` if it is not of a calibrated coach."""
    found = _TOLD.search(reason)
    return float(found[1]) if found else score


def _as_given(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of an episode so far with the scores that the coach itself gave."""
    shown = tuple(replace(turn, score=None, final_score=None) for turn in turns)
    for index, turn in enumerate(turns):
        if turn.score is not None:
            revisions = (replace(item, score=_raw(item.reason, item.score)) for item in turn.score.revisions)
            raw = _raw(turn.score.reason, turn.score.score)
            given = replace(turn.score, score=raw, revisions=tuple(revisions))
            shown, _ = enter(shown, index, Verdict(score=given, coach_s=turn.coach_s))
    return shown


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Calibration)


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write it as JSON."""
    path.write_bytes(_adapter().dump_json(calibration, indent=1) + b"\n")


def read_calibration(path: Path) -> Calibration:
    """Read what `write_calibration` wrote. Raises `ConfigError` if it is not there or not one."""
    try:
        content = path.read_bytes()
        schema = json.loads(content)["schema"]
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the file of `coach fit`"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"{path}: no calibration; give the file that `coach fit` wrote") from None
    if schema != SCHEMA:
        raise ConfigError(
            f"{path}: a calibration of format {schema!r}, this program reads {SCHEMA}: fit again"
        )
    return _checked(content, path)


def _checked(content: bytes, path: Path) -> Calibration:
    from pydantic import ValidationError

    try:
        found: Calibration = _adapter().validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: damaged at {place}: {first['msg']}; fit again") from None
    if not all(map(_is_sane, found.features)) or not abs(found.intercept) <= MOST_WEIGHT:
        raise ConfigError(f"{path}: damaged: a number of its features is out of range; fit again")
    return found


def _is_sane(item: Feature) -> bool:
    """Whether the feature adds a finite number to a score, whatever its value."""
    if not (item.low <= item.high and 0 < item.scale < math.inf):
        return False
    ends = (item.weight * (value - item.mean) / item.scale for value in (item.low, item.high))
    return all(abs(end) <= MOST_WEIGHT for end in ends)
