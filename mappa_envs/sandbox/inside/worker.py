"""One run: a forked child of the zygote locks itself in, runs the code and dies.

`prepare` happens before there is work (a spare waits at its end), `lock_in` with the work's
workspace and limits. From then on nothing here is trusted: the code shares the process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import gc
import json
import linecache
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from dataclasses import dataclass
from typing import Any, NoReturn

from . import linux, seccomp
from .isolation import WORKSPACE, Isolation

STARTED = "started"
_CHANNEL, _REPORT, _HIGH = 3, 4, 300
MAX_FDS = 253
"""That the kernel sends in one message."""

_MAX_OPEN_FILES = 256
_SETUP_FAILED = 125


@dataclass(frozen=True)
class Setting:
    """What all workers of a zygote have in common."""

    memory_baseline: int
    isolation: Isolation


def main(channel: socket.socket, setting: Setting) -> NoReturn:
    """Never returns to the zygote's code."""
    exit_code = _SETUP_FAILED
    try:
        channel = prepare(channel, setting.isolation)
        rehearse()
        data, fds, _, _ = socket.recv_fds(channel, 1 << 16, MAX_FDS)
        if not data:
            os._exit(0)
        order = json.loads(data)
        work = _read_all(fds[0])
        lock_in(order, fds, setting)
        channel.send(STARTED.encode())
        exit_code = 1  # should a late signal handler of the code raise
        exit_code = run(json.loads(work))
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
    isolation.prepare()
    os.dup2(channel.fileno(), _CHANNEL, inheritable=False)
    channel.detach()
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _open_streams()
    return socket.socket(fileno=_CHANNEL)


def rehearse() -> None:
    """Touch what every run touches: the kernel copies each page at its first use, better now than then."""
    work = json.loads('{"blocks": ["pass"]}')
    _seed()
    _run_blocks(work["blocks"], dict(vars(builtins)))
    linux.prctl(linux.PR_GET_DUMPABLE)
    gc.collect()


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
    os.closerange(_HIGH, 2 * _HIGH)
    _limit(order["limits"], setting.memory_baseline)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.check(linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    seccomp.load(read_only=order["read_only"])


def _limit(limits: dict[str, Any], memory_baseline: int) -> None:
    seconds = int(limits["time_s"]) + 5
    values = {
        resource.RLIMIT_CORE: 0,
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
    """Run the blocks in one `__main__`; the exit code. `work`: blocks, trusted."""
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__file__=f"{WORKSPACE}/main.py", __builtins__=builtins)
    sys.modules["__main__"] = main_module
    sys.argv = ["main.py"]
    tempfile.tempdir = None
    if work["trusted"]:
        main_module.__dict__["report"] = _write_report
    else:
        # Last, so that a file of an earlier agent cannot stand in for a library.
        sys.path.append(WORKSPACE)
    _seed()
    exit_code, error = _run_blocks(work["blocks"], main_module.__dict__)
    if error and not work["trusted"]:
        _write_report({"exception": error[:200]})
    _wind_up(main_module.__dict__)
    return exit_code


def _seed() -> None:
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def _write_report(value: Any) -> None:
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(_REPORT, data) :]


def _run_blocks(blocks: list[str], namespace: dict[str, Any]) -> tuple[int, str | None]:
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
        return (error.code or 0) & 255
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
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
