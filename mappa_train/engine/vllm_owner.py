"""How vLLM's processes end with the one that they sample for. Importing this loads no vLLM."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import time

_LOOK_S = 1.0


def end_with(owner: int) -> None:
    """End this process and vLLM's core above it as soon as `owner` has ended. Blocking.

    vLLM leaves its processes behind when their owner is killed. A GPU's single worker lives in the core
    itself, whose parent is the owner.
    """
    _wait_for_end(owner)
    creator = multiprocessing.parent_process()
    # Only while it is our parent is it certain that the number is still the core's. Who inherited this
    # process, because the core has ended, has another, and may be the machine's init.
    if creator is not None and creator.pid not in (None, owner) and os.getppid() == creator.pid:
        os.kill(creator.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(process: int) -> None:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an older kernel, a container that forbids it, a Python without it
        while _is_there(process):
            time.sleep(_LOOK_S)
    else:
        select.select([handle], [], [])


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:  # ended; or the number is another user's by now
        return False
    return True
