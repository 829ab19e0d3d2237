"""For tests of what could wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def soon(function: Callable[[], Any]) -> Any:
    """The function's result, from a thread that may hang without holding up the tests."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done.result(100)
