"""Measure models that a server serves: `eval --env dsbench-v0 --engine openai:http://localhost:8000/v1 …`.

Any server with chat completions as OpenAI's will do, and each agent may have a model of its own. The server
has chat template, tokenizer and weights, so there is nothing here to learn from: for evaluation alone.

Temperature, top_p 1 and length are sent. What OpenAI's interface lacks, such as top_k and a repetition
penalty, is the server's choice: vLLM takes it from the model's folder, unless started with
`--generation-config vllm`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mappa_envs.blocking import wait_for
from mappa_envs.coach.llm.client import can_heal, describe, is_about_the_key, load_litellm, redact
from mappa_envs.errors import ConfigError, PromptTooLong, UnavailableError, install_hint
from mappa_envs.evaluation import EvalResult, evaluate
from mappa_envs.pipeline import large_files
from mappa_envs.sandbox import Limits, open_sandbox
from mappa_train.config import Config, did_you_mean
from mappa_train.plan import make_env

PREFIX = "openai:"
SETTINGS = (
    *("env", "tasks", "max_tasks", "sandbox", "max_actions", "prompt_style", "visibility", "handover"),
    *("max_new_tokens", "temperature", "concurrent_episodes", "tool_timeout_s", "seed"),
)
"""Those that matter without a run folder: what agents meet, and how they sample."""

REQUEST_TIMEOUT_S = 600.0
RETRY_FOR_S = 60.0
"""How long a request is tried again that may do better later: a server that is busy or being restarted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `eval` takes besides `SETTINGS` where models are served."""
    parser.add_argument(
        "--engine",
        dest="server",
        metavar="openai:URL",
        help="instead of a run, measure models of an OpenAI-compatible server, such as "
        "openai:http://localhost:8000/v1; a key comes from OPENAI_API_KEY",
    )
    parser.add_argument(
        "--model",
        dest="served_model",
        metavar="NAME",
        help="with --engine: the name under which the server has the model of every agent",
    )
    parser.add_argument(
        "--served-models",
        default="",
        metavar="AGENT=NAME,…",
        help="with --engine: names for single agents, such as modeler_0=my-adapter; --model is for the rest",
    )


def is_meant(options: argparse.Namespace) -> bool:
    """Whether `eval` is to measure a server's models. Raises `ConfigError` on what is for the other kind."""
    flags = {"served_model": "--model", "served_models": "--served-models"}
    flags |= {name: "--" + name.replace("_", "-") for name in SETTINGS}
    given = [flag for name, flag in flags.items() if getattr(options, name, None)]
    if options.server is None:
        if options.run is None:
            raise ConfigError("eval: give a run folder, or --engine openai:URL and --model NAME for a server")
        if given:
            raise ConfigError(
                f"{given[0]}: is for --engine openai:URL; a run is measured with its own settings"
            )
        return False
    _address(options.server)
    if options.run is not None or options.step is not None:
        extra = f"--step {options.step}" if options.run is None else options.run
        raise ConfigError(f"--engine {redact(options.server)}: the server has the weights; leave {extra} out")
    return True


class ServedPolicy:
    """Asks a server for each action: `await policy(agent, messages)`, as `mappa_envs.evaluate` does.

    `models` is the server's name of each agent's model. Raises `PromptTooLong` where the server says so, and
    `UnavailableError` where it cannot be reached, refuses the key or does not know the model.
    """

    def __init__(
        self, base_url: str, models: Mapping[str, str], *, max_new_tokens: int, temperature: float
    ) -> None:
        self.base_url, self.models = base_url, models
        self.max_new_tokens, self.temperature = max_new_tokens, temperature

    async def check(self) -> None:
        """Have one token of each model, at once or not at all: raises as a call does."""
        agents = {model: agent for agent, model in self.models.items()}.values()
        hello = [{"role": "user", "content": "Hello"}]
        await asyncio.gather(*(self._ask(agent, hello, max_tokens=1, retry_for_s=0) for agent in agents))

    async def __call__(self, agent: str, messages: Sequence[Mapping[str, str]]) -> str:
        return await self._ask(agent, messages, max_tokens=self.max_new_tokens, retry_for_s=RETRY_FOR_S)

    async def _ask(
        self, agent: str, messages: Sequence[Mapping[str, str]], *, max_tokens: int, retry_for_s: float
    ) -> str:
        import openai
        import tenacity

        litellm, model = await asyncio.to_thread(load_litellm), self.models[agent]
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(can_heal),
            wait=tenacity.wait_random_exponential(max=10),
            stop=tenacity.stop_after_delay(retry_for_s),
            reraise=True,
        )
        options = {
            "model": f"openai/{model}",
            "api_base": self.base_url,
            # A server of one's own rarely asks for one, the client always does.
            "api_key": os.environ.get("OPENAI_API_KEY") or "none",
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": 1.0,
            "timeout": REQUEST_TIMEOUT_S,
            "num_retries": 0,
            "max_retries": 0,
        }
        try:
            answer: Any = await attempts(litellm.acompletion, **options)
        except litellm.ContextWindowExceededError:
            raise PromptTooLong(f"{model}: the prompt of {agent} is too long") from None
        except openai.OpenAIError as error:
            todo = "check OPENAI_API_KEY" if is_about_the_key(error) else "check the address and the names"
            raise UnavailableError(
                f"{redact(self.base_url)}: no answer of {model} for {agent} ({describe(error)}); {todo}"
            ) from None  # the original may quote a key
        return str(answer.choices[0].message.content or "") if answer.choices else ""


