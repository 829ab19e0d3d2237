"""Is the coach to be trusted? What its scores say, set beside the outcomes, of which it is no judge.

Bias: mean scores by kind of task and role, by length, by use of code, by outcome. Validity: Spearman's rank
correlation of scores with outcomes. Drift: how far an agent's scores moved from those of the first steps.
Alarm: the scores rise and the outcomes do not, which is what gaming the coach looks like.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mappa_envs.stats import MIN_TASKS, Correlation, bootstrap_interval, rank_correlation
from mappa_envs.types import Episode, StopReason

log = logging.getLogger(__name__)

WINDOW = 8
"""Steps at the beginning and at the end of a run that the alarm compares."""
ALARM_LEVEL = 0.99
"""Level of its intervals. It looks after every step: at 95 %, one run in 25 without change raised it."""
REFERENCE_STEPS = 3
"""The first steps, from whose scores drift is measured."""

Interval = tuple[float, float]
ReadStep = Callable[[int], Sequence[Episode]]
"""Gives the episodes of a step."""


@dataclass(frozen=True, kw_only=True)
class ScoredAction:
    """One scored action of a graded episode: `score` 0–10, `length` in characters, `outcome` in [0, 1]."""

    task_id: str
    task_type: str
    agent: str
    score: float
    length: int
    used_code: bool
    outcome: float


def scored_actions(episodes: Iterable[Episode]) -> list[ScoredAction]:
    """The actions that count: scored, in an episode that was graded and whose sandbox did not fail."""
    return [
        ScoredAction(
            task_id=episode.task_id,
            task_type=episode.task_type,
            agent=turn.agent,
            score=turn.final_score,
            length=len(turn.action),
            used_code=turn.tool is not None,
            outcome=episode.outcome,
        )
        for episode in episodes
        if episode.outcome is not None and episode.stop_reason is not StopReason.INFRA
        for turn in episode.turns
        if turn.final_score is not None
    ]


def outcome_correlation(actions: Iterable[ScoredAction]) -> Correlation | None:
    """Spearman's ρ of score and outcome. None where it is not defined.

    Its interval is a bootstrap over tasks, None of fewer than `MIN_TASKS`.
    """
    tasks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in actions:
        tasks[item.task_id].append((item.score, item.outcome))
    found = rank_correlation(list(tasks.values()))
    return found if found is None or len(tasks) >= MIN_TASKS else replace(found, low=None, high=None)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Mean score and outcome (both 0–10) of some actions.

    The score's interval is a bootstrap over tasks, None of fewer than `MIN_TASKS`.
    """

    name: str
    num_actions: int
    score: float
    interval: Interval | None
    outcome: float


def breakdown(actions: Sequence[ScoredAction]) -> dict[str, list[Group]]:
    """The groups by what may sway a coach: title → groups. Lengths are split into terciles."""
    shorter, longer = np.quantile([item.length for item in actions], [1 / 3, 2 / 3]) if actions else (0, 0)
    return {
        "kind of task and role": _groups(actions, lambda item: (0, f"{item.task_type}, {item.agent}")),
        "length": _groups(
            actions,
            lambda item: (
                (0, f"up to {shorter:.0f} characters")
                if item.length <= shorter
                else (1, f"up to {longer:.0f} characters")
                if item.length <= longer
                else (2, "longer")
            ),
        ),
        "tool": _groups(actions, lambda item: (0, "ran code") if item.used_code else (1, "ran no code")),
        "outcome": _groups(
            actions,
            lambda item: (
                (0, "0") if item.outcome <= 0 else (1, "up to 0.5") if item.outcome <= 0.5 else (2, "above")
            ),
        ),
    }


def _groups(
    actions: Sequence[ScoredAction], key_of: Callable[[ScoredAction], tuple[int, str]]
) -> list[Group]:
    """One group for each key, in the order of the keys; the name is the key's second part."""
    groups: dict[tuple[int, str], list[ScoredAction]] = defaultdict(list)
    for item in actions:
        groups[key_of(item)].append(item)
    return [_group(name, mine) for (_, name), mine in sorted(groups.items())]


def _group(name: str, actions: Sequence[ScoredAction]) -> Group:
    tasks: dict[str, list[float]] = defaultdict(list)
    for item in actions:
        tasks[item.task_id].append(item.score)
    return Group(
        name=name,
        num_actions=len(actions),
        score=math.fsum(item.score for item in actions) / len(actions),
        interval=bootstrap_interval(list(tasks.values())) if len(tasks) >= MIN_TASKS else None,
        outcome=10 * math.fsum(item.outcome for item in actions) / len(actions),
    )


