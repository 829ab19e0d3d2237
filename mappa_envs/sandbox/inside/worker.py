"""One run: a forked child of the zygote locks itself in, runs the code and dies.

`prepare` happens before there is work (a spare waits at its end), `lock_in` with the work's
workspace and limits. From then on nothing here is trusted: the code shares the process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
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

STARTED = "started"
WORKSPACE = "/workspace"
_CHANNEL, _REPORT = 3, 4
_UID = 1000
_MAX_OPEN_FILES = 256
_SETUP_FAILED = 125


@dataclass(frozen=True)
class Setting:
    """What all workers of a zygote have in common."""

    environment: dict[str, str]
    memory_baseline: int


def main(channel: socket.socket, setting: Setting) -> NoReturn:
    """Never returns to the zygote's code."""
    exit_code = _SETUP_FAILED
    try:
        channel = prepare(channel)
        data, fds, _, _ = socket.recv_fds(channel, 4096, 8)
        if not data:
            os._exit(0)
        order = json.loads(data)
        work = _read_all(fds[0])
        lock_in(order, fds, setting)
        channel.send(STARTED.encode())
        channel.detach()
        os.close(_CHANNEL)
        exit_code = 1  # should a late signal handler of the code raise
        exit_code = run(json.loads(work))
    except OSError as error:
        # After the start the channel is closed, so code that runs cannot come here.
        with contextlib.suppress(OSError):
            channel.send(f"{error.strerror}".encode())
    finally:
        os._exit(exit_code)


def prepare(channel: socket.socket) -> socket.socket:
    """Everything that does not depend on the work; the channel, moved to its fixed place."""
    os.setsid()
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS, "mount, ipc, uts")
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    safe = linux.MS_NOSUID | linux.MS_NODEV
    linux.umount("/ws")
    linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)
    linux.mount("tmpfs", "/tmp", "tmpfs", safe, "size=64m,nr_inodes=20000,mode=1777")
    linux.mount("tmpfs", "/dev/shm", "tmpfs", safe | linux.MS_NOEXEC, "size=64m,nr_inodes=2000,mode=1777")
    os.dup2(channel.fileno(), _CHANNEL, inheritable=False)
    channel.detach()
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    code, stdout, stderr, report, tree = fds
    linux.attach_mount(tree, WORKSPACE)
    if order["read_only"]:
        flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("none", WORKSPACE, None, flags)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    # `report` may be the very number that it has to move to.
    spare_report = os.dup(report)
    for fd in (code, stdout, stderr, tree):
        os.close(fd)
    os.dup2(spare_report, _REPORT, inheritable=False)
    os.closerange(_REPORT + 1, 64)
    os.chdir(WORKSPACE)
    _become_nobody(order["uid"])
    _limit(order["limits"], setting.memory_baseline)
    linux.drop_capabilities()
    # Changing identity hid /proc/self from ourselves.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    linux.check(linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    seccomp.load()


def _become_nobody(uid: int) -> None:
    """The workspace's uid, seen as the same ordinary uid from every worker's inside."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # the kernel's choice when the machine runs out
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    # Also makes RLIMIT_NPROC count this run alone.
    linux.unshare(linux.CLONE_NEWUSER, "worker's user")
    lines = {"setgroups": "deny", "uid_map": f"{_UID} {uid} 1", "gid_map": f"{_UID} {uid} 1"}
    for name, text in lines.items():
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


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
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    exit_code, error = _run_blocks(work["blocks"], main_module.__dict__)
    if error and not work["trusted"]:
        _write_report({"exception": error[:200]})
    _wind_up(main_module.__dict__)
    return exit_code


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
