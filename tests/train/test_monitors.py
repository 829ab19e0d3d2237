"""Does the coach deserve trust? The figures, the alarm and its false alarms, and the page that shows them."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_fakes import AGENTS, make_episode, make_line, make_rollout, make_run, make_turn
from test_report import EVIL, Tags

from mappa_envs.stats import MIN_TASKS
from mappa_envs.types import Episode, StopReason
from mappa_train import report
from mappa_train.checkpoint import RunFolder
from mappa_train.monitors import (
    REFERENCE_STEPS,
    WINDOW,
    CoachMonitor,
    breakdown,
    divergence,
    drift,
    outcome_correlation,
    scored_actions,
)
from mappa_train.report.trust import trust
from mappa_train.settings import resolve

STEPS = 40


def spread(step: int, shift: float = 0.0) -> list[Episode]:
    """Six episodes on five tasks; the first agent's scores follow the outcomes, `shift` is added to all."""
    return [
        make_episode((2.0 + k + shift, 5.0 + (k * 7 + step) % 3), outcome=k / 10, task_id=f"t{k % MIN_TASKS}")
        for k in range(6)
    ]


def test_only_scored_actions_of_graded_episodes_count() -> None:
    episodes = [
        make_episode((6.0, None)),
        make_episode((1.0,), stop_reason=StopReason.INFRA),
        make_episode((1.0,), outcome=None),
    ]
    (action,) = scored_actions(episodes)
    assert (action.agent, action.score, action.outcome, action.used_code) == (AGENTS[0], 6.0, 0.5, True)


def test_correlation_is_over_actions_with_an_interval_over_tasks() -> None:
    actions = scored_actions(spread(0))
    mine = outcome_correlation([item for item in actions if item.agent == AGENTS[0]])
    assert mine is not None
    assert mine.value == pytest.approx(1.0)
    everything = outcome_correlation(actions)
    assert everything is not None
    assert everything.num == 12
    assert everything.low is not None
    assert everything.low <= everything.value < 1
    assert outcome_correlation(scored_actions([make_episode((5.0, 5.0))])) is None


def test_groups_are_by_task_and_role_length_tool_and_outcome() -> None:
    silent = make_turn(1, AGENTS[1], 2.0, tool=None, action="x" * 500)
    episodes = [
        make_episode((8.0, 6.0), outcome=0.9, task_id="a"),
        make_episode((4.0, 2.0), outcome=0.0, task_id="b", task_type="regression"),
        make_episode(turns=(silent,), outcome=0.3, task_id="c"),
    ]
    groups = breakdown(scored_actions(episodes))
    cells = {row.name: (row.num_actions, row.score, row.outcome) for row in groups["kind of task and role"]}
    assert cells["classification, checker_0"] == (2, 4.0, pytest.approx(6.0))
    assert cells["regression, writer_0"] == (1, 4.0, 0.0)
    assert [(row.name, row.score) for row in groups["tool"]] == [("ran code", 5.0), ("ran no code", 2.0)]
    assert [(row.name, row.num_actions) for row in groups["outcome"]] == [
        *(("0", 2), ("up to 0.5", 1), ("above", 2))
    ]
    assert [row.num_actions for row in groups["length"]] == [4, 1]  # where many are alike, a tercile is empty
    assert groups["length"][1].name == "longer"
    assert breakdown([]) == {"kind of task and role": [], "length": [], "tool": [], "outcome": []}


def test_a_few_tasks_have_no_interval() -> None:
    actions = scored_actions(spread(0))
    few = [item for item in actions if item.task_id != "t0"]
    found = outcome_correlation(few)
    assert found is not None
    assert (found.low, found.high, found.num) == (None, None, len(few))
    assert [row.interval is None for row in breakdown(actions)["tool"]] == [False]
    assert [row.interval is None for row in breakdown(few)["tool"]] == [True]


def test_drift_is_the_standardised_difference_of_means() -> None:
    first, now = [1.0, 2.0, 3.0, 4.0], [4.0, 6.0]
    pooled = math.sqrt((5.0 + 2.0) / 4)
    assert drift(first, now) == pytest.approx(2.5 / pooled)
    assert drift(first, first) == 0.0
    assert drift([], now) is None
    assert drift([3.0, 3.0], [5.0, 5.0]) is None


def course(seed: int, rise_score: float, rise_outcome: float) -> tuple[list[float], list[float]]:
    """Means of `STEPS` steps: noise as of a dozen episodes a step, score and outcome correlated by 0.7."""
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal([0, 0], [[0.06**2, 0.7 * 0.006], [0.7 * 0.006, 0.1**2]], size=STEPS)
    along = np.linspace(0, 1, STEPS)
    scores = 10 * (0.4 + rise_score * along + noise[:, 0])
    return scores.tolist(), (0.2 + rise_outcome * along + noise[:, 1]).tolist()


def alarms(seed: int, rise_score: float, rise_outcome: float) -> list[bool]:
    scores, outcomes = course(seed, rise_score, rise_outcome)
    found = [divergence(scores[:n], outcomes[:n]) for n in range(2 * WINDOW, STEPS + 1)]
    return [item is not None and item.alarm for item in found]


