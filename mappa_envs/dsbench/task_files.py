"""From files on disk to a task: what both layouts share (see `layout`)."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.cache import cache_root
from mappa_envs.dsbench.csv_files import is_number, read_cells, read_columns, read_header
from mappa_envs.dsbench.grading import TaskSpec, canonical
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.submission import some
from mappa_envs.dsbench.tasks import DSBenchTask, make_prompt
from mappa_envs.errors import DataError, UnavailableError

READ_BYTES = 16 * 2**20
"""Up to this size, loading reads train.csv for labels that nobody named, test.csv for a missing sample."""

COMPARED_BYTES = 2**20
"""Up to this size, loading compares a sample submission with the answers."""

BINARY = frozenset({"true", "false", "0", "1"})
BLANK_CELLS = frozenset({"", "nan", "na"})
"""What counts as a gap in a target of train.csv, in lower case."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A task that may be loaded, or (`load` is None) why it is passed over."""

    name: str
    load: Callable[[], DSBenchTask] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Paths:
    train: Path
    test: Path
    answers: Path
    sample: Path | None


def make_task(name: str, paths: Paths, spec: TaskSpec, text: str, facts: Mapping[str, Any]) -> DSBenchTask:
    """The task; of `facts`, type, split, dummy and reference are taken where they are there."""
    spec = _with_labels(spec, paths.train)
    _check_levels(paths.train, spec)
    family = metrics.metric(spec.metric).family
    kinds = {Family.NUMBER: "regression", Family.TEXT: "text"}
    # What test.csv lacks is no feature, such as bike-sharing's casual and registered.
    given = set(read_header(paths.test))
    columns = [column for column in read_columns(paths.train) if column.name in given]
    files = {"train.csv": paths.train, "test.csv": paths.test}
    if paths.sample is not None:
        _refuse_answers(paths.sample, paths.answers, spec)
    if (sample := paths.sample or _built_sample(name, paths, spec)) is not None:
        files["sample_submission.csv"] = sample
    return DSBenchTask(
        task_id=name,
        task_type=facts.get("type") or kinds.get(family, "classification"),
        split=facts.get("split", ""),
        prompt=make_prompt(text, spec, columns),
        files=files,
        spec=spec,
        answers=paths.answers,
        dummy=facts.get("dummy"),
        reference=facts.get("reference"),
    )


def check_columns(paths: Paths, spec: TaskSpec, fix: str) -> None:
    """Raise `DataError`, with the fix, unless every file is there and has the columns that it needs."""
    truth = [spec.label_column] if spec.label_column else list(spec.target_columns)
    require(paths.train, truth, fix)
    require(paths.test, [spec.id_column], fix)
    require(paths.answers, [spec.id_column, *truth], fix)
    leaked = [name for name in read_header(paths.test) if name in truth]
    if leaked:
        raise DataError(f"{paths.test}: column {leaked[0]!r} is the target; remove it from test.csv")


