"""What the processes of a run are doing, read from /proc: who they are, what they use, who is ending."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

_EXITING = 0x4  # PF_EXITING: past its last instruction of a program's own


@dataclass
class Usage:
    """What the processes of one run use together."""

    num_tasks: int = 0
    resident_bytes: int = 0
    """An upper bound: pages that processes share count once for each. With those that were swapped out."""
    inherited_bytes: int = 0
    """Of the above, what may still be shared with the zygote: each fork seems to hold it once more."""
    table_bytes: int = 0
    """Page tables, part of `resident_bytes`."""
    pids: list[int] = field(default_factory=list)

    def exact_bytes(self, baseline: int) -> int:
        """Shared pages divided among those who share them; slow, as it walks the page tables.

        Other users' page tables are closed to us in a container: there it is what the whole container
        has taken since the `baseline`, which all runs of the moment share.
        """
        total = 0
        for pid in self.pids:
            try:
                fields = _fields(f"/proc/{pid}/smaps_rollup")
            except PermissionError:
                return min(self.resident_bytes, container_bytes() - baseline)
            except OSError:
                continue
            total += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0) + fields.get("SwapPss", 0)
        # At most what is the zygote's own.
        return total + self.table_bytes - _anonymous_bytes(_fields("/proc/self/status"))


def _fields(path: str) -> dict[str, int]:
    """The lines of a /proc file that start with a number; kB become bytes."""
    found = {}
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def _anonymous_bytes(status: dict[str, int]) -> int:
    """Also what lies in the swap: a process can send its pages there, and still has them."""
    return status["RssAnon"] + status.get("VmSwap", 0)


def _read(path: str) -> bytes:
    """A small file of /proc, which comes in one piece."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


def private_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    return _fields("/proc/self/status")["VmData"]


def container_bytes() -> int:
    """Anonymous and shared memory of all processes of this control group (version 2, else 1).

    Where neither can be read, more than any process has.
    """
    for path in ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            fields = {name: int(value) for name, value in map(str.split, file)}
            return fields.get("anon", fields.get("rss", 0)) + fields.get("shmem", 0)
    return 1 << 62


def all_pids() -> list[int]:
    """All processes that this one can see, in ascending order."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def pids_of(key: int, key_of: Callable[[int], int | None]) -> list[int]:
    """All processes with this key."""
    return [pid for pid in all_pids() if key_of(pid) == key]


def owner(pid: int) -> int | None:
    """Its user id. The owner of /proc/PID will not do: a process can hide itself there."""
    try:
        text = _read(f"/proc/{pid}/status")
    except OSError:
        return None
    _, found, rest = text.partition(b"\nUid:")
    return int(rest.split(maxsplit=1)[0]) if found else None


def is_ending(pid: int) -> bool:
    """Not one instruction of its program will run any more: it is dead, or its last thread is dying."""
    try:
        # After the name, which may hold anything: state, ppid, … flags (7th), … num_threads (18th).
        words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return True
    return int(words[17]) <= 1 and (words[0] in b"ZX" or bool(int(words[6]) & _EXITING))


def usage(
    keys: set[int], key_of: Callable[[int], int | None], skipped: set[int], workers: set[int]
) -> dict[int, Usage]:
    """The usage of the processes with each of the keys, those `skipped` aside.

    What a worker inherited does not count; what others hold does, as they may have inherited nothing.
    """
    found = {key: Usage() for key in keys}
    inherited = _anonymous_bytes(_fields("/proc/self/status"))
    for pid in all_pids():
        key = None if pid in skipped else key_of(pid)
        # A process may end at any moment, or already be a zombie without memory.
        with contextlib.suppress(OSError, KeyError):
            if key in found:
                used = found[key]
                fields = _fields(f"/proc/{pid}/status")
                used.num_tasks += fields["Threads"]
                anonymous = _anonymous_bytes(fields)
                if pid in workers:
                    anonymous = max(0, anonymous - inherited)
                else:
                    used.inherited_bytes += min(anonymous, inherited)
                used.resident_bytes += anonymous + fields["RssShmem"] + fields["VmPTE"]
                used.table_bytes += fields["VmPTE"]
                used.pids.append(pid)
    return found
