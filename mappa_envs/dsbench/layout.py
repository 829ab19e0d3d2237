"""Loads a folder of tasks: the official layout of DSBench, or one's own.

One's own folder, one subfolder a task (the embedded tasks are stored like this, too):

    <root>/<task>/task.toml         see below
    <root>/<task>/train.csv         with the target columns
    <root>/<task>/test.csv          with the id column, without the targets
    <root>/<task>/answers.csv       id and targets of every row of test.csv; never shown to an agent
    <root>/<task>/description.txt   optional; the task in a sentence or two
    <root>/<task>/sample_submission.csv   optional; one that knows nothing is built where it is missing. One
                                          that is the answers is refused, unless all its rows are alike

    metric = "rmse"                 # see `metrics`; the direction follows
    id = "id"
    targets = ["price"]
    # optional: description, type ("classification", "regression", "text"; follows from the metric), labels,
    # positive, label_column (see `grading.TaskSpec`), dummy and reference (scores), and
    # split ("train", "val", "test"). Where no task names a split: 3 of 5 train, one val, one test, or all
    # train if there are fewer than three tasks. Where some do, the others are train.

The tables are CSV text in UTF-8 (see `csv_files`). The official layout is that of `official`.

Loading reads headers and first rows; files up to 16 MiB also for labels and a missing sample, samples and
answers up to 1 MiB to compare them. `check` reads all tables row by row, and grades answers up to
`GRADED_BYTES` against themselves, and the sample.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa_envs.dsbench import metrics, official
from mappa_envs.dsbench.csv_files import is_number, not_utf8, padded_names, read_cells, read_header
from mappa_envs.dsbench.grading import TaskSpec, canonical, grade, perfect_submission
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.submission import some
from mappa_envs.dsbench.task_files import (
    BINARY,
    BLANK_CELLS,
    Entry,
    Paths,
    check_columns,
    check_labels,
    check_scores,
    holds_answers,
    is_uniform,
    make_task,
    require,
)
from mappa_envs.dsbench.tasks import SPLITS, DSBenchTask
from mappa_envs.errors import ConfigError, DataError

MAX_DESCRIPTION = 600
"""Longer descriptions are cut to this many characters, at the end of a sentence if there is one."""

GRADED_BYTES = 16 * 2**20
"""`check` grades answers up to this size; grading holds a table in memory."""

MAX_LABELS = 10_000
"""`check` keeps no more different values of a target than this."""

_KEYS = (
    "description", "type", "metric", "id", "targets", "labels", "positive", "label_column", "split",
    "dummy", "reference",
)  # fmt: skip
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What `check` says about one task: usable, or what is wrong and how to mend it."""

    task: str
    ok: bool
    message: str


def load_folder(root: Path) -> list[DSBenchTask]:
    """All tasks of a folder in either layout, sorted by name.

    Raises `DataError` on the first task that cannot be used, naming file, column and fix. In the official
    layout a task without folder or answers is passed over with a logged line.
    """
    entries = _entries(root)
    passed_over = [entry for entry in entries if entry.load is None]
    tasks = [entry.load() for entry in entries if entry.load is not None]
    if not tasks:
        reasons = "; ".join(f"{entry.name}: {entry.why}" for entry in passed_over)
        raise DataError(f"{root}: no usable task. {reasons}")
    for entry in passed_over:
        _log.warning("task %s is passed over: %s", entry.name, entry.why)
    return _with_splits(tasks)


def check(path: str | Path) -> list[Finding]:
    """Look at every task of a folder, tables included; a task that would be passed over is a finding.

    Raises `DataError` if the folder holds no tasks at all.
    """
    findings = []
    for entry in _entries(Path(path).expanduser()):
        if entry.load is None:
            findings.append(Finding(task=entry.name, ok=False, message=f"passed over: {entry.why}"))
            continue
        try:
            ok, message = True, _check_tables(entry.load())
        except DataError as error:
            ok, message = False, str(error)
        findings.append(Finding(task=entry.name, ok=ok, message=message))
    return findings


