"""Do the coach's scores teach more than the outcome alone? Outcomes of the main job, trained on either.

    python -m benchmarks.learning.dense_sparse --size full --json dense_sparse.json   # runs it: seeds 0 and 1
    python -m benchmarks.learning.dense_sparse --collect RUN [RUN …]                  # reads run folders

Sparse is `--algorithm outcome`: every action gets the outcome of its episode (0 to 1), and no score. Dense is
the default. Runs of one seed meet the same tasks and starts, so each episode has its counterpart. Compared is
the outcome, which the sparse run learns from and the dense one never sees: the mean over all episodes after
the first update, dense minus sparse, with a 95 % interval from a bootstrap over the tasks of the steps
(10,000 draws, seed 0).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.runs import (
    DRAWS,
    main_job,
    parse,
    read_config,
    read_episodes,
    read_metrics,
    write,
)

SPARSE = "outcome"
SEEDS = (0, 1)


def run_all(folder: Path, size: str) -> list[Path]:
    """A dense and a sparse run of each seed."""
    return [
        main_job(folder / f"{name}-{seed}", size, seed, *flags)
        for seed in SEEDS
        for name, flags in (("dense", ()), ("sparse", ("--algorithm", SPARSE)))
    ]


def differences(dense: Path, sparse: Path) -> list[list[float]]:
    """Dense minus sparse of each episode after the first update, for each task of each step.

    Raises `ValueError` where the episodes of the two runs are no counterparts.
    """
    groups: dict[tuple[int, str], list[float]] = {}
    for one, other in zip(read_episodes(dense), read_episodes(sparse), strict=True):
        places = [
            (item["step"], item["index"], item["episode"]["task_id"], item["episode"]["start_role"])
            for item in (one, other)
        ]
        if places[0] != places[1]:
            raise ValueError(f"{dense} and {sparse} met different episodes: {places[0]} and {places[1]}")
        step, _, task_id, _ = places[0]
        if step > 1:
            gap = one["episode"]["outcome"] - other["episode"]["outcome"]
            groups.setdefault((step, task_id), []).append(gap)
    return list(groups.values())


def interval(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The mean of all, and its 95 % interval over resampled groups."""
    sums = np.array([sum(group) for group in groups])
    counts = np.array([len(group) for group in groups])
    picks = np.random.default_rng(0).integers(len(groups), size=(DRAWS, len(groups)))
    low, high = np.percentile(sums[picks].sum(axis=1) / counts[picks].sum(axis=1), [2.5, 97.5])
    return float(sums.sum() / counts.sum()), float(low), float(high)


def summarize(run: Path) -> dict[str, Any]:
    """The curves of one run."""
    config, lines = read_config(run), read_metrics(run)
    outcomes: dict[int, list[float]] = {}
    for item in read_episodes(run):
        outcomes.setdefault(item["step"], []).append(item["episode"]["outcome"])
    return {
        "seed": config["seed"],
        "reward": "sparse" if config["algorithm"] == SPARSE else "dense",
        "outcome": [float(np.mean(outcomes[step])) for step in sorted(outcomes)],
        "success": [line["outcome/success"] for line in lines],
        "score": [line["score/mean"] for line in lines],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    options = parse(__doc__, arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = options.collect or run_all(Path(folder), options.size)
        rows = [summarize(run) for run in runs]
        by_kind = {(row["seed"], row["reward"]): run for row, run in zip(rows, runs, strict=True)}
        seeds = [seed for seed, kind in by_kind if kind == "dense" and (seed, "sparse") in by_kind]
        groups = [
            group for seed in seeds for group in differences(by_kind[seed, "dense"], by_kind[seed, "sparse"])
        ]
    for row in rows:
        print(f"seed {row['seed']}  {row['reward']}")
        for name in ("outcome", "success", "score"):
            print(f"  {name:10}", "  ".join(f"{value:5.2f}" for value in row[name]))
    mean, low, high = interval(groups) if groups else (None, None, None)
    if mean is not None:
        print(f"dense minus sparse {mean:+.2f}  [{low:+.2f}, {high:+.2f}]  {len(groups)} tasks")
    figures = {"dense_minus_sparse": mean, "dense_minus_sparse_low": low, "dense_minus_sparse_high": high}
    write({**figures, "seeds": seeds, "runs": rows}, options.json)


if __name__ == "__main__":
    main()
