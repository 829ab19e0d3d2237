"""Trained tokens per second and peak memory of our learner against TRL's, and how our cost grows.

    python -m benchmarks.learner --size quick --json learner.json

Both train SmolLM2-135M with one LoRA adapter on the same actions, each in a process of its own, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.learner.workload import Measured, Spec, Workload

TIMEOUT_S = 3600.0
STEP = Workload(num_tasks=2, episodes_per_task=6, own=0.2)
"""What a middle agent does in one step of the default run: 12 episodes on two tasks."""
QUICK = replace(STEP, num_tasks=1)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One learner with its settings."""

    name: str
    learner: str
    spec: Spec


def comparison(size: str) -> list[Variant]:
    """Ours as `train` runs it, and with checkpointing; TRL with as large micro-batches and, full, larger."""
    spec = Spec(workload=QUICK if size == "quick" else STEP)
    again = replace(spec, checkpointing=True)
    variants = [
        Variant(name="mappa_train", learner="ours", spec=spec),
        Variant(name="TRL, micro-batches of 1", learner="theirs", spec=spec),
        Variant(name="mappa_train, checkpointing", learner="ours", spec=again),
    ]
    if size == "full":
        variants += [
            Variant(
                name=f"TRL, micro-batches of {count}", learner="theirs", spec=replace(spec, micro_batch=count)
            )
            for count in (2, 4)
        ]
        variants.append(Variant(name="TRL, 1, checkpointing", learner="theirs", spec=again))
    return variants


def growth() -> list[Variant]:
    """Ours alone, with more of one thing at a time."""
    base = Spec(workload=replace(STEP, episodes_per_task=3))
    cases = [("6 episodes", base)]
    cases += [
        (f"{2 * count} episodes", replace(base, workload=replace(base.workload, episodes_per_task=count)))
        for count in (6, 12)
    ]
    cases += [
        (f"lengths × {scale:g}", replace(base, workload=replace(base.workload, scale=scale)))
        for scale in (0.5, 2.0)
    ]
    cases += [(f"{count} agents", replace(base, num_agents=count)) for count in (2, 3)]
    cases.append(("budget 4096", replace(base, token_budget=4096)))
    return [Variant(name=name, learner="ours", spec=spec) for name, spec in cases]


def measure(variant: Variant) -> Measured:
    """Run the variant in a fresh process. Raises `RuntimeError` with the end of what it said if it fails."""
    command = [sys.executable, "-m", f"benchmarks.learner.{variant.learner}", variant.spec.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{variant.name}: {done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def best_of(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[Variant, Measured]]:
    """Every variant once a round; its quickest update and its largest peak."""
    found: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for variant in variants:
            found.setdefault(variant.name, []).append(measure(variant))
    for variant in variants:
        runs = found[variant.name]
        quickest = min(runs, key=lambda item: item.update_s)
        yield variant, replace(quickest, peak_mb=max(item.peak_mb for item in runs))


def figures(results: Sequence[tuple[Variant, Measured]]) -> dict[str, float | None]:
    """Ours ÷ the quickest, and ÷ the leanest, of TRL's variants without checkpointing. None without TRL."""
    theirs = [m for variant, m in results if variant.learner == "theirs" and not variant.spec.checkpointing]
    quickest = max((item.tokens_per_s for item in theirs), default=None)
    leanest = min((item.peak_mb for item in theirs), default=None)
    found: dict[str, float | None] = {}
    for variant, ours in results:
        if variant.learner == "ours":
            name = "_checkpointing" if variant.spec.checkpointing else ""
            found[f"tokens_per_s_vs_trl{name}"] = ours.tokens_per_s / quickest if quickest else None
            found[f"memory_vs_trl{name}"] = ours.peak_mb / leanest if leanest else None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("quick", "full"), default="quick")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    variants = comparison(options.size)
    if find_spec("trl") is None or find_spec("datasets") is None:
        print("not compared: TRL is not installed; pip install -e '.[train,test]'")
        variants = [variant for variant in variants if variant.learner == "ours"]
    results = list(best_of(variants, rounds=1 if options.size == "quick" else 3))
    more = list(best_of(growth(), rounds=1)) if options.size == "full" else []
    table = Table("learner", "update, s", "CPU, s", "trained tokens", "tokens/s", "peak, MB")
    for variant, measured in (*results, *more):
        table.add_row(
            variant.name,
            f"{measured.update_s:.1f}",
            f"{measured.cpu_s:.1f}",
            str(measured.trained_tokens),
            f"{measured.tokens_per_s:.1f}",
            f"{measured.peak_mb:.0f}",
        )
    console, ratios = Console(), figures(results)
    console.print(table)
    for name, value in ratios.items():
        console.print(f"{name}: {'null' if value is None else format(value, '.3f')}")
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
