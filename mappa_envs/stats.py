"""Means and intervals of what episodes showed. Undefined is None, never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
LEVEL, Z = 0.95, 1.959964
"""Of an interval, and where the normal distribution has its bounds."""
DRAWS = 2000
"""Of a bootstrap; always the same ones."""
MIN_TASKS = 5
"""What is shown to people has no interval of a bootstrap over fewer tasks: it is too narrow, and lopsided."""


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is defined; None of nothing."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The Wilson score 95 % interval of a rate; (0, 1) of nothing."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    center = rate + Z * Z / (2 * trials)
    spread = Z * math.sqrt(rate * (1 - rate) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    low = 0.0 if successes == 0 else (center - spread) / scale
    high = 1.0 if successes == trials else (center + spread) / scale
    return low, high


def bootstrap_interval(
    groups: Sequence[Sequence[float]], *, level: float = LEVEL
) -> tuple[float, float] | None:
    """The percentile interval of the mean over all values, by drawing whole groups (tasks) again.

    Episodes of one task are no independent evidence about other tasks. One group alone is resampled
    value by value. None of fewer than two values: one says nothing about how far others would be.
    """
    import numpy as np

    filled = _to_draw(groups)
    if len(filled) < 2:
        return None
    sums = np.array([math.fsum(group) for group in filled])
    counts = np.array([len(group) for group in filled])
    picks = np.random.default_rng(0).integers(len(filled), size=(DRAWS, len(filled)))
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _to_draw(groups: Sequence[Sequence[T]]) -> list[list[T]]:
    """The groups that hold anything; of one alone, its values one by one."""
    filled = [list(group) for group in groups if len(group)]
    return [[value] for value in filled[0]] if len(filled) == 1 else filled


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's ρ of `num` pairs with its 95 % interval, None where there is too little to draw again."""

    value: float
    low: float | None
    high: float | None
    num: int


def rank_correlation(groups: Sequence[Sequence[tuple[float, float]]]) -> Correlation | None:
    """Spearman's ρ over the pairs of all groups (tasks), its interval by drawing whole groups again.

    Ties get mid-ranks. The draws weight the ranks of the whole sample instead of ranking each draw anew: for
    one pass over the data, a matrix product does all draws. One group alone is resampled pair by pair. None
    of fewer than three pairs, or where one side never varies.
    """
    import numpy as np
    from scipy.stats import rankdata

    filled = _to_draw(groups)
    pairs = np.array([pair for group in filled for pair in group], dtype=np.float64).reshape(-1, 2)
    if len(pairs) < 3 or (pairs == pairs[0]).all(axis=0).any():
        return None
    x, y = (rankdata(column) - (len(pairs) + 1) / 2 for column in pairs.T)
    starts = np.cumsum([0, *(len(group) for group in filled[:-1])])
    sums = np.add.reduceat(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y]), starts, axis=1)
    share = np.full(len(filled), 1 / len(filled))
    drawn = np.random.default_rng(0).multinomial(len(filled), share, size=DRAWS) @ sums.T
    count, a, b, aa, bb, ab = np.vstack([sums.sum(axis=1), drawn]).T
    spread = np.maximum(aa - a * a / count, 0.0) * np.maximum(bb - b * b / count, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(spread > 1e-9, (ab - a * b / count) / np.sqrt(spread), np.nan)
    defined = np.clip(found[1:][np.isfinite(found[1:])], -1.0, 1.0)
    low = high = None
    if 2 * len(defined) > DRAWS:
        tail = (1 - LEVEL) / 2
        low, high = (float(edge) for edge in np.quantile(defined, [tail, 1 - tail]))
    return Correlation(value=float(np.clip(found[0], -1.0, 1.0)), low=low, high=high, num=len(pairs))
