"""Builds the embedded tasks into a cache folder, as one's own folder of tasks (see `layout`).

    python -m mappa_envs.dsbench.suite --validate     # grades perfect and dummy submissions of every task
    python -m mappa_envs.dsbench.suite --baselines    # measures dummy, reference and the scripted expert
    python -m mappa_envs.dsbench.suite --table        # the table of docs/dsbench.md

Rows, order and ids come from sha256 of fixed keys and floats are written with %.10g, so that the files are
the same bytes everywhere. The cache is `$MAPPA_CACHE` or `~/.cache/mappa`.
"""

from __future__ import annotations

import argparse
import errno
import functools
import hashlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.cache import cache_root
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.recipes import RECIPES, Recipe, keyed_number
from mappa_envs.dsbench.tables import TABLES, SourceChanged, check_table
from mappa_envs.errors import UnavailableError

if TYPE_CHECKING:
    import pandas as pd

TEST_SHARE = 0.25
MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


def ensure_built() -> Path:
    """The folder of the embedded tasks, built now if it is not there yet.

    Safe when several processes build at once: each builds beside the place and renames, the first one wins.
    Tasks whose source file is missing or changed are left out, with a warning that names the file.
    Raises `UnavailableError`, naming the folder, where it cannot be written.
    """
    complete = cache_root() / f"suite-{_version()}"
    if _is_intact(complete):
        return complete
    disabled = _disabled_tables()
    for reason in sorted(set(disabled.values())):
        names = [r.name for r in RECIPES if disabled.get(r.table) == reason]
        _log.warning("embedded tasks %s are disabled: %s", ", ".join(names), reason)
    recipes = [recipe for recipe in RECIPES if recipe.table not in disabled]
    if not recipes:
        raise UnavailableError("no embedded task can be built: " + "; ".join(sorted(set(disabled.values()))))
    folder = complete
    if disabled:
        folder = complete.with_name(f"{complete.name}-without-{_digest(*sorted(disabled))}")
    if not _is_intact(folder):
        _build_beside(folder, recipes)
    return folder


@functools.cache
def _version() -> str:
    """Changes with anything that the built files depend on."""
    here = resources.files("mappa_envs.dsbench")
    names = ("suite.py", "recipes.py", "tables.py", "sources.json", "baselines.json")
    return _digest(*((here / name).read_text() for name in names if (here / name).is_file()))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _is_intact(folder: Path) -> bool:
    """Whether all files of the manifest, which is written last, are there in their size."""
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _disabled_tables() -> dict[str, str]:
    disabled = {}
    for table in TABLES:
        try:
            check_table(table)
        except SourceChanged as error:
            disabled[table] = str(error)
    return disabled


def _build_beside(folder: Path, recipes: Sequence[Recipe]) -> None:
    scratch: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        write_suite(scratch, recipes)
        _move_into_place(scratch, folder)
    except OSError as error:
        raise UnavailableError(
            f"the embedded tasks cannot be written to {folder.parent}: {error.strerror or error}. "
            "They need 10 MB; set MAPPA_CACHE to a folder with room that you may write to"
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _move_into_place(scratch: Path, folder: Path) -> None:
    for _ in range(3):
        try:
            scratch.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        if _is_intact(folder):
            return
        # Damaged: out of the way under a name of our own, so that no other process trips over it.
        damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            folder.rename(damaged)
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(damaged, ignore_errors=True)
    raise OSError(errno.EBUSY, f"{folder} keeps being replaced by another process")


def write_suite(root: Path, recipes: Iterable[Recipe] = RECIPES) -> None:
    """Write the tasks into an empty folder, the manifest last."""
    scores = read_baselines()
    for recipe in recipes:
        folder = root / recipe.name
        folder.mkdir()
        for name, content in task_files(recipe, scores.get(recipe.name, {})).items():
            (folder / name).write_text(content, encoding="utf-8", newline="")
    sizes = {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}
    (root / MANIFEST).write_text(json.dumps(sizes, indent=1))


def read_baselines() -> dict[str, dict[str, float]]:
    """The committed scores of dummy, reference and expert by task; {} if they were never measured."""
    path = resources.files("mappa_envs.dsbench") / "baselines.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def task_files(recipe: Recipe, scores: Mapping[str, float]) -> dict[str, str]:
    """The text of each file of one task."""
    frame = TABLES[recipe.table].read()
    frame = recipe.prepare(frame) if recipe.prepare else frame
    truth = [recipe.label_column] if recipe.label_column else list(recipe.targets)
    frame = frame.dropna(subset=truth).reset_index(drop=True)
    labels = _labels(frame, recipe, truth)
    train_rows, test_rows = _split(frame, recipe, truth[0])
    ids = _order(len(train_rows) + len(test_rows), recipe.name, "ids")
    train = frame.iloc[train_rows].copy()
    test = frame.iloc[test_rows].copy()
    train.insert(0, "id", ids[: len(train)])
    test.insert(0, "id", ids[len(train) :])
    return {
        "task.toml": _task_toml(recipe, labels, scores),
        "train.csv": _csv(train),
        "test.csv": _csv(test.drop(columns=truth)),
        "sample_submission.csv": _csv(_sample(test, recipe, labels)),
        "answers.csv": _csv(test[["id", *truth]]),
    }


def _csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, lineterminator="\n", float_format="%.10g"))


