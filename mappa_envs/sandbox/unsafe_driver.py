"""Runs in the process that `unsafe_local` starts: limits itself, runs the blocks, says what was raised.

    python -s -P -B unsafe_driver.py REPORT_FD < work.json

`work.json` holds "blocks", "trusted" and "limits". It may import nothing of this project but `inside.blocks`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import sys
from typing import Any


def main() -> int:
    """The exit code of the blocks. What the interpreter does at its end is left to the interpreter."""
    report_fd = int(sys.argv[1])
    os.set_inheritable(report_fd, False)
    work = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        # Line by line, so that a killed run does not lose what it printed.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    # Where pandas finds it, it keeps words in arrays that no inspector takes; no other sandbox has it.
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    random.seed(0)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(0)
    _limit(work["limits"])

    exit_code, _ = _import_blocks().run(work, os.getcwd(), report_fd)
    return int(exit_code)


def _import_blocks() -> Any:
    """The code that real workers run blocks with."""
    sys.path.append(os.path.dirname(__file__))
    try:
        return importlib.import_module("inside.blocks")
    finally:
        sys.path.pop()


def _limit(limits: dict[str, int]) -> None:
    """What a process can be forbidden without isolation; children inherit it, each for itself."""
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        # For those that escape the process group: they end some day.
        resource.RLIMIT_CPU: limits["cpu_s"],
    }
    if sys.platform == "linux":
        values[resource.RLIMIT_DATA] = _private_bytes() + limits["memory_bytes"]
    for kind, value in values.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _private_bytes() -> int:
    """What the interpreter itself has taken of RLIMIT_DATA."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        line = next(line for line in file if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    sys.exit(main())
