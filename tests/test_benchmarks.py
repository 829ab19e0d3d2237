"""The benchmarks compute what they say, on runs made up here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.learner.workload import Measured as UpdateMeasured
from benchmarks.learning import __main__ as learning
from benchmarks.learning import dense_sparse, main_job
from benchmarks.sandbox import parts, processes
from benchmarks.sandbox.__main__ import RAW_NAMES
from benchmarks.sandbox.figures import Measured, flatten, make_table
from benchmarks.sandbox.variants import HEAVY, Step, Unmeasurable, make_csv
from benchmarks.scale import __main__ as scale
from benchmarks.scale.simulated import Pacing, SimulatedCoach, SimulatedWorker
from mappa_train.rollout import EpisodePlan


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


def _write_outcomes(path: Path, algorithm: str, outcomes: dict[int, list[float]], task: str = "b") -> Path:
    path.mkdir()
    (path / "config.toml").write_text(f'seed = 3\nalgorithm = "{algorithm}"\n')
    episodes = [
        {
            "step": step,
            "index": index,
            "episode": {"task_id": "a" if index < 2 else task, "start_role": None, "outcome": outcome},
        }
        for step, values in outcomes.items()
        for index, outcome in enumerate(values)
    ]
    lines = [{"step": step, "outcome/success": 0.5, "score/mean": 4.0} for step in outcomes]
    (path / "episodes.jsonl").write_text("".join(json.dumps(item) + "\n" for item in episodes))
    (path / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return path


def test_dense_minus_sparse_is_of_counterparts_after_the_first_update(tmp_path: Path) -> None:
    # Step 1 is before any learning. After it: 0.5 and 0.3 on one task, 0.1 on the other.
    dense = _write_outcomes(tmp_path / "dense", "reinforce_pp", {1: [1.0, 1.0, 1.0], 2: [0.9, 0.7, 0.4]})
    sparse = _write_outcomes(tmp_path / "sparse", "outcome", {1: [0.0, 0.0, 0.0], 2: [0.4, 0.4, 0.3]})
    out = tmp_path / "dense_sparse.json"
    dense_sparse.main(["--collect", str(sparse), str(dense), "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["dense_minus_sparse"] == pytest.approx(0.3)
    # Tasks are resampled: none is better than the worse of the two alone.
    assert figures["dense_minus_sparse_low"] == pytest.approx(0.1)
    assert figures["dense_minus_sparse_high"] == pytest.approx(0.4)
    assert [(run["reward"], run["outcome"][0]) for run in figures["runs"]] == [
        ("sparse", 0.0),
        ("dense", 1.0),
    ]
    odd = _write_outcomes(tmp_path / "odd", "outcome", {1: [0.0, 0.0, 0.0], 2: [0.4, 0.4, 0.3]}, task="c")
    with pytest.raises(ValueError, match="different episodes"):
        dense_sparse.differences(dense, odd)


def test_the_learning_figures_are_flat_and_null_where_nothing_was_measured(tmp_path: Path) -> None:
    known = {"dsbench_seeds": 2, "dsbench_score_gain": 4.0, "dsbench_score_gain_low": 1.0, "runs": []}
    (tmp_path / "main_job.json").write_text(json.dumps(known))
    assert learning.collect(tmp_path) == {
        "dsbench_seeds": 2,
        "dsbench_score_gain": 4.0,
        "dsbench_score_gain_low": 1.0,
        "dense_minus_sparse": None,
        "dense_minus_sparse_low": None,
    }
    committed = json.loads((learning.FOLDER / "results.json").read_text())
    assert committed == learning.collect(learning.FOLDER)


@pytest.mark.parametrize("name", ["learner", "scale"])
def test_what_cannot_be_measured_is_null(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = import_module(f"benchmarks.{name}.__main__")
    monkeypatch.setattr(benchmark, "find_spec", lambda package: None)
    if name == "learner":
        one = UpdateMeasured(update_s=1.0, cpu_s=1.0, trained_tokens=10, peak_mb=100.0)
        monkeypatch.setattr(benchmark, "measure", lambda variant: one)
    benchmark.main(["--json", str(tmp_path / "out.json")])
    figures = json.loads((tmp_path / "out.json").read_text())
    agreed = {
        "learner": {"tokens_per_s_vs_trl", "memory_vs_trl"},
        "scale": {"efficiency_64", "driver_mb_per_1000_episodes"},
    }
    assert agreed[name] <= figures.keys()
    assert set(figures.values()) == {None}


PACING = Pacing(tokens=[100, 100], sandbox_s=[0, 0], coach_s=[5, 5], tokens_per_s=50.0, speed=1.0)
"""Three actions of 2 s and verdicts of 5 s: an episode leaves its place after 6 s and ends after 11 s."""


def plans_of(count: int) -> list[EpisodePlan]:
    return [EpisodePlan(index=k, task_id=f"t{k}", start_role=None) for k in range(count)]


def test_the_ideal_step_is_that_of_workers_that_play_one_chunk_at_a_time() -> None:
    assert PACING.chunk_s(plans_of(2), 2) == pytest.approx(11)
    assert PACING.chunk_s(plans_of(3), 2) == pytest.approx(6 + 11)
    # Two workers, two chunks of 24 each, 16 of them at once.
    assert scale.ideal_s(2, plans_of(96), PACING) == pytest.approx(2 * (6 + 11))
    assert scale.ideal_s(64, plans_of(64), PACING) == pytest.approx(11)


def test_a_simulated_worker_plays_no_more_at_once_than_a_real_one() -> None:
    class Watched(SimulatedWorker):
        running, most = 0, 0

        async def _play(self, plan: EpisodePlan) -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            played = await super()._play(plan)
            self.running -= 1
            return played

    async def play() -> tuple[list[int], int]:
        pacing = replace(PACING, speed=1000.0)
        worker = Watched(pacing, SimulatedCoach(pacing, concurrency=10, rpm=0), 2)
        rollouts = await worker.play(plans_of(7), step=1)
        assert all(len(item.actions) == len(item.episode.turns) == 3 for item in rollouts)
        assert all(turn.final_score for item in rollouts for turn in item.episode.turns)
        return [item.index for item in rollouts], worker.most

    assert asyncio.run(play()) == (list(range(7)), 2)


def test_the_sandbox_figures_are_the_other_time_divided_by_ours() -> None:
    measured = Measured(
        values={
            "heavy_cold_ms": 1000.0,
            "heavy_docker_run_ms": 1500.0,
            "heavy_namespace_ms": 50.0,
            "heavy_docker_ms": 60.0,
            "heavy8_cold_per_s": 0.5,
            "heavy8_namespace_per_s": 20.0,
            "idle_mb": 0.01,
        }
    )
    figures = flatten(measured, RAW_NAMES)
    assert figures["heavy_vs_cold"] == pytest.approx(20)
    assert figures["heavy_vs_docker_run"] == pytest.approx(30)
    assert figures["docker_heavy_vs_run"] == pytest.approx(25)
    assert figures["heavy8_vs_cold"] == pytest.approx(40)
    assert figures["idle_mb"] == pytest.approx(0.01)
    assert figures["heavy_vs_docker_exec"] is None
    assert figures["failures"] is None


def test_the_sandbox_figures_are_flat_and_have_the_agreed_names() -> None:
    figures = json.loads(json.dumps(flatten(Measured(), RAW_NAMES)))
    assert list(figures)[:17] == [
        "heavy_vs_cold",
        "heavy_vs_docker_run",
        "heavy_vs_docker_exec",
        "trivial_vs_cold",
        "trivial_vs_docker_run",
        "trivial_vs_docker_exec",
        "docker_trivial_vs_run",
        "docker_trivial_vs_exec",
        "docker_heavy_vs_run",
        "heavy8_vs_cold",
        "heavy32_vs_cold",
        "idle_mb",
        "total32_mb",
        "create_close_ms",
        "timeout_overshoot_s",
        "failures",
        "survivors",
    ]
    assert {"trivial_namespace_ms", "heavy_cold_ms", "heavy32_cold_per_s"} <= figures.keys()
    assert all(value is None for value in figures.values())


def test_the_sandbox_table_says_what_is_missed_and_why_something_is_missing() -> None:
    measured = Measured(
        values={"trivial_cold_ms": 10.0, "trivial_namespace_ms": 5.0, "create_close_ms": 0.5},
        reasons={"trivial_docker_run_ms": "no daemon"},
    )
    console = Console(width=120)
    with console.capture() as capture:
        console.print(make_table(measured, RAW_NAMES))
    rows = {line.split()[1]: line for line in capture.get().splitlines() if line.startswith("│")}
    assert "missed" in rows["trivial_vs_cold"]
    assert "missed" not in rows["create_close_ms"]
    assert "no trivial_docker_run_ms" in rows["trivial_vs_docker_run"]
    assert "no daemon" in rows["trivial_docker_run_ms"]
    assert "heavy_vs_cold" not in rows  # nobody asked for it


def test_latency_leaves_out_what_is_not_there_and_counts_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def missing(num: int) -> AsyncIterator[list[Step]]:
        raise Unmeasurable("not installed")
        yield []

    @asynccontextmanager
    async def flaky(num: int) -> AsyncIterator[list[Step]]:
        heavy_runs = 0

        async def step(code: str) -> str | None:
            nonlocal heavy_runs
            heavy_runs += code == HEAVY
            return "killed" if code == HEAVY and heavy_runs > 1 else None

        yield [step] * num

    monkeypatch.setattr(parts, "IDLE_S", 0.0)
    monkeypatch.setattr(parts, "VARIANTS", {"cold": missing, "namespace": flaky})
    measured = Measured()
    asyncio.run(parts.measure_latency(measured, parts.SIZES["quick"]))
    assert measured.reasons["heavy_cold_ms"] == "not installed"
    assert measured.values["failures"] == parts.SIZES["quick"].num_rounds
    assert measured.reasons["heavy_namespace_ms"] == "every step failed"
    assert measured.values["trivial_namespace_ms"] >= 0


def test_the_closed_loop_keeps_every_workspace_busy_until_all_is_done() -> None:
    running, most = 0, 0

    async def step(code: str) -> str | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return None

    duration_s, problems = asyncio.run(parts.run_closed_loop([step] * 4, 10))
    assert problems == [None] * 10
    assert most == 4
    assert duration_s > 0


def test_processes_are_found_weighed_and_missed_when_they_are_gone() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        # This process has other children too: helpers that earlier tests left waiting.
        below = {one for one in processes.descendants(os.getpid()) if one[0] == child.pid}
        assert len(below) == 1
        below |= processes.descendants(child.pid)
        assert len(below) == 2
        assert processes.pss_mb(below) > 1
        assert processes.survivors(below, 0.0) == below
        child.communicate(b"\n")
    assert processes.survivors(below, 0.0) == set()


def test_the_table_of_the_heavy_step_is_the_same_every_time() -> None:
    lines = make_csv().decode().splitlines()
    assert make_csv() == make_csv()
    assert len(lines) == 1001
    assert all(len(line.split(",")) == 10 for line in lines)
    assert {line.rpartition(",")[2] for line in lines[1:]} == {"0", "1"}


def test_the_episodes_of_the_envs_benchmark_are_whole_ones(tmp_path: Path) -> None:
    from benchmarks.envs.__main__ import classic, ours

    play = ours(tmp_path)
    assert [play(number) for number in range(4)] == [6, 3, 6, 3]
    assert all(5 <= classic()(number) <= 9 for number in range(5))
    if find_spec("pygame") is None:
        assert "pygame" not in sys.modules


def test_the_envs_benchmark_writes_the_agreed_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.envs import __main__ as envs

    rates = iter([0.0, 0.0, 10.0, 100.0, 20.0, 100.0, 30.0, 600.0])
    monkeypatch.setattr(envs, "rate", lambda play, numbers, duration_s: next(rates))
    monkeypatch.setitem(envs.SIZES, "quick", (3, 0.0))
    envs.main(["--json", str(tmp_path / "out.json")])
    # Ours and the game in turns; the first pair is to warm up. Medians of 10 20 30 and of 0.1 0.2 0.05.
    assert json.loads((tmp_path / "out.json").read_text()) == {"steps_per_s": 20.0, "vs_pettingzoo": 0.1}
    assert "vs_pettingzoo" in capsys.readouterr().out
