from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

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
    assert figures["mae_pct"] == pytest.approx(10.0)
    assert figures["mae"] == figures["rmse"] == pytest.approx(0.7)
    assert figures["accuracy"] is figures["f1"] is figures["roc_auc"] is None


def test_report_never_holds_nan() -> None:
    figures = metrics.report(Family.NUMBER, np.ones(3), np.array([1.0, 2, 3]))
    assert figures["rmse_pct"] is figures["mae_pct"] is figures["r2"] is None
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


# Every metric against a library or against its formula, written another way than in the package.

whole = st.integers(-1000, 1000).map(float)
pairs = st.lists(st.tuples(whole, whole), min_size=2, max_size=40).map(lambda rows: np.array(rows).T)
label_pairs = st.lists(
    st.tuples(st.sampled_from("01234"), st.sampled_from("01234")), min_size=1, max_size=40
).map(lambda rows: np.array(rows, dtype=object).T)


def rmsle(truth: np.ndarray, guess: np.ndarray) -> float:
    return float(np.sqrt(np.mean((np.log1p(np.maximum(guess, 0)) - np.log1p(truth)) ** 2)))


def smape(truth: np.ndarray, guess: np.ndarray) -> float:
    terms = [
        200 * abs(g - t) / (abs(g) + abs(t)) if g or t else 0.0 for t, g in zip(truth, guess, strict=True)
    ]
    return float(np.mean(terms))


def ranked_correlation(truth: np.ndarray, guess: np.ndarray) -> float:
    return float(np.corrcoef(stats.rankdata(truth), stats.rankdata(guess))[0, 1])


FORMULAS = {
    "mae": lambda t, g: np.abs(t - g).mean(),
    "mse": lambda t, g: ((t - g) ** 2).mean(),
    "rmse": lambda t, g: np.sqrt(((t - g) ** 2).mean()),
    "mcrmse": lambda t, g: np.sqrt(((t - g) ** 2).mean()),
    "medae": lambda t, g: np.median(np.abs(t - g)),
    "rmsle": rmsle,
    "smape": smape,
    "r2": lambda t, g: 1 - ((t - g) ** 2).sum() / ((t - t.mean()) ** 2).sum(),
    "pearson": lambda t, g: np.corrcoef(t, g)[0, 1],
    "spearman": ranked_correlation,
}


def test_every_number_metric_has_a_formula_here() -> None:
    assert set(FORMULAS) == {name for name, m in METRICS.items() if m.family is Family.NUMBER}


@pytest.mark.parametrize("name", sorted(FORMULAS))
@given(pair=pairs)
def test_number_metrics_are_their_formulas(name: str, pair: np.ndarray) -> None:
    truth, guess = pair
    if name in ("r2", "pearson", "spearman"):
        assume(np.ptp(truth) > 0 and np.ptp(guess) > 0)
    if name == "rmsle":
        truth = np.abs(truth)
    value = metrics.score(name, truth, guess)
    assert value == pytest.approx(FORMULAS[name](truth, guess), rel=1e-9, abs=1e-9)
    low, high = {"r2": (-np.inf, 1), "smape": (0, 200), "pearson": (-1, 1), "spearman": (-1, 1)}.get(
        name, (0, np.inf)
    )
    assert low - 1e-12 <= value <= high + 1e-12
    best = metrics.score(name, truth, truth)
    assert best == pytest.approx(metrics.perfect(name), abs=1e-9)
    assert (best >= value - 1e-9) if metrics.higher_is_better(name) else (best <= value + 1e-9)


def f1_of(truth: np.ndarray, guess: np.ndarray, label: str) -> float:
    hits = np.sum((truth == label) & (guess == label))
    named = np.sum(truth == label) + np.sum(guess == label)
    return float(2 * hits / named) if named else 0.0


