"""Two ways to keep workers apart: by the kernel's namespaces, or by user ids alone.

`Namespaces` needs the right to make namespaces, and gives each worker a view of its own. `Uids` is
for a container that has no such right: each workspace belongs to a user id, and the container's
file system is read-only around it. Methods up to `usage` run in the zygote, the rest in workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from . import linux, watchdog

WORKSPACE = "/workspace"
SHARED = "/shared"
"""Where the zygote has the files that workspaces show without a copy."""

SCRATCH_FD, WORKSPACE_FD = 8, 9
"""Where a worker of `Uids` holds its two folders; the image's /tmp and /workspace are links to them."""

FIRST_UID = 10_000
"""`Uids`: workspace n belongs to this + n."""

INIT = ("/opt/bin/init", "2147483647")
"""`sleep`, the first process of each run's pid namespace: killing it kills all the others."""

_AGENT_UID = 1000


class Isolation(ABC):
    """What the zygote and its workers do differently in the two worlds."""

    @abstractmethod
    def make(self, number: int, megabytes: int, num_inodes: int) -> None:
        """A new, empty workspace."""

    @abstractmethod
    def remove(self, number: int) -> None:
        """The workspace is no more. Nothing runs in it."""

    @abstractmethod
    def show(self, number: int, name: str, target: str) -> None:
        """Let a workspace that no agent has used yet have the shared file `target` under a name, in folders
        that are there."""

    @abstractmethod
    def folders(self, number: int) -> list[int]:
        """Descriptors of its folders for the owner: the workspace first."""

    @abstractmethod
    def path(self, number: int) -> str: ...

    @abstractmethod
    def uid(self, number: int) -> int: ...

    @abstractmethod
    def trees(self, number: int) -> list[int]:
        """What a worker needs to enter the workspace, as descriptors."""

    def shown(self, number: int) -> list[str]:
        """Names of shared files that come as descriptors at the end of `trees`."""
        return []

    @abstractmethod
    def before_fork(self) -> int:
        """The process whose end ends all that the next child starts, or 0."""

    @abstractmethod
    def after_fork(self) -> None:
        """In the zygote, whether or not the fork went well."""

    @abstractmethod
    def key(self, number: int, init: int) -> int:
        """What `key_of` says of every process of a run in this workspace."""

    @abstractmethod
    def key_of(self, pid: int) -> int | None:
        """None for a process that has ended."""

    @abstractmethod
    def kill_all(self, key: int, init: int, workers: set[int]) -> None:
        """Kill what a run has started. May have to be said again. `workers`: those that others wait for."""

    @abstractmethod
    def prepare(self) -> None:
        """In a worker, before there is work."""

    @abstractmethod
    def enter(self, order: dict[str, Any], trees: list[int]) -> None:
        """In a worker: go into the workspace, take its identity. Consumes the descriptors."""


class Namespaces(Isolation):
    """A tmpfs per workspace in the zygote's mount namespace; per run a pid, mount, ipc, uts and user
    namespace. `many_uids`: each workspace has a user id of its own on the host."""

    def __init__(self, *, many_uids: bool) -> None:
        self._many_uids = many_uids
        self._shown: dict[int, dict[str, str]] = {}
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)

    def make(self, number: int, megabytes: int, num_inodes: int) -> None:
        path, uid = self.path(number), self.uid(number)
        os.mkdir(path, 0o700)
        options = f"size={megabytes}m,nr_inodes={num_inodes},mode=700,uid={uid},gid={uid}"
        linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)

    def remove(self, number: int) -> None:
        linux.umount(self.path(number))
        os.rmdir(self.path(number))
        self._shown.pop(number, None)

    def show(self, number: int, name: str, target: str) -> None:
        place = f"{self.path(number)}/{name}"
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        self._shown.setdefault(number, {})[name] = target

    def folders(self, number: int) -> list[int]:
        return [os.open(self.path(number), os.O_RDONLY | os.O_DIRECTORY)]

    def path(self, number: int) -> str:
        return f"/ws/{number}"

    def uid(self, number: int) -> int:
        return number if self._many_uids else 0

    def trees(self, number: int) -> list[int]:
        shown = self._shown.get(number, {}).values()
        return _open_each(linux.clone_mount, (self.path(number), *shown))

    def shown(self, number: int) -> list[str]:
        return list(self._shown.get(number, {}))

    def before_fork(self) -> int:
        linux.unshare(linux.CLONE_NEWPID, "pid")
        return os.posix_spawn(INIT[0], INIT, os.environ)

    def after_fork(self) -> None:
        # Our next children must not land in a namespace whose init is somebody else's.
        linux.setns(self._own_pid_namespace, linux.CLONE_NEWPID)

    def key(self, number: int, init: int) -> int:
        return self.key_of(init) or 0

    def key_of(self, pid: int) -> int | None:
        try:
            return os.stat(f"/proc/{pid}/ns/pid").st_ino
        except OSError:
            return None

    def kill_all(self, key: int, init: int, workers: set[int]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)

    def prepare(self) -> None:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS, "mount, ipc, uts")
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        safe = linux.MS_NOSUID | linux.MS_NODEV
        linux.umount("/ws")
        _die_first()
        if os.listdir(SHARED):
            # Mounts that came along from outside cannot be taken off, but covered.
            linux.mount("tmpfs", SHARED, "tmpfs", safe | linux.MS_RDONLY, "size=4k,mode=711")
        linux.mount("proc", "/proc", "proc", safe | linux.MS_NOEXEC)
        linux.mount("tmpfs", "/tmp", "tmpfs", safe, "size=64m,nr_inodes=20000,mode=1777")
        linux.mount("tmpfs", "/dev/shm", "tmpfs", safe | linux.MS_NOEXEC, "size=64m,nr_inodes=2000,mode=1777")

    def enter(self, order: dict[str, Any], trees: list[int]) -> None:
        for tree, name in zip(trees, ["", *order["shown"]], strict=True):
            # An agent may have put something else in the place, or nothing: its own loss.
            with contextlib.suppress(OSError) if name else contextlib.nullcontext():
                linux.attach_mount(tree, f"{WORKSPACE}/{name}" if name else WORKSPACE)
            os.close(tree)
        if order["read_only"]:
            flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
            linux.mount("none", WORKSPACE, None, flags)
        os.chdir(WORKSPACE)
        uid = order["uid"]
        if uid:
            _become(uid)
        # Seen as the same ordinary uid from inside every worker; RLIMIT_NPROC counts this run alone.
        linux.unshare(linux.CLONE_NEWUSER, "worker's user")
        lines = {"setgroups": "deny", "uid_map": f"{_AGENT_UID} {uid} 1", "gid_map": f"{_AGENT_UID} {uid} 1"}
        for name, text in lines.items():
            linux.write(f"/proc/self/{name}", text)


