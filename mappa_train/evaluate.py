"""Measure a checkpoint: whole pipelines on tasks of a split; no coach, no learning, no late start."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mappa_envs.evaluation import EvalResult, EvalTable
from mappa_envs.types import Episode
from mappa_train.config import Config
from mappa_train.progress import Progress
from mappa_train.rollout import collect, plan_step
from mappa_train.team import load_weights, open_team

BATCH = 16
"""Episodes at once."""


def evaluate(
    config: Config, checkpoint: Path, *, split: str, episodes: int, progress: Progress
) -> EvalResult:
    """Play `episodes` whole episodes with the weights of a checkpoint, the tasks in turn."""
    done: list[Episode] = []
    with closing(open_team(config, split=split, num_envs=min(BATCH, episodes), coached=False)) as team:
        load_weights(checkpoint, team.policies)
        plans = plan_step(
            1,
            num_episodes=episodes,
            samples_per_task=1,
            tasks=team.envs[0].tasks,
            team=team.envs[0].possible_agents,
            exploring_starts=0.0,
            seed=config.seed,
        )
        for start in range(0, episodes, BATCH):
            batch = plans[start : start + BATCH]
            rollouts, _ = collect(
                batch,
                envs=team.envs[: len(batch)],
                engine=team.engine,
                tokenizer=team.tokenizer,
                max_prompt_tokens=team.tokenizer.context_tokens - config.max_new_tokens,
                seed=config.seed,
                step=0,
            )
            done += [rollout.episode for rollout in rollouts]
            progress.phase("rollout", len(done), episodes)
        table = EvalTable.of(done, team.envs[0].figures)
    return EvalResult(episodes=tuple(done), table=table)
