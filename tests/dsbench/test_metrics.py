from __future__ import annotations

import numpy as np
import pytest

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.metrics import METRICS, Family
from mappa_envs.errors import ConfigError

NUMBERS = np.array([1.0, 2.0, 4.0, 8.0])
LABELS = np.array(["a", "b", "a", "c"], dtype=object)
ONE_HOT = np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]])


def perfect_pair(family: Family) -> tuple[np.ndarray, np.ndarray]:
    if family is Family.NUMBER:
        return NUMBERS, NUMBERS
    if family is Family.SCORE:
        return np.array([0.0, 1, 0, 1]), np.array([0.0, 1, 0, 1])
    if family is Family.CLASS_PROBABILITY:
        return ONE_HOT, ONE_HOT
    return LABELS, LABELS


@pytest.mark.parametrize("name", sorted(METRICS))
def test_right_everywhere_is_the_perfect_score(name: str) -> None:
    truth, guess = perfect_pair(METRICS[name].family)
    value = metrics.score(name, truth, guess, labels=("a", "b", "c"), positive="a")
    assert value == pytest.approx(metrics.perfect(name), abs=1e-12)
    assert metrics.perfect(name) == (1.0 if metrics.higher_is_better(name) else 0.0)


@pytest.mark.parametrize("alias", sorted(metrics.ALIASES))
def test_an_alias_is_a_known_metric(alias: str) -> None:
    assert metrics.metric(alias.upper()).name in METRICS


def test_an_unknown_metric_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'bleu'.*accuracy.*smape"):
        metrics.metric("bleu")


def test_several_targets_score_their_mean() -> None:
    truth = np.column_stack([NUMBERS, NUMBERS])
    guess = np.column_stack([NUMBERS + 1, NUMBERS + 3])
    assert metrics.score("rmse", truth, guess) == pytest.approx(2.0)
    assert metrics.score("mcrmse", truth, guess) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "guess", "value"),
    [
        ("smape", [1.0, 2.0, 4.0, 24.0], 100 * (2 * 16 / 32) / 4),
        ("rmsle", [-5.0, 2.0, 4.0, 8.0], np.sqrt(np.log(2) ** 2 / 4)),
        ("medae", [2.0, 2.0, 4.0, 18.0], 0.5),
        ("r2", [3.75] * 4, 0.0),
        ("pearson", [7.0] * 4, 0.0),
        ("spearman", [10.0, 20.0, 21.0, 22.0], 1.0),
    ],
)
def test_values_by_hand(name: str, guess: list[float], value: float) -> None:
    assert metrics.score(name, NUMBERS, np.array(guess)) == pytest.approx(value)


def test_zero_against_zero_is_no_smape_error() -> None:
    assert metrics.score("smape", np.zeros(3), np.zeros(3)) == 0.0


def test_map_at_3_counts_the_place_and_no_more_than_three() -> None:
    truth = np.array(["a", "a", "a", "a"], dtype=object)
    guess = np.array(["a b c", "b a c", "b c a", "b c d a"], dtype=object)
    assert metrics.score("map@3", truth, guess) == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)


def test_jaccard_is_on_words_of_any_case() -> None:
    truth = np.array(["so very good"], dtype=object)
    assert metrics.score("jaccard", truth, np.array(["Very GOOD day"], dtype=object)) == pytest.approx(0.5)


def test_qwk_measures_distance_by_value_where_a_level_is_unused() -> None:
    truth = np.array(["3", "5", "8", "8"], dtype=object)
    near, far = (np.array([first, "5", "8", "8"], dtype=object) for first in ("5", "8"))
    value = metrics.score("qwk", truth, near, labels=("3", "5", "8"))
    # By value: 1 - (4 / 4) / mean squared difference of all pairs of truth and guess.
    expected = 1 - 1 / np.mean([(t - g) ** 2 for t in (3, 5, 8, 8) for g in (5, 5, 8, 8)])
    assert value == pytest.approx(expected)
    assert metrics.score("qwk", truth, far, labels=("3", "5", "8")) < value


def test_an_inverted_auc_stays_inverted() -> None:
    assert metrics.score("roc_auc", np.array([0.0, 1, 0, 1]), np.array([4.0, 1, 3, 2])) == 0.0


def test_certain_and_wrong_costs_a_finite_log_loss() -> None:
    cost = -np.log(metrics.PROBABILITY_FLOOR)
    assert metrics.score("log_loss", np.array([1.0]), np.array([0.0])) == pytest.approx(cost)
    assert metrics.score("mc_log_loss", ONE_HOT, 1 - ONE_HOT) == pytest.approx(cost)


@pytest.mark.parametrize("name", ["roc_auc", "gini"])
def test_one_class_leaves_the_ranking_undefined(name: str) -> None:
    assert np.isnan(metrics.score(name, np.ones(3), np.array([0.1, 0.2, 0.3])))


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_a_constant_truth_is_undefined(name: str) -> None:
    assert np.isnan(metrics.score(name, np.ones(3), np.array([0.1, 0.2, 0.3])))


def test_report_of_numbers() -> None:
    figures = metrics.report(Family.NUMBER, NUMBERS, NUMBERS + 0.7)
    assert figures["rmse_pct"] == pytest.approx(10.0)
    assert figures["mae"] == figures["rmse"] == pytest.approx(0.7)
    assert figures["accuracy"] is figures["f1"] is figures["roc_auc"] is None


def test_report_never_holds_nan() -> None:
    figures = metrics.report(Family.NUMBER, np.ones(3), np.array([1.0, 2, 3]))
    assert figures["rmse_pct"] is None
    assert figures["r2"] is None
    one_class = metrics.report(Family.SCORE, np.ones(2), np.array([0.2, 0.8]))
    assert one_class["roc_auc"] is None
    assert one_class["accuracy"] == 0.5


def test_report_of_labels_scores_and_class_probabilities() -> None:
    binary = np.array(["no", "yes", "no", "yes"], dtype=object)
    guess = np.array(["no", "yes", "yes", "yes"], dtype=object)
    figures = metrics.report(Family.LABEL, binary, guess, labels=("no", "yes"), positive="yes")
    assert (figures["accuracy"], figures["f1"], figures["roc_auc"]) == pytest.approx((0.75, 0.8, 0.75))
    logits = metrics.report(Family.SCORE, np.array([0.0, 1]), np.array([-3.0, 9.0]))
    assert (logits["accuracy"], logits["roc_auc"]) == (None, 1.0)
    shares = metrics.report(Family.CLASS_PROBABILITY, ONE_HOT, ONE_HOT * 0.6 + 0.2)
    assert (shares["accuracy"], shares["f1"], shares["roc_auc"]) == (1.0, 1.0, 1.0)
    assert set(metrics.report(Family.TEXT, LABELS, LABELS).values()) == {None}
