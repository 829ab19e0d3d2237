"""What came out of a run: its output, read with bounded memory, its report, and how it ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_REPORT_BYTES = 1 << 20
"""Of an inspection; a longer one is none."""

OUTPUT_FACTOR = 1000
"""A run that prints more than this times what is kept is killed."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """How the process of a run ended, and what came through its pipes."""

    exit_code: int
    limit: Any
    duration_s: float
    stdout: str
    stderr: str
    report: Any

    @property
    def exception(self) -> str | None:
        """The class name that it claims to have ended with, if it looks like one."""
        name = self.report.get("exception") if isinstance(self.report, dict) else None
        return name if isinstance(name, str) and len(name) <= 100 and name.isidentifier() else None


def first_report(data: bytes, max_bytes: int) -> Any:
    """The first line as JSON; None where there is none or it is too long."""
    line, end, _ = data.partition(b"\n")
    if not end or len(line) > max_bytes:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class HeadTail:
    """The first and last bytes of a stream, `limit` in all, and how many lay between.

    Looks at no more than `most` bytes: what an endless stream shows is then the same every time.
    """

    def __init__(self, limit: int, most: int) -> None:
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._most = most
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> bool:
        """False once the stream is longer than `most`."""
        taken = data[: self._most - self.num_bytes]
        self.num_bytes += len(taken)
        room = self._head_size - len(self._head)
        self._head += taken[:room]
        self._tail += taken[room:] if room > 0 else taken
        if len(self._tail) > 4 * self._tail_size + 65_536:
            self._trim()
        return len(taken) == len(data)

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_size)]

    def text(self) -> str:
        """Head and tail with a mark where bytes are missing."""
        self._trim()
        cut = self.num_bytes - len(self._head) - len(self._tail)
        if not cut:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return f"{head}\n... [{cut} bytes cut] ...\n{tail}"


class PipeReader:
    """Feeds what arrives at a new pipe to a sink."""

    def __init__(self, sink: Callable[[bytes], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._fd, self.write_fd = os.pipe()
        os.set_blocking(self._fd, False)

    def _read(self) -> bool:
        """False where nothing more is to be had now."""
        try:
            data = os.read(self._fd, 1 << 18)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._fd)
            return False
        self._sink(data)
        return True

    def listen(self) -> None:
        """Once the writing side has its copy of `write_fd`."""
        self._loop.add_reader(self._fd, self._read)
        self._close_write_end()

    def _close_write_end(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Read what is in the pipe; nobody writes any more."""
        while self._read():
            pass

    def close(self) -> None:
        """Stop, whether or not the end has come."""
        self._close_write_end()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class RunOutput:
    """The three pipes of a run: stdout, stderr and the report. Opened before it starts.

    `on_flood` is called once, when one of them passes `most` bytes.
    """

    def __init__(self, limit: int, most: int, max_report_bytes: int, on_flood: Callable[[], None]) -> None:
        self.stdout, self.stderr = HeadTail(limit, most), HeadTail(limit, most)
        self.report = bytearray()
        self.flooded = False
        self._most, self._num_reported = most, 0
        self._max_report_bytes = max_report_bytes
        self._on_flood = on_flood
        self._pipes: list[PipeReader] = []
        try:
            self._pipes.append(PipeReader(lambda data: self._keep(self.stdout, data)))
            self._pipes.append(PipeReader(lambda data: self._keep(self.stderr, data)))
            self._pipes.append(PipeReader(self._keep_report))
        except OSError:
            self.close()
            raise

    @property
    def write_fds(self) -> list[int]:
        """Stdout, stderr, report."""
        return [pipe.write_fd for pipe in self._pipes]

    def _keep(self, stream: HeadTail, data: bytes) -> None:
        if not stream.add(data):
            self._flood()

    def _keep_report(self, data: bytes) -> None:
        self.report += data[: self._max_report_bytes + 1 - len(self.report)]
        self._num_reported += len(data)
        if self._num_reported > max(self._most, self._max_report_bytes):
            self._flood()  # the code has found its descriptor

    def _flood(self) -> None:
        if not self.flooded:
            self.flooded = True
            self._on_flood()

    def handed_over(self) -> None:
        """The run has the writing ends: drop ours, or the end would never come."""
        for pipe in self._pipes:
            pipe.listen()

    def drain(self) -> None:
        """Read what is left. Call it when no writer can write any more."""
        for pipe in self._pipes:
            pipe.drain()

    def close(self) -> None:
        """Idempotent for what `handed_over` closed; call it once."""
        for pipe in self._pipes:
            pipe.close()

    def first_report(self) -> Any:
        """What the run reported, or None."""
        return first_report(bytes(self.report), self._max_report_bytes)
