from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_fakes import AGENTS, KEYS, make_episode, make_line, make_rollout, make_turn, make_update

from mappa_envs.coach import BUDGET_SPENT
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.dsbench.scores import figures as dsbench_figures
from mappa_envs.evaluation import EvalRow
from mappa_envs.types import CoachScore, StopReason, Task, ToolResult
from mappa_train.metrics import OUTCOME_METRICS, EventWriter, MetricKeys, evaluation_metrics, step_metrics
from mappa_train.monitors import CoachMonitor


def test_the_keys_of_the_contract_are_there() -> None:
    line = make_line(1)
    fixed = {"step", "time_s", "episodes", "actions", "unscored", "score/mean", "return/mean", "adv/mean"}
    fixed |= {"adv/std", "outcome/success", "tokens/generated", "tokens/trained", "throughput/tokens_per_s"}
    fixed |= {f"time/{name}" for name in ("rollout", "coach", "sandbox", "learn", "sync")}
    fixed |= {"coach/cost_usd", "coach/prompt_tokens", "coach/completion_tokens", "coach/cached"}
    fixed |= {"coach/budget_spent"}
    fixed |= {"stop/budget", "tool/error_rate", "score_by/classification", "score_by/regression"}
    fixed |= {f"stop/{reason}" for reason in StopReason}
    fixed |= {f"outcome/{name}" for name in ("mean", *OUTCOME_METRICS)}
    by_agent = ("coach/cost_usd", "score", "kl", "clipfrac", "entropy", "loss", "grad_norm", "lr", "length")
    assert fixed | {f"{name}/{agent}" for name in by_agent for agent in AGENTS} <= set(line)


def test_every_line_has_the_same_keys_and_no_nan() -> None:
    empty = step_metrics(2, [], {}, keys=KEYS, timings={}, time_s=0.0, adv_mean=math.nan)
    full = make_line(1)
    assert list(empty) == list(full)
    assert empty["score/mean"] is None
    assert empty["adv/mean"] is None
    json.dumps(empty, allow_nan=False)


def test_means_are_over_scored_actions_only() -> None:
    rollouts = [make_rollout(0, make_episode((2.0, None, 4.0)))]
    line = make_line(1, rollouts)
    assert line["actions"] == 3
    assert line["unscored"] == 1
    assert line["score/mean"] == 3.0
    assert line["score/checker_0"] is None
    assert line["coach/cost_usd"] == 0.5


def test_the_coach_is_paid_for_calls_without_a_verdict_too() -> None:
    verdict = CoachScore(score=5, reason="", prompt_tokens=30, completion_tokens=4, cost_usd=0.5, cached=True)
    late = make_turn(1, AGENTS[1], None, unscored_reason=BUDGET_SPENT)
    rollouts = [make_rollout(0, make_episode(turns=(replace(make_turn(0, AGENTS[0]), score=verdict), late)))]
    line = make_line(1, rollouts)
    assert (line["coach/prompt_tokens"], line["coach/completion_tokens"]) == (30, 4)
    assert (line["coach/cost_usd/writer_0"], line["coach/cost_usd/checker_0"]) == (0.5, 0.0)
    assert (line["coach/cached"], line["stop/budget"]) == (1, 1)
    used = Usage(prompt_tokens=90, completion_tokens=9, cost_usd=2.0)
    line = make_line(1, rollouts, coach_used=used)
    assert (line["coach/prompt_tokens"], line["coach/cost_usd"]) == (90, 2.0)


def test_tokens_times_and_throughput() -> None:
    line = make_line(1, [make_rollout(0, num_tokens=10), make_rollout(1, num_tokens=30)])
    assert line["tokens/generated"] == 80
    assert line["tokens/trained"] == 40
    assert line["throughput/tokens_per_s"] == 40.0
    assert line["length/writer_0"] == 20.0
    assert (line["time/sandbox"], line["time/coach"], line["time/learn"]) == (2.0, 1.0, 1.0)


def test_attempts_that_the_sandbox_ended_count_under_stop_only() -> None:
    calm = [make_rollout(0), make_rollout(1)]
    line = make_line(1, [calm[0], replace(calm[1], num_reruns=2)])
    assert (line["stop/infra"], line["stop/done"]) == (2, 2)
    assert line | {"stop/infra": 0} == make_line(1, calm)


def test_outcomes_and_tool_errors() -> None:
    broken = make_turn(0, AGENTS[0], 1.0, tool=ToolResult(exit_code=1, exception="KeyError"))
    silent = make_turn(1, AGENTS[1], 1.0, tool=None)
    failed = make_episode(
        turns=(broken, silent), success=False, outcome=0.0, metrics={}, task_type="regression"
    )
    line = make_line(1, [make_rollout(0), make_rollout(1, failed)])
    assert line["outcome/success"] == 0.5
    assert line["outcome/mean"] == 0.25
    assert line["outcome/accuracy"] == 0.9
    assert line["outcome/mae"] is None
    assert line["tool/error_rate"] == pytest.approx(1 / 3)
    assert line["score_by/regression"] == 1.0