def drift(reference: Sequence[float], current: Sequence[float]) -> float | None:
    """(mean of `current` − mean of `reference`) / pooled standard deviation; None where it is not defined."""
    if len(reference) < 2 or len(current) < 2:
        return None
    a, b = np.asarray(reference, float), np.asarray(current, float)
    squares = ((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()
    pooled = math.sqrt(squares / (len(a) + len(b) - 2))
    return float((b.mean() - a.mean()) / pooled) if pooled > 1e-9 else None


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Last steps − first steps, both as shares in [0, 1]: intervals of the mean change and of their gap."""

    score: Interval
    outcome: Interval
    gap: Interval

    @property
    def alarm(self) -> bool:
        """The score rose, the outcome is not shown to have risen, and it lags behind the score for sure.

        Without the last condition a run whose outcome rises, too, but is noisier, would be suspected, since
        "not shown" is no difference in itself.
        """
        return self.score[0] > 0 and self.outcome[0] <= 0 and self.gap[0] > 0


def divergence(scores: Sequence[float | None], outcomes: Sequence[float | None]) -> Divergence | None:
    """Compare the last `WINDOW` steps with the first, paired by their order.

    `scores` (0–10) and `outcomes` (0–1) are means of a step, in order; steps without one of them are left
    out. The intervals are percentile bootstraps over the pairs at `ALARM_LEVEL`. None of fewer than
    2 · `WINDOW` steps.
    """
    pairs = [(s / 10, o) for s, o in zip(scores, outcomes, strict=True) if s is not None and o is not None]
    if len(pairs) < 2 * WINDOW:
        return None
    change = np.array(pairs[-WINDOW:]) - np.array(pairs[:WINDOW])
    columns = (change[:, 0], change[:, 1], change[:, 0] - change[:, 1])
    found = [bootstrap_interval([[x] for x in column.tolist()], level=ALARM_LEVEL) for column in columns]
    score, outcome, gap = (interval for interval in found if interval is not None)
    return Divergence(score=score, outcome=outcome, gap=gap)


class CoachMonitor:
    """The figures of each step, and a warning when the alarm goes on.

    `lines` are those of metrics.jsonl so far, and `read` gives the episodes behind them: a resumed run goes
    on as if uninterrupted.
    """

    def __init__(self, agents: Sequence[str], lines: Sequence[Mapping[str, Any]], read: ReadStep) -> None:
        self._reference: dict[str, list[float]] = {agent: [] for agent in agents}
        self._scores = [line["score/mean"] for line in lines]
        self._outcomes = [line["outcome/mean"] for line in lines]
        self._was_on = bool(lines and lines[-1].get("coach/alarm"))
        for line in lines[:REFERENCE_STEPS]:
            self._remember(scored_actions(read(int(line["step"]))))

    def _remember(self, actions: Iterable[ScoredAction]) -> None:
        for item in actions:
            self._reference[item.agent].append(item.score)

    def figures(self, line: Mapping[str, Any], episodes: Iterable[Episode]) -> dict[str, float | int | None]:
        """What to add to a step's line of metrics.jsonl: the same keys each time, undefined = None."""
        actions = scored_actions(episodes)
        self._scores.append(line["score/mean"])
        self._outcomes.append(line["outcome/mean"])
        is_reference = len(self._scores) <= REFERENCE_STEPS
        if is_reference:
            self._remember(actions)
        correlation = outcome_correlation(actions)
        found: dict[str, float | int | None] = {
            "coach/outcome_corr": correlation.value if correlation else None
        }
        for agent, reference in self._reference.items():
            mine = [item.score for item in actions if item.agent == agent]
            found[f"coach/drift/{agent}"] = None if is_reference else drift(reference, mine)
        return found | {"coach/alarm": self._alarm(int(line["step"]))}

    def _alarm(self, step: int) -> int | None:
        compared = divergence(self._scores, self._outcomes)
        if compared is None:
            return None
        if compared.alarm and not self._was_on:
            log.warning("step %d: %s", step, ALARM)
        self._was_on = compared.alarm
        return int(compared.alarm)


ALARM = (
    "the coach's scores have risen and the outcomes have not: the team may be learning to please the coach. "
    "Read some of the best-scored episodes, and see docs/monitors.md"
)
