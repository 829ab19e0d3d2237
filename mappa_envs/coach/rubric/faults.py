"""The mistakes that the record of one turn shows: its files, its trail, how it ended, what its code does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mappa_envs.actions import extract_code
from mappa_envs.coach.rubric.checks import (
    GRAVE,
    HARMFUL,
    NO_MODEL,
    NOT_FITTED,
    SERIOUS,
    SLIGHT,
    Finding,
    check,
)
from mappa_envs.coach.rubric.loads import doomed
from mappa_envs.coach.rubric.measured import proven
from mappa_envs.coach.rubric.reader import Reading, read
from mappa_envs.coach.rubric.values import Facts, Tag
from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.csv_files import read_header
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.inspector import CONSTANT
from mappa_envs.types import Artifact, Role, Task, Turn

BLAMED = 0.3
"""A mistake of at least this severity is blamed."""

NO_CHANCES = "has no predict_proba"
"""Of a model for scores. An analyst can do without: by `decision_function`, or if it is a regressor."""
_REMARKS: tuple[tuple[str, float], ...] = (
    (CONSTANT, GRAVE),
    ("none of its columns varies", GRAVE),
    (NO_CHANCES, SERIOUS),
    ("columns, the task has", SERIOUS),
    ("of its cells are missing", HARMFUL),
    ("keeps the id column", HARMFUL),
)
"""What the inspector remarks on valid files, and how bad that is."""
_ROWS_LEFT = re.compile(r"has (\d+) rows, train\.csv has (\d+)")
_NEAR_ENOUGH = 0.8
_FEW_COLUMNS = 1 / 3


def facts_of(task: Task) -> Facts:
    """What the task says of its columns and its metric; nothing for a task without a table."""
    spec = getattr(task, "spec", None)
    if not isinstance(spec, TaskSpec):
        return Facts()
    first = metrics.label_order(spec.labels)[0] if spec.labels else None
    hidden = [spec.label_column] if spec.label_column else []
    return Facts(
        id_column=spec.id_column,
        targets=(*spec.target_columns, *hidden),
        num_targets=len(spec.target_columns),
        family=metrics.metric(spec.metric).family.value,
        positive_first=spec.positive is not None and spec.positive == first,
    )


def mistakes(
    turn: Turn,
    role: Role,
    team: Sequence[Role],
    task: Task,
    files: Mapping[str, Artifact],
    model_kind: str = "",
) -> tuple[Finding, ...]:
    """What the turn's code and file trail show, worst first. `remarks_on` has what the files show.

    What was read in code gives way to what inspection and measurement show of `files` as they are.
    """
    read_of = [one for one in _read(turn, task, model_kind) if not _refuted(one, task, files)]
    found = [*read_of, *_trail(turn, role, team, task)]
    return tuple(sorted(dict.fromkeys(found), key=lambda one: -one.severity))


def _read(turn: Turn, task: Task, model_kind: str) -> list[Finding]:
    if turn.tool is None:
        return []
    reading = _reading(extract_code(turn.action), facts_of(task))
    found = check(reading, facts_of(task), model_kind)
    if turn.tool.ok:
        return list(found)
    written = {file.path for file in turn.tool.files}
    return [one for one in found if one.path in written]


def _refuted(finding: Finding, task: Task, files: Mapping[str, Artifact]) -> bool:
    if finding.words.startswith((NO_MODEL, NOT_FITTED)):
        return finding.path in files and files[finding.path].status == "valid"
    return not finding.cells and finding.path in proven(files, facts_of(task).family)


def intended(turn: Turn, team: Sequence[Role], task: Task) -> tuple[Finding, ...]:
    """The mistakes in the turn's code, whether it came to them or not."""
    blocks = extract_code(turn.action)
    files = {*task.files, *(path for role in team for path in role.required)}
    return (*check(_reading(blocks, facts_of(task)), facts_of(task)), *doomed(blocks, files))


