"""A team on this machine: policies, what samples from them, environments; and its weights on disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mappa_envs.errors import ConfigError
from mappa_envs.pipeline import PipelineEnv, large_files
from mappa_envs.sandbox import Limits, Sandbox, open_sandbox
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.engine.base import BatchEngine, StreamEngine
from mappa_train.engine.choice import open_engine, own_gpus
from mappa_train.files import file_sha256
from mappa_train.memory import check_memory
from mappa_train.model import load_pretrained
from mappa_train.plan import make_env
from mappa_train.policies import FullPolicies, LoRAPolicies, Policies
from mappa_train.rollout import EpisodePlan, RolloutLimits, RolloutTimes, collect
from mappa_train.router import check_frozen, frozen_names
from mappa_train.tokens import ChatTokenizer
from mappa_train.types import EpisodeRollout

WEIGHTS = "weights.safetensors"


@dataclass(kw_only=True)
class Team:
    """Everything that acts: policies, what samples from them, and the environment that they act in.

    `engine` and `sandbox` are None where rollout workers play instead. `held_out` has the val tasks and no
    coach; None where nothing is measured on them.
    """

    policies: Policies
    engine: BatchEngine | StreamEngine | None
    tokenizer: ChatTokenizer
    env: PipelineEnv
    sandbox: Sandbox | None
    held_out: PipelineEnv | None = None

    def playing_engine(self) -> BatchEngine | StreamEngine:
        """The engine of a team that plays. Raises `RuntimeError` for one that does not."""
        if self.engine is None:
            raise RuntimeError("this team has no engine: rollout workers play for it")
        return self.engine

    def on_held_out(self) -> Team:
        """The same team on the val tasks. Raises `RuntimeError` where nothing is measured on them."""
        if self.held_out is None:
            raise RuntimeError("this team has no val tasks: the settings measure nothing on them")
        return replace(self, env=self.held_out)

    def close(self) -> None:
        """Stop the engine, and the sandbox and everything in it."""
        try:
            if self.engine is not None:
                self.engine.close()
        finally:
            if self.sandbox is not None:
                asyncio.run(self.sandbox.close())


def open_team(config: Config, *, split: str | None = None, coached: bool = True, plays: bool = True) -> Team:
    """Load the model, start the sandbox and make the environment.

    Not `coached`: nobody scores, and the coach of the settings is not even made. Not `plays`: there is
    neither an engine nor a sandbox. Val tasks to measure on while training belong to teams without a `split`.
    """
    if config.deterministic == "on":
        # Without, PyTorch refuses cuBLAS, which reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    first = make_env(config, split) if coached else make_env(config, split, coach=None)
    folder = load_pretrained(config.model).folder
    limits = Limits(time_s=config.tool_timeout_s)
    val = make_env(config, "val", coach=None).tasks if split is None and config.eval_every else []
    sandbox = (
        open_sandbox(config.sandbox, limits, shared=large_files([*first.tasks, *val])) if plays else None
    )
    where = {} if sandbox is None else {"sandbox": sandbox}
    env = make_env(config, split, tasks=first.tasks, coach=first.coach, **where)
    held_out = make_env(config, "val", tasks=val, coach=None, **where) if val else None
    agents = first.possible_agents
    check_frozen(config, agents)
    own_gpus(config, len(agents))  # a number that cannot be divided is said before the model is loaded
    if coached:  # what plays without a coach does not learn
        check_memory(config, folder, len(agents))
    tokenizer = ChatTokenizer(folder)
    if config.max_new_tokens >= tokenizer.context_tokens:
        raise ConfigError(
            f"--max-new-tokens {config.max_new_tokens}: leaves no room for a prompt in the model's context "
            f"of {tokenizer.context_tokens} tokens; give fewer"
        )
    policies = _load_policies(config, folder, agents)
    engine = open_engine(config, policies, folder, tokenizer) if plays else None
    return Team(
        policies=policies, engine=engine, tokenizer=tokenizer, env=env, sandbox=sandbox, held_out=held_out
    )


def _load_policies(config: Config, folder: Path, agents: Sequence[str]) -> Policies:
    settings: dict[str, Any] = {
        "checkpointing": config.gradient_checkpointing == "on",
        "frozen": frozen_names(config),
        "shared": config.shared_policy == "on",
        # With FSDP, where this process is one of the ranks that will have a part each.
        "sharded": config.shard == "fsdp" and torch.distributed.is_initialized(),
    }
    if config.policy == "full":
        return FullPolicies(folder, agents, **settings)
    return LoRAPolicies(folder, agents, config.lora_rank, config.lora_alpha, config.seed, **settings)


def play(
    plans: Sequence[EpisodePlan],
    config: Config,
    team: Team,
    *,
    step: int,
    policy_version: int,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[EpisodeRollout], RolloutTimes]:
    """`collect` training episodes with the team, as the settings say."""
    return collect(
        plans,
        env=team.env,
        engine=team.playing_engine(),
        tokenizer=team.tokenizer,
        max_prompt_tokens=team.tokenizer.context_tokens - config.max_new_tokens,
        seed=config.seed,
        step=step,
        policy_version=policy_version,
        limits=RolloutLimits.of(config),
        on_done=on_done,
    )


def save_weights(run: RunFolder, step: int, policies: Policies, state: Mapping[str, Any]) -> None:
    """A checkpoint of every agent's weights, and of `state` beside them."""

    def writer(policy: str) -> Any:
        return lambda folder: save_file(policies.state(policy), folder / WEIGHTS)

    run.save(step, {agent: writer(policy) for agent, policy in policies.policy_of.items()}, state)


def load_weights(checkpoint: Path, policies: Policies) -> None:
    """Put a checkpoint's weights into the policies.

    Raises `ConfigError` if an agent is missing, or if agents that share a policy have weights of their own.
    """
    loaded: dict[str, Path] = {}
    for agent, policy in policies.policy_of.items():
        path = checkpoint / agent / WEIGHTS
        if not path.is_file():
            raise ConfigError(f"{path}: the checkpoint has no weights of {agent}")
        first = loaded.setdefault(policy, path)
        if first is path:
            policies.load_state(policy, load_file(path))
        elif file_sha256(path) != file_sha256(first):
            raise ConfigError(
                f"{path}: {agent} has weights of its own there, and with --shared-policy on all agents have "
                "the same; was shared_policy changed in the run's config.toml?"
            )
