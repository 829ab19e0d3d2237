"""The metrics of DSBench tasks: names, direction, perfect value and computation.

`score` takes arrays that are already aligned by id (see `grading`). Several target columns score the mean
over them. scikit-learn and scipy compute what they have. A NaN result means: not defined here. Also runs
inside the sandbox, for `inspector`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mappa_envs.errors import ConfigError

Array = NDArray[Any]
PROBABILITY_FLOOR = 1e-15
"""Probabilities are clipped here before a logarithm: certain and wrong costs 34.5, not infinity."""

REPORT_KEYS = ("accuracy", "f1", "roc_auc", "mae", "rmse", "rmse_pct", "mae_pct", "r2")
"""The figures of `report`, in the record of every episode: None where a figure is not defined.

- accuracy, f1 (of the positive class; weighted for more than two labels), roc_auc (one versus rest for class
  probabilities): classification.
- mae, rmse, r2: regression. rmse_pct and mae_pct are in percent of the range of the true values; they are
  not cut at 100, and None if the true values are all the same.
"""


class Family(StrEnum):
    """What a cell of a target column must hold."""

    LABEL = "label"
    SCORE = "score"
    """One number a row: the probability of the positive class, or any score that grows with it."""
    CLASS_PROBABILITY = "class probability"
    """One column a class."""
    NUMBER = "number"
    RANKING = "ranking"
    """Up to three labels, best first, apart by blanks."""
    TEXT = "text"


ColumnScore = Callable[[Array, Array, Sequence[str], str | None], float]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `title` is how a prompt names it; `column` scores one target column."""

    name: str
    title: str
    family: Family
    higher_is_better: bool
    column: ColumnScore
    probability: bool = False
    """The values must lie in [0, 1]."""
    clip_negative: bool = False

    @property
    def perfect(self) -> float:
        """The score of a submission that is right everywhere."""
        return 1.0 if self.higher_is_better else 0.0


def label_order(labels: Sequence[str]) -> list[str]:
    """Labels in their natural order: by value if all are numbers, else as text. NaN comes last."""
    try:
        values = {label: float(label) for label in labels}
    except ValueError:
        return sorted(set(labels))
    # NaN compares with nothing, so that the order would be that of the set it came from.
    return sorted(values, key=lambda label: (np.inf if np.isnan(values[label]) else values[label], label))


