"""What a sandbox leaves on the machine: processes, descriptors, mounts, files, containers.

Taken before and after, two of these say whether a run left something behind. The `namespace`
backend's processes are descendants of this one; the `docker` backend's are asked of the daemon.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mappa_envs.sandbox.container import OWNER_LABEL
from mappa_envs.sandbox.image_build import connect

_SETTLE_TIMEOUT_S = 30.0
_WRITABLE = ("ws", "scratch", "tmp", "dev/shm")
"""Where a sandbox's root could hold files of an episode."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """Counts of one moment."""

    num_processes: int
    num_zombies: int
    num_fds: int
    num_mounts: int
    num_files: int
    num_containers: int

    def growth_since(self, before: Census) -> dict[str, tuple[int, int]]:
        """What there is more of: name → (then, now)."""
        then, now = asdict(before), asdict(self)
        return {name: (then[name], now[name]) for name in now if now[name] > then[name]}


def take_census(kind: str) -> Census:
    """Count now; what belongs to the sandboxes of this kind and of this process."""
    containers = our_containers() if kind == "docker" else []
    inside = [container_pids(one) for one in containers]
    pids = [pid for some in inside for pid in some] if kind == "docker" else descendants()
    roots = [some[0] for some in inside if some] if kind == "docker" else zygotes(pids)
    return Census(
        num_processes=len(pids),
        num_zombies=len([pid for pid in {*pids, *descendants()} if _state(pid) == "Z"]),
        num_fds=len(os.listdir("/proc/self/fd")),
        num_mounts=sum(_count_mounts(pid) for pid in roots),
        num_files=sum(1 for pid in roots for _ in _files(pid)),
        num_containers=len(containers),
    )


def settle(kind: str, before: Census) -> Census:
    """The first census that is nowhere above `before`, or the one at the time-out."""

    seen: list[Census] = []

    def settled() -> bool:
        seen.append(take_census(kind))
        return not seen[-1].growth_since(before)

    wait_until(settled, _SETTLE_TIMEOUT_S)
    return seen[-1]


def steady(kind: str) -> Census:
    """A census that stays the same for a while: workers that wait for work are up again."""
    seen: list[Census] = []

    def is_steady() -> bool:
        time.sleep(0.05)
        seen.append(take_census(kind))
        return len(seen) >= 5 and len(set(seen[-5:])) == 1

    wait_until(is_steady, _SETTLE_TIMEOUT_S)
    return seen[-1]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it holds; whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def our_containers(owner_pid: int | None = None) -> list[Any]:
    """The sandbox containers that this process, or another, has started."""
    with contextlib.closing(connect()) as client:
        found = client.containers.list(all=True, ignore_removed=True, filters={"label": OWNER_LABEL})
    owner = str(owner_pid or os.getpid())
    return [one for one in found if one.labels[OWNER_LABEL].split("/")[1] == owner]


def command_container(container: Any, name: str) -> None:
    """`kill` it or `pause` it, over a connection that is closed afterwards."""
    with contextlib.closing(connect()) as client:
        getattr(client.containers.get(container.id), name)()


def container_pids(container: Any) -> list[int]:
    """The processes of a container by their numbers on the host, its first one first; none where it went."""
    first = int(container.attrs["State"]["Pid"])
    return [first, *descendants(first)] if first and is_alive(first) else []


def descendants(pid: int | None = None) -> list[int]:
    """All children and their children, zombies too, of this process or another."""
    parents = {other: _parent(other) for other in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found: list[int] = []
    waiting = [pid or os.getpid()]
    while waiting:
        parent = waiting.pop()
        waiting += (new := [other for other in parents if parents[other] == parent])
        found += new
    return found


def children_of(pid: int) -> list[int]:
    """The processes that it started, in the order of their start."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zygotes(pids: list[int]) -> list[int]:
    """Those among `pids` that fork workers: the oldest of each warm interpreter's family."""
    warm = [pid for pid in pids if "inside.start" in command(pid)]
    return [pid for pid in warm if _parent(pid) not in (0, *warm)]  # 0: it has just ended


def sandbox_pids(kind: str) -> list[int]:
    """All processes of this kind's sandboxes, by their numbers on the host."""
    if kind == "docker":
        return [pid for one in our_containers() for pid in container_pids(one)]
    return descendants()


def pss_mb(pids: list[int]) -> float:
    """The memory of these processes together, shared pages counted once, in MB."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def command(pid: int) -> str:
    """The command line, or nothing where the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _count_mounts(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    return 0


def _files(pid: int) -> Iterator[str]:
    """Files in the writable folders of a process's root."""
    for folder in _WRITABLE:
        for root, _, names in os.walk(f"/proc/{pid}/root/{folder}"):
            yield from (f"{root}/{name}" for name in names)
