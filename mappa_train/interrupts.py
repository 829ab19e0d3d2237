"""Interruptions that wait for a moment at which something can be kept."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

SAME_S = 1.0
"""Within which another signal is the same interrupt: a closed terminal and `timeout` send two."""
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def answered(act: Callable[[], None]) -> Iterator[None]:
    """Within this, the first interrupt calls `act`, and comes at the end of the block; a second one at once.

    Held back are signals whose handler is Python's `default_int_handler`, and in the main thread alone: no
    other gets any.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in _INTERRUPTS if is_main and signal.getsignal(n) is signal.default_int_handler]
    first: float | None = None

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            act()
        elif time.monotonic() - first >= SAME_S:
            raise KeyboardInterrupt

    try:
        for number in numbers:
            signal.signal(number, hold)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
    if first is not None:
        raise KeyboardInterrupt


def finish_first(words: str) -> contextlib.AbstractContextManager[None]:
    """Within this, an interrupt is answered with `words` on stderr and waits for the end of the block."""

    def say() -> None:
        # Straight to the descriptor: a handler may come in the middle of somebody's print.
        with contextlib.suppress(OSError):
            os.write(2, f"{words}\n".encode())

    return answered(say)
