"""A run that is killed at any moment and resumed ends as the one that nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mappa_train.checkpoint import RunFolder
from mappa_train.keeping import put_in_order

NUM_KILLS = int(os.environ.get("MAPPA_TEST_KILLS", "6"))
AGENTS = ("data_engineer_0", "modeler_0", "analyst_0")


def without_times(value: Any) -> Any:
    """JSON without what a clock has measured."""
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if isinstance(value, dict):
        timed = {k for k in value if k.endswith("_s") or k.startswith(("time/", "throughput/"))}
        return {k: without_times(v) for k, v in value.items() if k not in timed}
    return value


def lines(path: Path) -> list[Any]:
    return [without_times(json.loads(line)) for line in path.read_text().splitlines()]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested state by path, to be compared."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, item in enumerate(value) for k, v in flat(item, f"{name}/{key}").items()}
    return {name: value}


def state_of(run: RunFolder) -> dict[str, Any]:
    """Weights, optimizers, random state and running statistics of the newest checkpoint."""
    found = run.load()
    weights = {agent: load_file(folder / "weights.safetensors") for agent, folder in found.agents.items()}
    return flat({"weights": weights, "state": found.state})


def assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    other = [
        name
        for name, value in a.items()
        if not (torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name])
    ]
    assert other == []


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    script = Path(__file__).parent / "killing.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(NUM_KILLS), "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads((tmp_path / "report.json").read_text())
    kills = report["kills"]
    assert len(kills) == NUM_KILLS
    assert len({kill["kind"] for kill in kills}) >= 3
    for before, after in pairwise(kills):
        if before["run"] == after["run"]:
            assert after["checkpoint"] >= before["checkpoint"]  # nothing that was finished is lost
    assert all(kill["lines"] - kill["checkpoint"] in (0, 1) for kill in kills)

    whole = RunFolder(tmp_path / "whole")
    assert [line["step"] for line in whole.read_metrics()] == [1, 2, 3, 4, 5, 6]
    for number in range(report["runs"]):
        run = RunFolder(tmp_path / f"killed-{number}")
        put_in_order(run, keep=2)  # as `resume` does, had it died behind its last checkpoint
        for name in ("metrics.jsonl", "episodes.jsonl", "credit.jsonl"):
            assert lines(run.path / name) == lines(whole.path / name), (name, kills)
        assert_equal(state_of(run), state_of(whole))
        assert run.steps() == whole.steps()
        assert (run.checkpoints_path / "best").resolve().name == (
            whole.checkpoints_path / "best"
        ).resolve().name
        for folder in (".", "checkpoints"):
            names, wanted = (
                {item.name for item in (its.path / folder).iterdir()} - {".lock", "run.log"}
                for its in (run, whole)
            )
            assert names == wanted  # nothing half done is left
