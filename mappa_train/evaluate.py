"""Measure a team: whole pipelines on tasks of a split; no coach, no learning, no late start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from mappa_envs.evaluation import EvalResult, EvalTable
from mappa_envs.pipeline import PipelineEnv
from mappa_train.config import Config
from mappa_train.engine.choice import to_play_here
from mappa_train.files import write_atomically
from mappa_train.progress import Progress
from mappa_train.rollout import EpisodePlan, plan_step
from mappa_train.team import load_weights, open_team, play
from mappa_train.types import EpisodeRollout


def evaluate(
    config: Config, checkpoint: Path, *, split: str, episodes: int, progress: Progress
) -> EvalResult:
    """Play `episodes` whole episodes with the weights of a checkpoint, the tasks in turn.

    Raises `UnavailableError` or `ConfigError` if the engine of the settings is not to be had here.
    """
    config = to_play_here(config)
    with closing(open_team(config, split=split, coached=False)) as team:
        load_weights(checkpoint, team.policies)
        team.playing_engine().sync(0)
        on_done = partial(progress.phase, "eval")

        def play_all(plans: Sequence[EpisodePlan]) -> list[EpisodeRollout]:
            return play(plans, config, team, step=0, policy_version=0, on_done=on_done)[0]

        return measure(config, team.env, episodes=episodes, play=play_all)


def measure(
    config: Config,
    env: PipelineEnv,
    *,
    episodes: int,
    play: Callable[[Sequence[EpisodePlan]], list[EpisodeRollout]],
) -> EvalResult:
    """Have whole episodes of an environment played.

    Always the same tasks with the same sampling noise, so that checkpoints are compared in pairs. Moves no
    random state of a training run.
    """
    plans = plan_step(
        1,
        num_episodes=episodes,
        samples_per_task=1,
        tasks=env.tasks,
        team=env.possible_agents,
        exploring_starts=0.0,
        seed=config.seed,
    )
    done = tuple(rollout.episode for rollout in play(plans))
    return EvalResult(episodes=done, table=EvalTable.of(done, env.figures))


def keep_figures(run: Path, step: int, split: str, table: EvalTable, copy: Path | None) -> list[Path]:
    """Write the figures of a run's checkpoint into its folder, and to `copy`; returns where they are."""
    figures = {"step": step, "split": split, **table.to_json()}
    content = (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode()
    places = [run / f"eval-{split}-step-{step}.json", *([copy] if copy is not None else [])]
    for path in places:
        write_atomically(path, content)
    return places
