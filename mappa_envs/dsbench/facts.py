"""Measurements of a team's files for the coach: how much of the task's signal each of them carries.

They are made by `signal` inside the sandbox, in one throw-away worker apart from the inspection: whatever
stops it, the files stay what the inspection found them to be, and have no facts. What depends on the task
alone is measured once, and nothing is measured again while a workspace's files stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from mappa_envs.dsbench.worker_script import script
from mappa_envs.sandbox.base import Workspace

TIME_S = 5.0
"""For all files of a turn. A model that needs longer to predict some 1,400 rows has no facts."""
MAX_YARDSTICKS = 1024

FACTS = {
    "X_train.pkl": {
        "signal": "how near a forest comes to y_train.pkl from these features, on rows that it has not seen",
        "plain": "the same from train.csv in a plain encoding, to its target",
        "rows_follow": "the share of features that have, row by row, the order of a column of train.csv",
    },
    "X_test.pkl": {
        "kept": "how near a forest on the team's tables comes to the yardstick",
        "attainable": "the same of one on the plain tables, but with half of the rows",
        "rows_follow": "as of X_train.pkl, of test.csv",
        "same_scale": "of the features that are made of one column of train.csv, value by value, "
        "the share that the test rows have made in the same way",
    },
    "y_train.pkl": {
        "kept": "how near it comes to the target of train.csv, row by row",
        "order": "their correlation by rank; for classes as `kept`",
        "same_values": "1 if it has the target's values, in whatever order, else 0",
        "known": "of classes, the share of its values that are the target's own; of numbers 1",
    },
    "model.pkl": {
        "fitted": "how its predictions correlate with y_train.pkl on the rows of X_train.pkl",
        "fitted_near": "how near they come to it; for numbers by rank or as they are, what is better; "
        "absent for a model that gives labels alone",
        "agrees": "how its predictions correlate with the yardstick on the rows of X_test.pkl",
        "near": "how near they come to it",
        "known": "of classes, the share of its predictions that are the target's own; of numbers 1",
    },
    "submission.csv": {
        "transmitted": "how near it comes to what model.pkl predicts for X_test.pkl",
        "order": "their correlation by rank; for labels as `transmitted`",
        "reordered": "1 if it has just the model's values, in another order, else 0",
        "near": "how near it comes to the yardstick",
    },
}
"""All in [-1, 1]."""

STAGES = {
    "tables": ("X_train.pkl", "X_test.pkl", "y_train.pkl"),
    "model": ("model.pkl",),
    "submission": ("submission.csv",),
}
"""Each is measured with the files of those before it."""

_yardsticks: dict[str, Any] = {}
_measured: WeakKeyDictionary[Workspace, dict[str, tuple[str, dict[str, dict[str, float]]]]]
_measured = WeakKeyDictionary()
"""By workspace and stage: the digest of the files, and their facts."""


async def measure(
    workspace: Workspace, job: Mapping[str, Any], valid: frozenset[str]
) -> dict[str, dict[str, float]]:
    """The facts of the valid files, as far as those that they were made from are valid, too.

    `job` is what the inspection is told of the task. Raises `SandboxError` only when the sandbox failed.
    """
    known = _measured.setdefault(workspace, {})
    stages: dict[str, str] = {}
    for stage, paths in STAGES.items():
        if not valid.issuperset(paths):
            break
        stages[stage] = known.get(stage, ("", {}))[0]
    if not stages:
        return {}
    yardstick = await _yardstick(workspace, job)
    if not yardstick:
        return {}
    order = {**job, "yardstick": yardstick, "stages": stages}
    report = await workspace.inspect(script("measure", order), time_s=TIME_S)
    found: dict[str, dict[str, float]] = {}
    for stage in stages:
        part = report.get(stage) if isinstance(report, dict) else None
        if not isinstance(part, dict) or not isinstance(part.get("digest"), str):
            known.pop(stage, None)
            continue
        if part["digest"] != stages[stage]:
            known[stage] = part["digest"], _checked(part.get("facts"))
        found.update(known[stage][1])
    return found


async def _yardstick(workspace: Workspace, job: Mapping[str, Any]) -> Any:
    """Of the task: from the first workspace that still has the task's tables."""
    key = json.dumps(job, sort_keys=True)
    if key not in _yardsticks:
        found = await workspace.inspect(script("measure", {**job, "stages": {}}), time_s=2 * TIME_S)
        if not isinstance(found, dict) or "forecast" not in found:
            return None
        if len(_yardsticks) >= MAX_YARDSTICKS:
            _yardsticks.pop(next(iter(_yardsticks)))
        _yardsticks[key] = found
    return _yardsticks[key]


def _checked(facts: Any) -> dict[str, dict[str, float]]:
    """Known facts in their range. They come from a worker that loaded untrusted data."""
    if not isinstance(facts, dict):
        return {}
    return {
        path: {key: float(value) for key, value in part.items() if key in FACTS[path] and _is_fact(value)}
        for path, part in facts.items()
        if path in FACTS and isinstance(part, dict)
    }


def _is_fact(value: Any) -> bool:
    return type(value) in (int, float) and -1 <= value <= 1