def _check_tables(task: DSBenchTask) -> str:
    """Read the tables, grade the answers against themselves, and the sample. `DataError` on a finding."""
    # First: what is wrong with the labels of train.csv shows in the answers, too, but less clearly.
    num_train = _check_train(task)
    small = task.answers.stat().st_size <= GRADED_BYTES
    if small:
        verdict = grade(perfect_submission(task.answers, task.spec), task.answers, task.spec)
        if verdict.score is None or abs(verdict.score - metrics.perfect(task.spec.metric)) > 1e-9:
            told = verdict.message or f"score {verdict.score}"
            raise DataError(f"{task.answers}: a perfect submission is not perfect: {verdict.code}, {told}")
    num_test = _same_ids(task)
    _check_answer_labels(task)
    facts = f"{task.task_type}, {task.spec.metric}, {num_train} training rows, {num_test} test rows"
    facts += _zeros_note(task.files["test.csv"], task.spec.id_column)
    if not small:
        return f"{facts}; the answers are large: ids compared, not graded"
    return facts + _check_sample(task)


def _check_sample(task: DSBenchTask) -> str:
    """A note on a sample that is not valid. Raises `DataError` if it holds the answers."""
    sample = task.files.get("sample_submission.csv")
    if sample is None:
        return ""
    verdict = grade(sample, task.answers, task.spec)
    if verdict.score is None:
        return f"; note: the sample submission is not valid ({verdict.code}: {verdict.message})"
    is_perfect = abs(verdict.score - metrics.perfect(task.spec.metric)) <= 1e-9
    if is_perfect and not is_uniform(sample, task.spec):
        raise holds_answers(sample)
    return ""


def _same_ids(task: DSBenchTask) -> int:
    """The number of test rows. Raises `DataError` unless the answers have the same ids."""
    test, answers = task.files["test.csv"], task.answers
    wanted, found = (_id_sum(path, task.spec.id_column) for path in (test, answers))
    if not wanted[0]:
        raise DataError(f"{test}: has a header but no rows")
    if wanted != found:
        raise DataError(
            f"{answers}: its {found[0]} ids are not the {wanted[0]} ids of {test}: "
            "give one answer for each row of test.csv"
        )
    return wanted[0]


def _zeros_note(test: Path, id_column: str) -> str:
    """A note on ids that pandas takes for numbers, so that a submission has others."""
    padded = ""
    for (cell,) in read_cells(test, [id_column]):
        if not (text := cell.strip()).isdecimal():
            return ""
        padded = padded or (text if text[0] == "0" and len(text) > 1 else "")
    if not padded:
        return ""
    read = padded.lstrip("0") or "0"
    return f"; note: pandas.read_csv makes {read[:40]} of the id {padded[:40]}: put a letter before the ids"


def _id_sum(path: Path, id_column: str) -> tuple[int, int]:
    """Count and sum of the hashes of all ids: equal for the same ids in any order, in constant memory."""
    count = total = 0
    for (cell,) in read_cells(path, [id_column]):
        count += 1
        total += int.from_bytes(hashlib.blake2b(canonical(cell).encode(), digest_size=16).digest(), "big")
    return count, total


def _check_answer_labels(task: DSBenchTask) -> None:
    """Raise `DataError` on a label that train.csv lacks, where one counts and all others are "not it"."""
    metric, known = metrics.metric(task.spec.metric), {label.lower() for label in task.spec.labels or ()}
    if not known or not (metric.family is Family.SCORE or metric.name == "f1"):
        return
    if known <= BINARY:
        known = set(BINARY)
    for cells in read_cells(task.answers, list(task.spec.target_columns)):
        for cell in cells:
            if canonical(cell).lower() not in known:
                raise DataError(
                    f"{task.answers}: the label {cell[:40]!r} is not among those of train.csv "
                    f"({some(task.spec.labels or (), 8)}): correct it, or remove its row here and in test.csv"
                )


