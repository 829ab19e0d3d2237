"""Finding and ending processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

# The variable that all processes of one test's cluster have in their environment.
MARK = "MAPPA_TEST_CLUSTER"


def find(wanted: Callable[[str, bytes], bool]) -> list[int]:
    """The processes whose title and environment (name=value, by NUL) are wanted; no zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if title and wanted(title, environment):
            found.append(int(folder.name))
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it may end with another one
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], timeout_s: float = 180.0) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