class Uids(Isolation):
    """One user id each, and two folders inside of what the container's engine mounted at start: a sized
    tmpfs that is root's, and that only this id's group may pass through. The folders are the id's own: it
    can open them to all, but not the way there."""

    def make(self, number: int, megabytes: int, num_inodes: int) -> None:
        for path in (self.path(number), self._scratch(number)):
            os.mkdir(path, 0o700)
            os.chown(path, self.uid(number), self.uid(number))

    def remove(self, number: int) -> None:
        # The owner has emptied them, but attributes and access lists stay with a folder.
        for path in (self.path(number), self._scratch(number)):
            os.rmdir(path)

    def show(self, number: int, name: str, target: str) -> None:
        place = f"{self.path(number)}/{name}"
        os.symlink(target, place)

    def folders(self, number: int) -> list[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY
        return _open_each(lambda path: os.open(path, flags), (self.path(number), self._scratch(number)))

    def path(self, number: int) -> str:
        return f"/ws/{number}/own"

    def uid(self, number: int) -> int:
        return FIRST_UID + number

    def trees(self, number: int) -> list[int]:
        return self.folders(number)

    def _scratch(self, number: int) -> str:
        return f"/scratch/{number}/own"

    def before_fork(self) -> int:
        return 0

    def after_fork(self) -> None:
        pass

    def key(self, number: int, init: int) -> int:
        return self.uid(number)

    def key_of(self, pid: int) -> int | None:
        return watchdog.owner(pid)

    def kill_all(self, key: int, init: int, workers: set[int]) -> None:
        assert key > FIRST_UID
        alive = False
        for pid in watchdog.pids_of(key, self.key_of):
            if pid not in workers:
                # Orphans become our children; those of living parents are not ours to wait for.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            alive |= not watchdog.is_ending(pid)
        if alive:
            _kill_all_of(key)

    def prepare(self) -> None:
        _die_first()

    def enter(self, order: dict[str, Any], trees: list[int]) -> None:
        workspace, scratch = trees
        os.dup2(scratch, SCRATCH_FD)
        os.dup2(workspace, WORKSPACE_FD)
        os.fchdir(WORKSPACE_FD)
        _become(order["uid"])
        _hide_number(os.getcwd())


def _open_each(open_one: Callable[[str], int], paths: Iterable[str]) -> list[int]:
    """A descriptor of each; none stays open where one fails."""
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(open_one(path))
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def _die_first() -> None:
    """The kernel's choice when the machine, or the container, runs out of memory."""
    with contextlib.suppress(OSError):  # not every container engine lets us
        linux.write("/proc/self/oom_score_adj", "1000")


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # The change hid /proc/self from ourselves.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)


def _hide_number(folder: str) -> None:
    """The same run prints the same in any workspace, so far as code asks Python where it is."""
    real = os.getcwd

    def getcwd() -> str:
        path = real()
        inside = path == folder or path.startswith(folder + "/")
        return WORKSPACE + path[len(folder) :] if inside else path

    os.getcwd = getcwd


def _kill_all_of(uid: int) -> None:
    """SIGKILL to every process of this user at once, which not even a fork bomb outruns."""
    try:
        killer = os.fork()
    except OSError:
        return  # the machine has no room for another process: next time it may
    if killer == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    # They may stop it while it has their uid: then another one comes.
    for _ in range(100):
        if os.waitpid(killer, os.WNOHANG)[0]:
            return
        time.sleep(0.0005)
    os.kill(killer, signal.SIGKILL)
    os.waitpid(killer, 0)