def test_the_alarm_is_for_scores_that_rise_alone() -> None:
    assert alarms(0, 0.3, 0.0)[-1]
    assert alarms(0, 0.3, -0.1)[-1]
    assert not alarms(0, 0.3, 0.3)[-1]
    assert not any(alarms(0, 0.0, 0.0))
    assert not any(alarms(0, -0.3, -0.3))


def test_the_alarm_needs_two_windows_of_steps_with_both_figures() -> None:
    scores: list[float | None] = [4.0] * WINDOW + [8.0] * WINDOW
    outcomes: list[float | None] = [0.2] * (2 * WINDOW)
    found = divergence(scores, outcomes)
    assert found is not None
    assert found.alarm
    assert found.score == pytest.approx((0.4, 0.4))
    assert divergence(scores[:-1], outcomes[:-1]) is None
    assert divergence([*scores[:-1], None], outcomes) is None
    assert divergence([*scores, None], [*outcomes, 0.9]) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rise_score", "rise_outcome", "least", "most"),
    [
        pytest.param(0.0, 0.0, 0.0, 0.05, id="nothing changes"),
        pytest.param(0.3, 0.3, 0.0, 0.25, id="both rise"),
        pytest.param(0.3, 0.0, 0.95, 1.0, id="the score rises alone"),
    ],
)
def test_rates_of_alarms_in_whole_runs(
    rise_score: float, rise_outcome: float, least: float, most: float
) -> None:
    """The share of runs with any alarm at any step."""
    share = np.mean([any(alarms(seed, rise_score, rise_outcome)) for seed in range(80)])
    assert least <= share <= most


def run_monitor(monitor: CoachMonitor, first: int, last: int) -> list[dict[str, Any]]:
    lines = []
    for step in range(first, last + 1):
        episodes = spread(step, shift=step / 10)
        rollouts = [make_rollout(k, episode) for k, episode in enumerate(episodes)]
        line: dict[str, Any] = dict(make_line(step, rollouts))
        lines.append(line | monitor.figures(line, episodes))
    return lines


def test_a_resumed_monitor_goes_on_as_if_uninterrupted(caplog: pytest.LogCaptureFixture) -> None:
    def read(step: int) -> list[Episode]:
        return spread(step, shift=step / 10)

    with caplog.at_level(logging.WARNING):
        whole = run_monitor(CoachMonitor(AGENTS, [], read), 1, 3 * WINDOW)
    assert [line["coach/alarm"] for line in whole[: 2 * WINDOW - 1]] == [None] * (2 * WINDOW - 1)
    assert whole[-1]["coach/alarm"] == 1
    assert len(caplog.records) == 1  # when it goes on, not at every step
    assert "learning to please the coach" in caplog.text
    assert [line[f"coach/drift/{AGENTS[0]}"] for line in whole[:REFERENCE_STEPS]] == [None] * REFERENCE_STEPS
    assert whole[-1][f"coach/drift/{AGENTS[0]}"] > 1
    for cut in (1, REFERENCE_STEPS, 2 * WINDOW + 3):
        resumed = CoachMonitor(AGENTS, whole[:cut], read)
        assert run_monitor(resumed, cut + 1, 3 * WINDOW) == whole[cut:]


def test_the_keys_are_in_every_line() -> None:
    monitor = CoachMonitor(AGENTS, [], lambda step: [])
    full = make_line(1)
    nothing = monitor.figures({"step": 1, "score/mean": None, "outcome/mean": None}, [])
    assert list(nothing) == list(monitor.figures(full, [make_episode()]))
    assert set(nothing) == {
        "coach/outcome_corr",
        "coach/alarm",
        *(f"coach/drift/{agent}" for agent in AGENTS),
    }
    assert set(nothing.values()) == {None}


def test_the_page_reads_no_more_than_the_newest_steps() -> None:
    asked = []

    def read(step: int) -> list[Episode]:
        asked.append(step)
        return [make_episode()] * 40

    lines = [make_line(step) for step in range(1, 30)]
    found = trust(lines, read)
    assert found is not None
    assert found.steps == (28, 29)
    assert asked == [29, 28, 27]
    assert trust([], read) is None


def test_the_page_says_whether_the_coach_is_to_be_trusted(tmp_path: Path) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}))
    for step in range(1, 2 * WINDOW + 1):
        episodes = [
            make_episode((min(0.5 * step, 9.0), 5.0), outcome=0.2, task_type=EVIL, task_id=f"t{k}")
            for k in range(2)
        ]
        rollouts = [make_rollout(2 * step + k, episode) for k, episode in enumerate(episodes)]
        run.append_episodes(step, rollouts)
        run.append_metrics(make_line(step, rollouts))
    page = report.write_report(run.path).read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "onerror" not in tags.attributes
    assert "Is the coach to be trusted?" in page
    assert "ALARM: the coach&#x27;s scores have risen and the outcomes have not" in page
    assert "&lt;script&gt;" in page
    assert f"steps {WINDOW + 1} to {2 * WINDOW}" in page


def test_a_page_of_a_short_run_has_the_figures_and_no_alarm(tmp_path: Path) -> None:
    page = report.write_report(make_run(tmp_path / "run", steps=2).path).read_text()
    assert "Too few steps yet" in page
    assert "classification, writer_0" in page
    assert "ALARM" not in page