def _accuracy(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    return float(np.mean(truth == guess))


def _f1(average: str) -> ColumnScore:
    def column(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
        from sklearn.metrics import f1_score

        if average == "binary":
            truth, guess = truth == positive, guess == positive
        return float(f1_score(truth, guess, average=average, zero_division=0))

    return column


def _qwk(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    from sklearn.metrics import cohen_kappa_score

    if len({*truth, *guess}) < 2:
        return float("nan")
    order = label_order(labels)
    if all(re.fullmatch("0|-?[1-9][0-9]*", label) for label in order):
        # Distances are between values: a level that nobody has still takes its place on the scale.
        low, high = int(order[0]), int(order[-1])
        if high - low <= 1000:
            order = [str(level) for level in range(low, high + 1)]
    codes = {label: code for code, label in enumerate(order)}
    y = [codes[v] for v in truth]
    p = [codes[v] for v in guess]
    return float(cohen_kappa_score(y, p, weights="quadratic", labels=list(range(len(order)))))


def _roc_auc(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    from sklearn.metrics import roc_auc_score

    if np.ptp(truth) == 0:
        return float("nan")
    return float(roc_auc_score(truth, guess))


def _gini(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    return 2 * _roc_auc(truth, guess, labels, positive) - 1


def _log_loss(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    # scikit-learn clips at the machine epsilon of the dtype; the customary floor is 1e-15.
    p = np.where(truth == 1, guess, 1 - guess)
    return float(0 - np.mean(np.log(np.clip(p, PROBABILITY_FLOOR, 1))))


def _mc_log_loss(truth: Array, guess: Array) -> float:
    """`truth` is one-hot, `guess` has rows with a positive sum; both rows × classes."""
    p = np.clip(guess / guess.sum(axis=1, keepdims=True), PROBABILITY_FLOOR, 1)
    # 0 - 0 is 0, where -0 would be -0.
    return float(0 - np.mean(np.sum(truth * np.log(p), axis=1)))


def _sklearn(function: str) -> ColumnScore:
    def column(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
        import sklearn.metrics

        return float(getattr(sklearn.metrics, function)(truth, guess))

    return column


def _r2(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    from sklearn.metrics import r2_score

    return float(r2_score(truth, guess)) if len(truth) > 1 and np.ptp(truth) > 0 else float("nan")


def _smape(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    size = np.abs(truth) + np.abs(guess)
    ratio = np.divide(2 * np.abs(guess - truth), size, out=np.zeros_like(size), where=size > 0)
    return float(100 * np.mean(ratio))


def _correlation(function: str) -> ColumnScore:
    def column(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
        from scipy import stats

        if len(truth) < 2 or np.ptp(truth) == 0:
            return float("nan")
        # A constant says nothing about the order. Its standard deviation may round to non-zero.
        return float(getattr(stats, function)(truth, guess)[0]) if np.ptp(guess) > 0 else 0.0

    return column


def _map3(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    total = 0.0
    for right, cell in zip(truth, guess, strict=True):
        ranked = str(cell).split()[:3]
        total += 1 / (ranked.index(right) + 1) if right in ranked else 0.0
    return total / len(truth)


def _jaccard(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    total = 0.0
    for right, cell in zip(truth, guess, strict=True):
        a, b = set(str(right).lower().split()), set(str(cell).lower().split())
        total += len(a & b) / len(a | b) if a | b else 1.0
    return total / len(truth)


def _never_by_column(truth: Array, guess: Array, labels: Sequence[str], positive: str | None) -> float:
    raise TypeError("mc_log_loss takes all its columns at once")


def _metric(name: str, title: str, family: Family, better: str, column: ColumnScore, **more: bool) -> Metric:
    return Metric(
        name=name, title=title, family=family, higher_is_better=better == "high", column=column, **more
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _metric("accuracy", "accuracy", Family.LABEL, "high", _accuracy),
        _metric("f1", "F1 of the positive class", Family.LABEL, "high", _f1("binary")),
        _metric("f1_macro", "macro F1", Family.LABEL, "high", _f1("macro")),
        _metric("f1_micro", "micro F1", Family.LABEL, "high", _f1("micro")),
        _metric("qwk", "quadratic weighted kappa", Family.LABEL, "high", _qwk),
        _metric("roc_auc", "ROC-AUC", Family.SCORE, "high", _roc_auc),
        _metric("gini", "normalized Gini", Family.SCORE, "high", _gini),
        _metric("log_loss", "log loss", Family.SCORE, "low", _log_loss, probability=True),
        _metric(
            "mc_log_loss",
            "log loss",
            Family.CLASS_PROBABILITY,
            "low",
            _never_by_column,
            probability=True,
        ),
        _metric("mae", "MAE", Family.NUMBER, "low", _sklearn("mean_absolute_error")),
        _metric("mse", "MSE", Family.NUMBER, "low", _sklearn("mean_squared_error")),
        _metric("rmse", "RMSE", Family.NUMBER, "low", _sklearn("root_mean_squared_error")),
        _metric(
            "rmsle",
            "RMSLE",
            Family.NUMBER,
            "low",
            _sklearn("root_mean_squared_log_error"),
            clip_negative=True,
        ),
        _metric("mcrmse", "mean column RMSE", Family.NUMBER, "low", _sklearn("root_mean_squared_error")),
        _metric("medae", "median absolute error", Family.NUMBER, "low", _sklearn("median_absolute_error")),
        _metric("r2", "R2", Family.NUMBER, "high", _r2),
        _metric("smape", "SMAPE (0-200)", Family.NUMBER, "low", _smape),
        _metric("spearman", "Spearman correlation", Family.NUMBER, "high", _correlation("spearmanr")),
        _metric("pearson", "Pearson correlation", Family.NUMBER, "high", _correlation("pearsonr")),
        _metric("map@3", "MAP@3", Family.RANKING, "high", _map3),
        _metric("jaccard", "word Jaccard", Family.TEXT, "high", _jaccard),
    )
}

ALIASES = {
    "auc": "roc_auc",
    "roc_auc_mean": "roc_auc",
    "gini_norm": "gini",
    "normalized_gini": "gini",
    "log_loss_mc": "mc_log_loss",
    "logloss": "log_loss",
    "mae_cells": "mae",
    "rmsle_mean": "rmsle",
    "spearman_mean": "spearman",
    "smape_100": "smape",
    "smape_frac": "smape",
    "hit@3": "map@3",
    "map_at_3": "map@3",
    "quadratic_weighted_kappa": "qwk",
}
"""Other spellings, those of DSBench's scripts and descriptions among them. smape_frac (0-2) becomes smape
(0-200) and hit@3 becomes map@3: scores in the old scale must be converted by whoever has them."""


def metric(name: str) -> Metric:
    """The metric of this name or alias, in any case. Raises `ConfigError` on an unknown one."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in METRICS:
        raise ConfigError(f"unknown metric {name!r}; known: {', '.join(sorted(METRICS))}")
    return METRICS[key]


def higher_is_better(name: str) -> bool:
    """Whether a larger score is a better one. Raises `ConfigError` on an unknown metric."""
    return metric(name).higher_is_better


def perfect(name: str) -> float:
    """The score of a submission that is right everywhere: 1 or 0."""
    return metric(name).perfect


def score(
    name: str, truth: Array, guess: Array, *, labels: Sequence[str] = (), positive: str | None = None
) -> float:
    """Score aligned predictions.

    Parameters
    ----------
    truth, guess : rows × targets, or rows alone. Labels, rankings and texts are text; for the score family
        the truth is 1 for the positive class, else 0; for class probabilities it is one-hot.
    labels : every possible label; only qwk needs it.
    positive : the label that f1 counts.

    Returns NaN or an infinity where the metric is not defined on these values.
    """
    chosen = metric(name)
    truth, guess = (a.reshape(len(a), -1) for a in (np.asarray(truth), np.asarray(guess)))
    with np.errstate(all="ignore"):
        if chosen.family is Family.CLASS_PROBABILITY:
            return _mc_log_loss(truth, guess)
        if chosen.clip_negative:
            guess = np.clip(guess, 0, None)
        try:
            columns = [
                chosen.column(truth[:, j], guess[:, j], labels, positive) for j in range(truth.shape[1])
            ]
        except ValueError:
            # scikit-learn refuses values that overflow, and a logarithm of what is below -1.
            return float("nan")
        return float(np.mean(columns))


def report(
    family: Family, truth: Array, guess: Array, *, labels: Sequence[str] = (), positive: str | None = None
) -> dict[str, float | None]:
    """The general figures of aligned predictions, whatever the task's own metric is.

    All `REPORT_KEYS` are there; of several target columns, each figure is the mean. Scores count as the
    positive class from 0.5 on if all are in [0, 1], else they have no accuracy and no f1.
    """
    values: dict[str, float] = {}
    truth, guess = (a.reshape(len(a), -1) for a in (np.asarray(truth), np.asarray(guess)))
    if family is Family.NUMBER:
        values = _numbers_report(truth, guess)
    elif family is Family.CLASS_PROBABILITY:
        values = _class_probability_report(truth, guess)
    elif family is not Family.TEXT:
        parts = [
            _label_report(family, truth[:, j], guess[:, j], labels, positive) for j in range(truth.shape[1])
        ]
        values = {key: float(np.mean([part[key] for part in parts])) for key in parts[0]}
    return {key: _finite(values.get(key)) for key in REPORT_KEYS}


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def _numbers_report(truth: Array, guess: Array) -> dict[str, float]:
    span = np.ptp(truth, axis=0).astype(float)
    values = {"r2": score("r2", truth, guess)}
    for name in ("mae", "rmse"):
        error = np.array([score(name, truth[:, j], guess[:, j]) for j in range(truth.shape[1])])
        with np.errstate(all="ignore"):
            share = 100 * error / np.where(span > 0, span, np.nan)
            values |= {name: float(error.mean()), f"{name}_pct": float(share.mean())}
    return values


def _class_probability_report(truth: Array, guess: Array) -> dict[str, float]:
    right, chosen = truth.argmax(axis=1), guess.argmax(axis=1)
    present = [j for j in range(truth.shape[1]) if 0 < truth[:, j].sum() < len(truth)]
    return {
        "accuracy": float(np.mean(right == chosen)),
        "f1": _f1("weighted")(right, chosen, (), None),
        "roc_auc": float(np.mean([_roc_auc(truth[:, j], guess[:, j], (), None) for j in present or [0]])),
    }


def _label_report(
    family: Family, truth: Array, guess: Array, labels: Sequence[str], positive: str | None
) -> dict[str, float]:
    if family is Family.SCORE:
        numbers = {"roc_auc": _roc_auc(truth, guess, labels, positive)}
        if guess.min() < 0 or guess.max() > 1:
            return numbers | {"accuracy": float("nan"), "f1": float("nan")}
        truth, guess = np.where(truth == 1, "1", "0"), np.where(guess >= 0.5, "1", "0")
        return numbers | {
            "accuracy": _accuracy(truth, guess, (), None),
            "f1": _f1("binary")(truth, guess, (), "1"),
        }
    if family is Family.RANKING:
        guess = np.array([(str(cell).split() or [""])[0] for cell in guess], dtype=object)
    binary = family is Family.LABEL and len(set(labels) | set(truth)) <= 2
    return {
        "accuracy": _accuracy(truth, guess, labels, positive),
        "f1": _f1("binary" if binary else "weighted")(truth, guess, labels, positive),
        "roc_auc": (
            _roc_auc((truth == positive).astype(float), (guess == positive).astype(float), (), None)
            if binary
            else float("nan")
        ),
    }
