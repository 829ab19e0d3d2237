"""What a step showed: one line of metrics.jsonl, with the same keys in every line, and TensorBoard events.

>>> line = step_metrics(3, rollouts, updates, keys=MetricKeys.of(team, env.tasks), return_mean=0.4, ...)
>>> line["score/data_engineer_0"], line["outcome/success"]
(6.1, 0.25)

Undefined figures are None, never NaN. Importing this loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_envs.coach.base import BUDGET_SPENT
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.evaluation import EvalRow
from mappa_envs.stats import mean
from mappa_envs.types import Episode, StopReason, Task, Turn

if TYPE_CHECKING:
    from mappa_train.types import EpisodeRollout, UpdateStats

MetricLine = dict[str, float | int | None]
OUTCOME_METRICS = (
    "accuracy",
    "f1",
    "roc_auc",
    "mae",
    "rmse",
    "rmse_pct",
    "mae_pct",
    "r2",
    "relative",
    "suspicious",
)
"""Figures that several tasks share; each task's own metric is added to them."""

EVAL_FIGURES = (
    *("num_episodes", "num_tasks", "success_rate", "success_low", "success_high"),
    *("outcome", "outcome_low", "outcome_high", "valid_artifacts"),
)
"""Of an evaluation on val tasks; those of the environment are added to them."""
TIMES = ("rollout", "coach", "sandbox", "learn", "sync")
_PER_UPDATE = ("kl", "clipfrac", "entropy", "loss", "grad_norm", "lr")


@dataclass(frozen=True, kw_only=True)
class MetricKeys:
    """What the keys of a run are made from; fixed when the run begins."""

    agents: tuple[str, ...]
    task_types: tuple[str, ...]
    outcome_metrics: tuple[str, ...] = OUTCOME_METRICS
    eval_figures: tuple[str, ...] = ()

    @classmethod
    def of(cls, agents: Iterable[str], tasks: Iterable[Task], eval_figures: Iterable[str] = ()) -> MetricKeys:
        """The keys for a team's names (in their order), the tasks of a run, and the env's own figures."""
        chosen, figures = tuple(tasks), tuple(eval_figures)
        own = {str(task.spec.metric) for task in chosen if hasattr(task, "spec")}
        # Those of single episodes; the fair ones are made of many.
        own |= {name for name in figures if not name.startswith("fair_")}
        return cls(
            agents=tuple(agents),
            task_types=tuple(sorted({task.task_type for task in chosen})),
            outcome_metrics=(*OUTCOME_METRICS, *sorted(own - set(OUTCOME_METRICS))),
            eval_figures=figures,
        )


def step_metrics(
    step: int,
    rollouts: Sequence[EpisodeRollout],
    updates: Mapping[str, UpdateStats],
    *,
    keys: MetricKeys,
    return_mean: float | None = None,
    adv_mean: float | None = None,
    adv_std: float | None = None,
    timings: Mapping[str, float],
    time_s: float,
    coach_used: Usage | None = None,
    budget_spent: float | None = None,
) -> MetricLine:
    """The figures of one step.

    Parameters
    ----------
    rollouts : the step's episodes; attempts that a fault of the sandbox ended count under stop/infra alone.
    updates : by agent; an agent that is missing was not updated.
    return_mean : mean G over the trained actions.
    adv_mean, adv_std : of the token advantages before normalization.
    timings : wall-clock seconds of "rollout", "learn" and "sync". "coach" and "sandbox" are the sums over
        all turns unless given: they overlap each other, and may exceed the rollout.
    time_s : wall-clock seconds of the step.
    coach_used : what the coach took for the step, calls without a verdict included; where nobody counted,
        the sums over the verdicts.
    budget_spent : the coach's budget in USD, where it is spent.
    """
    episodes = [item.episode for item in rollouts]
    turns = [turn for episode in episodes for turn in episode.turns]
    line: MetricLine = {"step": step, "time_s": time_s, "episodes": len(episodes), "actions": len(turns)}
    line |= _scores(episodes, turns, keys)
    line |= {"return/mean": return_mean, "adv/mean": adv_mean, "adv/std": adv_std}
    line |= _outcomes(episodes, keys)
    line |= _updates(updates, keys.agents)
    line |= _lengths(rollouts, keys.agents)
    line |= _tools(turns, keys.agents)
    line["tokens/trained"] = sum(item.num_tokens for item in updates.values())
    line |= _times(turns, timings)
    rollout_s = timings.get("rollout")
    line["throughput/tokens_per_s"] = (line["tokens/generated"] or 0) / rollout_s if rollout_s else None
    line |= _coach(turns, keys.agents, coach_used)
    line["coach/budget_spent"] = budget_spent
    ends = [episode.stop_reason for episode in episodes]
    line |= {f"stop/{reason}": ends.count(reason) for reason in StopReason}
    line["stop/infra"] = sum(item.num_reruns for item in rollouts)
    line["stop/budget"] = sum(
        any(turn.unscored_reason == BUDGET_SPENT for turn in episode.turns) for episode in episodes
    )
    return {key: _finite(value) for key, value in line.items()}


