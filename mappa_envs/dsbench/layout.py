"""Loads a folder of tasks: the official layout of DSBench, or one's own.

One's own folder, one subfolder a task (the embedded tasks are stored like this, too):

    <root>/<task>/task.toml         see below
    <root>/<task>/train.csv         with the target columns
    <root>/<task>/test.csv          with the id column, without the targets
    <root>/<task>/answers.csv       id and targets of every row of test.csv; never shown to an agent
    <root>/<task>/description.txt   optional; the task in a sentence or two
    <root>/<task>/sample_submission.csv   optional

    metric = "rmse"                 # see `metrics`; the direction follows
    id = "id"
    targets = ["price"]
    # optional: description, type ("classification", "regression", "text"; follows from the metric), labels,
    # positive, label_column (see `grading.TaskSpec`), dummy and reference (scores), and
    # split ("train", "val", "test"). Where no task names a split: 3 of 5 train, one val, one test, or all
    # train if there are fewer than three tasks. Where some do, the others are train.

The official layout is the unpacked archive (`data/data_resplit`, `data/answers`, `data/task`); metrics and
targets come from `dsbench.json`, not from the descriptions. Loading reads headers and first rows only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.grading import TaskSpec, grade, perfect_submission, read_column
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.tasks import SPLITS, DSBenchTask, make_prompt, read_columns, read_header
from mappa_envs.errors import ConfigError, DataError

MAX_DESCRIPTION = 600
"""Longer descriptions are cut to this many characters, at the end of a sentence if there is one."""

LABELS_FROM_BYTES = 16 * 2**20
"""Labels that nobody named are read from train.csv up to this size; beyond it the answers define them."""

DEEP_CHECK_BYTES = 128 * 2**20
"""`check` reads whole tables up to this size."""

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


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A task that may be loaded, or (`load` is None) why it is passed over.

    `expected`: the official archive has this gap as well.
    """

    name: str
    load: Callable[[], DSBenchTask] | None = None
    why: str = ""
    expected: bool = False


@dataclass(frozen=True, kw_only=True)
class _Paths:
    train: Path
    test: Path
    answers: Path
    sample: Path | None


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
        level = logging.INFO if entry.expected else logging.WARNING
        _log.log(level, "task %s is passed over: %s", entry.name, entry.why)
    return _with_splits(tasks)


def check(path: str | Path) -> list[Finding]:
    """Look at every task of a folder, tables included (up to 128 MiB each).

    Raises `DataError` if the folder holds no tasks at all.
    """
    findings = []
    for entry in _entries(Path(path).expanduser()):
        if entry.load is None:
            findings.append(Finding(task=entry.name, ok=entry.expected, message=f"passed over: {entry.why}"))
            continue
        try:
            ok, message = True, _check_tables(entry.load())
        except DataError as error:
            ok, message = False, str(error)
        findings.append(Finding(task=entry.name, ok=ok, message=message))
    return findings


def _check_tables(task: DSBenchTask) -> str:
    """Grade the answers against themselves, and the sample. Raises `DataError` on a finding."""
    test = task.files["test.csv"]
    facts = f"{task.task_type}, {task.spec.metric}"
    if max(test.stat().st_size, task.answers.stat().st_size) > DEEP_CHECK_BYTES:
        return f"{facts}; headers only, the tables are large"
    wanted = read_column(test, task.spec.id_column)
    verdict = grade(perfect_submission(task.answers, task.spec), task.answers, task.spec)
    if verdict.score is None or abs(verdict.score - metrics.perfect(task.spec.metric)) > 1e-9:
        told = verdict.message or f"score {verdict.score}"
        raise DataError(f"{task.answers}: a perfect submission is not perfect: {verdict.code}, {told}")
    found = set(read_column(task.answers, task.spec.id_column))
    lacking = [id_ for id_ in wanted if id_ not in found]
    if lacking or len(found) != len(wanted):
        raise DataError(
            f"{task.answers}: its {len(found)} ids are not the {len(wanted)} ids of {test}"
            + (f", {lacking[0]!r} is missing" if lacking else "")
            + ": give one answer for each row of test.csv"
        )
    sample = task.files.get("sample_submission.csv")
    if sample is not None and not (verdict := grade(sample, task.answers, task.spec)).valid:
        return f"{facts}; note: the sample submission is not valid ({verdict.code}: {verdict.message})"
    return f"{facts}, {len(wanted)} test rows"


