"""The learning rate of each optimizer step."""

from __future__ import annotations

import math

from mappa_train.config import Config


def learning_rate(config: Config, start: float, end: float) -> float:
    """The rate of an optimizer step that spans the share `start` to `end` of a run, both in [0, 1].

    Warm-up: linear to `lr` over the first `warmup` of the run; no step has rate 0. After it, "cosine": from
    `lr` to `min_lr` at the end. How many optimizer steps a training step takes depends on how many actions it
    collected, and is known only then: the k-th of m in training step s (from 0) of S spans (s + k/m) / S to
    (s + (k+1)/m) / S. So every real optimizer step moves the schedule, and it ends where the run ends.
    """
    rate = config.lr
    if config.schedule == "cosine":
        progress = min(1.0, max(0.0, start - config.warmup) / (1 - config.warmup))
        rate = config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2
    return rate * min(1.0, end / config.warmup) if config.warmup else rate
