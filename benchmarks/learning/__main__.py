"""All questions about learning, one after the other.

    python -m benchmarks.learning --size quick --json learning.json
    python -m benchmarks.learning --collect      # writes results.json from the figures of each question

`--size quick` tries the way and says nothing about learning; README.md has what was measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.learning import dense_sparse, main_job
from benchmarks.learning.runs import write

FOLDER = Path(__file__).parent
QUESTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "main_job": main_job.main,
    "dense_sparse": dense_sparse.main,
}
KEYS = {
    "main_job": ("dsbench_seeds", "dsbench_score_gain", "dsbench_score_gain_low"),
    "dense_sparse": ("dense_minus_sparse", "dense_minus_sparse_low"),
}


def collect(folder: Path) -> dict[str, float | None]:
    """The agreed figures of the questions' files. One that has no file was not measured: null."""
    figures: dict[str, float | None] = {}
    for name, keys in KEYS.items():
        path = folder / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        figures |= {key: known.get(key) for key in keys}
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("quick", "full"), default="quick")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args(arguments)
    if options.collect:
        figures = collect(FOLDER)
        write(figures, FOLDER / "results.json")
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name, ask in QUESTIONS.items():
                ask(["--size", options.size, "--json", f"{folder}/{name}.json"])
            figures = collect(Path(folder))
        write(figures, options.json)
    for key, value in figures.items():
        print(f"{key:24}", "null" if value is None else f"{value:.3g}")


if __name__ == "__main__":
    main()
