"""A language model as the coach: any provider that litellm knows, or an OpenAI-compatible server.

    >>> coach = make_coach("llm:gemini/gemini-2.5-flash", budget_usd=5.0)
    >>> coach = make_coach("llm:openai/Qwen3-8B", base_url="http://localhost:8000/v1")
    >>> await coach.check()
    >>> verdict = await coach.score(request)

An answer that is no verdict is asked for once more, with all the evidence; then the action is unscored.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from mappa_envs.blocking import in_shared_loop
from mappa_envs.coach.base import CoachRequest, EpisodeRequest
from mappa_envs.coach.llm.cache import AnswerCache, cache_key
from mappa_envs.coach.llm.client import Client, describe, is_about_the_key, load_litellm, redact, safe_errors
from mappa_envs.coach.llm.fence import Part, new_nonce
from mappa_envs.coach.llm.hindsight import Verdicts, read_episode
from mappa_envs.coach.llm.instructions import VERSION
from mappa_envs.coach.llm.limits import Budget, Pace, Usage
from mappa_envs.coach.llm.parse import VerdictError, read_verdict
from mappa_envs.coach.llm.prompt import (
    SCALES,
    action_parts,
    episode_parts,
    episode_schema,
    repair_message,
    system_message,
    user_message,
    verdict_schema,
)
from mappa_envs.dsbench.cache import cache_root
from mappa_envs.errors import CoachError, ConfigError, UnavailableError, install_hint
from mappa_envs.types import CoachScore

log = logging.getLogger(__name__)
T = TypeVar("T")
_ADDRESS_NAME = re.compile(r"(?:API_BASE|BASE_URL|API_URL|ENDPOINT)$")


@dataclass(frozen=True, kw_only=True)
class _Question(Generic[T]):
    """One thing to ask. `parts` gives the evidence at a scale, `read` makes something of an answer.

    `read` takes the text, whether there is no further try, and whether the answer was held to the schema. It
    raises `VerdictError` for what cannot be used.
    """

    system: str
    parts: Callable[[float], list[Part]]
    schema: Mapping[str, Any]
    read: Callable[[str, bool, bool], T]


@dataclass(frozen=True, kw_only=True)
class _Answer(Generic[T]):
    value: T
    usage: Usage
    latency_s: float
    cached: bool


class LLMCoach:
    """Asks `model` (litellm's name for it) about every action.

    Parameters
    ----------
    base_url : an OpenAI-compatible server in place of the provider's own address.
    timeout_s : bound of one verdict, over all tries and the repair; one try may take half of it. Waiting for
        the limits below does not count.
    concurrency, rpm, tpm : calls at once, requests and (estimated prompt) tokens a minute; 0 = no such limit
        for the last two.
    budget_usd : once this is spent, actions stay unscored with the reason "budget"; 0 = no limit.
    prices : "IN,OUT", USD per million prompt and completion tokens; "" = litellm's table.
    cache : "on" takes verdicts from `$MAPPA_CACHE/coach` (else `~/.cache/mappa/coach`) and keeps them there.

    Raises `ConfigError` on senseless values, `UnavailableError` where litellm is not installed.
    """

    reads_scores = False

    def __init__(
        self,
        model: str = "",
        *,
        base_url: str = "",
        timeout_s: float = 120.0,
        concurrency: int = 32,
        rpm: int = 0,
        tpm: int = 0,
        budget_usd: float = 0.0,
        prices: str = "",
        cache: Literal["on", "off"] = "on",
    ) -> None:
        _check(model, base_url, timeout_s, concurrency, rpm, tpm, budget_usd, cache)
        self.model, self.base_url = model, base_url
        self.budget = Budget(budget_usd)
        self._pace = Pace(concurrency=concurrency, rpm=rpm, tpm=tpm)
        self._client = Client(
            model,
            base_url=base_url or None,
            prices=_read_prices(prices),
            timeout_s=timeout_s,
            pace=self._pace,
            budget=self.budget,
        )
        self._timeout_s = timeout_s
        self._cache = AnswerCache(cache_root() / "coach") if cache == "on" else None

    async def score(self, request: CoachRequest) -> CoachScore:
        """The verdict on one action. Raises `CoachError`."""
        agents = [role.name for role in request.team]
        num_earlier = len(request.episode.turns)
        question = _Question(
            system=system_message(request.team, hindsight=False),
            parts=lambda scale: action_parts(request, scale),
            schema=verdict_schema(agents),
            read=lambda text, last, structured: read_verdict(
                text, agents, num_earlier, structured=structured
            ),
        )
        answer = await in_shared_loop(self._answer(question))
        return self._signed(answer.value, answer)

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        """The verdicts on all actions of a finished episode, from one question. Raises `CoachError`."""
        agents = [role.name for role in request.team]
        count = len(request.episode.turns)
        value = request.outcome.value if request.outcome else None
        question: _Question[Verdicts] = _Question(
            system=system_message(request.team, hindsight=True),
            parts=lambda scale: episode_parts(request, scale),
            schema=episode_schema(agents),
            read=lambda text, last, structured: read_episode(text, agents, count, value, last=last),
        )
        answer = await in_shared_loop(self._answer(question))
        scored = sum(score is not None for score in answer.value)
        parts = iter(range(scored))
        return [score and self._signed(score, answer, next(parts), scored) for score in answer.value]

    async def check(self) -> None:
        """Ask the model for one word. Raises `UnavailableError` or `ConfigError`, which say what to do."""
        await in_shared_loop(self._check())

    async def _check(self) -> None:
        await asyncio.to_thread(load_litellm)
        import openai

        if self.budget.limit_usd and not self._client.priced:
            raise ConfigError(
                f"--coach-budget-usd: litellm does not know the price of {self.model}; give it with "
                "--coach-prices IN,OUT (USD per million prompt and completion tokens)"
            )
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.call(
                    [{"role": "user", "content": "Answer with the one word: ready"}], None
                )
        except (openai.OpenAIError, CoachError, TimeoutError) as error:
            raise UnavailableError(self._advice(error)) from None  # the original may quote a key

    def _advice(self, error: Exception) -> str:
        import openai

        keys = load_litellm().validate_environment(self.model).get("missing_keys") or []
        names = " or ".join(keys) if keys else "the provider's key in the environment"
        where = self.base_url or "the provider"
        if is_about_the_key(error):
            todo = f"set {names}" if keys else f"{where} refuses the key: check {self._key_names()}"
        elif isinstance(error, TimeoutError | openai.APIConnectionError | openai.InternalServerError):
            todo = f"no usable answer from {where}: is it up, and is --coach-base-url right?"
        elif isinstance(error, openai.NotFoundError | openai.BadRequestError):
            todo = "is the model's name right? Give provider/model as litellm does"
        else:
            todo = f"check {names}, the account and its limits"
        return f"--coach llm:{self.model}: {todo} ({describe(error)})"

    def _key_names(self) -> str:
        provider = self.model.partition("/")[0].upper().replace("-", "_")
        return {"GEMINI": "GEMINI_API_KEY or GOOGLE_API_KEY"}.get(provider, f"{provider}_API_KEY")

    async def _answer(self, question: _Question[T]) -> _Answer[T]:
        key = self._key(question)
        if (kept := self._recall(key, question)) is not None:
            return _Answer(value=kept, usage=Usage(), latency_s=0.0, cached=True)
        # Its import takes seconds, which would stop the loop and count as the provider's.
        await asyncio.to_thread(load_litellm)
        async with self._pace.slot():
            start = time.monotonic()
            try:
                with safe_errors(self.model + (f" at {self.base_url}" if self.base_url else "")):
                    async with asyncio.timeout(self._timeout_s) as deadline:
                        value, text, usage = await self._ask(question, deadline)
            except TimeoutError:
                raise CoachError(f"{self.model}: no verdict within {self._timeout_s:g} s") from None
        if self._cache is not None:
            self._cache.put(key, text)
        return _Answer(value=value, usage=usage, latency_s=time.monotonic() - start, cached=False)

    async def _ask(self, question: _Question[T], deadline: asyncio.Timeout) -> tuple[T, str, Usage]:
        """Ask, at a smaller scale where the context is too small for the evidence."""
        for scale in SCALES[:-1]:
            try:
                return await self._ask_at(scale, question, deadline)
            except load_litellm().ContextWindowExceededError:
                log.info("%s: the evidence is too long for it and is shortened", self.model)
        return await self._ask_at(SCALES[-1], question, deadline)

    async def _ask_at(
        self, scale: float, question: _Question[T], deadline: asyncio.Timeout
    ) -> tuple[T, str, Usage]:
        messages = [
            {"role": "system", "content": question.system},
            {"role": "user", "content": user_message(question.parts(scale), new_nonce())},
        ]
        usage = Usage()
        problem = ""
        for last in (False, True):
            reply = await self._client.ask(messages, question.schema, deadline)
            usage += reply.usage
            try:
                if reply.cut:
                    raise VerdictError("it was cut off by the length limit; be brief")
                return question.read(reply.text, last, reply.structured), reply.text, usage
            except VerdictError as error:
                problem = str(error)
            if reply.text.strip():
                messages.append({"role": "assistant", "content": reply.text})
            messages.append({"role": "user", "content": repair_message(problem)})
        raise CoachError(f"{self.model} gave no usable verdict, asked twice: {redact(problem)}")

    def _key(self, question: _Question[Any]) -> str:
        """What the answer depends on: all of the question but the delimiter, which is new each time."""
        parts = [[part.title, part.text, part.trusted] for part in question.parts(1.0)]
        return cache_key(
            {
                "model": self.model,
                "server": self.base_url or _servers(),
                "version": VERSION,
                "system": question.system,
                "parts": parts,
            }
        )

    def _recall(self, key: str, question: _Question[T]) -> T | None:
        text = self._cache.get(key) if self._cache else None
        if text is None:
            return None
        try:
            return question.read(text, True, False)  # its form was let pass when it was given
        except VerdictError as error:
            log.warning("a kept verdict cannot be used and is asked for again: %s", error)
            return None

    def _signed(self, score: CoachScore, answer: _Answer[Any], part: int = 0, of: int = 1) -> CoachScore:
        """With model, cost and time. The cost of one answer is split evenly over its `of` verdicts."""
        return replace(
            score,
            model=self.model,
            prompt_tokens=_part(answer.usage.prompt_tokens, part, of),
            completion_tokens=_part(answer.usage.completion_tokens, part, of),
            cost_usd=(answer.usage.cost_usd or 0.0) / of,
            latency_s=answer.latency_s,
            cached=answer.cached,
        )


def _part(tokens: int, part: int, of: int) -> int:
    """One of nearly equal parts that sum to all tokens."""
    return tokens * (part + 1) // of - tokens * part // of


def _servers() -> dict[str, str]:
    """The addresses in the environment that litellm may go to where none is given, and more."""
    return {name: value for name, value in sorted(os.environ.items()) if _ADDRESS_NAME.search(name)}


def _check(
    model: str,
    base_url: str,
    timeout_s: float,
    concurrency: int,
    rpm: int,
    tpm: int,
    budget: float,
    cache: str,
) -> None:
    if not model:
        raise ConfigError("coach 'llm' needs a model: llm:gemini/gemini-2.5-flash, llm:openai/NAME, …")
    if base_url:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                f"base_url {redact(base_url)!r}: must be an address such as http://localhost:8000/v1"
            )
        if url.username or url.password or url.query:
            raise ConfigError("base_url: no keys or passwords in it; they come from the environment")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout_s must be greater than 0, got {timeout_s}")
    if concurrency < 1 or rpm < 0 or tpm < 0 or not (math.isfinite(budget) and budget >= 0):
        raise ConfigError("concurrency must be at least 1; rpm, tpm and budget_usd must not be negative")
    if cache not in ("on", "off"):
        raise ConfigError(f"cache: unknown value {cache!r}; known: 'on', 'off'")
    missing = [name for name in ("litellm", "tenacity") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"an LLM coach needs {', '.join(missing)}; {install_hint('coach')}")


def _read_prices(prices: str) -> tuple[float, float] | None:
    if not prices:
        return None
    try:
        read = [float(part) for part in prices.split(",")]
    except ValueError:
        read = []
    if len(read) != 2 or not all(math.isfinite(price) and price >= 0 for price in read):
        raise ConfigError(f"prices {prices!r}: must be two numbers with a comma, such as 0.3,2.5")
    return read[0], read[1]
