"""Measuring a checkpoint, with a tiny model and a sandbox that runs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model

from mappa_envs.testing import FakeSandbox
from mappa_train import team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.evaluate import evaluate
from mappa_train.progress import SilentProgress
from mappa_train.settings import resolve


def no_coach(name: str) -> Any:
    raise AssertionError(f"an evaluation made the coach {name}")


def test_a_checkpoint_is_measured_without_a_coach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = FakeSandbox()
    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: sandbox)
    config = resolve(
        {
            "model": str(make_model(tmp_path / "model")),
            "out": str(tmp_path / "run"),
            "steps": 1,
            "episodes_per_step": 2,
            "max_new_tokens": 8,
            "max_actions": 1,
            "lora_rank": 2,
        }
    )
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    monkeypatch.setattr("mappa_envs.pipeline.make_coach", no_coach)
    folder = run.load().folder
    # As if vLLM had had a GPU in training that is not here.
    first, again = (
        evaluate(its, folder, split="test", episodes=18, progress=SilentProgress())
        for its in (config, replace(config, engine_gpus=1))
    )
    assert len(first.episodes) == 18
    assert {episode.split for episode in first.episodes} == {"test"}
    assert all(episode.start_role is None and len(episode.turns) == 3 for episode in first.episodes)
    assert all(turn.final_score is None for episode in first.episodes for turn in episode.turns)
    counts = [row.num_episodes for row in first.table.tasks]
    assert max(counts) - min(counts) <= 1
    assert (first.table.overall.success_rate, first.table.overall.figures["fair_accuracy"]) == (0.0, 0.5)
    assert first.table == again.table
    assert sandbox.closed
