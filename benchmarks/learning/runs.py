"""Runs of the main job: making them, and reading what their folders hold."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DRAWS = 10_000
SMALL = ("--model", "tiny", "--steps", "2", "--episodes-per-step", "2", "--samples-per-task", "2")
"""`--size quick` tries the way, and says nothing about learning."""


def main_job(out: Path, size: str, seed: int, *flags: str) -> Path:
    """Run it; its folder."""
    small = SMALL if size == "quick" else ()
    command = [sys.executable, "-m", "mappa_train", "--env", "dsbench-v0", "--seed", str(seed)]
    subprocess.run([*command, "--out", str(out), *small, *flags], check=True)
    return out


def read_config(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """A line a step."""
    return _read_lines(run / "metrics.jsonl")


def read_episodes(run: Path) -> list[dict[str, Any]]:
    """A record an episode, with its step and its index in there."""
    return _read_lines(run / "episodes.jsonl")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def parse(doc: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags that every question has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("quick", "full"), default="quick")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--collect", nargs="+", type=Path, metavar="RUN")
    return parser.parse_args(arguments)


def write(figures: dict[str, Any], path: Path | None) -> None:
    """To a file, where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
