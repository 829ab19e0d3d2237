"""The event loop of a rollout in a thread of its own, and the sampling in the thread that also learns.

On a CPU, PyTorch computes with a pool of OpenMP threads for each thread that calls it. As soon as these are
more than the cores, GNU's OpenMP no longer keeps its threads awake between two pieces of work. Sampling is
hundreds of small pieces a token, and takes up to a quarter longer where another thread has learned.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from mappa_train.interrupts import answered

T = TypeVar("T")


def run_beside(work: Callable[[], Coroutine[Any, Any, T]], serve: Callable[[Future[T]], None]) -> T:
    """Run `work()` in a new event loop of another thread and return what it returns.

    Meanwhile `serve` does here what `work` asks for; it gets the future of the result and returns when that
    is done. An interrupt cancels `work` and is raised when that has ended, a second one at once; not where
    somebody else answers them.
    """
    beside = _Beside(work)
    thread = threading.Thread(target=beside.run, name="mappa-rollout", daemon=True)
    with answered(beside.cancel):
        thread.start()
        try:
            serve(beside.ended)
        except BaseException as error:
            beside.cancel()
            if not isinstance(error, KeyboardInterrupt):  # the second one: nobody waits any more
                thread.join()
            raise
        thread.join()
    return beside.ended.result()


class _Beside(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended: Future[T] = Future()
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def run(self) -> None:
        """In the thread. The future is done when nothing runs any more."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                result = runner.run(self._watched())
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(result)

    async def _watched(self) -> T:
        self._task = asyncio.current_task()
        self._cancel_now()
        return await self._work()

    def cancel(self) -> None:
        """From any thread, also in a signal's handler."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._cancel_now)

    def _cancel_now(self) -> None:
        if self._is_cancelled and self._task is not None:
            self._task.cancel()
