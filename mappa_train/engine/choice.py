"""Which engine a run samples with."""

from __future__ import annotations

from pathlib import Path

import torch

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train.config import Config
from mappa_train.engine.base import BatchEngine, StreamEngine
from mappa_train.engine.transformers import TransformersEngine
from mappa_train.engine.vllm import VllmEngine
from mappa_train.engine.vllm_setup import why_not
from mappa_train.policies import Policies
from mappa_train.tokens import ChatTokenizer

PROBE = (
    "Read train.csv and report its shape and how many values are missing in each column. Then fit a model, "
    "write its predictions for test.csv to submission.csv, and explain in three sentences what you did."
)
"""The prompt that a sync of vLLM is verified with: words and names like those of the tasks."""


def takes_vllm(config: Config) -> bool:
    """Whether the settings mean vLLM; what `auto` means depends on the machine."""
    if config.engine == "auto":
        return torch.cuda.is_available() and config.learners_per_agent == 1 and why_not() is None
    return config.engine == "vllm"


def check_engine(config: Config) -> None:
    """Raise an error that says what to do if the engine of the settings is not to be had.

    Time limits would undo the exact repetition of the engine that has a turn barrier.
    """
    if config.engine == "vllm" and (why := why_not()) is not None:
        raise UnavailableError(f"--engine vllm: {why}")
    if config.engine == "vllm" and config.learners_per_agent > 1:
        raise ConfigError(
            f"--engine vllm: not with --learners-per-agent {config.learners_per_agent}, whose processes are "
            "a group that vLLM in each would take for its own; leave one out"
        )
    for name in ("action_timeout_s", "episode_timeout_s"):
        if (value := getattr(config, name)) and not takes_vllm(config):
            flag, here = "--" + name.replace("_", "-"), " here" if config.engine == "auto" else ""
            raise ConfigError(
                f"{flag} {value:g}: with --engine {config.engine} a run{here} repeats exactly, whatever the "
                "time; bound actions by --max-new-tokens and --max-actions, or take --engine vllm"
            )


def open_engine(
    config: Config, policies: Policies, folder: Path, tokenizer: ChatTokenizer
) -> BatchEngine | StreamEngine:
    """The engine of the settings. Raises what `check_engine` does."""
    check_engine(config)
    if takes_vllm(config):
        return VllmEngine(
            policies,
            folder,
            stop_ids=tokenizer.stop_ids,
            context_tokens=tokenizer.context_tokens,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            probe_ids=tokenizer.encode([{"role": "user", "content": PROBE}]),
            # On a CPU an engine with adapters takes three times as long for a token as one without.
            adapters=(config.lora_rank, config.lora_alpha)
            if torch.cuda.is_available() and config.policy == "lora"
            else None,
        )
    return TransformersEngine(
        policies,
        tokenizer.stop_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
