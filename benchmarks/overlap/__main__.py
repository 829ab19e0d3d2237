"""How much longer does a rollout take with a coach that needs 5 s for an answer than with an instant one?

    python -m benchmarks.overlap --size full --json overlap.json

64 episodes of `dsbench-v0` at once: the trainer's `collect`, the real environment, sandbox and rubric. "full"
samples with the embedded model, "quick" paces the scripted expert's messages instead; see README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.overlap.coach import LateCoach
from mappa_envs.pipeline import large_files
from mappa_envs.sandbox import Sandbox, open_sandbox
from mappa_envs.scoring import Scoring
from mappa_envs.testing import expert_action, without_times
from mappa_train.config import Config
from mappa_train.engine.fake import CharTokenizer, FakeBatchEngine, Pace
from mappa_train.plan import make_env
from mappa_train.rollout import collect, plans_of
from mappa_train.settings import resolve
from mappa_train.team import open_team
from mappa_train.types import EpisodeRollout

DELAY_S = 5.0
NUM_AT_ONCE = 32
"""Calls of the coach at a time: what a paid key of the usual providers allows."""

TOKENS_PER_ACTION, TOKENS_PER_S = 95, 200.0
"""Of the embedded model: the measured length, and a rate above the 100 to 150 that two cores reach, so that
the pace does not flatter: the longer the sampling, the less the wait for the last answers weighs."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How the coach is asked, and how long it takes."""

    name: str
    scoring: Scoring
    delay_s: float


INSTANT = Variant(name="instant", scoring="deferred", delay_s=0.0)
LATE = (
    Variant(name="deferred", scoring="deferred", delay_s=DELAY_S),
    Variant(name="inline", scoring="inline", delay_s=DELAY_S),
    Variant(name="hindsight", scoring="hindsight", delay_s=DELAY_S),
)
SIZES: dict[str, tuple[int, tuple[Variant, ...]]] = {"quick": (1, LATE[:1]), "full": (2, LATE)}
"""Rounds, and what is compared with the instant coach."""

Play = Callable[[Variant], tuple[list[EpisodeRollout], float]]
"""A rollout and its seconds."""


def settings(num_episodes: int) -> Config:
    """The trainer's defaults, but whole episodes only: with late starts a rollout has fewer actions."""
    return resolve({"episodes_per_step": num_episodes, "exploring_starts": 0.0})


def player(config: Config, sandbox: Sandbox, engine: Any, tokenizer: Any, max_prompt_tokens: int) -> Play:
    """Plays the same step again and again, with another coach each time."""
    tasks = make_env(config).tasks
    asyncio.run(_warm_up(sandbox))

    def play(variant: Variant) -> tuple[list[EpisodeRollout], float]:
        env = make_env(
            config,
            tasks=tasks,
            sandbox=sandbox,
            coach=LateCoach(variant.delay_s, NUM_AT_ONCE),
            scoring=variant.scoring,
        )
        rollouts, times = collect(
            plans_of(1, config, env),
            env=env,
            engine=engine,
            tokenizer=tokenizer,
            max_prompt_tokens=max_prompt_tokens,
            seed=config.seed,
            step=1,
            policy_version=0,
        )
        return rollouts, times.rollout

    return play


async def _warm_up(sandbox: Sandbox) -> None:
    """The first workspace starts the interpreter that all others are forked from."""
    workspace = await sandbox.open()
    await workspace.run("import pandas, sklearn")
    await workspace.close()


def compare(play: Play, variants: Sequence[Variant], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant, by round; every second round backwards. Raises if the scores differ."""
    seconds: dict[str, list[float]] = {variant.name: [] for variant in (INSTANT, *variants)}
    known: list[str] = []
    for number in range(num_rounds):
        for variant in (INSTANT, *variants)[:: -1 if number % 2 else 1]:
            rollouts, taken_s = play(variant)
            seconds[variant.name].append(taken_s)
            print(f"round {number + 1}: {variant.name}: {taken_s:.1f} s", flush=True)
            if variant.scoring == "hindsight":  # no corrections there
                continue
            records = [without_times(rollout.episode).to_json() for rollout in rollouts]
            if known and records != known:
                raise RuntimeError(f"{variant.name}: the episodes are not the same ones")
            known = records
    return seconds


def slowdowns(seconds: dict[str, list[float]]) -> dict[str, float | None]:
    """The median ratio to the instant coach within a round; None where it was not measured."""
    figures: dict[str, float | None] = {}
    for variant in LATE:
        pairs = zip(seconds.get(variant.name, ()), seconds[INSTANT.name], strict=False)
        ratios = [late / instant for late, instant in pairs]
        figures[f"slowdown_{variant.name}_5s"] = statistics.median(ratios) if ratios else None
    return {**figures, "instant_s": statistics.median(seconds[INSTANT.name])}


def measure_paced(config: Config, variants: Sequence[Variant], num_rounds: int) -> dict[str, list[float]]:
    """Without a model."""
    env = make_env(config)
    sandbox = open_sandbox(config.sandbox, shared=large_files(env.tasks))
    tasks: dict[str, Any] = {task.task_id: task for task in env.tasks}
    task_of = {plan.index: tasks[plan.task_id] for plan in plans_of(1, config, env)}
    engine = FakeBatchEngine(
        lambda request: expert_action(request.agent, task_of[request.key[2]]),
        Pace(action_s=TOKENS_PER_ACTION / TOKENS_PER_S),
    )
    try:
        return compare(player(config, sandbox, engine, CharTokenizer(), 10**9), variants, num_rounds)
    finally:
        asyncio.run(sandbox.close())


def measure_real(config: Config, variants: Sequence[Variant], num_rounds: int) -> dict[str, list[float]]:
    """With the embedded model."""
    with closing(open_team(config)) as team:
        limit = team.tokenizer.context_tokens - config.max_new_tokens
        assert team.sandbox is not None  # a team that plays has one
        play = player(config, team.sandbox, team.playing_engine(), team.tokenizer, limit)
        return compare(play, variants, num_rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--episodes", type=int, default=64, help="episodes at once; default 64")
    options = parser.parse_args(arguments)
    num_rounds, variants = SIZES[options.size]
    measure = measure_paced if options.size == "quick" else measure_real
    figures = slowdowns(measure(settings(options.episodes), variants, num_rounds))
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, "– (only with --size full)" if value is None else f"{value:.3f}")
    console = Console()
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
