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


def check_engine(config: Config) -> None:
    """Raise an error that says what to do if the engine of the settings is not to be had."""
    if config.engine == "vllm" and (why := why_not()) is not None:
        raise UnavailableError(f"--engine vllm: {why}")
    if config.engine == "vllm" and config.learners_per_agent > 1:
        raise ConfigError(
            f"--engine vllm: not with --learners-per-agent {config.learners_per_agent}, whose processes are "
            "a group that vLLM in each would take for its own; leave one out"
        )


def open_engine(
    config: Config, policies: Policies, folder: Path, tokenizer: ChatTokenizer
) -> BatchEngine | StreamEngine:
    """The engine of the settings. Raises what `check_engine` does."""
    check_engine(config)
    on_gpu = torch.cuda.is_available()
    suits = on_gpu and config.learners_per_agent == 1 and why_not() is None
    if config.engine == "vllm" or (config.engine == "auto" and suits):
        return VllmEngine(
            policies,
            folder,
            stop_ids=tokenizer.stop_ids,
            context_tokens=tokenizer.context_tokens,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            probe_ids=tokenizer.encode([{"role": "user", "content": PROBE}]),
            # On a CPU an engine with adapters takes three times as long for a token as one without.
            adapters=(config.lora_rank, config.lora_alpha) if on_gpu and config.policy == "lora" else None,
        )
    return TransformersEngine(
        policies,
        tokenizer.stop_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
