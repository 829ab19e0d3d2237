"""Means and intervals of what episodes showed. Undefined is None, never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is defined; None of nothing."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a rate, 95 % unless `z` says otherwise; (0, 1) of nothing."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    center = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if successes == 0 else (center - spread) / scale
    high = 1.0 if successes == trials else (center + spread) / scale
    return low, high


def bootstrap_interval(
    groups: Sequence[Sequence[float]], *, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """The percentile interval of the mean over all values, by drawing whole groups (tasks) again.

    Episodes of one task are no independent evidence about other tasks. One group alone is resampled
    value by value. None of fewer than two values: one says nothing about how far others would be.
    """
    import numpy as np

    filled = [list(group) for group in groups if len(group)]
    if len(filled) == 1:
        filled = [[value] for value in filled[0]]
    if len(filled) < 2:
        return None
    sums = np.array([math.fsum(group) for group in filled])
    counts = np.array([len(group) for group in filled])
    picks = np.random.default_rng(seed).integers(len(filled), size=(draws, len(filled)))
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