def _check_train(task: DSBenchTask) -> int:
    """The number of training rows. Raises `DataError` if nothing can be learnt from them."""
    train, spec = task.files["train.csv"], task.spec
    _check_features(task)
    truth = [spec.label_column] if spec.label_column else list(spec.target_columns)
    numeric = metrics.metric(spec.metric).family is Family.NUMBER
    count, first, varied = 0, [""] * len(truth), False
    values: set[str] = set()
    for cells in read_cells(train, truth):
        first = first if count else cells
        varied = varied or cells != first
        count += 1
        if numeric:
            _check_numbers(train, count, truth, cells, spec.metric)
        elif len(values) <= MAX_LABELS:
            values.update(map(canonical, cells))
    if not count:
        raise DataError(f"{train}: has a header but no rows")
    check_labels(train, spec, {value for value in values if value.lower() not in BLANK_CELLS})
    if not varied:
        raise DataError(
            f"{train}: the target {', '.join(truth[:3])} has the same value in all {count} rows: "
            "there is nothing to learn; choose another target"
        )
    return count


def _check_features(task: DSBenchTask) -> None:
    """Raise `DataError` unless test.csv has features, all of them in train.csv, too."""
    train, test = (read_header(task.files[f"{part}.csv"]) for part in ("train", "test"))
    features = [name for name in test if name and name != task.spec.id_column]
    path = task.files["test.csv"]
    if not features:
        raise DataError(
            f"{path}: has the column {task.spec.id_column!r} alone; add the features of train.csv"
        )
    if strange := [name for name in features if name not in train]:
        raise DataError(
            f"{path}: column {strange[0]!r} is not in train.csv; add it there, or remove it from test.csv"
        )


def _check_numbers(train: Path, row: int, names: list[str], cells: list[str], metric: str) -> None:
    for name, cell in zip(names, cells, strict=True):
        text = cell.strip().lower()
        if not (text in BLANK_CELLS or text in ("true", "false") or is_number(text)):
            raise DataError(
                f"{train}: row {row} below the header has {cell[:40]!r} in the target {name!r}, but {metric} "
                "needs plain numbers: mend the cell, or choose another metric or target"
            )


def _entries(root: Path) -> list[Entry]:
    """The tasks of either layout, by name. Raises `DataError` if it is neither."""
    if not root.is_dir():
        raise DataError(f"{root}: no tasks, since this is no folder; correct the path")
    if (root / "task.toml").is_file():
        return [_own_entry(root)]
    own = sorted(path.parent for path in root.glob("*/task.toml") if not path.parent.name.startswith("."))
    if own:
        return [_own_entry(folder) for folder in own]
    tried = official.candidates(root)
    for data in tried:
        if (data / "data_resplit").is_dir() and (found := official.chosen(data, root)):
            return found
    if tables := [*root.glob("train.csv"), *sorted(root.glob("*/train.csv"))]:
        folder = tables[0].parent
        raise DataError(f"{folder}: there is a train.csv here; task.toml is missing (docs/dsbench.md)")
    raise DataError(
        f"{root}: no tasks. Tried {root / '*' / 'task.toml'} and "
        f"{', '.join(str(path / 'data_resplit') for path in tried)}. "
        "Give the folder with one subfolder a task, or DSBench's folder data_modeling: the "
        "unpacked data_modeling/data.zip of the Hugging Face dataset liqiang888/DSBench, 3 GB unpacked"
    )


def _own_entry(folder: Path) -> Entry:
    return Entry(name=folder.name, load=lambda: _own_task(folder))


