"""A sandbox that is bound to one event loop, made callable from any other loop or thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from mappa_envs.blocking import end_tasks, settle
from mappa_envs.errors import SandboxError, boundary
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.types import ToolResult

T = TypeVar("T")
S = TypeVar("S", bound=Sandbox)


class IoThread:
    """Starts with the first call, ends for good with `stop`. A forked copy of the process cannot use it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.closing = False
        """No new calls are taken."""

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function()` over there and wait for it here; cancelling here cancels there.

        Raises `SandboxError` in a forked copy of the process that made this object, and where the sandbox
        or the workspace is closed, before or meanwhile.
        """
        return await _result(asyncio.wrap_future(self.submit(function)))

    def submit(self, function: Callable[[], Awaitable[T]], *, last: bool = False) -> Future[T]:
        """The first half of `call`."""
        if os.getpid() != self._pid:
            raise SandboxError(
                "this sandbox belongs to the process that made it; open another one after a fork"
            )

        async def run() -> T:
            return await function()

        with self._lock:
            if self.closing and not last:
                raise SandboxError("this sandbox is closed: open another one")
            loop = self._running_loop()
            return asyncio.run_coroutine_threadsafe(run(), loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with boundary(SandboxError, "starting the sandbox's thread", OSError, RuntimeError):
                loop = asyncio.new_event_loop()
                # A daemon, so that a sandbox left open does not keep the interpreter from ending.
                thread = threading.Thread(target=_serve, args=(loop,), name="mappa-sandbox", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise
            self._loop, self._thread = loop, thread
        return self._loop

    def stop(self) -> None:
        """End the thread, and what still runs in it."""
        with self._lock:
            self.closing = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None and os.getpid() == self._pid:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(end_tasks())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _result(work: asyncio.Future[T]) -> T:
    """Raises `SandboxError` where it was cancelled, but not by who waits for it."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise SandboxError("the workspace, or its sandbox, was closed meanwhile") from None


def _to_its_end(work: Future[T]) -> asyncio.Future[T]:
    """To wait for it here; who stops waiting does not stop the work."""
    told: Future[T] = Future()
    work.add_done_callback(lambda done: settle(told, done.result))
    return asyncio.wrap_future(told)


class ThreadedSandbox(Sandbox, Generic[S]):
    """Runs a loop-bound sandbox (`inner`) in a thread of its own."""

    def __init__(self, inner: S, limits: Limits) -> None:
        self.inner = inner
        self.limits = limits
        self._thread = IoThread()
        self._closed: Future[None] | None = None

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        opening = self._thread.submit(lambda: self.inner.open(files))
        try:
            # Half an open workspace is hard to undo, a whole one easy.
            workspace = await _result(_to_its_end(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(self._discard)
            raise
        return _ThreadedWorkspace(workspace, self._thread)

    def _discard(self, opening: Future[Workspace]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            workspace = opening.result()
            with contextlib.suppress(SandboxError):  # closed meanwhile, and the workspace with it
                self._thread.submit(workspace.close)

    async def close(self) -> None:
        if self._closed is None:
            # From here on no call is taken, so nothing starts that would outlive this.
            self._thread.closing = True
            self._closed = self._thread.submit(self.inner.close, last=True)
        await _to_its_end(self._closed)
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
        already, self.closed = self.closed, True
        if not (already or self._thread.closing):
            await _result(_to_its_end(self._thread.submit(self._inner.close)))
