"""One model behind litellm: a call with retries within a dead-line, its price, and errors without keys.

litellm takes seconds to import, so that it is imported with the first use. Keys come from the environment,
as litellm documents for each provider.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

from mappa_envs.coach.llm.limits import MOST_TOKENS, Budget, Pace, Usage
from mappa_envs.errors import CoachError

log = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, str]]

_HEALING = frozenset({408, 409, 425, 429})
"""Besides every 5xx: what may go better a moment later."""

_KINDS = re.compile(r"(?:(?:litellm\.)?\w+(?:Error|Exception)(?::| -) *)+")
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)S?$", re.IGNORECASE)
_SECRET = re.compile(
    r"\b(?:sk-|pk-|gsk_|xai-|hf_|AIza)[\w*.-]{4,}|\b(?:Bearer|Basic)\s+\S+|(?<=[?&]key=)[^&\s]+"
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model said. `text` is "" where it said nothing.

    `cut`: a length limit ended it; `structured`: it was held to the JSON schema.
    """

    text: str
    cut: bool
    structured: bool
    usage: Usage


class Client:
    """Calls one model, within limits that all its calls share.

    `prices` are USD per million prompt and completion tokens; None: those of litellm's table.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None,
        prices: tuple[float, float] | None,
        timeout_s: float,
        pace: Pace,
        budget: Budget,
    ) -> None:
        self.model, self.base_url, self.prices = model, base_url, prices
        self.timeout_s = timeout_s
        self.pace, self.budget = pace, budget
        self._structured: bool | None = None

    @property
    def structured(self) -> bool:
        """Whether the provider holds answers to a JSON schema, as far as known."""
        if self._structured is None:
            self._structured = bool(load_litellm().supports_response_schema(self.model))
        return self._structured

    @property
    def priced(self) -> bool:
        """Whether calls can be priced."""
        return self.prices is not None or self._cost(1000, 1000) is not None

    async def ask(self, messages: Messages, schema: Mapping[str, Any], deadline: asyncio.Timeout) -> Reply:
        """The answer, after retries of what can heal. Raises litellm's and openai's exceptions.

        Time spent waiting for the limits moves the dead-line; time spent waiting for the provider does not.
        """
        import tenacity

        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(can_heal),
            wait=_pause,
            stop=lambda state: _too_late(state.upcoming_sleep, deadline),
            reraise=True,
        )
        reply: Reply = await attempts(self._attempt, messages, schema, deadline)
        return reply

    async def _attempt(
        self, messages: Messages, schema: Mapping[str, Any], deadline: asyncio.Timeout
    ) -> Reply:
        self.budget.check()
        await self._wait(messages, deadline)
        self.budget.check()  # others may have spent the rest while this one waited
        try:
            return await self.call(messages, schema if self.structured else None)
        except load_litellm().BadRequestError as error:
            if not self.structured or isinstance(error, _about_the_text()):
                raise
        # Ask without a schema from now on; if that is refused too, it was not the schema.
        await self._wait(messages, deadline)
        self.budget.check()
        reply = await self.call(messages, None)
        log.warning("the coach %s takes no JSON schema: it is asked for plain JSON", self.model)
        self._structured = False
        return reply

    async def call(self, messages: Messages, schema: Mapping[str, Any] | None) -> Reply:
        """One request, without retries and limits."""
        options: dict[str, Any] = {}
        if schema is not None:
            form = {"name": "verdict", "schema": schema, "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        if self.base_url:
            options["api_base"] = self.base_url
            if self.model.startswith("openai/") and not os.environ.get("OPENAI_API_KEY"):
                options["api_key"] = (
                    "none"  # a server of one's own rarely asks for one, the client always does
                )
        reply = self._read(await self._complete(messages, options), structured=schema is not None)
        self.budget.add(reply.usage)
        return reply

    async def _complete(self, messages: Messages, options: Mapping[str, Any]) -> Any:
        litellm = load_litellm()
        import openai

        try:
            return await litellm.acompletion(
                model=self.model,
                messages=[dict(message) for message in messages],
                temperature=0.0,
                drop_params=True,  # reasoning models refuse a temperature
                timeout=self.timeout_s / 2,
                num_retries=0,
                max_retries=0,
                **options,
            )
        except openai.OpenAIError:
            raise
        # A provider's package is missing, or litellm could not digest an answer: anything may come out.
        except Exception as error:  # noqa: BLE001
            raise CoachError(f"{self.model}: {describe(error)}") from None  # the original may quote a key

    async def _wait(self, messages: Messages, deadline: asyncio.Timeout) -> None:
        start, when = time.monotonic(), deadline.when()
        deadline.reschedule(None)
        await self.pace.wait(sum(len(message["content"]) for message in messages))
        deadline.reschedule(None if when is None else when + time.monotonic() - start)

    def _read(self, answer: Any, *, structured: bool) -> Reply:
        usage = getattr(answer, "usage", None)
        prompt = _count(getattr(usage, "prompt_tokens", 0))
        completion = _count(getattr(usage, "completion_tokens", 0))
        choice = answer.choices[0] if answer.choices else None
        return Reply(
            text=(choice.message.content or "") if choice else "",
            cut=choice is not None and choice.finish_reason == "length",
            structured=structured,
            usage=Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                cost_usd=self._cost(prompt, completion, answer),
            ),
        )

    def _cost(self, prompt_tokens: int, completion_tokens: int, answer: Any = None) -> float | None:
        if self.prices is not None:
            return (self.prices[0] * prompt_tokens + self.prices[1] * completion_tokens) / 1e6
        litellm = load_litellm()
        try:
            if answer is not None:
                told = float(litellm.completion_cost(completion_response=answer, model=self.model))
                # It reckons with what the server said, which need not make sense.
                return max(told, 0.0) if math.isfinite(told) else None
            known = litellm.cost_per_token(
                model=self.model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
            )
            return float(sum(known))
        # litellm raises a plain Exception for a model that is not in its table, and others for odd names.
        except Exception:  # noqa: BLE001
            # What a server of one's own takes is nobody's question, unless there is a budget to keep.
            if answer is not None and (self.budget.limit_usd or not self.base_url):
                _warn_of_no_price(self.model)
            return None


@cache
def _warn_of_no_price(model: str) -> None:
    """Once a process: a run has more than one client."""
    log.warning("the price of %s is not known: its cost counts as 0", model)


def _count(told: object) -> int:
    """A number of tokens as a server told it, within reason."""
    if not isinstance(told, int | float) or told != told:
        return 0
    return int(min(max(told, 0), MOST_TOKENS))


@cache
def load_litellm() -> Any:
    """litellm, set up to ask nobody for prices, read no .env file, and log no requests."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    # Of no use to anybody but its authors.
    warnings.filterwarnings("ignore", message=r"Items? .* on TypedDict class")
    # A call that is cancelled (by its dead-line) while a thread of litellm's still prepares the request: what
    # that thread has made is dropped, as it should be.
    warnings.filterwarnings("ignore", message=r"coroutine '[\w.]*completion' was never awaited")
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    # Its errors reach us as exceptions; its log, and that of the HTTP client, would hold URLs with keys.
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return litellm


