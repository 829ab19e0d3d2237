"""What a run executes: blocks, one after the other in one `__main__`. For workers, and `unsafe_driver.py`."""

from __future__ import annotations

import builtins
import contextlib
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

Report = Callable[[Any], None]


def run(work: dict[str, Any], folder: str, report_fd: int) -> tuple[int, dict[str, Any]]:
    """Run the work's "blocks" in a folder; the exit code, and the namespace that is left.

    Code that is "trusted" finds `report`. For other code, the report says what was raised and not caught.
    """
    trusted = work["trusted"]
    namespace = _make_main(folder, (lambda value: write_report(report_fd, value)) if trusted else None)
    exit_code, error = _run(work["blocks"], namespace)
    if error and not trusted:
        write_report(report_fd, {"exception": error[:200]})
    return exit_code, namespace


def write_report(fd: int, value: Any) -> None:
    """One line of JSON."""
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def _make_main(folder: str, report: Report | None) -> dict[str, Any]:
    """The namespace of a new `__main__`, in which the code of the trusted finds `report`."""
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=os.path.join(folder, "main.py"), __builtins__=builtins)
    sys.modules["__main__"] = main_module
    sys.argv = ["main.py"]
    if report is None:
        # Last, so that a file of an earlier agent cannot stand in for a library.
        sys.path.append(folder)
    else:
        main_module.__dict__["report"] = report
    return main_module.__dict__


def _run(blocks: Sequence[str], namespace: dict[str, Any]) -> tuple[int, str | None]:
    """Exit code, and the class name of what was raised and not caught."""
    names = ["main.py"] if len(blocks) == 1 else [f"block_{n}.py" for n in range(1, len(blocks) + 1)]
    for name, source in zip(names, blocks, strict=True):
        linecache.cache[name] = (len(source), None, f"{source}\n".splitlines(keepends=True), name)
    for name, source in zip(names, blocks, strict=True):
        try:
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
        except SystemExit as error:
            exit_code = _exit_code(error)
            return exit_code, type(error).__name__ if exit_code else None
        except BaseException as error:  # noqa: BLE001 - agents' code raises what it likes
            _show(error)
            return 1, type(error).__name__
    return 0, None


def _exit_code(error: SystemExit) -> int:
    """As the interpreter does it at its own end."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 255  # its class may be the code's own
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The traceback from the agent's first frame on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__") == __name__:
        frame = frame.tb_next
    try:
        traceback.print_exception(type(error), error, frame)
    except BaseException as second:  # noqa: BLE001 - an agent's stderr or traceback module raised
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__} (its traceback raised {type(second).__name__})\n".encode())
