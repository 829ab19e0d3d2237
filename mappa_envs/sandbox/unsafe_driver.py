"""Runs in the process that `unsafe_local` starts: limits itself, runs the blocks, says what was raised.

    python -s -P -B unsafe_driver.py REPORT_FD < work.json

`work.json` holds "blocks", "trusted" and "limits". It may import nothing of this project.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import linecache
import os
import random
import resource
import sys
import traceback
import types
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
    random.seed(0)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(0)
    _limit(work["limits"])

    def report(value: Any) -> None:
        data = json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(report_fd, data) :]

    return _run(work["blocks"], report, trusted=work["trusted"])


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


def _run(blocks: list[str], report: Any, *, trusted: bool) -> int:
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=os.path.join(os.getcwd(), "main.py"), __builtins__=builtins)
    sys.modules["__main__"] = main_module
    sys.argv = ["main.py"]
    if trusted:
        main_module.__dict__["report"] = report
    else:
        # Last, so that a file of an earlier agent cannot stand in for a library.
        sys.path.append(os.getcwd())
    names = ["main.py"] if len(blocks) == 1 else [f"block_{n}.py" for n in range(1, len(blocks) + 1)]
    for name, source in zip(names, blocks, strict=True):
        linecache.cache[name] = (len(source), None, f"{source}\n".splitlines(keepends=True), name)
    for name, source in zip(names, blocks, strict=True):
        exit_code, error = _run_block(name, source, main_module.__dict__)
        if error and not trusted:
            report({"exception": error[:200]})
        if exit_code is not None:
            return exit_code
    return 0


def _run_block(name: str, source: str, namespace: dict[str, Any]) -> tuple[int | None, str | None]:
    """Exit code (None: go on) and the class name of what was raised and not caught."""
    try:
        exec(compile(source, name, "exec", dont_inherit=True), namespace)
    except SystemExit as error:
        exit_code = _exit_code(error)
        return exit_code, type(error).__name__ if exit_code else None
    except BaseException as error:  # noqa: BLE001 - agents' code raises what it likes
        _show(error)
        return 1, type(error).__name__
    return None, None


def _exit_code(error: SystemExit) -> int:
    """As the interpreter does it at its own end."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 255
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The traceback from the agent's first frame on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    try:
        traceback.print_exception(type(error), error, frame)
    except BaseException as second:  # noqa: BLE001 - an agent's stderr or traceback module raised
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__} (its traceback raised {type(second).__name__})\n".encode())


if __name__ == "__main__":
    sys.exit(main())
