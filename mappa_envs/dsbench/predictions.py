"""Checking the cells of a submission's target columns: what the task's metric takes.

Every fault raises `Invalid`, as in `submission`. Also runs inside the sandbox, for `inspector`, which does
not know the answers: so it may import only numpy, `metrics` and `submission`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_envs.dsbench.metrics import Array, Family, Metric
from mappa_envs.dsbench.submission import BLANKS, Invalid, canonical, some

LABELLED = (Family.LABEL, Family.SCORE, Family.RANKING)
NO_LABELS = ("", "nan")
"""Cells of the answers that are a gap, not a label, unless the task names them as labels."""
ROUNDING = 1e-6
"""Probabilities may be that far outside [0, 1]: sums in single precision are."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the cells must hold.

    `labels` are all that may be predicted, as the answers spell them; empty where they are not known.
    `shown` are those that a message may name: the answers may have others.
    """

    metric: Metric
    names: Sequence[str]
    labels: tuple[str, ...]
    shown: Sequence[str]


def check_cells(
    columns: list[list[str]],
    ids: Sequence[str],
    expected: Expected,
    warnings: list[str],
    truth: list[list[str]] | None,
) -> Array:
    """The predictions, rows × targets: numbers, or text in the spelling of `expected.labels`.

    `columns` has one list a target; `truth` has the true cells in the same order, None if they are unknown.
    """
    metric = expected.metric
    _check_blanks(columns, ids, expected, truth)
    if metric.family in (Family.LABEL, Family.RANKING):
        return _labels(columns, expected)
    if metric.family is Family.TEXT:
        return text_array(columns)
    guess = _numbers(columns, expected.names)
    if metric.probability:
        guess = _check_range(guess, columns, expected.names, warnings)
    if metric.family is Family.CLASS_PROBABILITY:
        _check_sums(guess, warnings)
    if metric.clip_negative and guess.min() < 0:
        count = int((guess < 0).sum())
        warnings.append(f"{count} negative predictions were set to 0 for {metric.name}")
    return guess


def _check_blanks(
    columns: list[list[str]], ids: Sequence[str], expected: Expected, truth: list[list[str]] | None
) -> None:
    text = expected.metric.family is Family.TEXT
    if text and truth is None:
        return
    unknown = expected.metric.family in LABELLED and not expected.labels
    blanks = frozenset(NO_LABELS) if unknown else BLANKS
    for name, column, true in zip(expected.names, columns, truth or columns, strict=True):
        blank = [
            id_
            for id_, cell, right in zip(ids, column, true, strict=True)
            if (not cell.strip() if text else cell.strip().lower() in blanks)
            and cell.strip() not in expected.labels
            and not (text and not right.strip())
        ]
        if blank:
            share = f"{len(blank)} of {len(column)} cells of {name!r} are blank or NaN"
            raise Invalid("blank_prediction", f"{share}, for ids {some(blank)}: fill every row")


def spelling(labels: Sequence[str]) -> Callable[[str], str]:
    """True/False and 1/0 stand for each other, if these are all the labels; else a label is itself."""
    spelling: dict[str, str] = {}
    if {label.lower() for label in labels} <= {"true", "false", "0", "1"}:
        for label in labels:
            for word in ("true", "1") if label.lower() in ("true", "1") else ("false", "0"):
                spelling[word] = label
    return lambda cell: spelling.get(cell.lower(), cell)


def _labels(columns: list[list[str]], expected: Expected) -> Array:
    """Predicted labels in the spelling of the answers."""
    known, unify = set(expected.labels), spelling(expected.labels)
    ranking = expected.metric.family is Family.RANKING
    result = []
    for name, column in zip(expected.names, columns, strict=True):
        if ranking:
            cells = [" ".join(unify(canonical(word)) for word in cell.split()) for cell in column]
        else:
            cells = [unify(canonical(cell)) for cell in column]
        words = (word for cell in cells for word in cell.split()) if ranking else iter(cells)
        strange = [word for word in words if word not in known]
        if strange and known:
            raise Invalid("not_a_label", _label_advice(name, strange, expected.shown, ranking))
        result.append(cells)
    return text_array(result)


def _label_advice(name: str, strange: list[str], shown: Sequence[str], ranking: bool) -> str:
    different = sorted(set(strange))
    values = [number(word) for word in different]
    if ranking and any(mark in word for word in different for mark in ",;"):
        hint = "separate the labels of a cell by blanks only"
    elif any(value is not None and not value.is_integer() for value in values if value != math.inf):
        hint = "predict labels, not probabilities or decimals"
    elif all(value is not None for value in values):
        hint = "turn label codes back into labels (inverse_transform)"
    else:
        hint = "write labels exactly as in train.csv"
    # Labels that only the answers have are not for the agent to see.
    known = f"one of {some(shown, 8)}" if shown else "a label of train.csv"
    return f"{name!r} must be {known}; got {some(different)} ({len(strange)} in all): {hint}"


def _numbers(columns: list[list[str]], names: Sequence[str]) -> Array:
    table = []
    for name, column in zip(names, columns, strict=True):
        values = [number(cell) for cell in column]
        strange = [cell for cell, value in zip(column, values, strict=True) if value is None]
        if strange:
            share = f"{len(strange)} of {len(column)} cells of {name!r} are not plain numbers"
            hint = "no units, currency, percent, thousands signs or decimal commas"
            raise Invalid("not_numeric", f"{share}: {some(sorted(set(strange)))}; {hint}")
        table.append(values)
    result = np.array(table, dtype=float).T
    for name, column, values in zip(names, columns, result.T, strict=True):
        strange = [column[row] for row in np.flatnonzero(~np.isfinite(values))]
        if strange:
            share = f"{len(strange)} of {len(column)} cells of {name!r} are infinite or too large"
            raise Invalid("not_finite", f"{share}: {some(sorted(set(strange)))}; replace them")
    return result


def _check_range(guess: Array, columns: list[list[str]], names: Sequence[str], warnings: list[str]) -> Array:
    """The probabilities, with rounding errors cut off."""
    for name, column, values in zip(names, columns, guess.T, strict=True):
        outside = [column[row] for row in np.flatnonzero((values < -ROUNDING) | (values > 1 + ROUNDING))]
        if outside:
            share = f"{len(outside)} of {len(column)} cells of {name!r} are outside [0, 1]"
            raise Invalid("not_probability", f"{share}: {some(outside)}; use predict_proba")
    clipped = np.clip(guess, 0, 1)
    if count := int((clipped != guess).sum()):
        warnings.append(f"{count} probabilities were outside [0, 1] by rounding and were clipped")
    return clipped


def number(cell: str) -> float | None:
    text = cell.strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    try:
        # Python also reads 1_000 and the digits of other scripts; few other tools do.
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _check_sums(guess: Array, warnings: list[str]) -> None:
    sums = guess.sum(axis=1)
    if sums.min() <= 0:
        count = int((sums <= 0).sum())
        raise Invalid("not_probability", f"the probabilities of {count} rows are all 0: they must sum to 1")
    off = int((np.abs(sums - 1) > 1e-3).sum())
    if off:
        warnings.append(f"the probabilities of {off} rows did not sum to 1 and were scaled")


def text_array(columns: list[list[str]]) -> Array:
    array = np.empty((len(columns[0]), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        array[:, j] = column
    return array
