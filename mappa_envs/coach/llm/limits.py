"""How much a coach may ask and spend: calls at once, requests and tokens a minute, dollars."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mappa_envs.coach.base import BUDGET_SPENT
from mappa_envs.errors import CoachError

log = logging.getLogger(__name__)

MINUTE_S = 60.0
MOST_TOKENS = 10**9
"""More than any call can take: a server that says so is not believed."""
CHARS_PER_TOKEN = 4
"""A rough rule, for the tokens of a request before it is sent."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What calls took. `cost_usd` is None where the price is not known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
        )

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            completion_tokens=self.completion_tokens - earlier.completion_tokens,
            cost_usd=(self.cost_usd or 0.0) - (earlier.cost_usd or 0.0),
        )


class Pace:
    """Limits on calls, all within one event loop. `rpm` and `tpm` of 0 are no limit."""

    def __init__(self, *, concurrency: int, rpm: int, tpm: int) -> None:
        self._concurrency = concurrency
        self._requests, self._tokens = _Minute(rpm), _Minute(tpm)
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the calls at once."""
        self._enter_loop()
        async with self._free:
            yield

    async def wait(self, num_chars: int) -> None:
        """Until a request of this length may be sent."""
        self._enter_loop()
        async with self._turn:
            await self._requests.take(1)
            await self._tokens.take(max(1, num_chars // CHARS_PER_TOKEN))

    def _enter_loop(self) -> None:
        # In a forked child the loop is another, and whoever waited in the old one is gone.
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._free, self._turn = asyncio.Semaphore(self._concurrency), asyncio.Lock()


class _Minute:
    """At most `limit` in any 60 seconds; 0 = no limit. For one taker at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    async def take(self, amount: int) -> None:
        """Wait until this much more is within the limit."""
        if not self._limit:
            return
        # One request larger than a whole minute's tokens would wait for ever.
        amount = min(amount, self._limit)
        await asyncio.sleep(self._wait_s(amount))
        self._taken.append((time.monotonic(), amount))
        self._sum += amount

    def _wait_s(self, amount: int) -> float:
        now = time.monotonic()
        while self._taken and self._taken[0][0] <= now - MINUTE_S:
            self._sum -= self._taken.popleft()[1]
        over = self._sum + amount - self._limit
        wait_s = 0.0
        for moment, taken in self._taken:
            if over <= 0:
                break
            over, wait_s = over - taken, moment + MINUTE_S - now
        return wait_s


class Budget:
    """Counts everything that was spent, and refuses once `limit_usd` is (0 = no limit)."""

    def __init__(self, limit_usd: float) -> None:
        self.limit_usd = limit_usd
        self.spent = Usage()

    @property
    def is_spent(self) -> bool:
        return self.limit_usd > 0 and (self.spent.cost_usd or 0.0) >= self.limit_usd

    def check(self) -> None:
        """Raises `CoachError`, with `BUDGET_SPENT` as its only word. Calls under way are not stopped."""
        if self.is_spent:
            raise CoachError(BUDGET_SPENT)

    def add(self, usage: Usage) -> None:
        """What one call took, useful or not. An unknown price counts as nothing."""
        known = (
            usage
            if usage.cost_usd is not None
            else Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
        )
        self.spent += known