def require(path: Path, names: Sequence[str], fix: str) -> None:
    """Raise `DataError`, with the fix, unless the file is there and has these columns."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; every task needs one")
    header = read_header(path)
    for name in names:
        if name not in header:
            have = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            raise DataError(f"{path}: no column {name!r} (it has: {have}). Fix: {fix}")


def check_scores(where: Path, spec: TaskSpec, facts: Mapping[str, Any]) -> None:
    """Raise `DataError` unless dummy and reference are finite scores and the reference is the better one."""
    for key in ("dummy", "reference"):
        score = facts.get(key, 0)
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        # Integers of TOML may be too large for a float.
        if not is_number or not abs(score) <= sys.float_info.max:
            raise DataError(f"{where}: {key!r} must be a score, a finite number; got {str(score)[:40]}")
    if "dummy" not in facts or "reference" not in facts:
        return
    higher = metrics.higher_is_better(spec.metric)
    dummy, reference = facts["dummy"], facts["reference"]
    if not (reference > dummy if higher else reference < dummy):
        raise DataError(
            f"{where}: reference = {reference} must be better than dummy = {dummy}, and a good {spec.metric} "
            f"is {'high' if higher else 'low'}: correct one, or delete both"
        )


def check_labels(train: Path, spec: TaskSpec, found: Set[str]) -> None:
    """Raise `DataError` unless the labels that train.csv has (canonical, no blanks) are those of the task."""
    metric = metrics.metric(spec.metric)
    if metric.family is Family.CLASS_PROBABILITY and spec.label_column:
        known, where = {canonical(name) for name in spec.target_columns}, "'targets'"
    elif metric.family in (Family.LABEL, Family.RANKING, Family.SCORE):
        known, where = set(spec.labels or found), "'labels'"
    else:
        return
    shown = some(metrics.label_order(list(known)), 8)
    # True and 1, False and 0 stand for each other where there are no other labels.
    is_binary = {label.lower() for label in known | found} <= BINARY
    if (strange := sorted(found - known)) and not is_binary:
        raise DataError(
            f"{train}: the label {strange[0]!r} is not among {where} ({shown}): "
            "add it there, or remove its rows"
        )
    if metric.family is not Family.SCORE and metric.name != "f1":
        return
    if spec.positive is None and len(known) > 2:
        raise DataError(
            f"{train}: {spec.metric} needs two labels, or the one that counts, but there are {len(known)} "
            f"({shown}): set 'positive' to one of them"
        )
    if spec.positive is None or (is_binary and spec.positive.lower() in BINARY):
        return
    if spec.positive not in known:
        raise DataError(f"{train}: positive = {spec.positive!r} is not among the labels ({shown})")


def is_uniform(sample: Path, spec: TaskSpec) -> bool:
    """Whether a sample submission says the same of every row, and so tells nothing of any."""
    rows = read_cells(sample, list(spec.target_columns))
    first = next(rows, None)
    return all(row == first for row in rows)


def holds_answers(sample: Path) -> DataError:
    """What to raise for a sample submission that tells the answers."""
    return DataError(
        f"{sample.name} holds the answers ({sample}); agents get to read it: "
        "delete it, or give one with a guess in every row"
    )


def _refuse_answers(sample: Path, answers: Path, spec: TaskSpec) -> None:
    """Raise `DataError` if the sample has the cells of the answers: small files only, `check` grades others.

    One with the same cells in all rows may pass: it tells nothing, though on a test table of one row, or
    with one answer throughout, it is right by accident.
    """
    sizes = [path.stat().st_size for path in (sample, answers)]
    if spec.label_column or max(sizes) > COMPARED_BYTES:
        return
    columns = [spec.id_column, *spec.target_columns]
    if any(name not in read_header(sample) for name in columns) or is_uniform(sample, spec):
        return
    guess, truth = ({tuple(map(canonical, row)) for row in read_cells(p, columns)} for p in (sample, answers))
    if guess == truth:
        raise holds_answers(sample)


def zero_knowledge(spec: TaskSpec) -> float | str | None:
    """A cell that makes a valid submission and knows nothing; None where labels are needed and not known."""
    family = metrics.metric(spec.metric).family
    if family in (Family.LABEL, Family.RANKING):
        if not spec.labels:
            return None
        return spec.labels[0] if family is Family.LABEL else " ".join(spec.labels[:3])
    if family is Family.TEXT:
        return "text"
    return {Family.SCORE: 0.5, Family.CLASS_PROBABILITY: 1 / len(spec.target_columns)}.get(family, 0.0)


def _with_labels(spec: TaskSpec, train: Path) -> TaskSpec:
    """Labels that occur in training only are labels, too: without them a guess of one would be refused."""
    metric = metrics.metric(spec.metric)
    known = spec.labels is not None or train.stat().st_size > READ_BYTES
    if known or metric.family not in (Family.LABEL, Family.RANKING, Family.SCORE):
        return spec
    cells = {canonical(cell) for row in read_cells(train, list(spec.target_columns)) for cell in row}
    labels = metrics.label_order([cell for cell in cells if cell.lower() not in BLANK_CELLS])
    positive = spec.positive
    if len(labels) == 2 and (metric.family is Family.SCORE or metric.name == "f1"):
        positive = positive or labels[-1]
    return dataclasses.replace(spec, labels=labels or None, positive=positive)


def _check_levels(train: Path, spec: TaskSpec) -> None:
    """Raise `DataError` where the metric counts the distance of labels that have none."""
    words = [label for label in spec.labels or () if not is_number(label)]
    if spec.metric == "qwk" and words:
        raise DataError(
            f"{train}: qwk counts how far labels are apart, so that they must be numbers; got "
            f"{words[0][:40]!r}: number the levels from the lowest, or choose accuracy or f1_macro"
        )


def _built_sample(name: str, paths: Paths, spec: TaskSpec) -> Path | None:
    """A sample submission in the cache, for a task that has none; None for a large test.csv."""
    about, guess = paths.test.stat(), zero_knowledge(spec)
    if guess is None or about.st_size > READ_BYTES:
        _log.info("task %s: has no sample submission, and none is built: its tables are large", name)
        return None
    key = repr((str(paths.test.absolute()), about.st_size, about.st_mtime_ns, spec))
    path = cache_root() / "samples" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.csv"
    if not path.is_file():
        _write_sample(path, paths.test, spec, guess)
    return path


def _write_sample(path: Path, test: Path, spec: TaskSpec, guess: float | str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete: another process may build it at the same time.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".", newline="", encoding="utf-8", delete=False
        ) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([spec.id_column, *spec.target_columns])
            for (id_,) in read_cells(test, [spec.id_column]):
                writer.writerow([id_, *[guess] * len(spec.target_columns)])
        os.replace(file.name, path)
    except OSError as error:
        raise UnavailableError(
            f"a sample submission cannot be written to {path.parent}: {error.strerror or error}. "
            "Set MAPPA_CACHE to a folder with room that you may write to"
        ) from error
