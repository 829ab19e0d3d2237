"""Engines without a model, for tests and benchmarks of what is built on one.

What they say is a function of the request, and so is how long they take: nothing depends on timing.

>>> engine = FakeStreamEngine(random_words(seed=0), pace=Pace(tokens_per_s=50))
>>> collect(plans, env=env, engine=engine, tokenizer=CharTokenizer(), ...)
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mappa_train.types import Generation, GenerationRequest

Reply = Callable[[GenerationRequest], str]
"""The whole message that answers a request."""


class CharTokenizer:
    """A token is a character, its id the code point."""

    def encode(self, messages: Sequence[Mapping[str, str]]) -> Tensor:
        """All messages, one after the other: int64 [p]."""
        return torch.tensor([ord(char) for message in messages for char in message["content"]])

    def decode(self, ids: Tensor) -> str:
        """The text of an action."""
        return "".join(map(chr, ids.tolist()))


def random_words(seed: int, mean_words: int = 20) -> Reply:
    """Messages of words without code, of geometric length, drawn from the seed and the request's key."""

    def reply(request: GenerationRequest) -> str:
        rng = np.random.default_rng([seed, *request.key])
        numbers = rng.integers(1000, size=rng.geometric(1 / mean_words))
        return " ".join(f"w{number}" for number in numbers)

    return reply


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a message takes: `tokens_per_s` of a CharTokenizer's tokens, or `action_s` for any, or both.

    Requests for which `hangs` holds take for ever.
    """

    tokens_per_s: float = math.inf
    action_s: float = 0.0
    hangs: Callable[[GenerationRequest], bool] = lambda request: False

    def seconds(self, request: GenerationRequest, num_tokens: int) -> float:
        return math.inf if self.hangs(request) else self.action_s + num_tokens / self.tokens_per_s


class _Fake:
    """What both kinds share. `num_running` requests are being answered."""

    def __init__(self, reply: Reply, pace: Pace | None = None) -> None:
        self.reply, self.pace = reply, pace or Pace()
        self.version, self.num_running, self.closed = 0, 0, False

    def sync(self, version: int) -> None:
        """There are no weights: the version is all that is new."""
        self.version = version

    def close(self) -> None:
        """Nothing may be asked afterwards."""
        self.closed = True

    def _answer(self, text: str, *, truncated: bool = False) -> Generation:
        ids = torch.tensor([ord(char) for char in text], dtype=torch.int64)
        return Generation(
            token_ids=ids,
            logprobs=torch.zeros(len(ids)),
            truncated=truncated,
            policy_version=self.version,
        )


class FakeBatchEngine(_Fake):
    """Answers a batch at once, after the time of all its messages together, like one that computes them."""

    def __init__(self, reply: Reply, pace: Pace | None = None) -> None:
        super().__init__(reply, pace)
        self._cancelled = threading.Event()

    def sync(self, version: int) -> None:
        super().sync(version)
        self._cancelled.clear()

    def cancel(self) -> None:
        self._cancelled.set()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order."""
        texts = [self.reply(request) for request in requests]
        pause_s = sum(self.pace.seconds(item, len(text)) for item, text in zip(requests, texts, strict=True))
        self.num_running = len(requests)
        try:
            if self._cancelled.wait(None if math.isinf(pause_s) else pause_s):
                raise asyncio.CancelledError
        finally:
            self.num_running = 0
        return [self._answer(text) for text in texts]


class FakeStreamEngine(_Fake):
    """Answers each request after the time of its own message, however many are under way."""

    def __init__(self, reply: Reply, pace: Pace | None = None) -> None:
        super().__init__(reply, pace)
        self._tasks: set[asyncio.Task[object]] = set()

    def cancel(self) -> None:
        for task in self._tasks.copy():
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def agenerate(self, request: GenerationRequest, *, deadline_s: float | None = None) -> Generation:
        """The message, or at the deadline as much of it as its pace allows."""
        text = self.reply(request)
        whole_s = self.pace.seconds(request, len(text))
        pause_s = min(whole_s, math.inf if deadline_s is None else deadline_s)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_running += 1
        try:
            if math.isinf(pause_s):
                await asyncio.Event().wait()
            await asyncio.sleep(pause_s)
        finally:
            self.num_running -= 1
            self._tasks.discard(task)
        if whole_s <= pause_s:
            return self._answer(text)
        return self._answer(text[: int(len(text) * pause_s / whole_s)], truncated=True)
