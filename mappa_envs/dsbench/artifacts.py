"""What the required files of a DSBench team are worth, found out inside the sandbox.

    >>> tables = Tables.read(task.files["train.csv"], task.files["test.csv"], task.spec)
    >>> found = await inspect(workspace, ["X_train.pkl", "X_test.pkl"], task.spec, tables)
    >>> found["X_test.pkl"].problem
    'X_test.pkl has 3 columns, X_train.pkl has 4'

Each file is looked at in its own throw-away worker (`inspector`), so a crash loses only that one. The host
never unpickles anything, and a report of a valid file that contradicts what it knows makes the file
unverifiable. Valid files are then measured (`facts`). For a valid file `problem` is empty or a remark:
usable, but not perfect.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from mappa_envs.dsbench import facts, metrics
from mappa_envs.dsbench.csv_files import read_cells
from mappa_envs.dsbench.grading import TaskSpec, canonical, size_limit
from mappa_envs.dsbench.worker_script import script
from mappa_envs.sandbox.base import Workspace
from mappa_envs.types import Artifact

TIME_S = 20.0
"""For one file. A model that needs longer to predict test.csv is not found valid."""
MAX_DIMENSIONS, MAX_LENGTH = 64, 1 << 53
"""Of a shape that is believed; numpy has no more dimensions."""
MAX_COMPARED_BYTES = 20 << 20
"""A target file is compared with the columns of train.csv up to this size."""

STATUSES = ("valid", "invalid", "unverifiable", "missing")


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the trusted side knows of train.csv and test.csv: an agent may change its copies."""

    train_rows: int
    test_rows: int
    train_sha256: str
    """"" where it has more than `MAX_COMPARED_BYTES`."""
    test_sha256: str
    """The same of test.csv."""
    ids_sha256: str
    """Of the sorted canonical ids of test.csv, one a line."""

    @classmethod
    def read(cls, train: Path, test: Path, spec: TaskSpec) -> Self:
        """From the task's own files; cached by path, size and time. Raises `DataError`."""
        stamp = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in (train, test))
        return cls(**_facts(stamp, spec.id_column))


@lru_cache(maxsize=512)
def _facts(stamp: tuple[tuple[str, int, int], ...], id_column: str) -> dict[str, Any]:
    (train, train_bytes, _), (test, test_bytes, _) = stamp
    ids = sorted(canonical(cell) for (cell,) in read_cells(Path(test), [id_column]))
    return {
        "train_rows": sum(1 for _ in read_cells(Path(train), [])),
        "test_rows": len(ids),
        "train_sha256": _sha256(train, train_bytes),
        "test_sha256": _sha256(test, test_bytes),
        "ids_sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
    }


def _sha256(path: str, num_bytes: int) -> str:
    # Tables may have gigabytes: nothing but the ids is kept, and no inspector compares one that large.
    small = num_bytes <= MAX_COMPARED_BYTES
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if small else ""


def stale(known: Mapping[str, Artifact], touched: Set[str]) -> list[str]:
    """Of the known files those of which something else may be found, now that others were touched.

    Those too that could not be looked at in time, and those that are a folder now, of which only the content
    is among the touched ones.
    """
    found = {path for path in known if path in touched or any(t.startswith(f"{path}/") for t in touched)}
    found |= {path for path in known if known[path].status == "unverifiable"}
    changed = not touched.isdisjoint(("train.csv", "test.csv"))
    for paths in facts.STAGES.values():
        changed = changed or not touched.isdisjoint(paths)
        if changed:
            found |= {path for path in paths if path in known and known[path].status != "missing"}
    return [path for path in known if path in found]


