"""Steps per second of our environment without sandbox and coach work, against a classic PettingZoo game.

    python -m benchmarks.envs --size full --json envs.json

Both are driven by `agent_iter`, `last` and `step`, in turns, in this process; the figures are medians.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import ToolResult

SIZES = {"quick": (9, 0.5), "full": (31, 2.0)}
"""Rounds, and seconds of each environment in a round."""

PlayEpisode = Callable[[int], int]
"""Plays the episode of this number and returns how many actions it had."""

LOOK = "I look at the data first.\n```python\nlook\n```"
WITH_CODE = {
    "data_engineer_0": [LOOK, "Tables.\n```python\nX_train.pkl\ny_train.pkl\nX_test.pkl\n```"],
    "modeler_0": [LOOK, "A forest.\n```python\nmodel.pkl\n```"],
    "analyst_0": [LOOK, "Done.\n```python\nsubmission.csv\n```"],
}
WITHOUT_CODE = {agent: ["I have nothing to add to what the others did."] for agent in WITH_CODE}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians; `vs_pettingzoo` of the ratios within a round."""

    steps_per_s: float
    classic_steps_per_s: float
    vs_pettingzoo: float


def make_task(folder: Path, num_rows: int = 100) -> DSBenchTask:
    """A task whose perfect submission is the column `a`."""
    rows = [(k, k % 7) for k in range(num_rows)]
    tables: dict[str, list[tuple[Any, ...]]] = {
        "train.csv": [("id", "a", "y"), *((k, a, a) for k, a in rows)],
        "test.csv": [("id", "a"), *rows],
        "answers.csv": [("id", "y"), *rows],
    }
    for name, lines in tables.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    return DSBenchTask(
        task_id="bench",
        task_type="regression",
        split="train",
        prompt="Predict y.",
        files={name: folder / name for name in ("train.csv", "test.csv")},
        spec=TaskSpec("rmse", "id", ("y",)),
        answers=folder / "answers.csv",
        dummy=1.0,
        reference=0.0,
    )


def ours(folder: Path) -> PlayEpisode:
    """The three-role team of `dsbench-v0`: episodes in which every message has code, and without any."""
    task = make_task(folder)
    submission = task.answers.read_bytes()

    def run(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
        for name in blocks[0].split():
            if "." in name:
                files[name] = submission if name == "submission.csv" else b"data"
        return ToolResult(stdout="done\n" * 20)

    def inspect(script: str, files: dict[str, bytes]) -> Any:
        path = script.split('"path": "')[1].split('"')[0]
        shape = {"y_train.pkl": [100], "submission.csv": [100, 2]}.get(path, [100, 1])
        return {
            "status": "valid" if path in files else "missing",
            "kind": "x",
            "shape": shape,
            "nan_share": 0,
        }

    sandbox, coach = FakeSandbox(script=run, inspector=inspect), FakeCoach()
    env = DSBenchEnv(tasks=[task], coach=coach, sandbox=sandbox)

    def play(number: int) -> int:
        messages = {
            agent: iter(texts) for agent, texts in (WITHOUT_CODE if number % 2 else WITH_CODE).items()
        }
        env.reset(seed=number)
        for agent in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else next(messages[agent]))
        assert env.episode.success is (number % 2 == 0), env.episode.grade_message
        # The fakes keep what they saw.
        sandbox.workspaces.clear()
        coach.requests.clear()
        return len(env.episode.turns)

    return play


def classic() -> PlayEpisode:
    """Tic-tac-toe with random legal moves, in all its usual wrappers."""
    env = _tic_tac_toe()
    rng = random.Random(0)

    def play(number: int) -> int:
        env.reset(seed=number)
        num_actions = 0
        for _ in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            over = terminated or truncated
            env.step(None if over else int(rng.choice(np.flatnonzero(observation["action_mask"]))))
            num_actions += not over
        return num_actions

    return play


def _tic_tac_toe() -> Any:
    # It imports pygame to draw, which nobody asks it to do here: no need to install that.
    stand_in = importlib.util.find_spec("pygame") is None
    if stand_in:
        sys.modules["pygame"] = types.ModuleType("pygame")
    try:
        from pettingzoo.classic.tictactoe import tictactoe

        return tictactoe.env()
    finally:
        if stand_in:
            del sys.modules["pygame"]


def rate(play: PlayEpisode, numbers: Iterator[int], duration_s: float) -> float:
    """Actions per second of whole episodes, an even number of them, for about this long."""
    start, num_actions = time.perf_counter(), 0
    while (gone_s := time.perf_counter() - start) < duration_s or not num_actions:
        num_actions += play(next(numbers)) + play(next(numbers))
    return num_actions / gone_s


def measure(num_rounds: int, duration_s: float) -> Figures:
    """Both environments in turns."""
    with tempfile.TemporaryDirectory() as folder:
        players = (ours(Path(folder)), classic())
        numbers = [itertools.count(), itertools.count()]
        for play, count in zip(players, numbers, strict=True):
            rate(play, count, 0.1)  # imports and first calls
        rounds = [
            [rate(play, count, duration_s) for play, count in zip(players, numbers, strict=True)]
            for _ in range(num_rounds)
        ]
    return Figures(
        steps_per_s=statistics.median(a for a, _ in rounds),
        classic_steps_per_s=statistics.median(b for _, b in rounds),
        vs_pettingzoo=statistics.median(a / b for a, b in rounds),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="quick")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures = measure(*SIZES[options.size])
    table = Table("figure", "value")
    table.add_row("steps_per_s", f"{figures.steps_per_s:.0f}")
    table.add_row("steps per second of tictactoe_v3", f"{figures.classic_steps_per_s:.0f}")
    table.add_row("vs_pettingzoo", f"{figures.vs_pettingzoo:.3f}")
    console = Console()
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        flat = {"steps_per_s": figures.steps_per_s, "vs_pettingzoo": figures.vs_pettingzoo}
        options.json.write_text(json.dumps(flat, indent=1) + "\n")


if __name__ == "__main__":
    main()
