"""Fits a `Calibration` on logged episodes: ridge regression of outcomes, judged on tasks it has not seen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mappa_envs.coach.calibration import (
    SCORE,
    Bias,
    Calibration,
    Feature,
    Fit,
    Origin,
    describe,
    predict,
)
from mappa_envs.errors import DataError
from mappa_envs.stats import Correlation, rank_correlation
from mappa_envs.types import Episode, StopReason, Turn

PENALTY = 10.0
"""Weight of the squared coefficients (of features with variance 1): as much as ten actions have."""
FOLDS = 5
MIN_ACTIONS = 20


@dataclass(frozen=True)
class _Action:
    """One scored action of a log; `outcome` in [0, 1]."""

    turn: Turn
    task_id: str
    task_type: str
    raw: float
    outcome: float


def fit(episodes: Iterable[Episode], origin: Origin) -> Calibration:
    """Fit a calibration on logged episodes.

    Counted are the actions with a score (as first given) of graded episodes. Raises `DataError` where they
    are of fewer than two tasks, fewer than `MIN_ACTIONS`, all had the same outcome, or are of another
    environment than `origin` says.
    """
    digest, actions, num_episodes = hashlib.sha256(), list[_Action](), 0
    for episode in episodes:
        if episode.env_id != origin.env:
            raise DataError(f"an episode of {episode.env_id} among those of {origin.env}: fit one at a time")
        if episode.outcome is None or episode.stop_reason is StopReason.INFRA:
            continue
        if not 0 <= episode.outcome <= 1:
            raise DataError(
                f"an episode of task {episode.task_id} has the outcome {episode.outcome}, not in [0, 1]"
            )
        digest.update(episode.to_json().encode() + b"\n")
        num_episodes += 1
        actions += [
            _Action(turn, episode.task_id, episode.task_type, turn.score.score, episode.outcome)
            for turn in episode.turns
            if turn.score is not None
        ]
    tasks = {item.task_id for item in actions}
    _check_data(actions, len(tasks))
    features, intercept = _regress(actions)
    return Calibration(
        origin=origin,
        roles=tuple(sorted({item.turn.agent for item in actions})),
        data_sha256=digest.hexdigest(),
        num_episodes=num_episodes,
        num_tasks=len(tasks),
        num_actions=len(actions),
        intercept=intercept,
        features=features,
        fit=_judge(actions, _out_of_fold(actions)),
    )


def _check_data(actions: Sequence[_Action], num_tasks: int) -> None:
    if len(actions) < MIN_ACTIONS or num_tasks < 2:
        raise DataError(
            f"{len(actions)} scored action(s) of {num_tasks} task(s) are too few to calibrate on: "
            f"at least {MIN_ACTIONS} of 2 tasks are needed; add runs, or more steps"
        )
    if len({item.outcome for item in actions}) == 1:
        raise DataError(
            f"every episode had the outcome {actions[0].outcome:g}: there is nothing to learn a coach's bias "
            "from; add runs in which the team sometimes succeeds and sometimes fails"
        )


def _regress(actions: Sequence[_Action]) -> tuple[tuple[Feature, ...], float]:
    """Ridge regression in which the weights of the scores are not negative: features and intercept."""
    import numpy as np
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import lsq_linear

    rows = [describe(item.turn, item.task_type, item.raw) for item in actions]
    names = sorted({name for row in rows for name in row})
    x = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    y = np.array([item.outcome for item in actions])
    center, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-9] = 1.0
    z = (x - center) / scale
    # The same minimum as over all rows, from a triangle as small as the number of features.
    triangle = cholesky(z.T @ z + PENALTY * np.eye(len(names)))
    target = solve_triangular(triangle, z.T @ (y - y.mean()), trans="T")
    floor = [0.0 if name.startswith(SCORE) else -np.inf for name in names]
    weights = lsq_linear(triangle, target, bounds=(floor, np.inf), method="bvls").x
    features = tuple(
        Feature(
            name=name,
            low=float(x[:, k].min()),
            high=float(x[:, k].max()),
            mean=float(center[k]),
            scale=float(scale[k]),
            weight=float(weights[k]),
        )
        for k, name in enumerate(names)
    )
    return features, float(y.mean())


def _out_of_fold(actions: Sequence[_Action]) -> list[float]:
    """The calibrated score of each action, from a fit that has seen no action of its task."""
    from sklearn.model_selection import GroupKFold

    tasks = [item.task_id for item in actions]
    found = [0.0] * len(actions)
    for train, test in GroupKFold(min(FOLDS, len(set(tasks)))).split(actions, groups=tasks):
        features, intercept = _regress([actions[k] for k in train])
        for k in test:
            item = actions[k]
            found[k] = predict(features, intercept, describe(item.turn, item.task_type, item.raw))
    return found


def _judge(actions: Sequence[_Action], scores: Sequence[float]) -> Fit:
    roles = ["all", *sorted({item.turn.agent for item in actions})]
    raw = [item.raw for item in actions]
    return Fit(
        before={role: _correlation(actions, raw, role) for role in roles},
        after={role: _correlation(actions, scores, role) for role in roles},
        error_before=_error(actions, raw),
        error_after=_error(actions, scores),
        biases=_biases(actions, scores),
    )


def _correlation(actions: Sequence[_Action], scores: Sequence[float], role: str) -> Correlation | None:
    groups: dict[str, list[tuple[float, float]]] = {}
    for item, score in zip(actions, scores, strict=True):
        if role in ("all", item.turn.agent):
            groups.setdefault(item.task_id, []).append((score, item.outcome))
    return rank_correlation(list(groups.values()))


def _error(actions: Sequence[_Action], scores: Sequence[float]) -> float:
    squares = [(score - 10 * item.outcome) ** 2 for item, score in zip(actions, scores, strict=True)]
    return math.sqrt(math.fsum(squares) / len(squares))


def _biases(actions: Sequence[_Action], scores: Sequence[float]) -> tuple[Bias, ...]:
    cells: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for item, score in zip(actions, scores, strict=True):
        cells.setdefault((item.turn.agent, item.task_type), []).append((item.raw, score, 10 * item.outcome))
    found = []
    for (role, task_type), rows in sorted(cells.items()):
        raw, score, outcome = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        found.append(
            Bias(
                role=role,
                task_type=task_type,
                num_actions=len(rows),
                score=raw,
                calibrated=score,
                outcome=outcome,
                bias=raw - score,
            )
        )
    return tuple(found)