async def inspect(
    workspace: Workspace,
    paths: Sequence[str],
    spec: TaskSpec,
    tables: Tables,
    *,
    known: Mapping[str, Artifact] | None = None,
    time_s: float = TIME_S,
) -> dict[str, Artifact]:
    """Look at the named files, which may be missing, all at the same time.

    `known` is what was found of others, and is still true; where it lacks facts that are measured now, it
    is in the result, too.

    Known names are X_train.pkl, X_test.pkl, y_train.pkl, model.pkl and submission.csv; of any other file
    only that it is a regular, non-empty one. `written_by` is left to the caller.
    Raises `SandboxError` only when the sandbox itself failed.
    """
    reports = await asyncio.gather(
        *(workspace.inspect(script("examine", job(path, spec, tables)), time_s=time_s) for path in paths)
    )
    found = {path: _artifact(path, report, spec, tables) for path, report in zip(paths, reports, strict=True)}
    others = {path: artifact for path, artifact in (known or {}).items() if path not in found}
    states = [*found.values(), *others.values()]
    valid = frozenset(artifact.path for artifact in states if artifact.status == "valid")
    measured = await facts.measure(workspace, job("", spec, tables), valid)
    late = {path: others[path] for path in others.keys() & measured.keys() if not others[path].facts}
    return {
        path: replace(artifact, facts=measured.get(path, {})) for path, artifact in (found | late).items()
    }


def job(path: str, spec: TaskSpec, tables: Tables) -> dict[str, Any]:
    """What the workers are told of the task, as JSON values: nothing of it is secret."""
    hidden = [*spec.target_columns, *([spec.label_column] if spec.label_column else [])]
    return {
        "path": path,
        "id": spec.id_column,
        "targets": list(spec.target_columns),
        "hidden": hidden,
        "labels": list(spec.labels) if spec.labels is not None else None,
        "positive": spec.positive,
        "metric": spec.metric,
        "family": metrics.metric(spec.metric).family.value,
        "train_rows": tables.train_rows,
        "test_rows": tables.test_rows,
        "train_sha256": tables.train_sha256,
        "test_sha256": tables.test_sha256,
        "max_compared_bytes": MAX_COMPARED_BYTES,
        "ids_sha256": tables.ids_sha256,
        "max_submission_bytes": size_limit(tables.test_rows, spec),
    }


def _artifact(path: str, report: Any, spec: TaskSpec, tables: Tables) -> Artifact:
    """The report as a record. It comes from a worker that loaded untrusted data: check every field."""
    if not isinstance(report, dict) or report.get("status") not in STATUSES:
        why = f"{path} could not be looked at: loading or using it crashed or took too long"
        return Artifact(path=path, status="unverifiable", problem=why)
    shape, nan, kind, problem = (report.get(key) for key in ("shape", "nan_share", "kind", "problem"))
    few = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    sound = few and all(type(n) is int and 0 <= n < MAX_LENGTH for n in shape or ())
    share = float(nan) if isinstance(nan, (int, float)) and 0 <= nan <= 1 else None
    found = Artifact(
        path=path,
        status=report["status"],
        kind=kind[:80] if isinstance(kind, str) else "",
        shape=tuple(shape) if sound and shape is not None else None,
        nan_share=share,
        problem=problem[:400] if isinstance(problem, str) else "",
    )
    if found.status == "valid" and not _agrees(found, spec, tables):
        shown = "no shape" if found.shape is None else f"the shape {found.shape}"
        problem = (
            f"{path} cannot be believed: what was found out about it, {shown}, contradicts the task's files"
        )
        return replace(found, status="unverifiable", problem=problem[:400])
    return found


def _agrees(found: Artifact, spec: TaskSpec, tables: Tables) -> bool:
    """Can a file of this shape be a valid one? What a worker says of a model, nothing here can contradict."""
    if found.path not in ("X_train.pkl", "X_test.pkl", "y_train.pkl", "submission.csv"):
        return True
    rows, *others = found.shape or (0,)
    width, num_targets = (others or [0])[0], len(spec.target_columns)
    if found.path == "y_train.pkl":
        # Its rows are those of X_train.pkl, which may be fewer than train.csv has.
        return rows > 0 and (not others or (len(others) == 1 and width in (1, num_targets)))
    if len(others) != 1 or not width:
        return False
    if found.path == "X_train.pkl":
        return 2 * rows >= tables.train_rows
    return rows == tables.test_rows and (found.path == "X_test.pkl" or width > num_targets)
