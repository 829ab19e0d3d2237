"""Scores on one scale for each kind of task and role, from running statistics."""

from __future__ import annotations

import json
import random
import statistics

import pytest
from run_fakes import AGENTS, make_episode, make_rollout

from mappa_envs.errors import ConfigError
from mappa_envs.types import StopReason
from mappa_train.debias import MIN_COUNT, Debias, Moments
from mappa_train.settings import resolve
from mappa_train.types import EpisodeRollout


def partial_rollouts(count: int = 60, seed: int = 0) -> list[EpisodeRollout]:
    """Regression and the second agent get more points, and spread differently."""
    rng = random.Random(seed)
    rollouts = []
    for k in range(count):
        kind = k % 2
        scores = tuple(rng.gauss(3 + 2 * kind + agent, 0.5 + 0.5 * kind) for agent in (0, 1))
        task_type = ("classification", "regression")[kind]
        rollouts.append(make_rollout(k, make_episode(scores, task_type=task_type)))
    return rollouts


def cell(rollouts: list[EpisodeRollout], task_type: str, agent: str) -> list[float]:
    return [
        turn.final_score
        for item in rollouts
        if item.episode.task_type == task_type
        for turn in item.episode.turns
        if turn.agent == agent and turn.final_score is not None
    ]


def test_every_cell_gets_the_mean_and_spread_of_all() -> None:
    raw = partial_rollouts()
    found = Debias().apply(raw)
    everything = [turn.final_score for item in raw for turn in item.episode.turns if turn.final_score]
    for task_type in ("classification", "regression"):
        for agent in AGENTS:
            mine = cell(found, task_type, agent)
            assert statistics.mean(mine) == pytest.approx(statistics.mean(everything))
            assert statistics.pstdev(mine) == pytest.approx(statistics.pstdev(everything))
            before = cell(raw, task_type, agent)
            assert sorted(range(30), key=mine.__getitem__) == sorted(range(30), key=before.__getitem__)


def test_the_records_keep_their_raw_scores_and_the_unscored_stay_so() -> None:
    raw = [make_rollout(k, make_episode((float(k % 10), None))) for k in range(20)]
    found = Debias().apply(raw)
    assert [item.episode.turns[0].final_score for item in raw] == [float(k % 10) for k in range(20)]
    assert all(item.episode.turns[1].final_score is None for item in found)
    assert all(a.actions is b.actions for a, b in zip(found, raw, strict=True))


def test_few_scores_stay_as_they_are_and_equal_ones_go_to_the_middle() -> None:
    few = [make_rollout(k, make_episode((9.0,), task_type="text")) for k in range(MIN_COUNT - 1)]
    debias = Debias()
    assert cell(debias.apply(few), "text", AGENTS[0]) == [9.0] * (MIN_COUNT - 1)
    others = [make_rollout(k, make_episode((1.0,))) for k in range(MIN_COUNT - 1)]
    assert cell(debias.apply(others + few[:1]), "text", AGENTS[0]) == [pytest.approx((9 * 10 + 9) / 19)]
    infra = [make_rollout(0, make_episode((0.0,), stop_reason=StopReason.INFRA))]
    state = debias.state()
    debias.apply(infra)
    assert debias.state() == state


def test_welford_is_the_mean_and_variance() -> None:
    values = [random.Random(3).gauss(1e6, 1e-2) for _ in range(500)]
    moments = Moments()
    for value in values:
        moments.add(value)
    assert moments.mean == pytest.approx(statistics.mean(values), rel=1e-15)
    assert moments.std == pytest.approx(statistics.pstdev(values), rel=1e-6)


def test_saved_and_loaded_it_goes_on_bit_for_bit() -> None:
    whole, first = Debias(), Debias()
    whole.apply(partial_rollouts(30))
    first.apply(partial_rollouts(30))
    second = Debias()
    second.load_state(json.loads(json.dumps(first.state())))
    found, wanted = (item.apply(partial_rollouts(30, seed=1)) for item in (second, whole))
    assert [item.episode for item in found] == [item.episode for item in wanted]
    assert second.state() == whole.state()


def test_off_it_does_nothing() -> None:
    debias, raw = Debias("off"), partial_rollouts()
    assert debias.apply(raw) == raw
    assert debias.state() is None


def test_without_learning_from_scores_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="--debias task_role: with --returns outcome"):
        resolve({"debias": "task_role", "returns": "outcome"})
    assert resolve({}).debias == "off"