@settings(max_examples=30)
@given(pair=label_pairs)
def test_label_metrics_are_their_formulas(pair: np.ndarray) -> None:
    truth, guess = pair
    present = sorted(set(truth) | set(guess))

    def value(name: str) -> float:
        return metrics.score(name, truth, guess, labels=tuple("01234"), positive="4")

    assert value("accuracy") == value("f1_micro") == pytest.approx(np.mean([t == g for t, g in pair.T]))
    assert value("f1") == pytest.approx(f1_of(truth, guess, "4"))
    assert value("f1_macro") == pytest.approx(np.mean([f1_of(truth, guess, label) for label in present]))
    seen = np.mean([(int(t) - int(g)) ** 2 for t, g in pair.T])
    by_chance = np.mean([(int(t) - int(g)) ** 2 for t in truth for g in guess])
    if by_chance > 0:
        assert value("qwk") == pytest.approx(1 - seen / by_chance)
    else:
        assert np.isnan(value("qwk"))


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), min_size=2, max_size=40))
def test_score_metrics_are_their_formulas(rows: list[tuple[bool, int]]) -> None:
    truth, guess = np.array([float(t) for t, _ in rows]), np.array([p / 100 for _, p in rows])
    assume(0 < truth.sum() < len(truth))
    above = guess[truth == 1][:, None] - guess[truth == 0][None, :]
    auc = np.mean((above > 0) + 0.5 * (above == 0))
    assert metrics.score("roc_auc", truth, guess) == pytest.approx(auc)
    assert metrics.score("gini", truth, guess) == pytest.approx(2 * auc - 1)
    clipped = np.clip(guess, 1e-15, 1 - 1e-15)
    loss = sklearn.metrics.log_loss(truth, clipped)
    # 1 - 1e-15 is rounded: certain and wrong costs 34.54 here, up to 0.01 more or less there.
    assert metrics.score("log_loss", truth, guess) == pytest.approx(loss, rel=1e-3, abs=1e-9)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 50), min_size=3, max_size=3)),
        min_size=1,
        max_size=30,
    )
)
def test_class_probabilities_score_as_in_scikit_learn(rows: list[tuple[int, list[int]]]) -> None:
    chosen = np.array([row[0] for row in rows])
    guess = np.array([row[1] for row in rows], dtype=float)
    shares = guess / guess.sum(axis=1, keepdims=True)
    loss = sklearn.metrics.log_loss(chosen, shares, labels=[0, 1, 2])
    assert metrics.score("mc_log_loss", np.eye(3)[chosen], guess) == pytest.approx(loss)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcde"), st.lists(st.sampled_from("abcde"), min_size=1, max_size=5)),
        min_size=1,
        max_size=20,
    )
)
def test_map_at_3_and_jaccard_are_their_formulas(rows: list[tuple[str, list[str]]]) -> None:
    truth = np.array([right for right, _ in rows], dtype=object)
    guess = np.array([" ".join(ranked) for _, ranked in rows], dtype=object)
    places = [next((1 / n for n, label in enumerate(r[:3], 1) if label == t), 0) for t, r in rows]
    assert metrics.score("map@3", truth, guess) == pytest.approx(np.mean(places))
    shared = [len({t} & set(r)) / (1 + len(set(r)) - len({t} & set(r))) for t, r in rows]
    assert metrics.score("jaccard", truth, guess) == pytest.approx(np.mean(shared))


@pytest.mark.parametrize("name", [*sorted(set(FORMULAS) - {"rmsle"}), "roc_auc", "log_loss"])
def test_several_columns_are_the_mean_of_each(name: str) -> None:
    rng = np.random.default_rng(5)
    guess = rng.random((30, 3))
    truth = (rng.random((30, 3)) > 0.5).astype(float)
    each = [metrics.score(name, truth[:, j], guess[:, j]) for j in range(3)]
    assert metrics.score(name, truth, guess) == pytest.approx(np.mean(each))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("mae_cells", "mae"), ("rmsle_mean", "rmsle"), ("smape_100", "smape"), ("smape_frac", "smape"),
        ("spearman_mean", "spearman"), ("log_loss_mc", "mc_log_loss"), ("hit@3", "map@3"),
        ("map_at_3", "map@3"), ("roc_auc_mean", "roc_auc"), ("gini_norm", "gini"),
        ("normalized_gini", "gini"), ("quadratic_weighted_kappa", "qwk"), ("mcrmse", "mcrmse"),
    ],
)  # fmt: skip
def test_the_names_of_dsbench_are_known(spelling: str, name: str) -> None:
    assert metrics.metric(spelling).name == name


def test_one_row_has_no_r2_and_no_ranking() -> None:
    one = np.array([3.0])
    assert np.isnan(metrics.score("r2", one, one))
    assert np.isnan(metrics.score("pearson", one, one))
    figures = metrics.report(Family.NUMBER, one, one + 1)
    assert (figures["mae"], figures["r2"], figures["rmse_pct"]) == (1.0, None, None)


def test_labels_have_one_order_in_every_process() -> None:
    assert metrics.label_order(["10", "9", "1.0", "01", "1"]) == ["01", "1", "1.0", "9", "10"]
    orders = {tuple(metrics.label_order(labels)) for labels in permutations(["2", "nan", "1", "3"])}
    assert orders == {("1", "2", "3", "nan")}


def test_report_of_several_columns_is_the_mean() -> None:
    truth = np.column_stack([NUMBERS, NUMBERS * 10])
    figures = metrics.report(Family.NUMBER, truth, truth + np.array([0.7, 14.0]))
    assert (figures["rmse_pct"], figures["mae_pct"]) == pytest.approx((15.0, 15.0))
    assert figures["mae"] == pytest.approx(7.35)
    one_is_constant = np.column_stack([NUMBERS, np.ones(4)])
    assert metrics.report(Family.NUMBER, one_is_constant, one_is_constant)["rmse_pct"] is None


def test_many_classes_have_a_roc_auc_over_those_that_occur() -> None:
    truth = np.eye(50)[np.arange(40) % 40]
    figures = metrics.report(Family.CLASS_PROBABILITY, truth, truth * 0.5 + 0.01)
    assert (figures["accuracy"], figures["roc_auc"], figures["f1"]) == (1.0, 1.0, 1.0)
