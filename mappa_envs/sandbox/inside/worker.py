"""One run: a forked child of the zygote locks itself in, runs the code and dies.

`prepare` happens before there is work (a spare waits at its end), `lock_in` with the work's
workspace and limits. From then on nothing here is trusted: the code shares the process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from . import blocks, linux, pages, seccomp
from .isolation import WORKSPACE, Isolation

STARTED = "started"
_CHANNEL, _REPORT, _HIGH = 3, 4, 300
MAX_FDS = 253
"""That the kernel sends in one message."""

NEEDED_FDS = 2 * _HIGH
"""How high the limit on open files has to be where a worker begins."""

_NUM_CORES = os.cpu_count() or 1  # once, in the zygote: it takes a look into /proc
_MAX_OPEN_FILES = 256
_SETUP_FAILED = 125


@dataclass(frozen=True)
class Setting:
    """What all workers of a zygote have in common."""

    memory_baseline: int
    isolation: Isolation
    touched: pages.Ranges | None = None
    """What every run writes to. None for the one worker that is to say it, and runs nobody's code."""


def main(channel: socket.socket, setting: Setting) -> NoReturn:
    """Never returns to the zygote's code."""
    exit_code = _SETUP_FAILED
    try:
        channel = prepare(channel, setting.isolation)
        if setting.touched is not None:
            pages.make_own(setting.touched)
        data, fds, _, _ = socket.recv_fds(channel, 1 << 16, MAX_FDS)
        if not data:
            os._exit(0)
        order = json.loads(data)
        work = _read_all(fds[0])
        lock_in(order, fds, setting)
        channel.send(STARTED.encode())
        exit_code = 1  # should a late signal handler of the code raise
        exit_code = run(json.loads(work))
        if setting.touched is None:
            blocks.write_report(_REPORT, pages.own_ranges().tolist())
        # The zygote answers at this word; the kernel takes much longer to free the memory.
        channel.send(str(exit_code).encode())
    except (OSError, ValueError) as error:
        # Ignored after the start: a word that is no number.
        with contextlib.suppress(OSError):
            channel.send(str(error)[:1000].encode())
    finally:
        os._exit(exit_code)


def prepare(channel: socket.socket, isolation: Isolation) -> socket.socket:
    """Everything that does not depend on the work; the channel, moved to its fixed place."""
    os.setsid()
    linux.let_others_first()
    isolation.prepare()
    os.dup2(channel.fileno(), _CHANNEL, inheritable=False)
    channel.detach()
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _seed()
    _open_streams()
    return socket.socket(fileno=_CHANNEL)


def _open_streams() -> None:
    # Line by line, so that a killed run does not lose what it printed.
    def stream(fd: int, mode: str) -> Any:
        return open(fd, mode, buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)

    sys.stdin = sys.__stdin__ = stream(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stream(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stream(2, "w")  # type: ignore[misc]


def lock_in(order: dict[str, Any], fds: list[int], setting: Setting) -> None:
    """Workspace, limits, identity, capabilities and system calls, in an order that still may do the next."""
    # Any of them may have the very number that another has to move to.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in fds]
    os.closerange(_CHANNEL + 1, _HIGH)
    _code, stdout, stderr, report, *trees = high
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.dup2(report, _REPORT, inheritable=False)
    setting.isolation.enter(order, trees)
    os.closerange(_HIGH, NEEDED_FDS)
    _limit(order["limits"], setting.memory_baseline)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.check(linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    seccomp.load(read_only=order["read_only"])


def _limit(limits: dict[str, Any], memory_baseline: int) -> None:
    # That of all threads together: the zygote's clock, which is the real limit, comes first.
    seconds = (int(limits["time_s"]) + 5) * _NUM_CORES
    values = {
        # Where the host hands core dumps to a program, only 1 keeps it from being started; from 0, nobody
        # may go up.
        resource.RLIMIT_CORE: int(resource.getrlimit(resource.RLIMIT_CORE)[1] != 0),
        # Whatever the user may do: a run is no more urgent than the process that watches it.
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        # The address space is no measure (OpenBLAS reserves gigabytes): private memory is.
        resource.RLIMIT_DATA: memory_baseline + limits["memory_bytes"],
        resource.RLIMIT_CPU: seconds,
    }
    for kind, value in values.items():
        resource.setrlimit(kind, (value, value))


def run(work: dict[str, Any]) -> int:
    """Run the work to the end of all that it began; the exit code."""
    tempfile.tempdir = None
    exit_code, namespace = blocks.run(work, WORKSPACE, _REPORT)
    _wind_up(namespace)
    return exit_code


def _seed() -> None:
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def _wind_up(namespace: dict[str, Any]) -> None:
    """What the interpreter does at its end: threads, exit handlers, open files, buffers."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        namespace.clear()  # closes, and so writes, the files that it left open
        gc.collect()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):
            stream.flush()  # type: ignore[union-attr]


def _read_all(fd: int) -> bytes:
    data, size = b"", os.fstat(fd).st_size
    while len(data) < size:
        data += os.pread(fd, size - len(data), len(data)) or b"\0" * size  # no JSON
    return data