def _own_task(folder: Path) -> DSBenchTask:
    toml = folder / "task.toml"
    facts = _read_toml(toml)
    sample = folder / "sample_submission.csv"
    paths = Paths(
        train=folder / "train.csv",
        test=folder / "test.csv",
        answers=folder / "answers.csv",
        sample=sample if sample.is_file() else None,
    )
    try:
        spec = TaskSpec(
            metric=facts["metric"],
            id_column=facts["id"],
            target_columns=facts["targets"],
            labels=facts.get("labels"),
            label_column=facts.get("label_column"),
            positive=facts.get("positive"),
        )
    except ConfigError as error:
        raise DataError(f"{toml}: {error}") from None
    check_columns(paths, spec, fix=f"rename the column, or correct 'id' or 'targets' in {toml}")
    for path in (paths.train, paths.test):
        if padded := padded_names(path):
            raise DataError(
                f"{path}: column {padded[0]!r} has blanks around its name, which agents' programs would have "
                "to write, too; remove them from the header"
            )
    check_scores(toml, spec, facts)
    if paths.sample is not None:
        require(
            paths.sample, [spec.id_column, *spec.target_columns], "rename the columns, or delete the file"
        )
    text = facts.get("description") or _description(folder / "description.txt", folder.name)
    return make_task(folder.name, paths, spec, text, facts)


def _read_toml(path: Path) -> dict[str, Any]:
    facts = _parse_toml(path)
    if unknown := sorted(set(facts) - set(_KEYS)):
        raise DataError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    for key in ("metric", "id", "targets"):
        if key not in facts:
            raise DataError(f"{path}: {key!r} is missing; see mappa_envs.dsbench.layout for an example")
    for key in ("metric", "id", "description", "label_column"):
        if not isinstance(facts.get(key, ""), str):
            raise DataError(f"{path}: {key!r} must be text in quotes; got {facts[key]!r}")
    for key in ("targets", "labels"):
        facts[key] = [facts[key]] if isinstance(facts.get(key), str) else facts.get(key)
        if facts[key] is not None and (not isinstance(facts[key], list) or not facts[key]):
            raise DataError(f'{path}: {key!r} must be a list that is not empty, such as ["price"]')
    _check_cells(path, facts)
    for key, allowed in (("split", SPLITS), ("type", ("classification", "regression", "text"))):
        if facts.get(key, allowed[0]) not in allowed:
            raise DataError(f"{path}: {key} = {facts[key]!r} must be one of {', '.join(allowed)}")
    return facts


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply; it needs no more than `key = value`") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None


def _check_cells(path: Path, facts: dict[str, Any]) -> None:
    """The contents of the lists, and `positive`."""
    for name in facts["targets"]:
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{path}: 'targets' must be names of columns in quotes; got {name!r}")
    for label in [*(facts["labels"] or ()), facts.get("positive", "")]:
        if not isinstance(label, str | int | float):
            key = "labels" if label in (facts["labels"] or ()) else "positive"
            raise DataError(f'{path}: {key!r} must be text or numbers, such as "b"; got {label!r}')


def _description(path: Path, fallback: str) -> str:
    """The text of the file in one paragraph, cut if it is long; the task's name if there is none."""
    try:
        text = " ".join(path.read_text(encoding="utf-8-sig", errors="replace").split())
    except OSError:
        text = ""
    if len(text) > MAX_DESCRIPTION:
        head = text[:MAX_DESCRIPTION]
        end = head.rfind(". ")
        text = head[: end + 1] if end > MAX_DESCRIPTION // 2 else head.rsplit(" ", 1)[0] + " …"
    return text or f"{fallback.replace('-', ' ')}."


def _with_splits(tasks: list[DSBenchTask]) -> list[DSBenchTask]:
    """Give tasks without a split one (see the head of this file)."""
    if any(task.split for task in tasks) or len(tasks) < 3:
        return [task if task.split else dataclasses.replace(task, split="train") for task in tasks]
    order = sorted(
        tasks, key=lambda task: (task.task_type, hashlib.sha256(task.task_id.encode()).hexdigest())
    )
    pattern = ("train", "val", "test", "train", "train")
    split = {task.task_id: pattern[index % len(pattern)] for index, task in enumerate(order)}
    return [dataclasses.replace(task, split=split[task.task_id]) for task in tasks]
