"""The fair figures against the formula, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.grading import TaskSpec, judge
from mappa_envs.dsbench.metrics import REPORT_KEYS
from mappa_envs.dsbench.scores import FAILED, PLAIN, figures
from mappa_envs.types import Episode, StopReason

KEYS = [
    *("accuracy", "f1", "roc_auc", "mae", "mae_pct", "rmse", "rmse_pct", "r2"),
    *("fair_accuracy", "fair_f1", "fair_mae_pct", "fair_rmse_pct"),
]


def run(task_type: str, **metrics: float | None) -> Episode:
    """A run with a valid submission of these figures; without any it failed."""
    return Episode(
        env_id="dsbench-v0",
        task_id="t",
        task_type=task_type,
        split="test",
        seed=0,
        outcome=0.5 if metrics else 0.0,
        success=bool(metrics),
        metrics=dict.fromkeys(REPORT_KEYS) | metrics,
        stop_reason=StopReason.DONE,
    )


def classified(accuracy: float, f1: float, **more: Any) -> Episode:
    return run("classification", accuracy=accuracy, f1=f1, **more)


def test_a_failed_run_counts_as_chance_in_the_fair_figures_and_not_in_the_others() -> None:
    found = figures([classified(0.9, 0.6, roc_auc=0.8), classified(0.7, 0.2), *[run("classification")] * 2])
    assert found["accuracy"] == pytest.approx((0.9 + 0.7) / 2)
    assert found["fair_accuracy"] == pytest.approx((0.9 + 0.7 + 0.5 + 0.5) / 4)
    assert found["f1"] == pytest.approx((0.6 + 0.2) / 2)
    assert found["fair_f1"] == pytest.approx((0.6 + 0.2 + 0 + 0) / 4)
    assert found["roc_auc"] == pytest.approx(0.8)


def test_a_failed_regression_counts_half_the_range() -> None:
    good = run("regression", mae=3.0, mae_pct=7.5, rmse=4.0, rmse_pct=10.0, r2=0.6)
    poor = run("regression", mae=9.0, mae_pct=54.0, rmse=20.0, rmse_pct=120.0, r2=-0.8)
    found = figures([good, poor, run("regression")])
    assert found["rmse_pct"] == pytest.approx(65.0)
    assert found["fair_rmse_pct"] == pytest.approx((10 + 120 + 50) / 3)
    assert found["fair_mae_pct"] == pytest.approx((7.5 + 54 + 50) / 3)
    assert (found["mae"], found["rmse"]) == (6.0, 12.0)
    assert found["r2"] == pytest.approx(-0.1)
    assert "fair_rmse" not in found
    assert "fair_mae" not in found


def test_task_types_do_not_mix() -> None:
    both = [classified(0.8, 0.4), run("regression"), run("text"), run("classification")]
    found = figures(both)
    assert found["fair_accuracy"] == pytest.approx(0.65)
    assert found["fair_rmse_pct"] == 50.0
    assert found["rmse_pct"] is None
    assert figures([run("text", jaccard=0.5)]) == dict.fromkeys(KEYS)


def test_the_keys_are_always_the_same_and_nothing_is_nan() -> None:
    for episodes in ([], [run("regression")], [classified(0.5, math.nan)], [run("other")]):
        found = figures(episodes)
        assert list(found) == KEYS
        assert all(value is None or math.isfinite(value) for value in found.values())
    assert set(KEYS) == {*REPORT_KEYS, *(f"fair_{name}" for name in FAILED)}
    assert sum(map(len, PLAIN.values())) == len(REPORT_KEYS)


@pytest.mark.parametrize("metric", ["roc_auc", "mae", "medae"])
def test_a_submission_that_leaves_a_figure_undefined_gains_nothing_by_it(tmp_path: Path, metric: str) -> None:
    """The fair figures are those of a failed run, the others are without it."""
    answers = tmp_path / "answers.csv"
    answers.write_text("id,y\n1,0\n2,1\n3,1\n")
    cells = {"roc_auc": (-4, 2, 3), "mae": (1e200, 1, 1), "medae": (1, 1, 1e308)}[metric]
    rows = "".join(f"{n + 1},{cell}\n" for n, cell in enumerate(cells))
    grade, found = judge(f"id,y\n{rows}".encode(), answers, TaskSpec(metric, "id", ("y",)))
    assert grade.valid
    task_type, name = ("classification", "accuracy") if metric == "roc_auc" else ("regression", "rmse_pct")
    good = run(task_type, **{name: 0.25, "rmse": 1.0, "roc_auc": 0.9})
    strange = run(task_type, **(found | {metric: grade.score}))
    assert figures([good, strange])[f"fair_{name}"] == (0.25 + FAILED[name]) / 2
    assert figures([good, strange])[name] == 0.25


def test_a_figure_that_the_task_leaves_undefined_leaves_the_run_out() -> None:
    constant = run("regression", mae=3.0, rmse=4.0)
    found = figures([constant, run("regression", mae=1.0, mae_pct=5.0, rmse=2.0, rmse_pct=10.0)])
    assert (found["fair_rmse_pct"], found["fair_mae_pct"]) == (10.0, 5.0)
    numbers = run("classification", mae=3.0, rmse=4.0)
    assert figures([numbers, classified(0.8, 0.4)])["fair_accuracy"] == 0.8
    assert figures([run("regression", accuracy=0.5)])["fair_rmse_pct"] is None


def test_the_published_figures_follow_from_their_failures() -> None:
    # 16 classification runs, 7 of them valid with accuracy 0.69 on average: reported as 0.583.
    runs = [classified(0.69, 0.288)] * 7 + [run("classification")] * 9
    assert figures(runs)["fair_accuracy"] == pytest.approx(0.583, abs=5e-4)
    assert figures(runs)["fair_f1"] == pytest.approx(0.126, abs=5e-4)
    valid = [run("regression", rmse_pct=9.84)] * 5 + [run("regression")] * 3
    assert figures(valid)["fair_rmse_pct"] == pytest.approx(24.9, abs=5e-2)


def test_the_environment_reports_them() -> None:
    env = DSBenchEnv(split="test", coach=None)
    assert env.figures([run("regression")]) == figures([run("regression")])
