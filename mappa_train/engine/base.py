"""What samples actions: token ids in, token ids and their logprobs out, for each agent's own policy.

There are two kinds. A `BatchEngine` gets the prompts of many episodes in one blocking call: which of them
share a batch is decided by the episodes alone, so a run repeats exactly. A `StreamEngine` gets each prompt as
it comes and batches inside: no turn waits for the slowest episode, but the batches depend on timing. One that
computes in the caller's thread is an `InlineEngine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from mappa_train.types import Generation, GenerationRequest


class Engine(Protocol):
    """Samples at the run's temperature from the whole vocabulary (top_p 1, no top_k)."""

    def sync(self, version: int) -> None:
        """Take over the current weights of every agent's policy as policy version `version`.

        Blocking; called while nothing is being generated. Makes the engine usable again after `cancel`.
        """
        ...

    def cancel(self) -> None:
        """Give up all that is being generated, soon, and free what it holds. From any thread, at any time."""
        ...

    def close(self) -> None:
        """Free memory, threads and processes. May be called twice; nothing else is called afterwards."""
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """May hold memory that the learner could use."""

    def sleep(self) -> None:
        """Give up the device's memory, as far as the settings say so, until the next `sync`.

        Blocking; called while nothing is being generated.
        """
        ...


@runtime_checkable
class BatchEngine(Engine, Protocol):
    """Answers many requests in one call; the prompts are collected by a turn barrier."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order.

        Blocking; called from the thread that also calls `sync`. `cancel` makes it raise
        `asyncio.CancelledError`.
        """
        ...


@runtime_checkable
class StreamEngine(Engine, Protocol):
    """Answers each request on its own; many are under way at once."""

    async def agenerate(self, request: GenerationRequest, *, deadline_s: float | None = None) -> Generation:
        """One generation, called concurrently from one event loop, a new one in each rollout.

        The loop is in another thread than `sync` is called from.

        Cancelling the task that awaits it aborts the request and frees what it holds in the engine.
        `deadline_s` seconds after the call (None: never) the tokens sampled so far come back with
        `truncated=True`; there may be none. `cancel` makes it raise `asyncio.CancelledError`. An exception
        of another kind means that this request cannot be answered, and ends the rollout.
        """
        ...


@runtime_checkable
class InlineEngine(StreamEngine, Protocol):
    """Computes in the thread that calls `sync`, and only while that serves."""

    def serve(self, until: Future[Any]) -> None:
        """Sample what other threads ask for, until the future is done."""
        ...
