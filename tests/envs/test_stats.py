from __future__ import annotations

import math

import pytest

from mappa_envs.stats import bootstrap_interval, mean, wilson


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
