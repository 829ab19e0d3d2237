"""How the episodes of a rollout reach the engine: through a turn barrier, or each prompt on its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from mappa_train.engine.base import BatchEngine, InlineEngine, StreamEngine
from mappa_train.types import Generation, GenerationRequest


class Asker(Protocol):
    """Whom an episode asks for its next action."""

    async def ask(self, request: GenerationRequest) -> Generation:
        """The answer; raises what the engine raises."""
        ...

    def leave(self) -> None:
        """One place of the pool brings no more prompts."""
        ...

    def serve(self, until: Future[Any]) -> None:
        """In another thread than the event loop's: compute what is asked for, until the future is done."""
        ...


@dataclass
class Barrier:
    """Collects prompts and samples one agent's batch when every place of the pool waits for one.

    The earliest agent in `order` goes first, so that prompts of a later one wait until no other episode can
    still bring an earlier one's. Which prompts share a batch depends on the episodes alone, not on timing.
    """

    engine: BatchEngine
    order: Sequence[str]
    num_places: int
    _waiting: list[tuple[GenerationRequest, asyncio.Future[Generation]]] = field(default_factory=list)
    _flushing: asyncio.Task[None] | None = None
    _jobs: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)

    async def ask(self, request: GenerationRequest) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self._flush_if_all_wait()
        return await future

    def leave(self) -> None:
        self.num_places -= 1
        self._flush_if_all_wait()

    def _flush_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self.num_places:
            self._flushing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        # Of a rollout that is ending, nobody waits for these any more.
        self._waiting = [item for item in self._waiting if not item[1].done()]
        if not self._waiting:
            return
        first = min((request.agent for request, _ in self._waiting), key=self.order.index)
        batch = sorted(
            (item for item in self._waiting if item[0].agent == first), key=lambda item: item[0].key
        )
        self._waiting = [item for item in self._waiting if item[0].agent != first]
        try:
            answers = await self._generate([request for request, _ in batch])
            pairs = list(zip(batch, answers, strict=True))
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (handed to every episode that waits for it)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in pairs:
            if not future.done():
                future.set_result(answer)

    async def _generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        answers: Future[list[Generation]] = Future()
        self._jobs.put(partial(_fulfil, answers, partial(self.engine.generate, requests)))
        return await asyncio.wrap_future(answers)

    def serve(self, until: Future[Any]) -> None:
        until.add_done_callback(lambda _: self._jobs.put(lambda: None))
        while not until.done():
            self._jobs.get()()


def _fulfil(future: Future[list[Generation]], work: Callable[[], list[Generation]]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        answers = work()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (raised where the work was asked for)
        future.set_exception(error)
    else:
        future.set_result(answers)


@dataclass
class Direct:
    """Hands every prompt to the engine as it comes. `action_timeout_s`: where an action is cut; 0 = never."""

    engine: StreamEngine
    action_timeout_s: float

    async def ask(self, request: GenerationRequest) -> Generation:
        return await self.engine.agenerate(request, deadline_s=self.action_timeout_s or None)

    def leave(self) -> None:
        """Nobody waits for others here."""

    def serve(self, until: Future[Any]) -> None:
        if isinstance(self.engine, InlineEngine):
            self.engine.serve(until)
        else:
            concurrent.futures.wait([until])