def was_followed(turn: Turn, task: Task) -> bool:
    """Whether the reader could follow what the turn's code does to the files that it saves.

    False is no evidence of a mistake, but where one must be, it is more likely there.
    """
    reading = _reading(extract_code(turn.action), facts_of(task))
    saved = {save.path: save.value for save in reading.saves}
    tables = [saved[path] for path in ("X_train.pkl", "y_train.pkl", "X_test.pkl") if path in saved]
    followed = all(table.rows is not None for table in tables)
    if "y_train.pkl" in saved:
        followed &= Tag.TARGET in saved["y_train.pkl"].tags
    if "model.pkl" in saved:
        fits = [fit for fit in reading.fits if fit.estimator.estimator == saved["model.pkl"].estimator]
        followed &= bool(fits) and fits[-1].X.rows is not None and fits[-1].y is not None
    return reading.parsed and bool(saved) and followed


@lru_cache(maxsize=512)
def _reading(blocks: tuple[str, ...], facts: Facts) -> Reading:
    # Later turns look at the earlier ones again.
    return read(blocks, facts)


def _trail(turn: Turn, role: Role, team: Sequence[Role], task: Task) -> list[Finding]:
    others = {path for member in team if member.name != role.name for path in member.required}
    found = []
    for file in turn.tool.files if turn.tool else ():
        if file.change == "created":
            continue
        if file.path in others - set(role.required):
            what = "deleted" if file.change == "deleted" else "overwrote"
            severity = GRAVE if file.change == "deleted" else HARMFUL
            found.append(
                Finding(severity=severity, words=f"it {what} a teammate's {file.path}", path=file.path)
            )
        elif file.path in task.files:
            found.append(Finding(severity=HARMFUL, words=f"it overwrote {file.path}"))
    return found


def remarks_on(artifact: Artifact, task: Task, files: Mapping[str, Artifact]) -> list[Finding]:
    """What is wrong with a valid file, one of `files`."""
    if artifact.status != "valid":
        return []
    found = [
        Finding(
            severity=severity,
            words=f"{artifact.path}: {artifact.problem}",
            path=artifact.path,
            certain=words != NO_CHANCES,
        )
        for words, severity in _REMARKS
        if words in artifact.problem and not (words == CONSTANT and _fits(artifact))
    ]
    rows = _ROWS_LEFT.search(artifact.problem)
    if rows and int(rows[2][:9]) > 0:
        share = int(rows[1][:9]) / int(rows[2][:9])
        severity = SLIGHT if share >= _NEAR_ENOUGH else SERIOUS
        words = f"{artifact.path} has {share:.0%} of the training rows"
        found.append(Finding(severity=severity, words=words, path=artifact.path))
    is_narrow = artifact.path not in proven(files, facts_of(task).family) and _width(artifact, task)
    return [*found, *(is_narrow or ())]


def _fits(model: Artifact) -> bool:
    """A model that fits its own rows is not to blame for test rows that are all the same to it."""
    return model.facts.get("fitted", 0.0) > 0.3 and model.facts.get("fitted_near", 0.0) > 0.1


def _width(artifact: Artifact, task: Task) -> list[Finding]:
    """Most of the columns of test.csv were thrown away."""
    source = task.files.get("test.csv")
    if artifact.path != "X_train.pkl" or not artifact.shape or len(artifact.shape) != 2 or source is None:
        return []
    num_given, num_kept = _num_columns(source) - 1, artifact.shape[1]
    if num_kept >= num_given * _FEW_COLUMNS:
        return []
    words = f"X_train.pkl has {num_kept} columns, test.csv has {num_given} besides the id"
    return [Finding(severity=SERIOUS, words=words, path=artifact.path, certain=False)]


@lru_cache(maxsize=256)
def _num_columns(source: Path) -> int:
    return len(read_header(source)) if source.is_file() else 0
