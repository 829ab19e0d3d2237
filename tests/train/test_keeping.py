"""Which checkpoints stay, and which is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint import save

from mappa_envs.errors import ConfigError
from mappa_train.checkpoint import RunFolder
from mappa_train.keeping import best_step, pick_step, put_in_order, tidy
from mappa_train.settings import resolve


def measured(path: Path, outcomes: list[float | None]) -> RunFolder:
    """A run with a checkpoint of each step."""
    run = RunFolder.create(resolve({"out": str(path)}))
    for step, outcome in enumerate(outcomes, 1):
        run.append_metrics({"step": step, "eval/outcome": outcome})
        save(run, step)
    return run


def test_the_best_is_the_first_of_the_highest_that_are_left() -> None:
    lines: list[dict[str, Any]] = [
        {"step": k, "eval/outcome": x} for k, x in enumerate((0.2, None, 0.5, 0.5))
    ]
    assert best_step(lines, [0, 1, 2, 3]) == 2
    assert best_step(lines, [0, 1, 3]) == 3
    assert best_step(lines, [1]) is None
    assert best_step([{"step": 1}], [1]) is None


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", [0.1, 0.9, None, 0.3, 0.2])
    tidy(run, keep=0)
    assert run.steps() == [1, 2, 3, 4, 5]
    tidy(run, keep=2)
    assert run.steps() == [2, 4, 5]
    best = run.checkpoints_path / "best"
    assert best.resolve() == run.checkpoint_path(2).resolve()
    run.append_metrics({"step": 6, "eval/outcome": 0.95})
    save(run, 6)
    tidy(run, keep=1)
    assert run.steps() == [6]
    assert best.resolve() == run.checkpoint_path(6).resolve()


def test_what_a_kill_behind_the_last_checkpoint_left_is_put_in_order(tmp_path: Path) -> None:
    """A link to an earlier best would be where `--init …/best` begins."""
    run = measured(tmp_path / "run", [0.1, 0.9])
    (run.checkpoints_path / "best").symlink_to("step-000001")
    (run.path / ".report.html.77.tmp").touch()
    put_in_order(run, keep=1)
    assert run.steps() == [2]
    assert (run.checkpoints_path / "best").resolve() == run.checkpoint_path(2).resolve()
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
    assert "<html" in run.report_path.read_text()
    assert list(run.path.glob(".*.tmp")) == []


def test_without_measurements_nothing_is_best(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", [None, None, None])
    tidy(run, keep=1)
    assert run.steps() == [3]
    assert not (run.checkpoints_path / "best").is_symlink()
    with pytest.raises(ConfigError, match="--step best: no checkpoint was measured"):
        pick_step(run, "best")


def test_a_step_is_picked_by_number_or_as_the_best(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", [0.1, 0.9, 0.3])
    assert (pick_step(run, None), pick_step(run, "3"), pick_step(run, "best")) == (None, 3, 2)
    with pytest.raises(ConfigError, match=r"--step 7: no such checkpoint; there are those of step 1, 2, 3$"):
        pick_step(run, "7")
    with pytest.raises(
        ConfigError, match=r"--step bestt: must be .*did you mean best\?\); there are those of step 1, 2, 3$"
    ):
        pick_step(run, "bestt")
    empty = measured(tmp_path / "empty", [])
    with pytest.raises(ConfigError, match="there is none yet"):
        pick_step(empty, "1")


def test_a_checkpoint_that_is_deleted_by_half_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured(tmp_path / "run", [0.1, 0.2])
    monkeypatch.setattr("shutil.rmtree", lambda path: None)  # killed here
    run.remove_checkpoint(1)
    assert run.checkpoint_path(1).is_dir()
    assert run.steps() == [2]