def _entries(root: Path) -> list[_Entry]:
    """The tasks of either layout, by name. Raises `DataError` if it is neither."""
    if (root / "task.toml").is_file():
        return [_own_entry(root)]
    own = sorted(path.parent for path in root.glob("*/task.toml") if not path.parent.name.startswith("."))
    if own:
        return [_own_entry(folder) for folder in own]
    tried = [root, root.parent if root.name == "data_resplit" else root / "data"]
    tried += [root / "data_modeling", root / "data_modeling" / "data"]
    for data in tried:
        if (data / "data_resplit").is_dir():
            return _official_entries(data)
    raise DataError(
        f"{root}: no tasks. Tried {root}/*/task.toml and {', '.join(f'{p}/data_resplit' for p in tried)}. "
        "DSBench is data_modeling/data.zip of the Hugging Face dataset liqiang888/DSBench, 3 GB unpacked"
    )


# One's own folder.


def _own_entry(folder: Path) -> _Entry:
    return _Entry(name=folder.name, load=lambda: _own_task(folder))


def _own_task(folder: Path) -> DSBenchTask:
    toml = folder / "task.toml"
    facts = _read_toml(toml)
    sample = folder / "sample_submission.csv"
    paths = _Paths(
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
    _check_columns(paths, spec, fix=f"rename the column, or correct 'id' or 'targets' in {toml}")
    if paths.sample is not None:
        _require(
            paths.sample, [spec.id_column, *spec.target_columns], "rename the columns, or delete the file"
        )
    text = facts.get("description") or _description(folder / "description.txt", folder.name)
    return _task(folder.name, paths, spec, text, facts)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: {error}") from None
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
    for key, allowed in (("split", SPLITS), ("type", ("classification", "regression", "text"))):
        if facts.get(key, allowed[0]) not in allowed:
            raise DataError(f"{path}: {key} = {facts[key]!r} must be one of {', '.join(allowed)}")
    for key in ("dummy", "reference"):
        if isinstance(facts.get(key, 0), bool) or not isinstance(facts.get(key, 0), int | float):
            raise DataError(f"{path}: {key!r} must be a score, a number; got {facts[key]!r}")
    return facts


# The official layout.


def _official_entries(data: Path) -> list[_Entry]:
    facts: dict[str, dict[str, Any]] = json.loads(
        resources.files("mappa_envs.dsbench").joinpath("dsbench.json").read_text()
    )
    folders = {
        path.name
        for path in (data / "data_resplit").iterdir()
        if path.is_dir() and not path.name.startswith((".", "__MACOSX"))
    }
    return [_official_entry(data, name, facts.get(name)) for name in sorted(folders | _listed(data))]


def _official_entry(data: Path, name: str, facts: dict[str, Any] | None) -> _Entry:
    folder = data / "data_resplit" / name
    answers = data / "answers" / name / "test_answer.csv"
    if not folder.is_dir():
        return _Entry(name=name, why=f"listed in data.json, but there is no folder {folder}")
    if facts is None:
        return _Entry(name=name, why="its metric is not known: DSBench has no script for it", expected=True)
    if not answers.is_file():
        return _Entry(name=name, why=f"there are no answers at {answers}")
    return _Entry(name=name, load=lambda: _official_task(data, name, facts))


def _listed(data: Path) -> set[str]:
    """The names in data.json, which is JSON Lines in spite of its name, or an array, if it is there."""
    for path in (data.parent / "data.json", data / "data.json"):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8-sig")
        try:
            try:
                records = json.loads(text)
            except json.JSONDecodeError:
                records = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: neither JSON nor JSON Lines: {error}") from None
        records = records if isinstance(records, list) else [records]
        return {str(record["name"]) for record in records if isinstance(record, dict) and "name" in record}
    return set()


def _official_task(data: Path, name: str, facts: Mapping[str, Any]) -> DSBenchTask:
    folder = data / "data_resplit" / name
    others = sorted(p for p in folder.glob("*.csv") if p.name not in ("train.csv", "test.csv"))
    samples = [path for path in others if not path.name.startswith(".")]
    paths = _Paths(
        train=folder / "train.csv",
        test=folder / "test.csv",
        answers=data / "answers" / name / "test_answer.csv",
        sample=samples[0] if samples else None,
    )
    id_column, targets = _official_columns(paths, facts)
    spec = TaskSpec(metric=facts["metric"], id_column=id_column, target_columns=targets)
    _check_columns(paths, spec, fix="restore the file from DSBench's data.zip, or rename the column")
    dummy = _number_file(data.parent / "save_performance" / "baseline" / name / "result.txt")
    reference = _number_file(data.parent / "save_performance" / "GT" / name / "result.txt")
    scores = {
        "dummy": facts["baseline"] if dummy is None else dummy * facts.get("scale", 1),
        "reference": facts["perfect"] if reference is None else reference * facts.get("scale", 1),
    }
    text = _description(data / "task" / f"{name}.txt", name)
    return _task(name, paths, spec, text, {**facts, **scores})


def _official_columns(paths: _Paths, facts: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Id and targets as the files have them; `dsbench.json` was written without seeing every header."""
    header = read_header(paths.answers)
    id_column, targets = str(facts["id"]), list(facts["targets"])
    train, test = read_header(paths.train), read_header(paths.test)
    if targets == ["*"]:
        return id_column, [name for name in header if name != id_column]
    if len(header) == 2 and len(targets) == 1:
        first, second = header
        if targets[0] not in header and id_column == first and second in train:
            targets = [second]
        if id_column not in header and targets[0] == second and first in test:
            id_column = first
    return id_column, targets


def _number_file(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


# Both layouts.


def _task(name: str, paths: _Paths, spec: TaskSpec, text: str, facts: Mapping[str, Any]) -> DSBenchTask:
    spec = _with_labels(spec, paths.train)
    family = metrics.metric(spec.metric).family
    kinds = {Family.NUMBER: "regression", Family.TEXT: "text"}
    # What test.csv lacks is no feature, such as bike-sharing's casual and registered.
    given = set(read_header(paths.test))
    columns = [column for column in read_columns(paths.train) if column.name in given]
    files = {"train.csv": paths.train, "test.csv": paths.test}
    if paths.sample is not None:
        files["sample_submission.csv"] = paths.sample
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


def _check_columns(paths: _Paths, spec: TaskSpec, fix: str) -> None:
    truth = [spec.label_column] if spec.label_column else list(spec.target_columns)
    _require(paths.train, truth, fix)
    _require(paths.test, [spec.id_column], fix)
    _require(paths.answers, [spec.id_column, *truth], fix)
    leaked = [name for name in read_header(paths.test) if name in truth]
    if leaked:
        raise DataError(f"{paths.test}: column {leaked[0]!r} is the target; remove it from test.csv")


def _require(path: Path, names: Sequence[str], fix: str) -> None:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; every task needs one")
    header = read_header(path)
    for name in names:
        if name not in header:
            have = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            raise DataError(f"{path}: no column {name!r} (it has: {have}). Fix: {fix}")


def _with_labels(spec: TaskSpec, train: Path) -> TaskSpec:
    """Labels that occur in training only are labels, too: without them a guess of one would be refused."""
    metric = metrics.metric(spec.metric)
    known = spec.labels is not None or train.stat().st_size > LABELS_FROM_BYTES
    if known or metric.family not in (Family.LABEL, Family.RANKING, Family.SCORE):
        return spec
    cells = {cell for name in spec.target_columns for cell in read_column(train, name)}
    labels = metrics.label_order([cell for cell in cells if cell])
    positive = spec.positive
    if len(labels) == 2 and (metric.family is Family.SCORE or metric.name == "f1"):
        positive = positive or labels[-1]
    return dataclasses.replace(spec, labels=labels or None, positive=positive)


def _description(path: Path, fallback: str) -> str:
    """The text of the file in one paragraph, cut if it is long; the task's name if there is none."""
    try:
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
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
