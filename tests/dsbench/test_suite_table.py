"""The committed scores of the embedded tasks, and the page that shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median

import pytest

from mappa_envs.dsbench import baselines, metrics, suite
from mappa_envs.dsbench.submission import CODES
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import SandboxUnavailable

PAGE = Path(__file__).parents[2] / "docs" / "dsbench.md"


def test_the_table_of_the_page_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--table"]) == 0
    table = capsys.readouterr().out.strip()
    assert table.count("\n") == 39
    assert table in PAGE.read_text(encoding="utf-8"), "run python -m mappa_envs.dsbench.suite --table"


def test_the_committed_expert_is_good() -> None:
    tasks = load_tasks("embedded")
    relative = [task.relative(suite.read_baselines()[task.task_id]["expert"]) or 0.0 for task in tasks]
    assert len(relative) == 38
    assert median(relative) >= 0.95
    assert min(relative) > 0.2


@pytest.mark.slow
def test_the_expert_still_reaches_its_committed_scores() -> None:
    tasks = load_tasks("embedded")
    try:
        measured = asyncio.run(baselines.expert_scores(tasks))
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    relative = {task.task_id: task.relative(measured[task.task_id]) or 0.0 for task in tasks}
    assert median(relative.values()) >= 0.95
    for task in tasks:
        committed = task.relative(suite.read_baselines()[task.task_id]["expert"])
        # Versions of scikit-learn grow slightly different forests.
        assert relative[task.task_id] == pytest.approx(committed, abs=0.1), task.task_id


def test_the_page_names_every_metric_and_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in (*metrics.METRICS, *CODES):
        assert f"`{name}`" in page, name