def _finite(value: float | int | None) -> float | int | None:
    return None if value is None or not math.isfinite(value) else value


def _scores(episodes: Sequence[Episode], turns: Sequence[Turn], keys: MetricKeys) -> MetricLine:
    line: MetricLine = {
        "unscored": sum(turn.final_score is None for turn in turns),
        "score/mean": mean(turn.final_score for turn in turns),
    }
    for agent in keys.agents:
        line[f"score/{agent}"] = mean(turn.final_score for turn in turns if turn.agent == agent)
    for task_type in keys.task_types:
        mine = [turn for episode in episodes if episode.task_type == task_type for turn in episode.turns]
        line[f"score_by/{task_type}"] = mean(turn.final_score for turn in mine)
    return line


def _outcomes(episodes: Sequence[Episode], keys: MetricKeys) -> MetricLine:
    line: MetricLine = {
        "outcome/success": mean(episode.success for episode in episodes),
        "outcome/mean": mean(episode.outcome for episode in episodes),
    }
    for name in keys.outcome_metrics:
        line[f"outcome/{name}"] = mean(episode.metrics.get(name) for episode in episodes)
    return line


def _updates(updates: Mapping[str, UpdateStats], agents: Sequence[str]) -> MetricLine:
    return {
        f"{name}/{agent}": getattr(updates[agent], name) if agent in updates else None
        for name in _PER_UPDATE
        for agent in agents
    }


def _lengths(rollouts: Sequence[EpisodeRollout], agents: Sequence[str]) -> MetricLine:
    lengths = [
        (action.agent, len(action.generation.token_ids)) for item in rollouts for action in item.actions
    ]
    line: MetricLine = {"tokens/generated": sum(length for _, length in lengths)}
    for agent in agents:
        line[f"length/{agent}"] = mean(length for name, length in lengths if name == agent)
    cut = [(action.agent, action.generation.truncated) for item in rollouts for action in item.actions]
    for agent in agents:
        line[f"truncated/{agent}"] = mean(value for name, value in cut if name == agent)
    return line


def _tools(turns: Sequence[Turn], agents: Sequence[str]) -> MetricLine:
    """How often code was run, and how often it failed: of all actions, and of each agent's."""
    line: MetricLine = {}
    for suffix, mine in (
        ("", turns),
        *((f"/{a}", [turn for turn in turns if turn.agent == a]) for a in agents),
    ):
        line[f"tool/use{suffix}"] = mean(turn.tool is not None for turn in mine)
        line[f"tool/error_rate{suffix}"] = mean(not turn.tool.ok for turn in mine if turn.tool is not None)
    return line


def evaluation_metrics(row: EvalRow | None, keys: MetricKeys, time_s: float | None = None) -> MetricLine:
    """The figures of an evaluation on val tasks, named as in those of `eval`; None where there was none."""
    known = row.to_json() if row else {}
    line: MetricLine = {f"eval/{name}": known.get(name) for name in (*EVAL_FIGURES, *keys.eval_figures)}
    line["time/eval"] = time_s
    return {key: _finite(value) for key, value in line.items()}


def _coach(turns: Sequence[Turn], agents: Sequence[str], used: Usage | None) -> MetricLine:
    scores = [(turn.agent, turn.score) for turn in turns if turn.score]
    line: MetricLine = {
        "coach/cost_usd": math.fsum(score.cost_usd for _, score in scores),
        "coach/prompt_tokens": sum(score.prompt_tokens for _, score in scores),
        "coach/completion_tokens": sum(score.completion_tokens for _, score in scores),
    }
    if used is not None:
        line = {f"coach/{name}": value for name, value in vars(used).items()}
    line["coach/cached"] = sum(score.cached for _, score in scores)
    for agent in agents:
        line[f"coach/cost_usd/{agent}"] = math.fsum(score.cost_usd for name, score in scores if name == agent)
    return line


def _times(turns: Sequence[Turn], timings: Mapping[str, float]) -> MetricLine:
    known = {
        "coach": math.fsum(turn.coach_s for turn in turns),
        "sandbox": math.fsum(turn.sandbox_s for turn in turns),
        **timings,
    }
    return {f"time/{name}": known.get(name) for name in TIMES}


class EventWriter:
    """TensorBoard events of a run, under the keys of metrics.jsonl. Undefined figures are left out."""

    def __init__(self, folder: Path, last_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events after the checkpoint that a run resumes from are hidden, since the steps are taken again.
        purge = last_step + 1 if last_step else None
        self._writer: Any = SummaryWriter(log_dir=str(folder), purge_step=purge)

    def write(self, line: Mapping[str, float | int | None]) -> None:
        """The figures of one step."""
        for key, value in line.items():
            if value is not None and key != "step":
                self._writer.add_scalar(key, value, global_step=line["step"])
        self._writer.flush()

    def close(self) -> None:
        """Nothing may be written afterwards."""
        self._writer.close()
