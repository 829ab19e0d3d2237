"""The event loop of a rollout in a thread of its own, and the sampling in the thread that also learns.

On a CPU, PyTorch computes with a pool of OpenMP threads for each thread that calls it. As soon as these are
more than the cores, GNU's OpenMP no longer keeps its threads awake between two pieces of work. Sampling is
hundreds of small pieces a token, and takes up to a quarter longer where another thread has learned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from mappa_train.interrupts import answered

GIVE_UP_S = 5.0
"""How long a second interrupt waits for the end of what the first one cancelled."""

T = TypeVar("T")

log = logging.getLogger(__name__)


def run_beside(work: Callable[[], Coroutine[Any, Any, T]], serve: Callable[[Future[T]], None]) -> T:
    """Run `work()` in a new event loop of another thread and return what it returns.

    Meanwhile `serve` does here what `work` asks for; it gets the future of the result and returns when that
    is done. An interrupt cancels `work` and is raised when that has ended, a second one soon; not where
    somebody else answers them.
    """
    beside = _Beside(work)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(beside.run,), name="mappa-rollout", daemon=True)
    with answered(beside.cancel):
        thread.start()
        try:
            serve(beside.ended)
        except BaseException as error:
            beside.cancel()
            thread.join(GIVE_UP_S if isinstance(error, KeyboardInterrupt) else None)
            raise
        thread.join()
    return beside.ended.result()


class _Beside(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended: Future[T] = Future()
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def run(self) -> None:
        """In the thread. The future is done when nothing runs any more."""
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                result = runner.run(self._watched())
        except BaseException as error:
            if self._is_cancelled and not isinstance(error, asyncio.CancelledError):
                log.warning("a rollout that was given up did not end cleanly", exc_info=error)
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
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._cancel_now)

    def _cancel_now(self) -> None:
        if self._is_cancelled and self._task is not None:
            self._task.cancel()
