"""Who plays a run's episodes: the team of each process its share, or rollout workers of Ray all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mappa_train.algorithms import find_algorithm
from mappa_train.cluster.weights import publish
from mappa_train.config import Config
from mappa_train.distributed import Ranks, play_together, played_for_all
from mappa_train.engine.base import SleepingEngine
from mappa_train.policies import Policies
from mappa_train.rollout import EpisodePlan, RolloutTimes
from mappa_train.team import Team, play
from mappa_train.types import EpisodeRollout

if TYPE_CHECKING:
    from mappa_train.cluster.pool import WorkerPool

OnDone = Callable[[int, int], None]
"""Told of finished episodes: how many, of how many."""


class Players(Protocol):
    """Play with the weights of the last `sync`. Several ranks call `sync` and `play` together."""

    def sync(self, version: int) -> None:
        """Let whatever samples take over the weights of now, which are policy `version`.

        Weights that it has already, as after a measurement on val tasks, are not sent again.
        """
        ...

    def play(
        self, plans: Sequence[EpisodePlan], step: int, on_done: OnDone
    ) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
        """All episodes of a step, in plan order, and the indices of those that this rank learns from."""
        ...

    def measure(self, plans: Sequence[EpisodePlan], on_done: OnDone) -> list[EpisodeRollout]:
        """Episodes on val tasks, without a coach, in plan order. For the first rank alone."""
        ...


class OwnTeam:
    """The team of this process; of several, each plays its share."""

    def __init__(self, config: Config, team: Team, ranks: Ranks) -> None:
        self._config, self._team, self._ranks = config, team, ranks
        self._version, self._is_synced = 0, False

    def sync(self, version: int) -> None:
        if self._is_synced and version == self._version:
            return
        self._team.playing_engine().sync(version)
        self._version, self._is_synced = version, True

    def play(
        self, plans: Sequence[EpisodePlan], step: int, on_done: OnDone
    ) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
        play_mine = partial(
            play,
            config=self._config,
            team=self._team,
            step=step,
            policy_version=self._version,
            on_done=on_done,
        )
        by_task = find_algorithm(self._config.algorithm).compares
        played = play_together(plans, play_mine, self._ranks, by_task=by_task)
        if isinstance(self._team.engine, SleepingEngine):
            self._team.engine.sleep()
            self._is_synced = False
        return played

    def measure(self, plans: Sequence[EpisodePlan], on_done: OnDone) -> list[EpisodeRollout]:
        team = self._team.on_held_out()
        rollouts, _ = play(plans, self._config, team, step=0, policy_version=self._version, on_done=on_done)
        return rollouts


class RolloutWorkers:
    """Workers of Ray, whom the first rank drives for all: the only one that has a `pool`."""

    def __init__(self, config: Config, policies: Policies, pool: WorkerPool | None, ranks: Ranks) -> None:
        self._config, self._policies, self._pool, self._ranks = config, policies, pool, ranks
        self._version: int | None = None

    def sync(self, version: int) -> None:
        if version == self._version:
            return
        self._version = version
        if self._pool is not None:
            self._pool.sync(publish(self._policies, version))
            return
        for policy in self._policies.names:  # the first rank may have a part of the weights only
            self._policies.state(policy)

    def play(
        self, plans: Sequence[EpisodePlan], step: int, on_done: OnDone
    ) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
        pool = self._pool
        found = None if pool is None else pool.collect(plans, step, on_done)
        by_task = find_algorithm(self._config.algorithm).compares
        return played_for_all(plans, found, self._ranks, by_task=by_task)

    def measure(self, plans: Sequence[EpisodePlan], on_done: OnDone) -> list[EpisodeRollout]:
        assert self._pool is not None  # on the first rank there is one
        rollouts, _ = self._pool.collect(plans, 0, on_done)
        return rollouts
