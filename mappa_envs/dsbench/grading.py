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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.metrics import Array, Family
from mappa_envs.dsbench.predictions import (
    LABELLED,
    NO_LABELS,
    Expected,
    check_cells,
    number,
    spelling,
    text_array,
)
from mappa_envs.dsbench.submission import (
    CODES,
    Invalid,
    canonical,
    content,
    decode,
    match,
    parse,
    some,
)
from mappa_envs.errors import ConfigError, DataError

__all__ = [
    "CODES",
    "Figures",
    "Grade",
    "TaskSpec",
    "canonical",
    "grade",
    "judge",
    "perfect_submission",
    "size_limit",
]

Figures = dict[str, float | None]

LEAST_LIMIT_BYTES = 32 * 2**20
CELL_BYTES, TEXT_BYTES = 80, 1000
"""What a cell of a submission may have on average: a number in full has 25 characters."""


@dataclass(frozen=True)
class TaskSpec:
    """How a task is graded.

    `metric` is a name or alias of `metrics`. `labels` are all labels that may be predicted (None: those of
    the answers). `positive` is the label whose probability, score or F1 counts (None: the last of the sorted
    labels). For class probabilities, `target_columns` are the classes and `label_column` is the column of
    the answers that names the true one (None: the answers are one-hot).
    Raises `ConfigError` on an unknown metric, and on columns that are no names or stand twice.
    """

    metric: str
    id_column: str
    target_columns: Sequence[str]
    labels: Sequence[str] | None = None
    label_column: str | None = None
    positive: str | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        self._check_names()
        set_(self, "metric", metrics.metric(self.metric).name)
        set_(self, "target_columns", tuple(self.target_columns))
        if self.labels is not None:
            set_(self, "labels", tuple(canonical(str(label)) for label in self.labels))
        if self.positive is not None:
            set_(self, "positive", canonical(str(self.positive)))

    def _check_names(self) -> None:
        for field in ("metric", "id_column"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{field}: a name is needed, such as 'rmse' or 'id', got {value!r}")
        for field in ("target_columns", "labels"):
            value = getattr(self, field)
            if field == "labels" and value is None:
                continue
            # A str is a sequence, too: of letters.
            if isinstance(value, str) or not isinstance(value, Sequence) or not value:
                raise ConfigError(f"{field}: a list of names is needed, such as ['y'], got {value!r}")
        for at, name in enumerate(self.target_columns):
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(f"target_columns: names of columns are needed, got {name!r}")
            if name == self.id_column or name in self.target_columns[:at]:
                raise ConfigError(
                    f"target_columns: {name!r} is the id column or stands twice; name each once"
                )


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
    labels: tuple[str, ...]
    positive: str | None


def size_limit(num_rows: int, spec: TaskSpec) -> int:
    """The most bytes that a submission of so many rows may have."""
    is_text = metrics.metric(spec.metric).family is Family.TEXT
    num_cells = num_rows * (1 + len(spec.target_columns))
    return max(LEAST_LIMIT_BYTES, num_cells * (TEXT_BYTES if is_text else CELL_BYTES))


def grade(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> Grade:
    """Grade a submission, given as a path, as content, or None where there is no file.

    A path that is a symbolic link, a folder or a pipe is never followed nor read. Raises `DataError` only
    if the answers themselves cannot be used.
    """
    return _grade(submission, answers, spec)[0]


def judge(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> tuple[Grade, Figures]:
    """`grade`, and the figures of `metrics.REPORT_KEYS`: all None if the submission is not valid."""
    verdict, aligned = _grade(submission, answers, spec)
    if aligned is None:
        return verdict, dict.fromkeys(metrics.REPORT_KEYS)
    family = metrics.metric(spec.metric).family
    return verdict, metrics.report(
        family, aligned.truth, aligned.guess, labels=aligned.labels, positive=aligned.positive
    )


def _grade(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> tuple[Grade, _Aligned | None]:
    warnings: list[str] = []
    try:
        aligned = _align(submission, _read_answers(answers, spec), spec, warnings)
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
    submission: Path | bytes | None, answers: _Answers, spec: TaskSpec, warnings: list[str]
) -> _Aligned:
    text = decode(content(submission, size_limit(len(answers.ids), spec)))
    # With more rows than answers some id is wrong, and `match` says which: their cells are not needed.
    table = parse(text, spec.id_column, spec.target_columns, warnings=warnings, keep=len(answers.ids))
    rows = match(table.ids, answers.ids, spec.id_column)
    columns = [[column[row] for row in rows] for column in table.columns]
    return _values(columns, answers, spec, warnings)


def _values(columns: list[list[str]], answers: _Answers, spec: TaskSpec, warnings: list[str]) -> _Aligned:
    family = metrics.metric(spec.metric).family
    expected = Expected(
        metric=metrics.metric(spec.metric),
        names=spec.target_columns,
        labels=answers.labels,
        shown=spec.labels or (),
    )
    guess = check_cells(columns, answers.ids, expected, warnings, answers.columns)
    unify = spelling(answers.labels)
    if family in (Family.LABEL, Family.RANKING):
        truth = text_array([[unify(canonical(cell)) for cell in column] for column in answers.columns])
    elif family is Family.TEXT:
        truth = text_array(answers.columns)
    elif family is Family.SCORE:
        right = [[unify(canonical(c)) == answers.positive for c in column] for column in answers.columns]
        truth = np.array(right, dtype=float).T
    else:
        truth = np.array([[number(c) for c in column] for column in answers.columns], dtype=float).T
    return _Aligned(truth=truth, guess=guess, labels=answers.labels, positive=answers.positive)


def _read_answers(path: Path, spec: TaskSpec) -> _Answers:
    """The true values. Raises `DataError` with the file, the column and what to do."""
    wanted = (spec.label_column,) if spec.label_column else tuple(spec.target_columns)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the answers cannot be read: {error}") from error
    try:
        table = parse(text, spec.id_column, wanted, warnings=[], keep=sys.maxsize)
    except Invalid as fault:
        told = "there are none" if fault.code in ("empty_file", "no_rows") else fault
        raise DataError(f"{path}: unusable answers: {told}") from None
    ids, columns = table.ids, table.columns
    if len(set(ids)) < len(ids):
        raise DataError(f"{path}: ids of column {spec.id_column!r} appear twice; every id needs one answer")
    if spec.label_column:
        classes = [canonical(name) for name in spec.target_columns]
        true = [canonical(cell) for cell in columns[0]]
        strange = sorted(set(true) - set(classes))
        if strange:
            raise DataError(f"{path}: column {spec.label_column!r} has {some(strange)}, not a target column")
        columns = [[str(float(cell == name)) for cell in true] for name in classes]
    _check_truth(path, dict(zip(wanted, columns, strict=False)), spec)
    labels, positive = _labels(path, columns, spec)
    return _Answers(ids=ids, columns=columns, labels=labels, positive=positive)


def _check_truth(path: Path, columns: dict[str, list[str]], spec: TaskSpec) -> None:
    """Raises `DataError` where the true cells are not what the metric takes."""
    family = metrics.metric(spec.metric).family
    for name, column in columns.items():
        if family in (Family.NUMBER, Family.CLASS_PROBABILITY):
            if any(number(c) is None or not math.isfinite(number(c) or 0) for c in column):
                raise DataError(
                    f"{path}: column {name!r} must hold plain numbers in every row for {spec.metric}"
                )
        elif family in LABELLED:
            blank = sum(
                c.strip().lower() in NO_LABELS and c.strip() not in (spec.labels or ()) for c in column
            )
            if blank:
                raise DataError(
                    f"{path}: column {name!r} has no label in {blank} rows; fill them, or drop these rows "
                    "here and from test.csv, or name the blank as one of the labels"
                )
            if family is Family.RANKING and (odd := next((c for c in column if len(c.split()) > 1), None)):
                raise DataError(
                    f"{path}: column {name!r} has the label {odd[:40]!r}, but in {spec.metric} a blank "
                    "parts two labels: write it in one word, here and in train.csv"
                )


def _labels(path: Path, columns: list[list[str]], spec: TaskSpec) -> tuple[tuple[str, ...], str | None]:
    """All labels that may be predicted, in one spelling, and the positive one; none for other metrics."""
    if metrics.metric(spec.metric).family not in LABELLED:
        return (), spec.positive
    true = {canonical(cell) for column in columns for cell in column}
    labels = metrics.label_order([*(spec.labels or ()), *true])
    unify = spelling(labels)
    labels = metrics.label_order([unify(label) for label in labels])
    positive = labels[-1] if spec.positive is None else unify(spec.positive)
    if positive not in labels:
        raise DataError(f"{path}: positive = {spec.positive!r} is not one of the labels {some(labels, 8)}")
    return tuple(labels), positive
