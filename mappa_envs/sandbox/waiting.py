"""Waiting that no cancellation cuts short, for what must be over before anything else may begin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def outlast(work: asyncio.Future[Any]) -> None:
    """Return when it is done, however often the caller is cancelled meanwhile."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call it in another thread and wait for its end, even when cancelled: the descriptors that it works on
    are then no longer in use."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await outlast(work)
        work.exception()  # nobody asks for it any more
        raise
