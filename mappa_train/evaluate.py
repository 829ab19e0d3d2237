"""Measure a team: whole pipelines on tasks of a split; no coach, no learning, no late start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from mappa_envs.evaluation import EvalResult, EvalTable
from mappa_train.config import Config
from mappa_train.progress import Progress
from mappa_train.rollout import plan_step
from mappa_train.team import Team, load_weights, open_team, play


def evaluate(
    config: Config, checkpoint: Path, *, split: str, episodes: int, progress: Progress
) -> EvalResult:
    """Play `episodes` whole episodes with the weights of a checkpoint, the tasks in turn."""
    with closing(open_team(config, split=split, coached=False)) as team:
        load_weights(checkpoint, team.policies)
        on_done = partial(progress.phase, "eval")
        return measure(config, team, version=0, episodes=episodes, on_done=on_done)


def measure(
    config: Config, team: Team, *, version: int, episodes: int, on_done: Callable[[int, int], None]
) -> EvalResult:
    """Play whole episodes of a team's environment with its current weights, which are policy `version`.

    Always the same tasks with the same sampling noise, so that checkpoints are compared in pairs. Moves no
    random state of a training run.
    """
    team.engine.sync(version)
    plans = plan_step(
        1,
        num_episodes=episodes,
        samples_per_task=1,
        tasks=team.env.tasks,
        team=team.env.possible_agents,
        exploring_starts=0.0,
        seed=config.seed,
    )
    rollouts, _ = play(plans, config, team, step=0, policy_version=version, on_done=on_done)
    done = tuple(rollout.episode for rollout in rollouts)
    return EvalResult(episodes=done, table=EvalTable.of(done, team.env.figures))