def measure(
    config: Config, server: str, *, model: str | None, served_models: str, split: str, episodes: int
) -> EvalResult:
    """Play whole episodes on tasks of a split with a server's models.

    Raises `ConfigError` for an address or names that make no sense, `UnavailableError` as `ServedPolicy` does
    and where a package is missing.
    """
    url = _address(server)
    missing = [name for name in ("litellm", "tenacity") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"--engine {PREFIX}… needs {', '.join(missing)}; {install_hint('coach')}")
    first = make_env(config, split, coach=None)
    policy = ServedPolicy(
        url,
        _names(first.possible_agents, model, served_models),
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
    wait_for(policy.check())
    limits = Limits(time_s=config.tool_timeout_s)
    sandbox = open_sandbox(config.sandbox, limits, shared=large_files(first.tasks))
    env = make_env(config, split, tasks=first.tasks, sandbox=sandbox, coach=None)
    try:
        return evaluate(
            env,
            dict.fromkeys(first.possible_agents, policy),
            episodes=episodes,
            num_concurrent=config.concurrent_episodes,
            seed=config.seed,
        )
    finally:
        asyncio.run(sandbox.close())


def run_command(config: Config, options: argparse.Namespace) -> int:
    """`eval` without a run folder."""
    from rich.console import Console

    from mappa_train.files import write_atomically

    result = measure(
        config,
        options.server,
        model=options.served_model,
        served_models=options.served_models,
        split=options.split,
        episodes=options.episodes,
    )
    Console(highlight=False).print(f"{options.split} tasks", result.table)
    if options.json is not None:
        figures = {"split": options.split, **result.table.to_json()}
        write_atomically(options.json, (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
        print(f"figures: {Path(options.json)}")
    return 0


def _address(server: str) -> str:
    kind, colon, url = server.partition(":")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # without the value: it may have a password in it
        raise ConfigError(f"--engine openai:…: no address of a server ({error})") from error
    if kind + colon != PREFIX or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--engine {redact(server)}: `eval` without a run takes openai:URL, such as "
            f"openai:http://localhost:8000/v1; a run is measured with the engine that it was trained with"
        )
    if parts.username or parts.password or parts.query:
        raise ConfigError("--engine openai:…: no keys or passwords in it; they come from OPENAI_API_KEY")
    return url


def _names(agents: Sequence[str], model: str | None, served_models: str) -> dict[str, str]:
    """The name of each agent's model."""
    own: dict[str, str] = {}
    for part in filter(None, served_models.split(",")):
        agent, equals, name = (word.strip() for word in part.partition("="))
        if agent not in agents or not equals or not name:
            hint = did_you_mean(agent, agents)
            raise ConfigError(
                f"--served-models {part}: must be AGENT=NAME, with an agent out of {', '.join(agents)}{hint}"
            )
        if agent in own:
            raise ConfigError(f"--served-models: names {agent} twice; leave one out")
        own[agent] = name
    if missing := [agent for agent in agents if agent not in own and not model]:
        raise ConfigError(f"--model: none for {', '.join(missing)}; give the name that the server has for it")
    if model and len(own) == len(agents):
        raise ConfigError(f"--model {model}: --served-models names one for every agent; leave one out")
    return {agent: own.get(agent) or str(model) for agent in agents}
