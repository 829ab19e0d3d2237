"""Grading a submission: matched by id, all target columns, by the task's own metric.

    >>> grade(Path("submission.csv"), Path("answers.csv"), TaskSpec("rmse", "id", ("price",)))
    Grade(valid=True, code='ok', score=778.47, warnings=(), message='')

A submission is untrusted: whatever it is, `grade` returns and never raises. The checks and their codes, in
order, are `CODES`. Broken *answers* are the task owner's fault and raise `DataError`.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.metrics import Array, Family
from mappa_envs.errors import DataError

CODES = (
    "no_file",
    "not_a_file",
    "too_large",
    "empty_file",
    "not_text",
    "ragged",
    "duplicate_columns",
    "missing_id_column",
    "missing_target_column",
    "no_rows",
    "blank_id",
    "duplicate_ids",
    "missing_ids",
    "unknown_ids",
    "blank_prediction",
    "not_a_label",
    "not_numeric",
    "not_finite",
    "not_probability",
    "undefined_score",
    "ok",
)
MAX_BYTES = 32 * 2**20
"""The size limit of a submission, unless the answers are so big that four times their size is more."""

_BLANKS = frozenset({"", "nan", "-nan", "na", "n/a", "null", "none", "<na>", "nat"})
_WHOLE = re.compile(r"(-?\d+)\.0*")


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


class _Invalid(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


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
    warnings: list[str] = []
    try:
        aligned = _align(submission, _read_answers(answers, spec), spec, warnings, max_bytes)
        score = metrics.score(
            spec.metric, aligned.truth, aligned.guess, labels=aligned.labels, positive=aligned.positive
        )
        if not math.isfinite(score):
            raise _Invalid("undefined_score", f"{spec.metric} is not defined on these predictions: {score}")
    except _Invalid as fault:
        return Grade(False, fault.code, None, tuple(warnings), str(fault))
    return Grade(True, "ok", score, tuple(warnings))


def report(submission: Path | bytes | None, answers: Path, spec: TaskSpec) -> dict[str, float | None]:
    """The figures of `metrics.REPORT_KEYS` for a submission; all None if it is not valid."""
    try:
        aligned = _align(submission, _read_answers(answers, spec), spec, [], None)
    except _Invalid:
        return dict.fromkeys(metrics.REPORT_KEYS)
    family = metrics.metric(spec.metric).family
    return metrics.report(
        family, aligned.truth, aligned.guess, labels=aligned.labels, positive=aligned.positive
    )


def read_column(path: Path, name: str) -> list[str]:
    """The cells of one column as ids and labels compare. Raises `DataError` without it."""
    spec = TaskSpec("jaccard", name, ())
    try:
        return _parse(path.read_text(encoding="utf-8-sig"), spec, [], keep=sys.maxsize)[0]
    except (OSError, UnicodeDecodeError, _Invalid) as fault:
        raise DataError(f"{path}: unusable table: {fault}") from fault


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


def canonical(cell: str) -> str:
    """Ids and labels compare as text, with 1.0 read as 1. `007` stays `007`."""
    text = cell.strip()
    match = _WHOLE.fullmatch(text)
    return match[1] if match else text


def _align(
    submission: Path | bytes | None,
    answers: _Answers,
    spec: TaskSpec,
    warnings: list[str],
    max_bytes: int | None,
) -> _Aligned:
    limit = max(MAX_BYTES, 4 * answers.size) if max_bytes is None else max_bytes
    text = _decode(_content(submission, limit))
    # One id more than there are answers is wrong already: no need to keep millions of rows.
    ids, columns = _parse(text, spec, warnings, keep=2 * len(answers.ids) + 1000)
    rows = _match(ids, answers.ids, spec.id_column)
    columns = [[column[row] for row in rows] for column in columns]
    return _values(columns, answers, spec, warnings)


def _content(submission: Path | bytes | None, limit: int) -> bytes:
    if submission is None:
        raise _Invalid("no_file", "there is no submission file")
    data = submission if isinstance(submission, bytes) else _read_file(Path(submission), limit)
    if len(data) > limit:
        raise _Invalid("too_large", f"the submission has more than {limit} bytes, the limit")
    return data


def _read_file(path: Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes of a regular file, looked at and read through one descriptor."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise _Invalid("no_file", f"there is no file {path.name}") from None
    except OSError as error:
        raise _Invalid("not_a_file", f"{path.name} is not a readable file: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise _Invalid("not_a_file", f"{path.name} is a folder or device, not a file")
        if about.st_size > limit:
            raise _Invalid("too_large", f"{path.name} has {about.st_size} bytes, the limit is {limit}")
        return file.read(limit + 1)


def _decode(data: bytes) -> str:
    if not data.strip():
        raise _Invalid("empty_file", "the submission is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Invalid(
            "not_text", f"not UTF-8 text (byte {error.start}): write it with DataFrame.to_csv"
        ) from None
    if "\0" in text:
        raise _Invalid("not_text", "binary content: write plain CSV text with DataFrame.to_csv")
    return text


def _parse(text: str, spec: TaskSpec, warnings: list[str], keep: int) -> tuple[list[str], list[list[str]]]:
    """The id cells and the cells of each target column, at most `keep` rows of them."""
    reader = csv.reader(io.StringIO(text, newline=""))
    rows = (row for row in reader if len(row) > 1 or (row and row[0].strip()))
    wanted: list[list[str]] = [[] for _ in range(1 + len(spec.target_columns))]
    try:
        header = [name.strip() for name in next(rows, [])]
        if not header:
            raise _Invalid("empty_file", "the submission is empty")
        where = [_find(header, name) for name in (spec.id_column, *spec.target_columns)]
        for row in rows:
            if len(row) != len(header):
                raise _Invalid(
                    "ragged",
                    f"line {reader.line_num} has {len(row)} fields, the header has {len(header)}",
                )
            if len(wanted[0]) < keep:
                for column, at in zip(wanted, where, strict=True):
                    column.append(row[at] if at is not None else "")
    except csv.Error as error:
        raise _Invalid("ragged", f"line {reader.line_num}: {error} (an unclosed quote?)") from None
    _check_header(header, where, spec, warnings)
    if not wanted[0]:
        raise _Invalid("no_rows", "the submission has a header but no rows")
    return [canonical(cell) for cell in wanted[0]], wanted[1:]


def _find(header: list[str], name: str) -> int | None:
    """Where the column stands; the case of letters counts only if it tells two columns apart."""
    if name in header:
        return header.index(name)
    close = [i for i, have in enumerate(header) if have.lower() == name.lower()]
    return close[0] if len(close) == 1 else None


def _check_header(header: list[str], where: list[int | None], spec: TaskSpec, warnings: list[str]) -> None:
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise _Invalid("duplicate_columns", f"columns appear twice: {_some(twice)}")
    for number, (name, at) in enumerate(zip((spec.id_column, *spec.target_columns), where, strict=True)):
        if at is None:
            code = "missing_id_column" if number == 0 else "missing_target_column"
            hint = " (fields must be separated by commas)" if len(header) == 1 else ""
            raise _Invalid(code, f"no column {name!r}; the columns are: {_some(header, 8)}{hint}")
        if header[at] != name:
            warnings.append(f"column {header[at]!r} was taken for {name!r}")
    extra = [name or "(a saved index)" for i, name in enumerate(header) if i not in where]
    if extra:
        warnings.append(f"columns that are not asked for were ignored: {_some(extra)}")


def _match(ids: list[str], wanted: list[str], id_column: str) -> list[int]:
    """For each wanted id the row of the submission that has it."""
    known = set(wanted)
    blank = [i for i, id_ in enumerate(ids) if id_.lower() in _BLANKS and id_ not in known]
    if blank:
        where = f"the first is row {blank[0] + 1}"
        raise _Invalid("blank_id", f"{len(blank)} rows have no {id_column!r}, {where}")
    row_of = {id_: row for row, id_ in enumerate(ids)}
    if len(row_of) < len(ids):
        twice = sorted({id_ for row, id_ in enumerate(ids) if row_of[id_] != row})
        raise _Invalid("duplicate_ids", f"{len(twice)} ids appear more than once: {_some(twice)}")
    missing = [id_ for id_ in wanted if id_ not in row_of]
    if missing:
        raise _Invalid(
            "missing_ids",
            f"{len(missing)} of {len(wanted)} ids of test.csv are missing: {_some(missing)}; "
            f"predict every row of test.csv and copy its {id_column!r} unchanged",
        )
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        raise _Invalid("unknown_ids", f"{len(unknown)} ids are not in test.csv: {_some(unknown)}")
    return [row_of[id_] for id_ in wanted]


def _values(columns: list[list[str]], answers: _Answers, spec: TaskSpec, warnings: list[str]) -> _Aligned:
    chosen = metrics.metric(spec.metric)
    true = {canonical(cell) for column in answers.columns for cell in column}
    labels: tuple[str, ...] = ()
    positive = spec.positive
    if chosen.family in (Family.LABEL, Family.SCORE, Family.RANKING):
        labels = tuple(metrics.label_order([*(spec.labels or ()), *true]))
        positive = labels[-1] if positive is None else positive
    _check_blanks(columns, answers, spec, labels)
    if chosen.family in (Family.LABEL, Family.RANKING):
        guess = _labels(columns, spec, labels, chosen.family)
        truth = _text_array([[canonical(cell) for cell in column] for column in answers.columns])
    elif chosen.family is Family.TEXT:
        guess, truth = _text_array(columns), _text_array(answers.columns)
    else:
        guess = _numbers(columns, spec.target_columns)
        if chosen.probability and (guess.min() < 0 or guess.max() > 1):
            raise _Invalid("not_probability", "probabilities must lie in [0, 1]")
        if chosen.family is Family.CLASS_PROBABILITY:
            _check_sums(guess, warnings)
        if chosen.clip_negative and guess.min() < 0:
            warnings.append(f"negative predictions were set to 0 for {spec.metric}")
        if chosen.family is Family.SCORE:
            truth = np.array([[canonical(c) == positive for c in col] for col in answers.columns], float).T
        else:
            truth = np.array([[float(c) for c in col] for col in answers.columns]).T
    return _Aligned(truth=truth, guess=guess, labels=labels, positive=positive)


def _check_blanks(
    columns: list[list[str]], answers: _Answers, spec: TaskSpec, labels: tuple[str, ...]
) -> None:
    text = metrics.metric(spec.metric).family is Family.TEXT
    for name, column, true in zip(spec.target_columns, columns, answers.columns, strict=True):
        blank = [
            cell
            for cell, right in zip(column, true, strict=True)
            if (not cell.strip() if text else cell.strip().lower() in _BLANKS)
            and cell.strip() not in labels
            and not (text and not right.strip())
        ]
        if blank:
            share = f"{len(blank)} of {len(column)} cells"
            raise _Invalid("blank_prediction", f"{share} of {name!r} are blank or NaN: fill every row")


def _labels(columns: list[list[str]], spec: TaskSpec, labels: tuple[str, ...], family: Family) -> Array:
    """Predicted labels in the spelling of the answers; True/False and 1/0 stand for each other."""
    known = set(labels)
    spelling: dict[str, str] = {}
    if {label.lower() for label in labels} <= {"true", "false", "0", "1"}:
        for label in labels:
            for word in ("true", "1") if label.lower() in ("true", "1") else ("false", "0"):
                spelling[word] = label
    result = []
    for name, column in zip(spec.target_columns, columns, strict=True):
        cells = [canonical(cell) for cell in column]
        if family is Family.RANKING:
            cells = [" ".join(canonical(word) for word in cell.split()) for cell in cells]
        cells = [spelling.get(cell.lower(), cell) for cell in cells]
        words: Iterable[str] = (w for c in cells for w in c.split()) if family is Family.RANKING else cells
        strange = sorted(set(words) - known)
        if strange:
            raise _Invalid("not_a_label", _label_advice(name, strange, labels))
        result.append(cells)
    return _text_array(result)


def _label_advice(name: str, strange: list[str], labels: tuple[str, ...]) -> str:
    numbers = [_number(word) for word in strange]
    if any(number is not None and not number.is_integer() for number in numbers if number != math.inf):
        hint = ": predict labels, not probabilities or decimals"
    elif all(number is not None for number in numbers):
        hint = ": turn label codes back into labels (inverse_transform)"
    else:
        hint = ": write labels exactly as in train.csv"
    return f"{name!r} must be one of {_some(list(labels), 8)}; got {_some(strange)}{hint}"


def _numbers(columns: list[list[str]], names: Sequence[str]) -> Array:
    table = []
    for name, column in zip(names, columns, strict=True):
        numbers = [_number(cell) for cell in column]
        strange = [cell for cell, number in zip(column, numbers, strict=True) if number is None]
        if strange:
            raise _Invalid(
                "not_numeric", f"{name!r} must hold plain numbers; got {_some(sorted(set(strange)))}"
            )
        table.append(numbers)
    result = np.array(table, dtype=float).T
    if not np.isfinite(result).all():
        raise _Invalid("not_finite", f"{int((~np.isfinite(result)).sum())} predictions are infinite")
    return result


def _number(cell: str) -> float | None:
    text = cell.strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _check_sums(guess: Array, warnings: list[str]) -> None:
    sums = guess.sum(axis=1)
    if sums.min() <= 0:
        raise _Invalid("not_probability", "the probabilities of a row are all 0")
    if np.abs(sums - 1).max() > 1e-3:
        warnings.append("the probabilities of a row did not sum to 1 and were scaled")


def _text_array(columns: list[list[str]]) -> Array:
    array = np.empty((len(columns[0]), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        array[:, j] = column
    return array


def _some(names: Sequence[str], most: int = 3) -> str:
    short = [name if len(name) <= 40 else name[:37] + "..." for name in names[:most]]
    return ", ".join(short) + (", …" if len(names) > most else "")


def _read_answers(path: Path, spec: TaskSpec) -> _Answers:
    """The true values. Raises `DataError` with the file, the column and what to do."""
    wanted = (spec.label_column,) if spec.label_column else tuple(spec.target_columns)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the answers cannot be read: {error}") from error
    try:
        ids, columns = _parse(text, TaskSpec(spec.metric, spec.id_column, wanted), [], keep=len(text))
    except _Invalid as fault:
        raise DataError(f"{path}: unusable answers: {fault}") from None
    if len(set(ids)) < len(ids):
        raise DataError(f"{path}: ids of column {spec.id_column!r} appear twice; every id needs one answer")
    if spec.label_column:
        classes = [canonical(name) for name in spec.target_columns]
        true = [canonical(cell) for cell in columns[0]]
        strange = sorted(set(true) - set(classes))
        if strange:
            raise DataError(f"{path}: column {spec.label_column!r} has {_some(strange)}, not a target column")
        columns = [[str(float(cell == name)) for cell in true] for name in classes]
    numeric = metrics.metric(spec.metric).family in (Family.NUMBER, Family.CLASS_PROBABILITY)
    for name, column in zip(wanted, columns, strict=False):
        if numeric and any(_number(c) is None or not math.isfinite(_number(c) or 0) for c in column):
            raise DataError(f"{path}: column {name!r} must hold plain numbers in every row for {spec.metric}")
    return _Answers(ids=ids, columns=columns, size=len(text))
