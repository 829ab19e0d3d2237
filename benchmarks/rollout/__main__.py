"""How near does a rollout come to the bare engine, and how much do a slow coach and slow tools cost it?

    python -m benchmarks.rollout --size full --json rollout.json

What needs vLLM is null where it is not installed; see README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rollout import waiting
from mappa_train.engine.vllm_setup import why_not
from mappa_train.settings import resolve

NEED_VLLM = (
    *("vs_raw_vllm", "vs_transformers", "sync_share", "tokens_per_s"),
    *("logprob_diff_max_fp32", "logprob_diff_mean_fp32", "logprob_diff_max_bf16", "logprob_diff_mean_bf16"),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: rounds of the rollouts that wait, steps and episodes of those with a model."""

    num_rounds: int
    num_steps: int
    episodes_per_step: int


SIZES = {
    "quick": Size(num_rounds=1, num_steps=1, episodes_per_step=6),
    "full": Size(num_rounds=3, num_steps=3, episodes_per_step=12),
}


def slowdowns(seconds: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The median over rounds of the ratio to the rollout without waits."""
    return {
        f"slowdown_{waits.name}": statistics.median(
            late / none for late, none in zip(seconds[waits.name], seconds[waiting.NONE.name], strict=True)
        )
        for waits in waiting.WAITS
    }


def with_engines(size: Size) -> tuple[dict[str, float | None], str]:
    """The figures of `NEED_VLLM`, and why they are null if they are."""
    if (reason := why_not()) is not None:
        return dict.fromkeys(NEED_VLLM), reason
    from benchmarks.rollout import engines

    config = resolve({"episodes_per_step": size.episodes_per_step, "exploring_starts": 0.0})
    return engines.compare(config, size.num_steps), ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--episodes", type=int, default=64, help="episodes of a rollout that waits; default 64"
    )
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    figures = slowdowns(waiting.measure(options.episodes, waiting.ACTION_S, size.num_rounds))
    found, reason = with_engines(size)
    figures |= found
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, "–" if value is None else f"{value:.3g}")
    console = Console()
    console.print(table)
    if reason:
        console.print(f"–: {reason}", markup=False)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
