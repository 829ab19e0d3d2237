"""Does the main job learn? Mean coach score of each agent, step by step, with and without learning.

    python -m benchmarks.learning.main_job --size full --json main_job.json    # runs it: seeds 0, 1 and lr 0
    python -m benchmarks.learning.main_job --collect RUN [RUN …]               # reads run folders

The gain of a run is the mean over the agents of the last step's score minus the first step's, on the 0–10
scale, with a 95 % interval from a bootstrap over the episodes of both steps (10,000 draws, seed 0): the two
tasks of each are taken as given, since of two tasks nothing can be said of others. The control is the same
run with `--lr 0`: same tasks, same starts, same sampling noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import runs
from benchmarks.learning.runs import DRAWS

Scores = dict[str, list[list[float]]]
"""For each agent, for each episode, its final scores in one step."""


def read_steps(run: Path) -> dict[int, Scores]:
    """The final scores of every step of a run."""
    steps: dict[int, Scores] = {}
    for record in runs.read_episodes(run):
        turns = record["episode"]["turns"]
        scores = steps.setdefault(record["step"], {})
        place = max((len(rows) for rows in scores.values()), default=0)
        for agent in {turn["agent"] for turn in turns} | set(scores):
            rows = scores.setdefault(agent, [[] for _ in range(place)])
            rows.append(
                [t["final_score"] for t in turns if t["agent"] == agent and t["final_score"] is not None]
            )
    return steps


def team_mean(scores: Scores, chosen: np.ndarray | None = None) -> float:
    """The mean over the agents of each agent's mean score over (a resample of) the episodes."""
    means = []
    for rows in scores.values():
        picked = rows if chosen is None else [rows[i] for i in chosen]
        values = [value for row in picked for value in row]
        if values:
            means.append(float(np.mean(values)))
    return float(np.mean(means))


def gain(first: Scores, last: Scores) -> tuple[float, float, float]:
    """Gain and its 95 % interval."""
    rng = np.random.default_rng(0)
    sizes = [len(next(iter(scores.values()))) for scores in (first, last)]
    draws = [
        team_mean(last, rng.integers(sizes[1], size=sizes[1]))
        - team_mean(first, rng.integers(sizes[0], size=sizes[0]))
        for _ in range(DRAWS)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    return team_mean(last) - team_mean(first), float(low), float(high)


def summarize(run: Path) -> dict[str, Any]:
    """The curves of one run, and its gain."""
    config, steps, lines = runs.read_config(run), read_steps(run), runs.read_metrics(run)
    value, low, high = gain(steps[min(steps)], steps[max(steps)])
    agents = [
        key.removeprefix("score/") for key in lines[0] if key.startswith("score/") and key != "score/mean"
    ]
    return {
        "seed": config["seed"],
        "lr": config["lr"],
        "minutes": sum(line["time_s"] for line in lines) / 60,
        "gain": value,
        "gain_low": low,
        "gain_high": high,
        "mean": [team_mean(steps[step]) for step in sorted(steps)],
        "success": [line["outcome/success"] for line in lines],
        **{agent: [line[f"score/{agent}"] for line in lines] for agent in agents},
    }


def run_all(folder: Path, size: str) -> list[Path]:
    """Seeds 0 and 1, and seed 0 with a learning rate of 0."""
    return [
        runs.main_job(folder / "seed-0", size, 0),
        runs.main_job(folder / "seed-1", size, 1),
        runs.main_job(folder / "seed-0-lr-0", size, 0, "--lr", "0"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    options = runs.parse(__doc__, arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = [summarize(run) for run in options.collect or run_all(Path(folder), options.size)]
    for row in rows:
        print(f"seed {row['seed']}  lr {row['lr']:g}  {row['minutes']:.1f} min")
        for name in [key for key, value in row.items() if isinstance(value, list)]:
            print(f"  {name:18}", "  ".join(f"{value:5.2f}" for value in row[name]))
        print(f"  gain {row['gain']:+.2f}  [{row['gain_low']:+.2f}, {row['gain_high']:+.2f}]")
    trained = [row for row in rows if row["lr"] > 0]
    figures = {
        "dsbench_seeds": len(trained),
        "dsbench_score_gain": float(np.mean([row["gain"] for row in trained])) if trained else None,
        "dsbench_score_gain_low": min((row["gain_low"] for row in trained), default=None),
        "runs": rows,
    }
    runs.write(figures, options.json)


if __name__ == "__main__":
    main()
