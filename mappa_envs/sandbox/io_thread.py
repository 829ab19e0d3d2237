"""A sandbox that is bound to one event loop, made callable from any other loop or thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.types import ToolResult

T = TypeVar("T")
S = TypeVar("S", bound=Sandbox)


class IoThread:
    """Starts with the first call, ends for good with `stop`. A forked copy of the process cannot use it."""

    def __init__(self) -> None:
        self.stopped = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function()` over there and wait for it here; cancelling here cancels there.

        Raises `SandboxError` after `stop`, and in a forked copy of the process that made this object.
        """
        if os.getpid() != self._pid:
            raise SandboxError(
                "this sandbox belongs to the process that made it; open another one after a fork"
            )

        if self.stopped:
            raise SandboxError("this sandbox is closed: open another one")

        async def run() -> T:
            return await function()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._running_loop()))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon, so that a sandbox left open does not keep the interpreter from ending.
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="mappa-sandbox", daemon=True
                )
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """End the thread."""
        self.stopped = True
        with self._lock:
            if self._loop is None or self._thread is None or os.getpid() != self._pid:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


class ThreadedSandbox(Sandbox, Generic[S]):
    """Runs a loop-bound sandbox (`inner`) in a thread of its own."""

    def __init__(self, inner: S, limits: Limits) -> None:
        self.inner = inner
        self.limits = limits
        self._thread = IoThread()

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        workspace = await self._thread.call(lambda: self.inner.open(files))
        return _ThreadedWorkspace(workspace, self._thread)

    async def close(self) -> None:
        if not self._thread.stopped:
            await self._thread.call(self.inner.close)
            self._thread.stop()


class _ThreadedWorkspace(Workspace):
    def __init__(self, inner: Workspace, thread: IoThread) -> None:
        self._inner = inner
        self._thread = thread

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        return await self._thread.call(lambda: self._inner.run(blocks))

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        return await self._thread.call(lambda: self._inner.inspect(script, time_s=time_s))

    async def read(self, path: str, max_bytes: int) -> bytes:
        return await self._thread.call(lambda: self._inner.read(path, max_bytes))

    async def close(self) -> None:
        if not (self._inner.closed or self._thread.stopped):
            await self._thread.call(self._inner.close)
