"""Several learners that have rollout workers: the same run, and one end for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from processes import MARK
from test_main_job import STEPS, largest_difference, played, weights

from mappa_train.checkpoint import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow]
RUN = (
    "--env dsbench-v0 --episodes-per-step 4 --max-tasks 2 --exploring-starts 0 --lora-rank 4 --lr 1e-2 "
    "--coach taste --algorithm taste:Taste --max-new-tokens 16 --token-budget 256 --concurrent-episodes 1 "
    "--learners-per-agent 2 --shard fsdp"
)
MEASURED = ("--steps", str(STEPS), "--eval-every", "2", "--eval-episodes", "3")
SHARED = Path(__file__).parents[1] / "train"
"""Where the coach `taste` is."""


def start(model: Path, out: Path, *flags: str, taste: str = "") -> subprocess.Popen[str]:
    """Two learners that share an agent's weights, in processes of their own."""
    return command(out, *RUN.split(), "--model", str(model), "--out", str(out), *flags, taste=taste)


def command(out: Path, *arguments: str, taste: str = "") -> subprocess.Popen[str]:
    """A command line about the run in `out`, whose processes can be found by its name."""
    known = {"PYTHONPATH": str(SHARED), "TASTE": taste, "OMP_NUM_THREADS": "1", MARK: out.name}
    return subprocess.Popen(
        [sys.executable, "-m", "mappa_train", *arguments],
        env=os.environ | known,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> str:
    """All that a job says, which ends well."""
    told, complaints = job.communicate(timeout=280)
    assert job.returncode == 0, complaints
    assert told.count(f"step {STEPS}/{STEPS}  score") == 1
    return told + complaints


@pytest.fixture(scope="module")
def own(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two learners without workers."""
    out = tmp_path_factory.mktemp("ranks") / "own"
    finish(start(model, out, *MEASURED))
    return RunFolder(out)


def test_learners_with_workers_make_the_run_of_learners_without(
    own: RunFolder, model: Path, tmp_path: Path
) -> None:
    said = finish(start(model, tmp_path / "workers", *MEASURED, "--num-rollout-workers", "2"))
    run = RunFolder(tmp_path / "workers")
    assert played(run) == played(own)
    assert largest_difference(weights(own, 1), weights(own, 2)) > 1e-3
    assert largest_difference(weights(run), weights(own)) == 0
    for line, expected in zip(run.read_metrics(), own.read_metrics(), strict=True):
        timed = {key for key in line if key.startswith(("time", "throughput"))}
        assert {key: line[key] for key in line if key not in timed} == {
            key: expected[key] for key in expected if key not in timed
        }
    assert run.read_metrics()[1]["eval/num_episodes"] == 3
    told_of = run.log_path.read_text()
    assert told_of.count("rollout worker 1 on") >= 1
    assert "rank 1 INFO mappa_train.cluster" not in told_of
    # Ray says that it checks tokens: in the log, not on the screen.
    assert "Token authentication is enabled" in told_of
    assert "oken authentication" not in said


def test_learners_with_workers_that_were_all_killed_go_on_as_if_nothing_had_been(
    own: RunFolder, model: Path, tmp_path: Path
) -> None:
    """With fewer workers afterwards, as on a machine that has room for fewer."""
    out = tmp_path / "killed"
    mark = f"{MARK}={out.name}".encode()
    run = RunFolder(out)
    with start(model, out, *MEASURED, "--num-rollout-workers", "2") as job:
        assert processes.wait_until(lambda: bool(run.steps()) or job.poll() is not None, 240)
        # Again, for what was begun meanwhile.
        while found := processes.find(lambda title, env: mark in env):
            processes.kill(found)
        job.communicate(timeout=180)
    assert job.returncode == -signal.SIGKILL
    assert run.steps()[-1] < STEPS
    finish(command(out, "resume", str(out), "--num-rollout-workers", "1"))
    assert played(run) == played(own)
    assert largest_difference(weights(run), weights(own)) == 0
    told_of = run.log_path.read_text()
    assert told_of.count("2 x (1 CPUs,") == told_of.count("1 x (1 CPUs,") == 1


def test_an_error_in_a_worker_ends_all_ranks_with_one_message(model: Path, tmp_path: Path) -> None:
    job = start(model, tmp_path / "run", "--steps", "1", "--num-rollout-workers", "1", taste="none:crash")
    complaints = job.communicate(timeout=280)[1]
    assert job.returncode == 1, complaints
    words = "error: RuntimeError: this rank was told to crash (traceback in "
    assert [line[: len(words)] for line in complaints.splitlines() if line.startswith("error")] == [words]
    assert "raised by rollout worker 0 on" in (tmp_path / "run" / "run.log").read_text()


def test_ctrl_c_ends_ranks_and_their_ray_and_leaves_a_checkpoint(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    mark = f"{MARK}={out.name}".encode()
    with start(model, out, "--steps", "50", "--num-rollout-workers", "1") as job:
        run = RunFolder(out)
        assert processes.wait_until(lambda: bool(run.steps()) or job.poll() is not None, 240)
        job.send_signal(signal.SIGINT)
        told, complaints = job.communicate(timeout=180)
    assert job.returncode == 130, complaints
    assert "rollout worker 0 on" in told
    assert "1 x (1 CPUs," in told
    assert complaints.count("Continue with: python -m mappa_train resume") == 1
    assert run.load().step >= 1
    assert json.loads(run.metrics_path.read_text().splitlines()[0])["step"] == 1
    assert processes.wait_until(lambda: not processes.find(lambda title, env: mark in env))
