"""The benchmarks compute what they say, on runs made up here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning import main_job


def _write_run(path: Path, lr: float, last: float) -> Path:
    path.mkdir()
    (path / "config.toml").write_text(f"seed = 3\nlr = {lr}\n")
    episodes, lines = [], []
    for step, score in ((1, 2.0), (2, last)):
        for index in range(4):
            turns = [
                {"agent": agent, "final_score": score + shift}
                for agent, shift in (("a_0", 0.0), ("b_0", 1.0), ("b_0", 1.0))
            ]
            episodes.append({"step": step, "index": index, "episode": {"turns": turns}})
        figures = {"score/mean": score, "score/a_0": score, "score/b_0": score + 1, "outcome/success": 0.5}
        lines.append({"step": step, "time_s": 30.0, **figures})
    (path / "episodes.jsonl").write_text("".join(json.dumps(item) + "\n" for item in episodes))
    (path / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def test_the_gain_is_the_mean_over_agents_of_last_minus_first(tmp_path: Path) -> None:
    row = main_job.summarize(_write_run(tmp_path / "run", 1e-3, last=5.0))
    # Agents count alike, however many actions each took: (2 + 3) / 2 → (5 + 6) / 2.
    assert row["mean"] == pytest.approx([2.5, 5.5])
    assert row["gain"] == pytest.approx(3.0)
    assert row["gain_low"] == pytest.approx(3.0)
    assert row["minutes"] == pytest.approx(1.0)


def test_a_control_without_learning_is_not_in_the_gain(tmp_path: Path) -> None:
    runs = [_write_run(tmp_path / "a", 1e-3, 4.0), _write_run(tmp_path / "b", 0.0, 2.0)]
    main_job.main(["--collect", *map(str, runs), "--json", str(tmp_path / "out.json")])
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["dsbench_seeds"] == 1
    assert figures["dsbench_score_gain"] == pytest.approx(2.0)
    assert [run["lr"] for run in figures["runs"]] == [1e-3, 0.0]
