"""A team on this machine: policies, what samples from them, environments; and its weights on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from mappa_envs.errors import ConfigError
from mappa_envs.pipeline import PipelineEnv, large_files
from mappa_envs.sandbox import Sandbox, open_sandbox
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.engine.base import Engine
from mappa_train.engine.transformers import TransformersEngine
from mappa_train.model import load_pretrained
from mappa_train.plan import make_env
from mappa_train.policies import FullPolicies, LoRAPolicies, Policies
from mappa_train.tokens import ChatTokenizer

WEIGHTS = "weights.safetensors"


@dataclass(kw_only=True)
class Team:
    """Everything that acts: policies, what samples from them, and the environments they act in."""

    policies: Policies
    engine: Engine
    tokenizer: ChatTokenizer
    envs: Sequence[PipelineEnv]
    sandbox: Sandbox

    def close(self) -> None:
        """Stop the sandbox and everything in it."""
        asyncio.run(self.sandbox.close())


def open_team(config: Config, *, split: str | None = None, num_envs: int, coached: bool = True) -> Team:
    """Load the model, start the sandbox and make the environments, which share both.

    Not `coached`: nobody scores, and the coach of the settings is not even made.
    """
    first = make_env(config, split) if coached else make_env(config, split, coach=None)
    folder = load_pretrained(config.model).folder
    sandbox = open_sandbox(config.sandbox, shared=large_files(first.tasks))
    shared: dict[str, Any] = {"tasks": first.tasks, "sandbox": sandbox, "coach": first.coach}
    envs = [make_env(config, split, **shared) for _ in range(num_envs)]
    agents = first.possible_agents
    tokenizer = ChatTokenizer(folder)
    policies: Policies = (
        LoRAPolicies(folder, agents, config.lora_rank, config.lora_alpha, config.seed)
        if config.policy == "lora"
        else FullPolicies(folder, agents)
    )
    engine = TransformersEngine(
        policies,
        tokenizer.stop_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
    return Team(policies=policies, engine=engine, tokenizer=tokenizer, envs=envs, sandbox=sandbox)


def save_weights(run: RunFolder, step: int, policies: Policies, state: Mapping[str, Any]) -> None:
    """A checkpoint of every agent's weights, and of `state` beside them."""

    def writer(agent: str) -> Any:
        return lambda folder: save_file(policies.state(agent), folder / WEIGHTS)

    run.save(step, {agent: writer(agent) for agent in policies.agents}, state)


def load_weights(checkpoint: Path, policies: Policies) -> None:
    """Put a checkpoint's weights into the policies. Raises `ConfigError` if an agent is missing."""
    for agent in policies.agents:
        path = checkpoint / agent / WEIGHTS
        if not path.is_file():
            raise ConfigError(f"{path}: the checkpoint has no weights of {agent}")
        policies.load_state(agent, load_file(path))
