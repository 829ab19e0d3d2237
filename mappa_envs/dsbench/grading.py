"""Grading a submission: matched by id, all target columns, by the task's own metric.

    >>> grade(Path("submission.csv"), Path("answers.csv"), TaskSpec("rmse", "id", ("price",)))
    Grade(valid=True, code='ok', score=778.47, warnings=(), message='')

A submission is untrusted: whatever it is, `grade` returns and never raises. The checks and their codes, in
order, are `CODES`. Broken *answers* are the task owner's fault and raise `DataError`. No message holds a
true value. `grade` runs in the caller's process; `grader_process` does the same where it can be killed.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.metrics import Array, Family
from mappa_envs.dsbench.submission import (
    BLANKS,
    CODES,
    Invalid,
    canonical,
    content,
    decode,
    match,
    parse,
    some,
)
from mappa_envs.errors import DataError

__all__ = [
    "CODES",
    "Figures",
    "Grade",
    "TaskSpec",
    "canonical",
    "grade",
    "judge",
    "perfect_submission",
    "report",
]

Figures = dict[str, float | None]

MAX_BYTES = 32 * 2**20
"""The size limit of a submission, unless the answers are so big that four times their size is more."""


@dataclass(frozen=True)
class TaskSpec:
    """How a task is graded.

    `metric` is a name or alias of `metrics`. `labels` are all labels that may be predicted (None: those of
    the answers). `positive` is the label whose probability, score or F1 counts (None: the last of the sorted
    labels). For class probabilities, `target_columns` are the classes and `label_column` is the column of
    the answers that names the true one (None: the answers are one-hot).
    Raises `ConfigError` on an unknown metric.
    """

    metric: str
    id_column: str
    target_columns: Sequence[str]
    labels: Sequence[str] | None = None
    label_column: str | None = None
    positive: str | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "metric", metrics.metric(self.metric).name)
        set_(self, "target_columns", tuple(self.target_columns))
        if self.labels is not None:
            set_(self, "labels", tuple(canonical(str(label)) for label in self.labels))
        if self.positive is not None:
            set_(self, "positive", canonical(str(self.positive)))


@dataclass(frozen=True)
class Grade:
    """The verdict: `score` is None unless `valid`; `message` says what is wrong and how to mend it."""

    valid: bool
    code: str
    score: float | None
    warnings: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class _Aligned:
    """Truth and predictions in the order of the answers, as `metrics.score` takes them."""

    truth: Array
    guess: Array
    labels: tuple[str, ...]
    positive: str | None


@dataclass(frozen=True, kw_only=True)
class _Answers:
    ids: list[str]
    columns: list[list[str]]
    """One list a target column, cells as written; for class probabilities the one-hot truth."""
    size: int


def grade(
    submission: Path | bytes | None, answers: Path, spec: TaskSpec, *, max_bytes: int | None = None
) -> Grade:
    """Grade a submission, given as a path, as content, or None where there is no file.

    A path that is a symbolic link, a folder or a pipe is never followed nor read. Raises `DataError` only
    if the answers themselves cannot be used.
    """
    return _grade(submission, answers, spec, max_bytes)[0]


def report(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> Figures:
    """The figures of `metrics.REPORT_KEYS` for a submission; all None if it is not valid."""
    return judge(submission, answers, spec)[1]


def judge(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> tuple[Grade, Figures]:
    """`grade` and `report` in one reading."""
    verdict, aligned = _grade(submission, answers, spec, None)
    if aligned is None:
        return verdict, dict.fromkeys(metrics.REPORT_KEYS)
    family = metrics.metric(spec.metric).family
    return verdict, metrics.report(
        family, aligned.truth, aligned.guess, labels=aligned.labels, positive=aligned.positive
    )


def _grade(
    submission: Path | bytes | None, answers: Path, spec: TaskSpec, max_bytes: int | None
) -> tuple[Grade, _Aligned | None]:
    warnings: list[str] = []
    try:
        aligned = _align(submission, _read_answers(answers, spec), spec, warnings, max_bytes)
        score = _score(aligned, spec)
    except Invalid as fault:
        return Grade(False, fault.code, None, tuple(warnings), str(fault)), None
    return Grade(True, "ok", score, tuple(warnings)), aligned


def _score(aligned: _Aligned, spec: TaskSpec) -> float:
    def of(guess: Array) -> float:
        return metrics.score(
            spec.metric, aligned.truth, guess, labels=aligned.labels, positive=aligned.positive
        )

    score = of(aligned.guess)
    if math.isfinite(score):
        return score
    if not math.isfinite(of(aligned.truth)):
        raise Invalid("undefined_score", f"{spec.metric} is not defined for this task, whatever is predicted")
    advice = "predict values of the size of the target in train.csv"
    raise Invalid("undefined_score", f"{spec.metric} cannot be computed from these predictions: {advice}")


def perfect_submission(answers: Path, spec: TaskSpec) -> bytes:
    """A submission that says the truth, as CSV. Raises `DataError` on unusable answers."""
    true = _read_answers(answers, spec)
    columns = true.columns
    if metrics.metric(spec.metric).family is Family.SCORE:
        aligned = _values([["1"] * len(true.ids) for _ in columns], true, spec, [])
        columns = [[str(value) for value in column] for column in aligned.truth.T]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([spec.id_column, *spec.target_columns])
    writer.writerows(zip(true.ids, *columns, strict=True))
    return text.getvalue().encode()


def _align(
    submission: Path | bytes | None,
    answers: _Answers,
    spec: TaskSpec,
    warnings: list[str],
    max_bytes: int | None,
) -> _Aligned:
    limit = max(MAX_BYTES, 4 * answers.size) if max_bytes is None else max_bytes
    text = decode(content(submission, limit))
    # One id more than there are answers is wrong already: no need to keep millions of rows.
    ids, columns = parse(
        text, spec.id_column, spec.target_columns, warnings=warnings, keep=2 * len(answers.ids) + 1000
    )
    rows = match(ids, answers.ids, spec.id_column)
    columns = [[column[row] for row in rows] for column in columns]
    return _values(columns, answers, spec, warnings)


def _values(columns: list[list[str]], answers: _Answers, spec: TaskSpec, warnings: list[str]) -> _Aligned:
    chosen = metrics.metric(spec.metric)
    true = {canonical(cell) for column in answers.columns for cell in column}
    labels: tuple[str, ...] = ()
    positive = spec.positive
    if chosen.family in (Family.LABEL, Family.SCORE, Family.RANKING):
        labels = tuple(metrics.label_order([*(spec.labels or ()), *true]))
    unify = _spelling(labels)
    labels = tuple(metrics.label_order([unify(label) for label in labels]))
    if labels:
        positive = labels[-1] if positive is None else unify(positive)
    _check_blanks(columns, answers, spec, labels)
    if chosen.family in (Family.LABEL, Family.RANKING):
        guess = _labels(columns, spec, labels, unify)
        truth = _text_array([[unify(canonical(cell)) for cell in column] for column in answers.columns])
    elif chosen.family is Family.TEXT:
        guess, truth = _text_array(columns), _text_array(answers.columns)
    else:
        guess = _numbers(columns, spec.target_columns)
        if chosen.probability:
            _check_range(guess, columns, spec.target_columns)
        if chosen.family is Family.CLASS_PROBABILITY:
            _check_sums(guess, warnings)
        if chosen.clip_negative and guess.min() < 0:
            count = int((guess < 0).sum())
            warnings.append(f"{count} negative predictions were set to 0 for {spec.metric}")
        if chosen.family is Family.SCORE:
            truth = np.array(
                [[unify(canonical(c)) == positive for c in col] for col in answers.columns], float
            ).T
        else:
            truth = np.array([[_number(c) for c in col] for col in answers.columns], dtype=float).T
    return _Aligned(truth=truth, guess=guess, labels=labels, positive=positive)


def _check_blanks(
    columns: list[list[str]], answers: _Answers, spec: TaskSpec, labels: tuple[str, ...]
) -> None:
    text = metrics.metric(spec.metric).family is Family.TEXT
    for name, column, true in zip(spec.target_columns, columns, answers.columns, strict=True):
        blank = [
            id_
            for id_, cell, right in zip(answers.ids, column, true, strict=True)
            if (not cell.strip() if text else cell.strip().lower() in BLANKS)
            and cell.strip() not in labels
            and not (text and not right.strip())
        ]
        if blank:
            share = f"{len(blank)} of {len(column)} cells of {name!r} are blank or NaN"
            raise Invalid("blank_prediction", f"{share}, for ids {some(blank)}: fill every row")


def _spelling(labels: Sequence[str]) -> Callable[[str], str]:
    """True/False and 1/0 stand for each other, if these are all the labels; else a label is itself."""
    spelling: dict[str, str] = {}
    if {label.lower() for label in labels} <= {"true", "false", "0", "1"}:
        for label in labels:
            for word in ("true", "1") if label.lower() in ("true", "1") else ("false", "0"):
                spelling[word] = label
    return lambda cell: spelling.get(cell.lower(), cell)


def _labels(
    columns: list[list[str]], spec: TaskSpec, labels: tuple[str, ...], unify: Callable[[str], str]
) -> Array:
    """Predicted labels in the spelling of the answers."""
    known = set(labels)
    ranking = metrics.metric(spec.metric).family is Family.RANKING
    result = []
    for name, column in zip(spec.target_columns, columns, strict=True):
        if ranking:
            cells = [" ".join(unify(canonical(word)) for word in cell.split()) for cell in column]
        else:
            cells = [unify(canonical(cell)) for cell in column]
        words = (word for cell in cells for word in cell.split()) if ranking else iter(cells)
        strange = [word for word in words if word not in known]
        if strange:
            raise Invalid("not_a_label", _label_advice(name, strange, spec, ranking))
        result.append(cells)
    return _text_array(result)


def _label_advice(name: str, strange: list[str], spec: TaskSpec, ranking: bool) -> str:
    different = sorted(set(strange))
    numbers = [_number(word) for word in different]
    if ranking and any(mark in word for word in different for mark in ",;"):
        hint = "separate the labels of a cell by blanks only"
    elif any(number is not None and not number.is_integer() for number in numbers if number != math.inf):
        hint = "predict labels, not probabilities or decimals"
    elif all(number is not None for number in numbers):
        hint = "turn label codes back into labels (inverse_transform)"
    else:
        hint = "write labels exactly as in train.csv"
    # Labels that only the answers have are not for the agent to see.
    known = f"one of {some(list(spec.labels), 8)}" if spec.labels else "a label of train.csv"
    return f"{name!r} must be {known}; got {some(different)} ({len(strange)} in all): {hint}"


def _numbers(columns: list[list[str]], names: Sequence[str]) -> Array:
    table = []
    for name, column in zip(names, columns, strict=True):
        numbers = [_number(cell) for cell in column]
        strange = [cell for cell, number in zip(column, numbers, strict=True) if number is None]
        if strange:
            share = f"{len(strange)} of {len(column)} cells of {name!r} are not plain numbers"
            hint = "no units, currency, percent, thousands signs or decimal commas"
            raise Invalid("not_numeric", f"{share}: {some(sorted(set(strange)))}; {hint}")
        table.append(numbers)
    result = np.array(table, dtype=float).T
    for name, column, values in zip(names, columns, result.T, strict=True):
        strange = [column[row] for row in np.flatnonzero(~np.isfinite(values))]
        if strange:
            share = f"{len(strange)} of {len(column)} cells of {name!r} are infinite or too large"
            raise Invalid("not_finite", f"{share}: {some(sorted(set(strange)))}; replace them")
    return result


def _check_range(guess: Array, columns: list[list[str]], names: Sequence[str]) -> None:
    for name, column, values in zip(names, columns, guess.T, strict=True):
        outside = [column[row] for row in np.flatnonzero((values < 0) | (values > 1))]
        if outside:
            share = f"{len(outside)} of {len(column)} cells of {name!r} are outside [0, 1]"
            raise Invalid("not_probability", f"{share}: {some(outside)}; use predict_proba")


def _number(cell: str) -> float | None:
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


def _text_array(columns: list[list[str]]) -> Array:
    array = np.empty((len(columns[0]), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        array[:, j] = column
    return array


def _read_answers(path: Path, spec: TaskSpec) -> _Answers:
    """The true values. Raises `DataError` with the file, the column and what to do."""
    wanted = (spec.label_column,) if spec.label_column else tuple(spec.target_columns)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the answers cannot be read: {error}") from error
    try:
        ids, columns = parse(text, spec.id_column, wanted, warnings=[], keep=sys.maxsize)
    except Invalid as fault:
        raise DataError(f"{path}: unusable answers: {fault}") from None
    if len(set(ids)) < len(ids):
        raise DataError(f"{path}: ids of column {spec.id_column!r} appear twice; every id needs one answer")
    if spec.label_column:
        classes = [canonical(name) for name in spec.target_columns]
        true = [canonical(cell) for cell in columns[0]]
        strange = sorted(set(true) - set(classes))
        if strange:
            raise DataError(f"{path}: column {spec.label_column!r} has {some(strange)}, not a target column")
        columns = [[str(float(cell == name)) for cell in true] for name in classes]
    numeric = metrics.metric(spec.metric).family in (Family.NUMBER, Family.CLASS_PROBABILITY)
    for name, column in zip(wanted, columns, strict=False):
        if numeric and any(_number(c) is None or not math.isfinite(_number(c) or 0) for c in column):
            raise DataError(f"{path}: column {name!r} must hold plain numbers in every row for {spec.metric}")
    return _Answers(ids=ids, columns=columns, size=len(text))
