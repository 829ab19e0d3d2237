"""Between ordinary code and coroutines: waiting for a coroutine, and calling a plain function from one."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")

END_S = 5.0
"""How long the end of the process waits for what its coroutines are in the middle of."""


async def end_tasks() -> None:
    """Cancel all other tasks of this loop, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def settle(done: Future[T], function: Callable[[], T]) -> None:
    """Call the function for whoever waits for `done`, unless nobody does any more."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except BaseException as error:  # noqa: BLE001  (raised again by whoever awaits)
        done.set_exception(error)


class _LoopThread:
    """One event loop in one daemon thread, shared by every synchronous caller of this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="mappa-envs-loop", daemon=True)
        self.thread.start()
        atexit.register(self._close)

    def _run(self) -> None:
        # These two leave `run_forever` although the task has noted them for whoever awaits it; if the loop
        # ended here, the other callers would wait for ever.
        while not self._ended:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def _close(self) -> None:
        """Cancel all and end the thread: one that Python's end freezes in the middle of an import keeps
        the import's lock, and whatever else imports something at the end waits for it for ever.
        """
        if self.thread.is_alive():  # not in a forked child
            asyncio.run_coroutine_threadsafe(self._end(), self.loop)
            self.thread.join(END_S)

    async def _end(self) -> None:
        await end_tasks()
        self._ended = True
        self.loop.stop()


_lock = threading.Lock()
_current: _LoopThread | None = None


def _loop_thread() -> _LoopThread:
    global _current
    with _lock:
        # A forked child inherits the object but not the thread, which is dead there.
        if _current is None or not _current.thread.is_alive():
            _current = _LoopThread()
        return _current


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in the shared private loop; return its result, or raise whatever it raises.

    An interrupt while waiting cancels the coroutine. Raises `RuntimeError` when called from that loop itself,
    which could only wait for itself.
    """
    shared = _loop_thread()
    if threading.current_thread() is shared.thread:
        coroutine.close()
        raise RuntimeError(
            "a coroutine, such as a coroutine policy, cannot use the synchronous API: it would wait for the "
            "loop that runs it; await areset, astep, aclose or aevaluate there"
        )
    future = asyncio.run_coroutine_threadsafe(_as_value(coroutine), shared.loop)
    try:
        value, error = future.result()
    except BaseException:
        future.cancel()
        raise
    if error is not None:
        raise error
    return cast(T, value)


async def in_shared_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await the coroutine in the shared private loop, from whatever loop this is; cancelled with the caller.

    For what is bound to one loop, such as open connections, and must outlive the caller's.
    """
    shared = _loop_thread()
    if threading.current_thread() is shared.thread:
        return await coroutine
    future = asyncio.run_coroutine_threadsafe(_as_value(coroutine), shared.loop)
    value, error = await asyncio.wrap_future(future)
    if error is not None:
        raise error
    return cast(T, value)


async def _as_value(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    try:
        return await coroutine, None
    except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
        return None, error


class CallThread:
    """Calls plain functions for coroutines, one at a time, in a thread of its own.

    Not a `ThreadPoolExecutor`: its threads hold up the end of the process until their call returns.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[[], Any]) -> Any:
        """The function's result. If the caller is cancelled, a call that has begun goes on to its end."""
        done: Future[Any] = Future()
        self._calls.put((done, function))
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """End the thread after the calls that were put before."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            settle(*call)
