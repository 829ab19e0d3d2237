"""DSBench tasks: the record, its prompt, and where tasks come from.

>>> [task.task_id for task in load_tasks("embedded", split="val")][:2]
['digits', 'digits-eight']
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.csv_files import Column
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.metrics import Family
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.types import Task

__all__ = [
    "SPLITS",
    "Column",
    "DSBenchTask",
    "load_tasks",
    "make_prompt",
    "too_good",
]

SPLITS = ("train", "val", "test")
HARD_SHARE, SUSPICIOUS_SHARE = 0.15, 0.05
"""See `too_good`."""

_log = logging.getLogger(__name__)
_LISTED_COLUMNS = 12
_SHORTENED_TO = 8


@dataclass(frozen=True, kw_only=True)
class DSBenchTask(Task):
    """A table task. `answers` stays on the host: it is in no prompt and in no workspace.

    `dummy` is the score of a prediction without features, `reference` that of a simple good model, or of a
    perfect submission where no model was measured; both in the unit of the metric, None = not known.
    """

    spec: TaskSpec
    answers: Path
    dummy: float | None = None
    reference: float | None = None

    def relative(self, score: float | None) -> float | None:
        """The score on the task's own scale, clipped to [0, 1]: 0 = dummy, 1 = reference.

        1.0 for any score where the scale is not known; None for no score.
        """
        if score is None:
            return None
        if self.dummy is None or self.reference is None or self.dummy == self.reference:
            return 1.0
        return min(1.0, max(0.0, (score - self.dummy) / (self.reference - self.dummy)))


def too_good(task: DSBenchTask, score: float | None) -> bool:
    """Whether a score is hardly to be had without the answers: a reason to look at how it came about.

    True where the reference leaves at least `HARD_SHARE` of the way from the dummy to a perfect score, and
    this score less than `SUSPICIOUS_SHARE` of what the reference leaves. Never on an easier task, where
    honest models are perfect by luck, nor where dummy or reference are not known or the reference is
    perfect itself, as in DSBench's own numbers.
    """
    perfect = metrics.perfect(task.spec.metric)
    if score is None or task.dummy is None or task.reference is None or task.dummy == perfect:
        return False
    left_by_reference = (perfect - task.reference) / (perfect - task.dummy)
    left = (perfect - score) / (perfect - task.dummy)
    return left_by_reference >= HARD_SHARE and left < SUSPICIOUS_SHARE * left_by_reference


def load_tasks(
    source: str = "embedded", split: str | None = None, *, max_mb: float | None = None
) -> list[DSBenchTask]:
    """All tasks of a source, or those of one split.

    Parameters
    ----------
    source : "embedded", "dsbench" (the folder that `$DSBENCH_ROOT` names), or the path of a folder in the
        official DSBench layout or in one's own (see `layout`).
    split : "train", "val", "test" or None for all.
    max_mb : leave out tasks whose train.csv and test.csv have more megabytes together, with a logged line.

    Raises `ConfigError` on an unknown source or split, `DataError` on tables that cannot be used or a split
    without tasks, `UnavailableError` where the cache cannot be written.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    tasks = _load_source(source)
    chosen = [task for task in tasks if split in (None, task.split)]
    if not chosen:
        have = sorted({task.split for task in tasks})
        raise DataError(
            f"{source}: no task of split {split!r} (there are {len(tasks)} of: {', '.join(have)}). "
            f'Put split = "{split}" into a task.toml, or choose another split'
        )
    return chosen if max_mb is None else _small(chosen, max_mb)


def _small(tasks: Sequence[DSBenchTask], max_mb: float) -> list[DSBenchTask]:
    sizes = {
        task.task_id: sum(task.files[name].stat().st_size for name in ("train.csv", "test.csv")) / 1e6
        for task in tasks
    }
    for name, size in sizes.items():
        if size > max_mb:
            _log.info("task %s is left out: %.1f MB are more than max_mb = %g", name, size, max_mb)
    small = [task for task in tasks if sizes[task.task_id] <= max_mb]
    if not small:
        raise DataError(f"max_mb = {max_mb:g}: the smallest task has {min(sizes.values()):.3g} MB")
    return small


