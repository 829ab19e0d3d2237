"""Waiting for a coroutine from ordinary code, also where the caller's thread runs an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _LoopThread:
    """One event loop in one daemon thread, shared by every synchronous caller of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="mappa-envs-loop", daemon=True).start()


_lock = threading.Lock()
_thread: _LoopThread | None = None


def _loop() -> asyncio.AbstractEventLoop:
    global _thread
    with _lock:
        # A forked child inherits the object but not the thread.
        if _thread is None or _thread.pid != os.getpid():
            _thread = _LoopThread()
        return _thread.loop


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in the shared private loop and return its result.

    An interrupt while waiting cancels the coroutine. It must not be called from that loop itself.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
