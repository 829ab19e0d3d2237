"""Episodes, rollouts and run folders as a training run would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mappa_envs.types import Artifact, CoachScore, Episode, FileRecord, Message, StopReason, ToolResult, Turn
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.metrics import MetricKeys, MetricLine, step_metrics
from mappa_train.settings import resolve
from mappa_train.types import Action, EpisodeRollout, Generation, UpdateStats

AGENTS = ("writer_0", "checker_0")
KEYS = MetricKeys(agents=AGENTS, task_types=("classification", "regression"))


def make_turn(index: int, agent: str, score: float | None = 6.0, **fields: Any) -> Turn:
    verdict = None if score is None else CoachScore(score=score, reason="runs", blame={}, cost_usd=0.25)
    known: dict[str, Any] = {
        "messages": (Message(role="system", content="You write."), Message(role="user", content="Task.")),
        "action": "```python\nprint(1)\n```",
        "tool": ToolResult(stdout="1\n", duration_s=0.1, files=(_file("a.csv"),)),
        "artifacts": (Artifact(path="a.csv", status="valid", kind="csv", shape=(3, 2), written_by=index),),
        "sandbox_s": 0.5,
        "coach_s": 0.25,
    }
    return Turn(index=index, agent=agent, score=verdict, final_score=score, **(known | fields))


def _file(path: str) -> FileRecord:
    return FileRecord(path=path, change="created", size=7, sha256="0" * 64, kind="csv")


def make_episode(scores: tuple[float | None, ...] = (6.0, 8.0), **fields: Any) -> Episode:
    known: dict[str, Any] = {
        "env_id": "fake-v0",
        "task_id": "iris",
        "task_type": "classification",
        "split": "train",
        "seed": 1,
        "turns": tuple(make_turn(k, AGENTS[k % 2], score) for k, score in enumerate(scores)),
        "outcome": 0.5,
        "success": True,
        "metrics": {"accuracy": 0.9, "mae": None},
        "grade_code": "ok",
        "stop_reason": StopReason.DONE,
    }
    return Episode(**(known | fields))


def make_rollout(index: int, episode: Episode | None = None, num_tokens: int = 10) -> EpisodeRollout:
    episode = episode or make_episode()
    actions = tuple(
        Action(
            agent=turn.agent,
            turn=turn.index,
            prompt_ids=torch.arange(4),
            generation=Generation(
                token_ids=torch.arange(num_tokens),
                logprobs=torch.zeros(num_tokens),
                truncated=False,
                policy_version=0,
            ),
        )
        for turn in episode.turns
    )
    return EpisodeRollout(index=index, episode=episode, actions=actions)


def make_update(**fields: Any) -> UpdateStats:
    known: dict[str, Any] = {
        "num_tokens": 20,
        "num_actions": 2,
        "loss": 0.1,
        "kl": 0.001,
        "clipfrac": None,
        "entropy": 1.5,
        "grad_norm": 0.7,
        "lr": 1e-3,
    }
    return UpdateStats(**(known | fields))


def make_line(step: int, rollouts: list[EpisodeRollout] | None = None, **fields: Any) -> MetricLine:
    rollouts = [make_rollout(0)] if rollouts is None else rollouts
    known: dict[str, Any] = {"timings": {"rollout": 2.0, "learn": 1.0, "sync": 0.1}, "time_s": 3.2}
    updates = {agent: make_update() for agent in AGENTS}
    return step_metrics(step, rollouts, updates, keys=KEYS, **(known | fields))


def make_run(path: Path, steps: int = 3, episodes: int = 2, **settings: Any) -> RunFolder:
    """A run folder with `steps` steps of metrics and episodes, and no checkpoint."""
    config: Config = resolve({"out": str(path), "steps": steps, **settings})
    run = RunFolder.create(config)
    for step in range(1, steps + 1):
        rollouts = [make_rollout((step - 1) * episodes + k) for k in range(episodes)]
        run.append_episodes(step, rollouts)
        run.append_metrics(make_line(step, rollouts))
    return run
