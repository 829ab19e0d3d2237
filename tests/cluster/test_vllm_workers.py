"""Rollout workers that sample with vLLM, each with an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processes
import pytest
from processes import MARK
from test_main_job import Taste, largest_difference, played, run_it, settings, weights
from tiny import make_model

from mappa_train.engine.vllm_setup import why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]


def test_two_workers_with_vllm_make_a_run(cluster: Any, tmp_path: Path) -> None:
    # 32 is the smallest head that vLLM's attention has on a CPU.
    changes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = make_model(tmp_path / "model", tie_word_embeddings=True, max_position_embeddings=8192, **changes)
    mark = f"{MARK}=session".encode()
    loaded: list[bool] = []

    def look() -> None:
        workers = processes.find(lambda title, env: title.startswith("ray::RolloutWorker") and mark in env)
        loaded.extend("vllm" in Path(f"/proc/{pid}/maps").read_text() for pid in workers)

    Taste.deeds = {Taste.num_asked + 2: look}
    asked = Taste.num_asked
    config = settings(
        model, tmp_path / "run", engine="vllm", steps=2, episodes_per_step=4, num_rollout_workers=2
    )
    run = run_it(config)
    assert loaded == [True, True]
    assert Taste.num_asked - asked == sum(len(episode[-1]) for episode in played(run))
    assert [line["tokens/trained"] > 0 for line in run.read_metrics()] == [True, True]
    assert largest_difference(weights(run, 1), weights(run, 2)) > 1e-3
