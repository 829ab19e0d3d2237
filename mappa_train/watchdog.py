"""Who waits for whom, said when nothing moves.

A thread of its own looks on, so that it can speak when the event loop is stuck, too.
"""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)


class Watchdog:
    """Keeps what every unfinished episode waits for, and warns when no episode has moved for `limit_s`.

    >>> with Watchdog(300, "step 3") as watchdog:
    ...     watchdog.waits(17, "the coach")

    The warning is repeated every `limit_s` for as long as that lasts. 0 = never.
    """

    def __init__(self, limit_s: float, where: str) -> None:
        self._limit_s, self._where = limit_s, where
        self._states: dict[int, tuple[str, float]] = {}
        self._moved = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mappa-watchdog", daemon=True)

    def __enter__(self) -> Self:
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._limit_s:
            self._thread.join()

    def waits(self, episode: int, whom: str) -> None:
        """The episode goes on to wait for this: "the sandbox", "writer_0 to be sampled"."""
        self._moved = time.monotonic()
        self._states[episode] = (whom, self._moved)

    def done(self, episode: int) -> None:
        """The episode has come to its end."""
        self._moved = time.monotonic()
        self._states.pop(episode, None)

    def report(self) -> str:
        """One line: how many episodes wait for what, and the one that has done so for longest."""
        now = time.monotonic()
        groups: dict[str, list[tuple[float, int]]] = {}
        for episode, (whom, since) in self._states.copy().items():
            groups.setdefault(whom, []).append((now - since, episode))
        parts = []
        for whom, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            age_s, episode = max(members)
            number, longest = (
                ("1 episode", "") if len(members) == 1 else (f"{len(members)} episodes", "longest: ")
            )
            parts.append(f"{number} for {whom} ({longest}episode {episode}, for {age_s:.0f} s)")
        who = "; ".join(parts) or "no episode is under way"
        idle_s = now - self._moved
        return (
            f"{self._where}: no episode has got any further for {idle_s:.0f} s; a slow machine may just need "
            f"longer. Waiting: {who}"
        )

    def _watch(self) -> None:
        pause_s = self._limit_s
        while not self._ended.wait(pause_s):
            idle_s = time.monotonic() - self._moved
            if idle_s >= self._limit_s:
                log.warning("%s", self.report())
            # At the soonest moment at which there may be something to say (again).
            pause_s = self._limit_s - idle_s if idle_s < self._limit_s else self._limit_s
