"""The official layout of DSBench: the unpacked data.zip, given as data_modeling, the folder above, or below.

The folder of a task, in data_resplit or answers, stands for that task alone.

    data_modeling/data.json                              the names, JSON Lines in spite of its own
    data_modeling/data/data_resplit/<task>/train.csv
    data_modeling/data/data_resplit/<task>/test.csv
    data_modeling/data/data_resplit/<task>/<any name>.csv    the sample submission; of several tables, the
                                                             one named after "sample" or "submission"
    data_modeling/data/answers/<task>/test_answer.csv
    data_modeling/save_performance/{baseline,GT}/<task>/result.txt   scores; optional

`dsbench.json` holds what a task is: metric, id and targets as DSBench's own scripts score it, scores, size
in MB on Kaggle, and a sentence in our words. The descriptions of the archive are not read: they are long, and
for some tasks say another metric than the scripts.

Splits: `test` are the 8 tasks that the MAPPA paper evaluates on. `val` are 8 of its 64 training tasks: of
those up to 50 MB, the first four classification and the first four regression tasks by the sha256 of their
names. `train` is the rest, and the three tasks that the paper leaves out (conways-reverse-game-of-life-2020,
playground-series-s3e9, see-click-predict-fix).

tabular-playground-series-oct-2021 is in the paper and the archive, but has no script there: it is scored by
ROC-AUC, as on Kaggle. playground-series-s3e13 is scored by MAP@3, as on Kaggle, not by the script's hit rate.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mappa_envs.dsbench.csv_files import read_header
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.task_files import Entry, Paths, check_columns, check_scores, make_task
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import ConfigError, DataError


def official_facts() -> dict[str, dict[str, Any]]:
    """What `dsbench.json` says, by task."""
    text = resources.files("mappa_envs.dsbench").joinpath("dsbench.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def candidates(root: Path) -> list[Path]:
    """The folders that may hold `data_resplit`: the one given, below it, then up to two levels above it."""
    root = _absolute(root)
    below = [root / "data", root / "data_modeling", root / "data_modeling" / "data"]
    return [root, *below, root.parent, root.parent.parent]


def chosen(data: Path, root: Path) -> list[Entry]:
    """The tasks that the folder given stands for: its own, if it is the folder of one, else all."""
    root = _absolute(root)
    one = root.parent in (data / "data_resplit", data / "answers")
    return [entry for entry in entries(data) if not one or entry.name == root.name]


def _absolute(root: Path) -> Path:
    """Links are not followed: the folders beside a linked data_resplit are those of the link."""
    return Path(os.path.abspath(root))


def entries(data: Path) -> list[Entry]:
    """The tasks that have a folder or are listed in data.json, by name."""
    facts = official_facts()
    folders = {
        path.name
        for path in (data / "data_resplit").iterdir()
        if path.is_dir() and not path.name.startswith((".", "__MACOSX"))
    }
    return [_entry(data, name, facts.get(name)) for name in sorted(folders | _listed(data))]


def _entry(data: Path, name: str, facts: dict[str, Any] | None) -> Entry:
    folder = data / "data_resplit" / name
    answers = data / "answers" / name / "test_answer.csv"
    if not folder.is_dir():
        return Entry(name=name, why=f"listed in data.json, but there is no folder {folder}")
    if facts is None:
        why = "it is no task of DSBench, so its metric is not known; give it a folder of your own (task.toml)"
        return Entry(name=name, why=why)
    if not answers.is_file():
        return Entry(name=name, why=f"there are no answers at {answers}")
    return Entry(name=name, load=lambda: _task(data, name, facts))


def _listed(data: Path) -> set[str]:
    """The names in data.json, JSON Lines or an array, if it is there."""
    for path in (data.parent / "data.json", data / "data.json"):
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8-sig")
            try:
                records = json.loads(text)
            except json.JSONDecodeError:
                records = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: neither JSON nor JSON Lines: {error}. Restore it from data.zip, or delete it"
            ) from None
        records = records if isinstance(records, list) else [records]
        return {str(record["name"]) for record in records if isinstance(record, dict) and "name" in record}
    return set()


def _task(data: Path, name: str, facts: Mapping[str, Any]) -> DSBenchTask:
    folder = data / "data_resplit" / name
    paths = Paths(
        train=folder / "train.csv",
        test=folder / "test.csv",
        answers=data / "answers" / name / "test_answer.csv",
        sample=_sample(folder),
    )
    for path in (paths.train, paths.test):
        if not path.is_file():
            raise DataError(f"{path}: there is no such file; restore it from DSBench's data.zip")
    id_column, targets = _columns(paths, facts)
    try:
        spec = TaskSpec(metric=facts["metric"], id_column=id_column, target_columns=targets)
    except ConfigError as error:
        raise DataError(f"{paths.answers}: {error}; restore it from DSBench's data.zip") from None
    check_columns(paths, spec, fix="restore the file from DSBench's data.zip, or rename the column")
    scores = _scores(data, name, facts)
    check_scores(data.parent / "save_performance", spec, scores)
    return make_task(name, paths, spec, facts["text"], {**facts, **scores})


def _sample(folder: Path) -> Path | None:
    """The sample submission: the one other table. A name that says so goes before one that does not."""
    others = [
        path
        for path in sorted(folder.glob("*.csv"))
        if path.name not in ("train.csv", "test.csv") and not path.name.startswith(".")
    ]
    named = [path for path in others if re.search("sample|submission", path.name, re.IGNORECASE)]
    tables = named or others
    if len(tables) > 1:
        # One of them may be the answers, and agents get to see the sample.
        raise DataError(
            f"{folder}: {', '.join(path.name for path in tables)} may each be the sample submission; "
            "keep one of them beside train.csv and test.csv"
        )
    return tables[0] if tables else None


def _columns(paths: Paths, facts: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Id and targets as the files have them; `dsbench.json` was written without seeing every header."""
    header = read_header(paths.answers)
    id_column, targets = str(facts["id"]), list(facts["targets"])
    train, test = read_header(paths.train), read_header(paths.test)
    if targets == ["*"]:
        return id_column, [name for name in header if name and name != id_column and name not in test]
    if len(header) == 2 and len(targets) == 1:
        first, second = header
        if targets[0] not in header and id_column == first and second in train:
            targets = [second]
        if id_column not in header and targets[0] == second and first in test:
            id_column = first
    return id_column, targets


def _scores(data: Path, name: str, facts: Mapping[str, Any]) -> dict[str, float]:
    """Dummy and reference from save_performance where it has them, else from `dsbench.json`."""
    measured = data.parent / "save_performance"
    baseline = _number(measured / "baseline" / name / "result.txt")
    best = _number(measured / "GT" / name / "result.txt")
    scale = facts.get("scale", 1)
    return {
        "dummy": facts["baseline"] if baseline is None else baseline * scale,
        "reference": facts["perfect"] if best is None else best * scale,
    }


def _number(path: Path) -> float | None:
    try:
        number = float(path.read_text())
    except (OSError, ValueError):
        return None
    return number if math.isfinite(number) else None
