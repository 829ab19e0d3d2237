"""How much a run in the sandbox costs, against a cold Python and against plain Docker.

    python -m benchmarks.sandbox --size full --json sandbox.json
    python -m benchmarks.sandbox --only latency

Docker is measured where DOCKER_HOST (or the default socket) leads to a daemon that has the image
`mappa-sandbox:1`. A figure that cannot be measured is null, with the reason in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from benchmarks.sandbox.figures import CONCURRENCY, FIGURES, Measured, flatten, make_table
from benchmarks.sandbox.parts import PARTS, SIZES
from benchmarks.sandbox.variants import UNAVAILABLE

RAW_NAMES = tuple(
    name for part in PARTS.values() for name in part.names if name not in {figure.name for figure in FIGURES}
)


async def measure(parts: Sequence[str], size: str) -> Measured:
    """Measure some of the parts, one after the other."""
    # A thread for every step at a time: waiting for one would count as the baseline's time.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max(CONCURRENCY)))
    measured = Measured()
    for name in parts:
        try:
            await PARTS[name].measure(measured, SIZES[size])
        except UNAVAILABLE as error:
            measured.reasons |= dict.fromkeys(PARTS[name].names, str(error))
    return measured


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=tuple(PARTS), help="one part (the other figures are null)")
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()[0]
    measured = asyncio.run(measure([options.only] if options.only else list(PARTS), options.size))
    console = Console()
    console.print(make_table(measured, RAW_NAMES))
    console.print(f"{os.cpu_count()} cores; load before {load_before:.1f}, after {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(flatten(measured, RAW_NAMES), indent=1) + "\n")


if __name__ == "__main__":
    main()
