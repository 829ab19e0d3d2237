"""How much memory and how many tasks the processes of a run use, without cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Usage:
    """What the processes of one pid namespace use together."""

    num_tasks: int = 0
    resident_bytes: int = 0
    """An upper bound: pages that processes share count once for each."""
    pids: list[str] = field(default_factory=list)

    def exact_bytes(self) -> int:
        """Shared pages divided among those who share them; slow, as it walks the page tables."""
        total = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                fields = _fields(f"/proc/{pid}/smaps_rollup")
                total += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
        return total - _fields("/proc/self/status")["RssAnon"]  # at most what is the zygote's own


def _fields(path: str) -> dict[str, int]:
    """The numeric lines of a /proc file; kB become bytes."""
    found = {}
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def private_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    return _fields("/proc/self/status")["VmData"]


def pid_namespace(pid: int) -> int:
    """The inode that identifies the pid namespace of a process."""
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def usage(inits: Mapping[int, int]) -> dict[int, Usage]:
    """The usage in each of the pid namespaces (namespace → its init), the inits aside."""
    found = {namespace: Usage() for namespace in inits}
    skipped = set(inits.values())
    inherited = _fields("/proc/self/status")["RssAnon"]
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) in skipped:
            continue
        # A process may end at any moment, or already be a zombie without memory.
        with contextlib.suppress(OSError, KeyError):
            used = found[pid_namespace(int(pid))]
            fields = _fields(f"/proc/{pid}/status")
            used.num_tasks += fields["Threads"]
            used.resident_bytes += max(0, fields["RssAnon"] - inherited) + fields["RssShmem"]
            used.pids.append(pid)
    return found
