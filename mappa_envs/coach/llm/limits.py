"""How much a coach may ask and spend: calls at once, requests and tokens a minute, dollars."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mappa_envs.coach.base import BUDGET_SPENT
from mappa_envs.errors import CoachError

if TYPE_CHECKING:
    from aiolimiter import AsyncLimiter

log = logging.getLogger(__name__)

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
        self._free = asyncio.Semaphore(concurrency)
        self._requests = _per_minute(rpm)
        self._tokens = _per_minute(tpm)
        self._tpm = tpm

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the calls at once."""
        async with self._free:
            yield

    async def wait(self, num_chars: int) -> None:
        """Until a request of this length may be sent."""
        if self._requests is not None:
            await self._requests.acquire()
        if self._tokens is not None:
            # One request larger than a whole minute's tokens would wait for ever.
            await self._tokens.acquire(min(self._tpm, max(1, num_chars // CHARS_PER_TOKEN)))


def _per_minute(limit: int) -> AsyncLimiter | None:
    if not limit:
        return None
    from aiolimiter import AsyncLimiter

    return AsyncLimiter(limit, 60)


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
