from __future__ import annotations

import math
import random

import pytest
from scipy.stats import spearmanr

from mappa_envs.stats import bootstrap_interval, mean, rank_correlation, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [(0, 10, (0.0, 0.2775)), (5, 10, (0.2366, 0.7634)), (10, 10, (0.7225, 1.0)), (0, 0, (0.0, 1.0))],
)
def test_wilson_against_known_values(successes: int, trials: int, interval: tuple[float, float]) -> None:
    assert wilson(successes, trials) == pytest.approx(interval, abs=1e-4)


def test_wilson_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


def test_bootstrap_resamples_tasks() -> None:
    groups = [[0.0] * 8, [1.0] * 8, [0.0] * 8, [1.0] * 8]
    low, high = bootstrap_interval(groups) or (math.nan, math.nan)
    assert low == 0.0  # four tasks say much less than 32 independent episodes would
    assert high == 1.0
    assert bootstrap_interval(groups) == bootstrap_interval(groups)
    assert bootstrap_interval([]) is None
    assert bootstrap_interval([[0.5]]) is None  # not an interval of width 0
    assert bootstrap_interval([[0.5, 0.5]]) == (0.5, 0.5)


def test_mean_skips_what_is_undefined() -> None:
    assert mean([1.0, None, math.nan, 3.0]) == 2.0
    assert mean([]) is None


def test_rank_correlation_is_spearmans_with_an_interval_over_tasks() -> None:
    rng = random.Random(0)
    groups = [[(float(rng.randrange(8)), rng.gauss(task, 2)) for _ in range(9)] for task in range(10)]
    groups = [[(x + y, round(y)) for x, y in group] for group in groups]
    pairs = [pair for group in groups for pair in group]
    found = rank_correlation(groups)
    assert found is not None
    assert found.value == pytest.approx(float(spearmanr(*zip(*pairs, strict=True)).statistic))
    assert found.num == 90
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found == rank_correlation(groups)
    one_by_one = rank_correlation([[pair] for pair in pairs])
    assert one_by_one is not None
    assert one_by_one == rank_correlation([pairs])  # one task alone: its pairs are drawn


def test_rank_correlation_of_perfect_order_and_of_nothing() -> None:
    rising = [[(float(k), k**3.0)] for k in range(6)]
    found = rank_correlation(rising)
    assert found is not None
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    assert rank_correlation([[(1.0, 2.0), (2.0, 1.0)]]) is None
    assert rank_correlation([[(1.0, float(k))] for k in range(9)]) is None
    assert rank_correlation([]) is None
