"""What a sandbox is: a place that runs hostile Python against the files of one episode.

`Sandbox` starts workspaces, `Workspace` is one episode's folder and what runs in it. Both are
safe to use from any event loop and any thread; neither is bound to the loop that made it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mappa_envs.errors import ConfigError
from mappa_envs.types import ToolResult


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one `run()` may use. Time is wall-clock and starts when the code starts, not in a queue.

    Raises `ConfigError` for a limit under which nothing could run.
    """

    time_s: float = 30.0
    memory_mb: int = 1024
    processes: int = 64
    output_bytes: int = 16_384
    """Kept of stdout and of stderr each, head and tail; the run is killed at 1000 times as much."""
    workspace_mb: int = 256
    workspace_files: int = 10_000

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < math.inf:
                raise ConfigError(f"limits: {limit.name} must be positive and finite, got {value}")
        if self.processes < 2:
            # A run that reaches the limit is killed, and the first process counts.
            raise ConfigError(f"limits: processes must be at least 2, got {self.processes}")


class Workspace(ABC):
    """One episode's files. Closing it deletes them and kills whatever still runs there."""

    closed: bool = False

    @abstractmethod
    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        """Run the blocks in order in one fresh interpreter; stop at the first that raises.

        Raises `SandboxError` only when the sandbox itself failed.
        """

    @abstractmethod
    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        """Run a *trusted* script in a throw-away worker that sees the workspace read-only.

        The script hands its finding to `report(value)` (any JSON value), which leaves on a channel
        that the trusted side opened before the script ran; only the first report counts. Returns
        that value, or None when the worker died, ran out of time or reported nothing.
        """

    @abstractmethod
    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of one regular file, never through a link.

        Raises `FileNotFoundError` if there is none, `ValueError` if it is a link, a folder, a pipe
        or larger than `max_bytes`, `SandboxError` only when the sandbox itself failed.
        """

    @abstractmethod
    async def close(self) -> None:
        """Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Sandbox(ABC):
    """Opens workspaces. Starting one costs seconds, a workspace milliseconds: share it."""

    limits: Limits

    @abstractmethod
    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        """A workspace that holds copies of the given files (name → host path or content)."""

    @abstractmethod
    async def close(self) -> None:
        """Close every workspace and stop all processes. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