def test_behaviour_of_each_agent() -> None:
    broken = make_turn(0, AGENTS[0], 1.0, tool=ToolResult(exit_code=1, exception="KeyError"))
    silent = make_turn(1, AGENTS[1], 1.0, tool=None)
    line = make_line(1, [make_rollout(0), make_rollout(1, make_episode(turns=(broken, silent)))])
    assert (line["tool/use"], line["tool/use/writer_0"], line["tool/use/checker_0"]) == (0.75, 1.0, 0.5)
    assert (line["tool/error_rate/writer_0"], line["tool/error_rate/checker_0"]) == (0.5, 0.0)
    assert (line["truncated/writer_0"], line["truncated/checker_0"]) == (0.0, 0.0)


def test_an_evaluation_is_in_the_line_or_null() -> None:
    keys = MetricKeys(agents=AGENTS, task_types=(), eval_figures=("fair_f1", "r2"))
    episodes = [make_episode(), make_episode(success=False, outcome=0.0)]
    row = EvalRow.of("all", episodes, lambda _: {"fair_f1": 0.25, "r2": math.nan})
    line, empty = evaluation_metrics(row, keys, 1.5), evaluation_metrics(None, keys)
    assert list(line) == list(empty)
    assert set(empty.values()) == {None}
    assert (line["eval/num_episodes"], line["eval/success_rate"], line["eval/outcome"]) == (2, 0.5, 0.25)
    assert (line["eval/fair_f1"], line["eval/r2"], line["time/eval"]) == (0.25, None, 1.5)
    low, high = line["eval/success_low"], line["eval/success_high"]
    assert low is not None
    assert high is not None
    assert low < 0.5 < high


def test_an_agent_without_an_update_is_null() -> None:
    updates = {AGENTS[0]: make_update(kl=0.5)}
    line = step_metrics(1, [make_rollout(0)], updates, keys=KEYS, timings={}, time_s=1.0)
    assert (line[f"kl/{AGENTS[0]}"], line[f"kl/{AGENTS[1]}"]) == (0.5, None)


def test_keys_come_from_team_and_tasks() -> None:
    tasks = [Task(task_id=str(k), task_type=kind, split="train", prompt="") for k, kind in enumerate("baa")]
    keys = MetricKeys.of(("x_0",), tasks)
    assert keys.task_types == ("a", "b")
    assert keys.outcome_metrics[-2:] == ("relative", "suspicious")
    assert keys.outcome_metrics == MetricKeys.of(("x_0",), tasks, ("accuracy", "fair_f1")).outcome_metrics


def test_the_envs_own_metrics_are_among_the_outcomes() -> None:
    keys = MetricKeys.of(AGENTS, [], ("correct", "answered", "fair_answered"))
    given = replace(make_rollout(0).episode, metrics={"correct": 0.0, "answered": 1.0})
    line = step_metrics(1, [replace(make_rollout(0), episode=given)], {}, keys=keys, timings={}, time_s=1.0)
    assert (line["outcome/correct"], line["outcome/answered"]) == (0.0, 1.0)
    assert "outcome/fair_answered" not in line


def test_events_hold_the_defined_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = EventWriter(tmp_path)
    writer.write({"step": 1, "score/mean": 5.0, "clipfrac/a": None})
    writer.write({"step": 2, "score/mean": 6.0, "clipfrac/a": None})
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["score/mean"]
    assert [(item.step, item.value) for item in events.Scalars("score/mean")] == [(1, 5.0), (2, 6.0)]


def rows_of_the_page() -> list[str]:
    """The keys in the first column of docs/metrics.md, with their placeholders."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    firsts = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return [key for first in firsts for key in re.findall(r"`([^`]+)`", first)]


@pytest.mark.parametrize("env_figures", [dsbench_figures([]), {"correct": None, "answered": None}])
def test_the_page_of_the_figures_has_a_row_for_every_key(env_figures: dict[str, float | None]) -> None:
    task = Task(task_id="t", task_type="classification", split="train", prompt="")
    keys = MetricKeys.of(AGENTS, [task], env_figures)
    line = step_metrics(1, [make_rollout(0)], {}, keys=keys, timings={}, time_s=1.0)
    line |= CoachMonitor(AGENTS, [], lambda step: []).figures(line, [make_episode()])
    line |= evaluation_metrics(None, keys)
    values = {
        "agent": AGENTS,
        "kind": keys.task_types,
        "metric": (*keys.outcome_metrics, *keys.eval_figures),
        "reason": tuple(StopReason),
    }
    patterns = []
    for row in rows_of_the_page():
        parts = re.split(r"<(\w+)>", row)
        parts[1::2] = [f"(?:{'|'.join(map(re.escape, values[name]))})" for name in parts[1::2]]
        parts[::2] = map(re.escape, parts[::2])
        patterns.append(re.compile("".join(parts)))
    assert [key for key in line if not any(pattern.fullmatch(key) for pattern in patterns)] == []
    gone = {
        row
        for row, pattern in zip(rows_of_the_page(), patterns, strict=True)
        if not any(pattern.fullmatch(key) for key in line)
    }
    assert gone <= {"eval/fair_<metric>"}  # not of every environment
