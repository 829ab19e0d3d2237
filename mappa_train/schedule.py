"""The learning rate of each optimizer step."""

from __future__ import annotations

import dataclasses
import math

from mappa_envs.errors import ConfigError
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


def extended(config: Config, steps: int, finished: int) -> Config:
    """The settings of a run that is to have another number of steps, after `finished` of them.

    Raises `ConfigError` where the run could not be the same as one that was begun with that number.
    """
    if steps <= finished:
        raise ConfigError(f"--steps {steps}: the run has {finished} steps already; give more")
    shares = [f"--warmup {config.warmup:g}"] if config.warmup else []
    shares += ["--schedule cosine"] if config.schedule == "cosine" else []
    if shares and steps != config.steps:
        raise ConfigError(
            f"--steps {steps}: with {' and '.join(shares)}, the learning rate follows the share of the run "
            f"that is done: of {steps} steps, it would have been another from the first on. Begin a new run "
            "from these weights with --init"
        )
    return dataclasses.replace(config, steps=steps)
