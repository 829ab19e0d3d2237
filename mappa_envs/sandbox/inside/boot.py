"""From an ordinary process to the zygote: new namespaces, a root of its own, then exec.

Run as a fresh interpreter with a JSON plan on standard input. Works as root, where a range of
otherwise unused uids is mapped so that nothing inside is the host's root, and as an ordinary
user, whose own uid becomes the root inside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from . import linux
from .isolation import SHARED

_OLD, _NEW = "/old", "/new"
_SAFE = linux.MS_NOSUID | linux.MS_NODEV
_READ_ONLY = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY
_DEVICES = ("null", "full", "random", "urandom")
"""Without `zero`: mapped and shared, it is memory that no look at a process finds (see `seccomp`)."""
_PASSWD = "root:x:0:0::/:/bin/false\nagent:x:1000:1000::/workspace:/bin/false\n"
_GROUP = "root:x:0:\nagent:x:1000:\n"


def main() -> None:
    """Read the plan and become the parent of the zygote; a failure goes to the control socket."""
    plan = json.load(sys.stdin)
    os.umask(0o022)
    control = socket.socket(fileno=plan["control_fd"])
    try:
        as_root = plan["uid_base"] is not None
        if as_root:
            # Only the host's root can reach everything that is to be mounted.
            linux.unshare(linux.CLONE_NEWNS, "mount")
            _build_tree(plan)
        _enter_user_namespace(plan["uid_base"], plan["num_uids"])
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != plan["owner_pid"]:
            return  # the owner died before the line above
        kinds = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID
        linux.unshare(kinds | linux.CLONE_NEWNET | linux.CLONE_NEWCGROUP, "mount, pid, net, ipc, uts, cgroup")
        child = os.fork()
        if child:
            control.close()
            os.waitpid(child, 0)
            return
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not as_root:
            _build_tree(plan)
        _enter_tree()
        _exec(plan)
    except OSError as error:
        failure = {"op": "failed", "error": error.strerror or str(error)}
        control.send(json.dumps(failure).encode())


def _enter_user_namespace(uid_base: int | None, num_uids: int) -> None:
    """A new user namespace; with a `uid_base`, its uids 0 … num_uids - 1 are the host's from there on.

    With one, the tree has been built, and the host's /proc lies below `_OLD`.
    """
    uid, gid, me = os.geteuid(), os.getegid(), os.getpid()
    if uid_base is None:
        linux.unshare(linux.CLONE_NEWUSER, "user")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
        return
    # Only a process outside may map uids that are not its own.
    ready, done = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(ready[1])
            if os.read(ready[0], 1):
                for kind in ("uid_map", "gid_map"):
                    _write(f"{_OLD}/proc/{me}/{kind}", f"0 {uid_base} {num_uids}")
                os.write(done[1], b"x")
        finally:
            os._exit(0)
    os.close(done[1])
    linux.unshare(linux.CLONE_NEWUSER, "user")
    os.write(ready[1], b"x")
    mapped = os.read(done[0], 1)
    os.waitpid(helper, 0)
    if not mapped:
        raise PermissionError(1, "writing the uid map: not permitted")
    for fd in (*ready, done[0]):
        os.close(fd)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.setgroups([])


def _build_tree(plan: dict[str, Any]) -> None:
    """A read-only tree on a small tmpfs that holds the plan's files and nothing else."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    # Two tmpfs, so that sources below the first mount point stay reachable under _OLD.
    linux.mount("tmpfs", "/tmp", "tmpfs", _SAFE, "size=1m,mode=755")
    os.mkdir("/tmp" + _OLD)
    os.mkdir("/tmp" + _NEW)
    linux.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    linux.mount("tmpfs", _NEW, "tmpfs", _SAFE, "size=4m,mode=755")
    for folder in ("dev/shm", "proc", "tmp", "ws", "workspace", "etc", "empty"):
        os.makedirs(f"{_NEW}/{folder}", mode=0o755)
    os.mkdir(_NEW + SHARED)
    for source, target in plan["binds"]:
        _bind(source, target, read_only=True)
    for target in plan["masks"]:
        linux.mount(f"{_NEW}/empty", _NEW + target, None, linux.MS_BIND)
        # A mount has a flag of its own. Where an ordinary user starts this, all episodes own the folder.
        linux.mount("none", _NEW + target, None, _READ_ONLY | _SAFE)
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}", read_only=False)
    os.symlink("/proc/self/fd", f"{_NEW}/dev/fd")
    _write(f"{_NEW}/etc/passwd", _PASSWD)
    _write(f"{_NEW}/etc/group", _GROUP)
    linux.mount("none", _NEW, None, _READ_ONLY | _SAFE)


def _enter_tree() -> None:
    """Make the tree the root, with the file systems that belong to the new namespaces."""
    # A mount inherited from another user namespace cannot become the root, a copy of it can.
    linux.mount(_NEW, _NEW, None, linux.MS_BIND | linux.MS_REC)
    # While the host's /proc is in sight: without one, the kernel refuses a new one.
    linux.mount("proc", f"{_NEW}/proc", "proc", _SAFE | linux.MS_NOEXEC)
    linux.mount("tmpfs", f"{_NEW}/dev/shm", "tmpfs", _SAFE, "size=16m,mode=1777")
    linux.mount("tmpfs", f"{_NEW}/tmp", "tmpfs", _SAFE, "size=16m,mode=1777")
    linux.mount("tmpfs", f"{_NEW}/ws", "tmpfs", _SAFE, "size=4m,mode=711")
    os.chdir(_NEW)
    linux.pivot_root(".", ".")
    linux.umount(".")
    os.chdir("/")
    linux.check(linux.libc.sethostname(b"sandbox", 7), "sethostname")


def _bind(source: str, target: str, *, read_only: bool) -> None:
    inside, outside = _NEW + target, _OLD + source
    if os.path.isdir(outside):
        os.makedirs(inside, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), mode=0o755, exist_ok=True)
        _write(inside, "")
    linux.mount(outside, inside, None, linux.MS_BIND | linux.MS_REC)
    if not read_only:
        return
    # An ordinary user may not clear the flags that the source mount has.
    present = os.statvfs(inside).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    linux.mount("none", inside, None, _READ_ONLY | _SAFE | present)


def _exec(plan: dict[str, Any]) -> NoReturn:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.set_inheritable(plan["control_fd"], True)
    arguments = [*plan["command"], json.dumps(plan["zygote"])]
    os.execve(arguments[0], arguments, plan["environment"])


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
