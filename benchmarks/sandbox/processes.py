"""What /proc says about the processes below one: which they are, and how much memory they hold."""

from __future__ import annotations

import time
from pathlib import Path

Identity = tuple[int, int]
"""Process id and start time in ticks since boot: ids come again, the pair does not."""

_LOOK_INTERVAL_S = 0.05


def _read_all() -> dict[Identity, int]:
    """Every process, zombies too, and the id of its parent."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name before the last bracket may hold anything, blanks and brackets too.
            fields = text.rpartition(")")[2].split()
            found[int(folder.name), int(fields[19])] = int(fields[1])
    return found


def descendants(pid: int) -> set[Identity]:
    """Children of the process, their children, and so on."""
    parents = _read_all()
    found: set[Identity] = set()
    pids = {pid}
    while True:
        below = {child for child, parent in parents.items() if parent in pids} - found
        if not below:
            return found
        found |= below
        pids = {child for child, _ in below}


def pss_mb(processes: set[Identity]) -> float:
    """Proportional set size of them all: what is shared counts once. Files in a tmpfs are not in it."""
    kilobytes = 0
    for pid, _ in processes:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended a moment ago
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def survivors(processes: set[Identity], after_s: float) -> set[Identity]:
    """Those of them, and of what they start meanwhile, that exist after a time; zombies count."""
    known = set(processes)
    until = time.monotonic() + after_s
    while time.monotonic() < until:
        pids = {pid for pid, _ in known & _read_all().keys()}
        known |= {child for child, parent in _read_all().items() if parent in pids}
        time.sleep(_LOOK_INTERVAL_S)
    return known & _read_all().keys()
