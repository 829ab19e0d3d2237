"""Episodes and credit of a run, read from its files step by step; and which of them the page shows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

from mappa_envs.errors import DataError
from mappa_envs.types import Episode
from mappa_train.checkpoint import RunFolder
from mappa_train.credit_log import ActionCredit
from mappa_train.files import first_line
from mappa_train.settings import parse_value, read_toml

MAX_STEPS = 8
EPISODES_PER_STEP = 24

_HEAD = re.compile(rb'\{"step": (\d+), "index": (\d+), ')
_EPISODE = re.compile(_HEAD.pattern + rb'"episode": ')

Numbered = tuple[int, Episode]
"""An episode with its index in the run."""
Line = Mapping[str, Any]
"""A line of metrics.jsonl."""


class RunData:
    """What the page is made from, each part read once.

    Raises `ConfigError` where there is no run or its settings are damaged, `DataError` for a damaged line.
    """

    def __init__(self, run: Path) -> None:
        folder = RunFolder.open(run)
        self.path = run
        self.lines: list[Line] = list(folder.read_metrics())
        settings = read_toml(folder.config_path)
        self.resolved: Line = settings.pop("resolved", {})
        self.settings: Line = settings
        self.numbered = lru_cache(maxsize=None)(lambda step: read_numbered_episodes(run, step))

    def episodes(self, step: int) -> list[Episode]:
        """All episodes of a step."""
        return [episode for _, episode in self.numbered(step)]

    @cached_property
    def steps(self) -> list[int]:
        """The finished steps."""
        return [int(line["step"]) for line in self.lines]

    @cached_property
    def end(self) -> str:
        """Why no step follows, in a sentence; "" where one does, or where the process was stopped."""
        names = ("steps", "coach_budget_usd")
        steps, budget = (parse_value(name, self.settings.get(name, 0)) for name in names)
        if not self.lines:
            return ""
        if self.steps[-1] >= steps:
            return "The run has made all its steps."
        # With a budget that was raised since, or a limit taken away, the run goes on.
        if 0 < budget <= (self.lines[-1].get("coach/budget_spent") or 0):
            return "The run ended early: the coach's budget was spent."
        return ""

    def names(self, prefix: str) -> list[str]:
        """What follows a prefix among the keys of the metrics, such as the agents after "score/"."""
        keys = self.lines[0] if self.lines else ()
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key != f"{prefix}mean"]


def stamps(paths: Iterable[Path]) -> list[tuple[int, int, Path]]:
    """When each file was written, its size, and itself; those that cannot be looked at are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            facts = path.stat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    return found


def read_episodes(run: Path, step: int) -> list[Episode]:
    """All episodes of a step, in their order in the file; [] if there are none."""
    return [episode for _, episode in read_numbered_episodes(run, step)]


def read_numbered_episodes(run: Path, step: int) -> list[Numbered]:
    """The episodes of a step with their index in the run. Reads that part of the file only.

    Raises `DataError` at a line that is no episode.
    """
    path = RunFolder(run).episodes_path
    found = []
    for line in _lines_of(path, step):
        try:
            _, index, episode = _read_episode(line)
        except ValueError as error:
            raise DataError(f"{path}, step {step}: no episode: {first_line(error)}") from None
        found.append((index, episode))
    return found


def read_credit(run: Path, step: int) -> dict[tuple[int, int], ActionCredit]:
    """What a step's update made of its actions, by episode index and turn; {} if nothing was written.

    Raises `DataError` at a line that is no credit.
    """
    path = RunFolder(run).credit_path
    found = {}
    for line in _lines_of(path, step):
        try:
            item = ActionCredit.from_json(line)
        except (ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"{path}, step {step}: {first_line(error)}; delete the file") from None
        found[item.index, item.turn] = item
    return found


def all_episodes(run: Path) -> Iterator[tuple[int, int, Episode]]:
    """Every episode of a run with its step and index, in the order of the file; one half written is left out.

    Raises `DataError` if there is none, or at a line that is no episode.
    """
    path = RunFolder(run).episodes_path
    if not path.is_file() or not path.stat().st_size:
        raise DataError(f"{run}: it has no episodes yet; train for a step first")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                found = _read_episode(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: no episode: {first_line(error)}") from None
            yield found


def _read_episode(line: bytes) -> tuple[int, int, Episode]:
    """Step, index and episode of a complete line. Raises `ValueError`."""
    head = _EPISODE.match(line)
    if head is None:
        raise ValueError("it does not begin with step and index")
    return int(head[1]), int(head[2]), Episode.from_json(line[head.end() : -2].decode())


def sampled_steps(steps: Sequence[int]) -> list[int]:
    """The first step, the last, and the multiples of a stride between: `MAX_STEPS` at most, ascending.

    The stride is a power of two, so that a longer run drops steps and never shifts them.
    """
    if not steps:
        return []
    stride = 1
    while sum(step % stride == 0 for step in steps) > MAX_STEPS - 2:
        stride *= 2
    return sorted({steps[0], steps[-1], *(step for step in steps if step % stride == 0)})


def sampled_episodes(episodes: Sequence[Numbered]) -> list[Numbered]:
    """`EPISODES_PER_STEP` of a step at most, by index.

    First one of each end (stop reason, success) and those with the worst and the best action, so that what
    is rare is there; then in order.
    """
    ends: dict[tuple[object, bool], Numbered] = {}
    for item in episodes:
        ends.setdefault((item[1].stop_reason, item[1].success), item)
    chosen = list(ends.values())
    scored = [
        (turn.final_score, index)
        for index, episode in episodes
        for turn in episode.turns
        if turn.final_score is not None
    ]
    extremes = {min(scored)[1], max(scored)[1]} if scored else set()
    chosen += [item for item in episodes if item[0] in extremes]
    unique = dict([*chosen, *episodes])
    return sorted(list(unique.items())[:EPISODES_PER_STEP], key=lambda item: item[0])


def _lines_of(path: Path, step: int) -> Iterator[bytes]:
    """The complete lines of a step. Raises `DataError` at one that begins with no step."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in _lines_from(file, path.stat().st_size, step):
            head = _HEAD.match(line)
            if not line.endswith(b"\n") or (head and int(head[1]) != step):
                return
            if not head:
                start = line[:40].decode("utf-8", "replace")
                raise DataError(f"{path}, beside step {step}: damaged at {start!r}; mend or delete the line")
            yield line


def _lines_from(file: IO[bytes], size: int, step: int) -> Iterator[bytes]:
    """The lines from the first of `step` on, found by bisection: they are in the order of steps."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        _to_line(file, middle)
        head = _HEAD.match(file.readline())
        if head is None or int(head[1]) >= step:
            high = middle
        else:
            low = middle + 1
    _to_line(file, low)
    yield from file


def _to_line(file: IO[bytes], offset: int) -> None:
    """Seek to the first line that begins at `offset` or behind it."""
    file.seek(max(offset - 1, 0))
    if offset:
        file.readline()
