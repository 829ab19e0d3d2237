"""Linux system calls that Python does not wrap."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT = 0x8000

PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 3, 4, 24
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 36, 38, 47

# The newer calls have one number on every architecture.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_OPENAT2 = 428, 429, 437
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}

_SCHED_ATTR = "IIQiIQQQ"
"""Size, policy, flags, nice, priority, runtime (the slice), deadline, period; times in ns."""

_LONG_SLICE_NS = 5_000_000
"""Who does not ask has 3 ms at most."""

AT_FDCWD = -100
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8


def check(result: int, what: str) -> int:
    """The result of a C call, or `OSError` that names the call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _encode(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    call = libc.mount(_encode(source), _encode(target), _encode(kind), ctypes.c_ulong(flags), _encode(data))
    check(call, f"mount {kind or source} on {target}")


def umount(target: str) -> None:
    """umount2(2), detaching: also what lies beneath, also when in use."""
    check(libc.umount2(_encode(target), MNT_DETACH), f"umount {target}")


def unshare(flags: int, what: str) -> None:
    """unshare(2); `what` names the namespaces in the error."""
    check(libc.unshare(flags), f"unshare({what})")


def setns(fd: int, flags: int) -> None:
    """setns(2)."""
    check(libc.setns(fd, flags), "setns")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    number = SYS_PIVOT_ROOT[platform.machine()]
    check(libc.syscall(number, _encode(new), _encode(old)), "pivot_root")


def clone_mount(path: str) -> int:
    """A descriptor of a private copy of the mount at `path`, for `attach_mount` elsewhere."""
    clone, cloexec = 1, os.O_CLOEXEC
    return check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, _encode(path), clone | cloexec), "open_tree")


def attach_mount(fd: int, target: str) -> None:
    """Mount what `clone_mount` copied on `target`."""
    empty_path = 4
    check(libc.syscall(SYS_MOVE_MOUNT, fd, b"", AT_FDCWD, _encode(target), empty_path), "move_mount")


def open_beneath(root_fd: int, path: str, flags: int) -> int:
    """Open `path` under a folder: never through a link, never out of it, never across a mount."""
    inside = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = struct.pack("QQQ", flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, inside)
    return check(libc.syscall(SYS_OPENAT2, root_fd, os.fsencode(path), how, len(how)), f"open {path}")


def write(path: str, text: str) -> None:
    """All of a short text, to a file of /proc."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def let_others_first() -> None:
    """Who wakes up goes before this thread, which keeps its share of the processor.

    On a few cores the zygote, and the answer of a run, would wait for milliseconds else: behind the code, or
    while the kernel frees its memory. Kernels since 6.12 do so for one that asks for long slices of time.
    Where the kernel declines, all stays as it is.
    """
    size, nice = struct.calcsize(_SCHED_ATTR), os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack(_SCHED_ATTR, size, os.SCHED_BATCH, 0, nice, 0, _LONG_SLICE_NS, 0, 0)
    libc.syscall(SYS_SCHED_SETATTR[platform.machine()], 0, attributes, 0)


def prctl(option: int, *arguments: int) -> int:
    """prctl(2); the caller judges the result."""
    return int(libc.prctl(option, *(*arguments, 0, 0, 0, 0)[:4]))


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one that this kernel knows
    clear_all = 4
    prctl(PR_CAP_AMBIENT, clear_all)
    header = struct.pack("Ii", 0x20080522, 0)
    check(libc.capset(header, struct.pack("6I", 0, 0, 0, 0, 0, 0)), "capset")