def _order(count: int, *key: str) -> list[int]:
    """A permutation of range(count) that no library's generator can change."""
    return sorted(range(count), key=lambda row: keyed_number(*key, row))


def _split(frame: pd.DataFrame, recipe: Recipe, truth: str) -> tuple[list[int], list[int]]:
    """Row numbers of the train and the test part, each in a random order."""
    if recipe.time_column:
        rows = [int(row) for row in frame[recipe.time_column].argsort(kind="stable")]
        cut = round(len(rows) * (1 - TEST_SHARE))
        return rows[:cut], rows[cut:]
    rows = _order(len(frame), recipe.name, "rows")[: recipe.rows]
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(
            str(frame[truth].iloc[row]) if recipe.task_type == "classification" else "", []
        ).append(row)
    test = [
        row for key in sorted(groups) for row in groups[key][: max(1, round(len(groups[key]) * TEST_SHARE))]
    ]
    chosen = set(test)
    train = [row for row in rows if row not in chosen]
    return train, [test[i] for i in _order(len(test), recipe.name, "test")]


def _labels(frame: pd.DataFrame, recipe: Recipe, truth: list[str]) -> list[str]:
    if recipe.task_type != "classification" or recipe.label_column:
        return []
    return metrics.label_order([str(value) for value in frame[truth[0]]])


def _sample(test: pd.DataFrame, recipe: Recipe, labels: Sequence[str]) -> pd.DataFrame:
    """A submission that is valid and knows nothing."""
    family = metrics.metric(recipe.metric).family
    value: float | str = 0.0
    if family is Family.LABEL:
        value = labels[0]
    elif family is Family.RANKING:
        value = " ".join(labels[:3])
    elif family is Family.SCORE:
        value = 0.5
    elif family is Family.CLASS_PROBABILITY:
        value = 1 / len(recipe.targets)
    return test[["id"]].assign(**dict.fromkeys(recipe.targets, value))


def _task_toml(recipe: Recipe, labels: Sequence[str], scores: Mapping[str, float]) -> str:
    family = metrics.metric(recipe.metric).family
    fields: dict[str, object] = {
        "description": recipe.text,
        "type": recipe.task_type,
        "metric": recipe.metric,
        "id": "id",
        "targets": list(recipe.targets),
        "split": recipe.split,
    }
    if labels:
        fields["labels"] = labels
    if family is Family.SCORE or recipe.metric == "f1":
        fields["positive"] = labels[-1]
    if recipe.label_column:
        fields["label_column"] = recipe.label_column
    fields |= {key: float(scores[key]) for key in ("dummy", "reference") if key in scores}
    # JSON's strings, numbers and arrays are TOML's too.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())


def table() -> str:
    """The embedded tasks as a Markdown table, from the built files and the committed scores."""
    from mappa_envs.dsbench.csv_files import read_cells
    from mappa_envs.dsbench.tasks import load_tasks

    recipes = {recipe.name: recipe for recipe in RECIPES}
    columns = ["task", "split", "source", "type", "metric", "train/test rows"]
    columns += ["dummy", "reference", "expert", "relative"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for task in load_tasks():
        source = TABLES[recipes[task.task_id].table]
        scores = read_baselines()[task.task_id]
        rows = [sum(1 for _ in read_cells(task.files[f"{part}.csv"], ["id"])) for part in ("train", "test")]
        cells = [
            task.task_id,
            task.split,
            f"{source.package.split('.')[0].split('_')[0]} {source.files[0]}",
            task.task_type,
            f"{task.spec.metric} {'↑' if metrics.higher_is_better(task.spec.metric) else '↓'}",
            f"{rows[0]}/{rows[1]}",
            *(f"{scores[key]:.4g}" for key in ("dummy", "reference", "expert")),
            f"{task.relative(scores['expert']):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mappa_envs.dsbench.suite", description=__doc__)
    parser.add_argument("--validate", action="store_true", help="check every task; exit 1 on a finding")
    parser.add_argument("--baselines", action="store_true", help="measure and write baselines.json")
    parser.add_argument("--table", action="store_true", help="print the table of the documentation")
    options = parser.parse_args(arguments)
    from mappa_envs.dsbench import baselines

    if options.baselines:
        baselines.write()
    problems = baselines.validate() if options.validate else []
    for problem in problems:
        print(problem)
    if options.table:
        print(table())
    if not (options.validate or options.baselines or options.table):
        print(ensure_built())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
