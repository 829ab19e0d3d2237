"""A small task, and an environment on fakes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from team_fakes import MakeEnv, inspect_list, run_list

from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.testing import FakeCoach, FakeSandbox


@pytest.fixture
def task(tmp_path: Path) -> DSBenchTask:
    tables = {
        "train.csv": [("id", "a", "y"), (1, 1, 1), (2, 2, 2), (3, 3, 3)],
        "test.csv": [("id", "a"), (10, 1), (11, 2), (12, 3)],
        "answers.csv": [("id", "y"), (10, 1), (11, 2), (12, 3)],
    }
    for name, rows in tables.items():
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    return DSBenchTask(
        task_id="tiny",
        task_type="regression",
        split="train",
        prompt="Predict y.",
        files={name: tmp_path / name for name in ("train.csv", "test.csv")},
        spec=TaskSpec("rmse", "id", ("y",)),
        answers=tmp_path / "answers.csv",
        dummy=1.0,
        reference=0.0,
    )


@pytest.fixture
def make_env(task: DSBenchTask) -> MakeEnv:
    def make(**options: Any) -> DSBenchEnv:
        sandbox = FakeSandbox(script=run_list, inspector=inspect_list)
        return DSBenchEnv(**{"tasks": [task], "coach": FakeCoach(5.0), "sandbox": sandbox, **options})

    return make
