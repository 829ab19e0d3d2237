"""A rollout worker: a Ray actor with a team of its own, which plays the episodes that it is given."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mappa_envs.coach.base import Coach
from mappa_train.cluster.weights import Weights, take_over
from mappa_train.config import Config
from mappa_train.model import load_pretrained
from mappa_train.rollout import EpisodePlan
from mappa_train.team import Team, open_team, play
from mappa_train.types import EpisodeRollout

_OF_A_RANK = re.compile(
    r"((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)
"""What torchrun and `launch` put into the environment of a rank."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A worker that is ready: where it is, what base model it found, which policy version it holds.

    `version` is None before the first weights.
    """

    node: str
    pid: int
    model_sha256: str
    version: int | None


class RolloutWorker:
    """Loads what it needs with the first `join`: an error there reaches the driver as itself."""

    def __init__(self, config: Config, coach: Coach | None, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)  # relative paths mean what they mean in the driver
        for name in filter(_OF_A_RANK.fullmatch, list(os.environ)):
            del os.environ[name]  # inherited where one of several learners began this Ray
        self._config = replace(config, learners_per_agent=1, shard=Config.shard)
        self._coach = coach
        self._team: Team | None = None
        self._version: int | None = None
        self._model_sha256 = ""

    def join(self, weights: Weights | None) -> Joined:
        """Be ready to play with these weights (None: not yet to play)."""
        import ray

        node_address: Any = ray.util.get_node_ip_address  # untyped there
        team = self._open()
        if weights is not None:
            take_over(weights, team.policies)
            team.playing_engine().sync(weights.version)
            self._version = weights.version
        return Joined(
            node=node_address(),
            pid=os.getpid(),
            model_sha256=self._model_sha256,
            version=self._version,
        )

    def play(self, plans: Sequence[EpisodePlan], step: int) -> list[EpisodeRollout]:
        """Play a chunk of a step's episodes with the weights of the last `join`.

        Step 0 is an evaluation: on val tasks, without a coach.
        """
        if self._team is None or self._version is None:
            raise RuntimeError("a worker must join with weights before it plays")
        team = self._team if step else self._team.on_held_out()
        rollouts, _ = play(plans, self._config, team, step=step, policy_version=self._version)
        return rollouts

    def close(self) -> None:
        """Stop the engine and the sandbox."""
        if self._team is not None:
            self._team.close()
            self._team = None

    def _open(self) -> Team:
        if self._team is None:
            self._model_sha256 = load_pretrained(self._config.model).sha256
            # Nobody scores as far as the settings go: the coach of this worker may sit elsewhere.
            self._team = open_team(self._config, coached=False)
            self._team.env.coach = self._coach
        return self._team
