"""`--debias task_role`: scores on one scale for every kind of task and role, before they become returns.

A coach that is kinder to one kind of task or to one role teaches by that alone: under global normalization
the favoured actions get advantages above 0, whatever they did. Here the scores of each cell (task type and
role) are standardised by what the run has seen of the cell so far, and put back on the scale of all scores:

    s' = m + sd · (s − m_cell) / sd_cell,   within [0, 10]

It takes true differences between roles and kinds of tasks away with the coach's: off by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mappa_envs.types import Episode, StopReason
from mappa_train.types import EpisodeRollout

MIN_COUNT = 10
"""A cell with fewer scores so far is left as it is."""
FLAT_STD = 1e-6


@dataclass
class Moments:
    """Count, mean and centred sum of squares, updated one by one (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0


class Debias:
    """Running statistics of the scores, by task type and agent, and of all.

    `mode` is "task_role", or "off" to do nothing.
    """

    def __init__(self, mode: str = "task_role") -> None:
        self._on = mode != "off"
        self._cells: dict[tuple[str, str], Moments] = {}
        self._all = Moments()

    def apply(self, rollouts: Sequence[EpisodeRollout]) -> list[EpisodeRollout]:
        """Take the scores of a step into the statistics; the rollouts with debiased final scores.

        The given rollouts keep the raw ones. Switched off, they come back as they are.
        """
        if not self._on:
            return list(rollouts)
        for item in rollouts:
            if item.episode.stop_reason is not StopReason.INFRA:
                self._see(item.episode)
        return [replace(item, episode=self._debiased(item.episode)) for item in rollouts]

    def _see(self, episode: Episode) -> None:
        for turn in episode.turns:
            if turn.final_score is not None:
                self._cells.setdefault((episode.task_type, turn.agent), Moments()).add(turn.final_score)
                self._all.add(turn.final_score)

    def _debiased(self, episode: Episode) -> Episode:
        turns = tuple(
            turn
            if turn.final_score is None
            else replace(turn, final_score=self.score(episode.task_type, turn.agent, turn.final_score))
            for turn in episode.turns
        )
        return replace(episode, turns=turns)

    def score(self, task_type: str, agent: str, score: float) -> float:
        """The debiased score, 0–10."""
        cell = self._cells.get((task_type, agent), Moments())
        if cell.count < MIN_COUNT:
            return score
        z = (score - cell.mean) / cell.std if cell.std > FLAT_STD else 0.0
        return min(max(self._all.mean + self._all.std * z, 0.0), 10.0)

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint; None if switched off."""
        if not self._on:
            return None
        cells = [[*key, *_numbers(cell)] for key, cell in self._cells.items()]
        return {"all": _numbers(self._all), "cells": cells}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """The inverse of `state`, bit for bit."""
        if state is None:
            return
        self._all = Moments(*state["all"])
        self._cells = {(kind, agent): Moments(*rest) for kind, agent, *rest in state["cells"]}


def _numbers(moments: Moments) -> list[float]:
    return [moments.count, moments.mean, moments.squares]