def _about_the_text() -> tuple[type[Exception], ...]:
    """Bad requests that are so with and without a schema."""
    litellm = load_litellm()
    return litellm.ContextWindowExceededError, litellm.ContentPolicyViolationError


@contextmanager
def safe_errors(who: str) -> Iterator[None]:
    """Exceptions of the provider become `CoachError`, without keys in their text."""
    import openai

    try:
        yield
    except openai.OpenAIError as error:
        raise CoachError(f"{who}: {describe(error)}") from None  # the original may quote a key


def describe(error: BaseException) -> str:
    """Kind and first line of an error, without any key."""
    first = (str(error).splitlines() or [""])[0]
    # litellm begins with the kind, and with that of the error behind it.
    found = _KINDS.match(first)
    said = first[found.end() :] if found else first
    return f"{type(error).__name__}: {redact(said)[:400].rstrip(' .')}"


def redact(text: str) -> str:
    """The text without the values of secret environment variables, and without what looks like a key."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name):
            text = text.replace(value, "[key]")
    return _SECRET.sub("[key]", text)


def is_about_the_key(error: BaseException) -> bool:
    """Whether the provider misses a key or refuses it."""
    import openai

    # litellm itself notices some missing keys, as a lost connection; Gemini answers 400 to a bad one.
    odd = isinstance(error, openai.BadRequestError | openai.APIConnectionError | openai.InternalServerError)
    said = str(error).lower().replace("_", " ")
    refused = isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError)
    return refused or (odd and "api key" in said)


def can_heal(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    import openai

    if not isinstance(error, openai.OpenAIError) or is_about_the_key(error):
        return False
    if isinstance(error, openai.APIConnectionError):  # time-outs, too
        return True
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or "insufficient_quota" in str(error):
        return False
    return status in _HEALING or status >= 500


def retry_after_s(error: BaseException | None) -> float | None:
    """What the provider asked for in its Retry-After header: seconds or a date."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = str(headers.get("retry-after") or "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):  # the second for a year of twenty digits
        return None


def _pause(state: Any) -> float:
    import tenacity

    backoff = float(tenacity.wait_random_exponential(multiplier=1, max=60)(state))
    asked = retry_after_s(state.outcome.exception())
    # Whoever was told the same moment must not all come back at it.
    return backoff if asked is None else asked + min(1.0, backoff)


def _too_late(pause_s: float, deadline: asyncio.Timeout) -> bool:
    when = deadline.when()
    return when is not None and asyncio.get_running_loop().time() + pause_s >= when