def _load_source(source: str) -> list[DSBenchTask]:
    from mappa_envs.dsbench import layout, suite

    if source == "embedded":
        return layout.load_folder(suite.ensure_built())
    if not source:
        raise ConfigError("tasks: empty; give 'embedded', 'dsbench' or the path of a folder of tasks")
    root = os.environ.get("DSBENCH_ROOT") if source == "dsbench" else source
    if not root:
        raise ConfigError("tasks 'dsbench': set DSBENCH_ROOT to the unpacked archive of DSBench")
    if not (path := Path(root).expanduser()).is_dir():
        if path.suffix.lower() == ".csv" and path.is_file():
            raise ConfigError(
                f"tasks: {path} is a CSV; a table task is a folder with task.toml, train.csv, test.csv, "
                "answers.csv (docs/dsbench.md)"
            )
        raise ConfigError(
            f"unknown tasks {source!r}: {path.absolute()} is not a folder; "
            "known: 'embedded', 'dsbench' (with $DSBENCH_ROOT) or the path of a folder of tasks"
        )
    return layout.load_folder(path)


def make_prompt(description: str, spec: TaskSpec, columns: Sequence[Column]) -> str:
    """The task in a few lines: what, target, id, metric and direction, columns.

    `columns` are those of train.csv; id, targets and label column are left out of the feature list.
    """
    # A saved index has no name.
    hidden = {"", spec.id_column, spec.label_column, *spec.target_columns}
    features = [column for column in columns if column.name not in hidden]
    direction = "higher" if metrics.higher_is_better(spec.metric) else "lower"
    title = metrics.metric(spec.metric).title
    return (
        f"{description.strip()}\n"
        f"{_target_line(spec)} Id: {spec.id_column}. Metric: {title}, {direction} is better.\n"
        f"{_feature_line(features)}"
    )


def _target_line(spec: TaskSpec) -> str:
    family = metrics.metric(spec.metric).family
    names = list(spec.target_columns)
    target = f"Target{'s' if len(names) > 1 else ''}: {_shorten(names, len(names))}"
    labels = _shorten([str(label) for label in spec.labels or ()], len(spec.labels or ()))
    if family is Family.CLASS_PROBABILITY:
        source = f"; the class is {spec.label_column} in train.csv" if spec.label_column else ""
        return f"{target} (one probability each{source})."
    if family is Family.SCORE:
        return f"{target} (probability{f' of {spec.positive}' if spec.positive else ''})."
    if family is Family.RANKING:
        return f"{target} (up to 3 of {labels or 'the labels'}, best first, apart by blanks)."
    return f"{target} ({labels})." if labels else f"{target}."


def _feature_line(features: Sequence[Column]) -> str:
    if not features:
        return "No features."
    shown = features if len(features) <= _LISTED_COLUMNS else features[:_SHORTENED_TO]
    numbers = [column.name for column in shown if column.is_number]
    texts = [column.name for column in shown if not column.is_number]
    gaps = [column.name for column in shown if column.has_gaps]
    parts = []
    if numbers:
        parts.append(f"Numbers: {', '.join(numbers)}.")
    if texts:
        parts.append(f"Text: {', '.join(texts)}.")
    if len(shown) < len(features):
        parts.append(f"… ({len(features)} columns).")
    if gaps:
        everywhere = len(gaps) == len(shown) > 2
        parts.append(f"Missing values: {'all columns' if everywhere else ', '.join(gaps)}.")
    return " ".join(parts)


def _shorten(names: Sequence[str], total: int) -> str:
    if total <= _LISTED_COLUMNS:
        return ", ".join(names)
    return f"{', '.join(names[:_SHORTENED_TO])}, … ({total})"
