"""Whole runs with the options that the presets and the other algorithms bring, on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_train_loop import (
    Interrupts,
    assert_same,
    final_weights,
    folder,
    sandboxes,
    settings,
    without_seconds,
)

from mappa_train import trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.progress import SilentProgress

__all__ = ["folder", "sandboxes"]  # fixtures

SCHEDULED: dict[str, Any] = {
    "schedule": "cosine",
    "warmup": 0.3,
    "min_lr": 1e-4,
    "actions_per_update": 3,
    "minibatches": 1,
    "loss_mean": "sequence",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"returns": "to_go", "truncated": "mask"}, {"algorithm": "rloo", "kl": "loss"}]
)
def test_a_scheduled_run_resumes_bit_for_bit(
    folder: Path, tmp_path: Path, sandboxes: list[Any], changes: dict[str, Any]
) -> None:
    config = settings(folder, tmp_path / "whole", **SCHEDULED, **changes)
    whole = RunFolder.create(config)
    trainer.train(config, whole, SilentProgress())
    config = settings(folder, tmp_path / "cut", **SCHEDULED, **changes)
    cut = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(config, cut, Interrupts(1))
    torch.rand(17)
    trainer.train(cut.config(), cut, SilentProgress(), resume=True)
    assert_same(final_weights(cut, 2), final_weights(whole, 2))
    for a, b in zip(cut.read_metrics(), whole.read_metrics(), strict=True):
        assert without_seconds(a) == without_seconds(b)
    rates = [line[key] for line in whole.read_metrics() for key in line if key.startswith("lr/")]
    assert 1e-4 < min(rates) < max(rates) <= config.lr
