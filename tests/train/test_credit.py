"""Returns, token returns and normalization, against numbers worked out by hand."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_action
from torch import Tensor

from mappa_envs.errors import ConfigError
from mappa_train.credit import group_numbers, moments, normalize, returns, token_returns
from mappa_train.types import SampleCredit

SCORED = torch.tensor([True, True, True])
REWARDS = torch.tensor([0.2, 0.8, 0.5])


def close(found: Tensor, expected: list[float], tolerance: float = 1e-7) -> None:
    torch.testing.assert_close(
        found.double(), torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0, equal_nan=True
    )


def test_to_go_mean_by_hand() -> None:
    # G_i = mean of r_i … r_n: (0.2 + 0.8 + 0.5) / 3, (0.8 + 0.5) / 2, 0.5
    close(returns(REWARDS, SCORED, 1.0, "to_go_mean"), [0.5, 0.65, 0.5])


def test_to_go_mean_with_discount_by_hand() -> None:
    # (0.2 + 0.5·0.8 + 0.25·0.5) / 1.75, (0.8 + 0.5·0.5) / 1.5, 0.5
    close(returns(REWARDS, SCORED, 0.5, "to_go_mean"), [0.725 / 1.75, 1.05 / 1.5, 0.5])


def test_to_go_by_hand() -> None:
    close(returns(REWARDS, SCORED, 1.0, "to_go"), [1.5, 1.3, 0.5])
    close(returns(REWARDS, SCORED, 0.5, "to_go"), [0.725, 1.05, 0.5])


def test_per_action_and_outcome_by_hand() -> None:
    close(returns(REWARDS, torch.tensor([True, False, True]), 0.5, "per_action"), [0.2, math.nan, 0.5])
    close(returns(torch.full((3,), 0.75), SCORED, 0.5, "outcome"), [0.75, 0.75, 0.75])


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="to_go_mean"):
        returns(REWARDS, SCORED, 1.0, "togo")


def test_one_flag_for_many_rewards_is_refused_not_spread() -> None:
    with pytest.raises(ValueError, match="scored"):
        returns(REWARDS, torch.tensor([True]), 1.0, "to_go_mean")
    with pytest.raises(ValueError, match="mask"):
        normalize(REWARDS, torch.tensor([True]))
    with pytest.raises(ValueError, match="groups"):
        normalize(REWARDS, SCORED, ["a"])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_flags_may_be_numbers(dtype: torch.dtype) -> None:
    flags = torch.tensor([True, False, True])
    close(returns(REWARDS, flags.to(dtype), 1.0, "to_go_mean"), [0.35, math.nan, 0.5])
    close(normalize(REWARDS, flags.to(dtype)), normalize(REWARDS, flags).tolist())


def test_groups_may_be_a_tensor() -> None:
    values = torch.tensor([1.0, 3.0, 10.0, 30.0])
    close(normalize(values, torch.ones(4), torch.tensor([7, 7, 2, 2])), [-1.0, 1.0, -1.0, 1.0])


def test_an_unscored_action_is_left_out_of_the_mean() -> None:
    scored = torch.tensor([True, False, True])
    # (0.2 + 0.5²·0.5) / (1 + 0.5²); the 0.8 in the middle is never read.
    close(returns(REWARDS, scored, 0.5, "to_go_mean"), [0.325 / 1.25, math.nan, 0.5])
    other = returns(torch.tensor([0.2, -99.0, 0.5]), scored, 0.5, "to_go_mean")
    close(other, returns(REWARDS, scored, 0.5, "to_go_mean").tolist())


@settings(deadline=None)
@given(st.floats(0, 1), st.lists(st.booleans(), min_size=1, max_size=8))
def test_an_outage_changes_nobody_on_equal_scores(r: float, scored: list[bool]) -> None:
    """Where all scores are r, G is what it would be without the outage, in both modes."""
    n, known = len(scored), torch.tensor(scored)
    for mode in ("to_go_mean", "to_go"):
        found = returns(torch.full((n,), r), known, 0.9, mode)
        full = returns(torch.full((n,), r), torch.ones(n, dtype=torch.bool), 0.9, mode)
        torch.testing.assert_close(found[known], full[known], atol=1e-12, rtol=0)
        assert found[~known].isnan().all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=6), st.floats(0.05, 1))
def test_returns_are_the_sums_of_the_docstring(actions: list[tuple[float, bool]], gamma: float) -> None:
    rewards, scored = (torch.tensor(column) for column in zip(*actions, strict=True))
    mean, to_go = (returns(rewards, scored, gamma, mode).tolist() for mode in ("to_go_mean", "to_go"))
    for i, (_, known) in enumerate(actions):
        weights = [gamma**k for k in range(len(actions) - i)]
        pairs = [(w, float(r)) for w, r, s in zip(weights, rewards[i:], scored[i:], strict=True) if s]
        if not known:
            assert math.isnan(mean[i])
            assert math.isnan(to_go[i])
            continue
        average = sum(w * r for w, r in pairs) / sum(w for w, _ in pairs)
        assert mean[i] == pytest.approx(average, abs=1e-12)
        assert to_go[i] == pytest.approx(average * sum(weights), abs=1e-12)


def test_to_go_is_rescaled_to_all_actions() -> None:
    # (0.2 + 0.5) · (1 + 1 + 1) / (1 + 0 + 1)
    close(returns(REWARDS, torch.tensor([True, False, True]), 1.0, "to_go"), [1.05, math.nan, 0.5])
    # γ = ½: (0.2 + ¼·0.5) · (1 + ½ + ¼) / (1 + ¼)
    close(
        returns(REWARDS, torch.tensor([True, False, True]), 0.5, "to_go"),
        [0.325 * 1.75 / 1.25, math.nan, 0.5],
    )


def test_golden_example_of_the_contract() -> None:
    """Scores 4, 10, 7, none: r = s / 10, G by mode at γ = 1 (DESIGN §4)."""
    rewards = torch.tensor([4.0, 10.0, 7.0, 0.0]) / 10
    scored = torch.tensor([True, True, True, False])
    close(returns(rewards, scored, 1.0, "to_go_mean"), [0.7, 0.85, 0.7, math.nan])
    close(returns(rewards, scored, 1.0, "to_go"), [2.1 * 4 / 3, 1.7 * 3 / 2, 0.7 * 2 / 1, math.nan])
    close(returns(rewards, scored, 1.0, "per_action"), [0.4, 1.0, 0.7, math.nan])


def test_token_returns_by_hand() -> None:
    # r_t = −β (old − ref)_t, G at the last token, R_t = sum of what is left:
    # β = 0.1, differences 1, −2, 0.5  →  R_3 = G − 0.05, R_2 = G + 0.15, R_1 = G + 0.05
    old, ref = torch.tensor([-1.0, -3.0, -0.5]), torch.tensor([-2.0, -1.0, -1.0])
    close(token_returns(0.6, old, ref, 0.1), [0.65, 0.75, 0.55])
    close(token_returns(0.6, old, ref, 0.0), [0.6, 0.6, 0.6])
    assert token_returns(0.6, old, ref, 0.1).dtype == torch.float64


def test_normalize_has_mean_0_and_population_variance_1() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])
    out = normalize(values, torch.ones(4, dtype=torch.bool))
    # mean 3, population variance (4 + 1 + 0 + 9) / 4 = 3.5 (the sample variance would be 14 / 3)
    close(out, [x / math.sqrt(3.5) for x in (-2, -1, 0, 3)], 1e-6)
    assert abs(float(out.double().mean())) < 1e-7
    assert abs(float(out.double().var(correction=0)) - 1) < 1e-6
    assert out.dtype == torch.float32


def test_masked_tokens_get_0_and_count_nowhere() -> None:
    mask = torch.tensor([True, False, True, True, True])
    out = normalize(torch.tensor([1.0, 1e6, 2.0, 3.0, 6.0]), mask)
    close(out, [x / math.sqrt(3.5) for x in (-2, 0, -1, 0, 3)], 1e-6)
    assert out[1] == 0


def test_groups_are_normalized_apart() -> None:
    values = torch.tensor([0.0, 100.0, 2.0, 300.0])
    out = normalize(values, torch.ones(4, dtype=torch.bool), ["a", "b", "a", "b"])
    close(out, [-1.0, -1.0, 1.0, 1.0], 1e-6)


def test_flat_returns_give_no_advantage_and_warn(caplog: pytest.LogCaptureFixture) -> None:
    values = torch.tensor([0.5, 0.5 + 1e-6, 0.5, 1.0, 2.0])
    with caplog.at_level(logging.WARNING):
        out = normalize(values, torch.ones(5, dtype=torch.bool), ["flat"] * 3 + ["b"] * 2)
    close(out, [0, 0, 0, -1.0, 1.0], 1e-6)
    assert len(caplog.records) == 1
    assert "flat" in caplog.text


def test_a_penalty_alone_is_no_advantage(caplog: pytest.LogCaptureFixture) -> None:
    """Whitened, it would weigh as much as any score, whatever β is."""
    penalties = torch.tensor([0.0, 0.01, -0.02, 0.03])
    mask = torch.ones(4, dtype=torch.bool)
    same, other = torch.full((4,), 0.6), torch.tensor([0.6, 0.6, 0.8, 0.8])
    with caplog.at_level(logging.WARNING):
        close(normalize(same + penalties, mask, bare=same), [0, 0, 0, 0])
    assert len(caplog.records) == 1
    assert torch.equal(normalize(other + penalties, mask, bare=other), normalize(other + penalties, mask))
    close(normalize(same, mask, bare=other), [0, 0, 0, 0])


def test_no_warning_where_returns_differ(caplog: pytest.LogCaptureFixture) -> None:
    normalize(torch.tensor([0.5, 0.51]), torch.ones(2, dtype=torch.bool))
    assert not caplog.records


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=6), min_size=1, max_size=5))
def test_moments_over_ranks_equal_the_direct_ones(ranks: list[list[float]]) -> None:
    parts = [torch.tensor(values, dtype=torch.float64) for values in ranks]
    every = torch.cat(parts)
    sent = [_sent(part) for part in parts]
    for part in parts:
        count, mean, variance = moments(part, lambda mine: sent)
        assert count == len(every)
        if count:
            assert mean == pytest.approx(float(every.mean()), abs=1e-12 * 1e3)
            assert variance == pytest.approx(float(every.var(correction=0)), rel=1e-12, abs=1e-9)


def _sent(values: Tensor) -> Tensor:
    """What a rank hands to the gather."""
    caught: list[Tensor] = []

    def gather(mine: Tensor) -> list[Tensor]:
        caught.append(mine)
        return [mine]

    moments(values, gather)
    return caught[0]


def test_moments_are_exact_far_from_zero() -> None:
    """Σx² − (Σx)² / n would lose all digits here: mean 1e9, variance 0.25."""
    base = torch.tensor([1e9, 1e9 + 1], dtype=torch.float64)
    sent = [_sent(base), _sent(torch.empty(0)), _sent(base)]
    count, mean, variance = moments(base, lambda mine: sent)
    assert (count, mean) == (4, 1e9 + 0.5)
    assert abs(variance - 0.25) < 1e-12


def test_every_token_of_a_huge_batch_counts() -> None:
    """As float32, the count would be even from 2^24 on."""
    count, mean, variance = moments(torch.ones(1, dtype=torch.float64).expand(2**24 + 1))
    assert (count, mean, variance) == (2**24 + 1, 1.0, 0.0)


def test_normalize_over_ranks_equals_one_rank() -> None:
    values = torch.linspace(0, 1, 10, dtype=torch.float64).square()
    mask = torch.ones(10, dtype=torch.bool)
    whole = normalize(values, mask)
    sent = [_sent(values[:3]), _sent(values[3:])]
    parts = [
        normalize(part, torch.ones(len(part), dtype=torch.bool), dist=lambda mine: sent)
        for part in (values[:3], values[3:])
    ]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=0)


def sample(task: str, episode: int, turn: int, ret: float | None = 0.5, agent: str = "a") -> SampleCredit:
    action = replace(make_action(agent, [2], [3]), turn=turn)
    return SampleCredit(action=action, task_id=task, task_type="t", episode_index=episode, ret=ret)


def test_a_group_is_one_agents_kth_actions_on_one_task() -> None:
    """Turns differ between episodes; what counts is the how-many-th of the agent, unscored ones included."""
    samples = [
        sample("x", 0, 0),
        sample("x", 0, 1, agent="b"),
        sample("x", 0, 3),  # a's second
        sample("x", 1, 1, ret=None),  # a's first, left out of learning
        sample("x", 1, 4),  # a's second
        sample("x", 2, 0),  # a's first
        sample("y", 3, 0),  # another task, alone
        sample("x", 4, 0, agent="b"),
    ]
    chosen = [s for s in samples if s.ret is not None]
    assert group_numbers(chosen, samples) == [0, 1, 2, 2, 0, 3, 1]


def test_a_place_that_one_episode_has_joins_the_one_before() -> None:
    samples = [sample("x", 0, k) for k in range(4)] + [sample("x", 1, 0), sample("x", 1, 1)]
    # The third and fourth of episode 0 have no counterpart: both join the second.
    assert group_numbers(samples, samples) == [0, 1, 1, 1, 0, 1]
    # One episode alone: its actions are not compared with each other.
    assert group_numbers(samples[:4], samples) == [0, 1, 2, 3]
    assert group_numbers([], []) == []


def test_normalize_with_the_sample_variance() -> None:
    out = normalize(torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.ones(4, dtype=torch.bool), correction=1)
    close(out, [x / math.sqrt(14 / 3) for x in (-2, -1, 0, 3)], 1e-6)


def test_a_rank_without_tokens_still_gathers() -> None:
    """Every rank makes a call for each scope that any of them has, or the others would wait for ever."""
    calls: list[Tensor] = []

    def gather(mine: Tensor) -> list[Tensor]:
        calls.append(mine)
        return [mine, torch.tensor([2.0, 0.5, 0.5], dtype=torch.float64)]

    nothing, no_mask = torch.empty(0), torch.empty(0, dtype=torch.bool)
    assert normalize(nothing, no_mask, dist=gather).shape == (0,)
    assert len(calls) == 1
    normalize(nothing, no_mask, [], gather, scopes=("a", "b"))
    assert len(calls) == 3
