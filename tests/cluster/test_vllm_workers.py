"""Rollout workers that sample with vLLM, each with an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processes
import pytest
from processes import MARK
from test_main_job import Taste, largest_difference, played, run_it, settings, weights
from test_ranks import start
from tiny import make_model

from mappa_train.checkpoint import RunFolder
from mappa_train.engine.vllm_setup import why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 32 is the smallest head that vLLM's attention has on a CPU.
    changes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    changes |= {"tie_word_embeddings": True, "max_position_embeddings": 8192}
    return make_model(tmp_path_factory.mktemp("model"), **changes)


def have_vllm(mark: str) -> list[bool]:
    """Whether vLLM is loaded in each worker that there is."""
    wanted = f"{MARK}={mark}".encode()
    workers = processes.find(lambda title, env: title.startswith("ray::RolloutWorker") and wanted in env)
    return ["vllm" in _libraries(pid) for pid in workers]


def _libraries(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has just ended
        return ""


def test_two_workers_with_vllm_make_a_run(cluster: Any, model: Path, tmp_path: Path) -> None:
    loaded: list[bool] = []

    def look() -> None:
        # One of them may begin to play before the other is ready.
        loaded.append(processes.wait_until(lambda: have_vllm("session") == [True, True]))

    Taste.deeds = {Taste.num_asked + 2: look}
    asked = Taste.num_asked
    config = settings(
        model, tmp_path / "run", engine="vllm", steps=2, episodes_per_step=4, num_rollout_workers=2
    )
    run = run_it(config)
    assert loaded == [True]
    assert Taste.num_asked - asked == sum(len(episode[-1]) for episode in played(run))
    assert [line["tokens/trained"] > 0 for line in run.read_metrics()] == [True, True]
    assert largest_difference(weights(run, 1), weights(run, 2)) > 1e-3


def test_two_learners_and_a_worker_with_vllm_make_a_run(model: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "both")
    flags = ("--engine", "vllm", "--steps", "2", "--num-rollout-workers", "1")
    with start(model, run.path, *flags) as job:
        loaded: list[bool] = []

        def look() -> bool:
            loaded[:] = have_vllm(run.path.name)
            return loaded == [True] or job.poll() is not None

        processes.wait_until(look, 240)
        complaints = job.communicate(timeout=240)[1]
    assert job.returncode == 0, complaints
    assert loaded == [True]
    assert [line["tokens/trained"] > 0 for line in run.read_metrics()] == [True, True]
    assert largest_difference(weights(run, 1), weights(run, 2)) > 1e-3
