"""Which engine a run samples with. Importing this loads no torch, so that a mistake is answered at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train.config import Config
from mappa_train.gpu import has_gpu
from mappa_train.router import count_policies
from mappa_train.settings import refuse_time_limits

if TYPE_CHECKING:
    from mappa_train.engine.base import BatchEngine, StreamEngine
    from mappa_train.policies import Policies
    from mappa_train.tokens import ChatTokenizer

PROBE = "Read train.csv, report its shape, fit a model and write submission.csv."
"""The prompt that a sync of vLLM is verified with: words and names like those of the tasks."""


def takes_vllm(config: Config) -> bool:
    """Whether the settings mean vLLM; what `auto` means depends on the machine."""
    if config.engine == "auto":
        may = config.deterministic == "off" and not _plays_in_ranks(config)
        return may and has_gpu() and _why_not_vllm() is None
    return config.engine == "vllm"


def _plays_in_ranks(config: Config) -> bool:
    """Whether several learners sample themselves: an engine in a rollout worker is no part of their group."""
    return config.learners_per_agent > 1 and not config.num_rollout_workers


def _why_not_vllm() -> str | None:
    from mappa_train.engine.vllm_setup import why_not

    return why_not()


def check_engine(config: Config) -> None:
    """Raise an error that says what to do if the engine of the settings is not to be had for a run.

    Rollout workers of a cluster are on other machines, and check there what is to be had.
    """
    if not config.ray_address:
        check_engine_here(config)


def check_engine_here(config: Config) -> None:
    """Raise an error that says what to do if the engine of the settings is not to be had on this machine.

    Time limits would undo the exact repetition of the engine that has a turn barrier.
    """
    if config.engine == "vllm" and (why := _why_not_vllm()) is not None:
        raise UnavailableError(f"--engine vllm: {why}")
    if config.engine == "vllm" and _plays_in_ranks(config):
        raise ConfigError(
            f"--engine vllm: not with --learners-per-agent {config.learners_per_agent}, whose processes are "
            "a group that vLLM in each would take for its own; leave one out"
        )
    if not takes_vllm(config):
        refuse_time_limits(config)
        if config.engine_gpus or config.engine_sleep == "on":
            flag, value, off = "--engine-sleep", "on", "off"
            if config.engine_gpus:
                flag, value, off = "--engine-gpus", str(config.engine_gpus), "0"
            raise UnavailableError(
                f"{flag} {value}: is for vLLM, and --engine auto is transformers here; take {flag} {off}"
            )
    elif config.engine_sleep == "on" and not has_gpu():
        raise UnavailableError(
            "--engine-sleep on: gives a GPU's memory back, and there is none; take --engine-sleep off"
        )
    elif config.engine_gpus:
        _check_own_gpus(config)


def to_play_here(config: Config) -> Config:
    """The settings of a run for playing alone, on a machine without the GPUs that vLLM had in training, too.

    Without those the engine is beside the policies, as by default. Raises what `check_engine_here` does of
    all else.
    """
    try:
        check_engine_here(config)
    except UnavailableError:
        config = replace(config, engine_gpus=0, engine_sleep="off")
        check_engine_here(config)
    return config


def _check_own_gpus(config: Config) -> None:
    import torch

    from mappa_train.engine.vllm_setup import why_no_own_processes

    flag = f"--engine-gpus {config.engine_gpus}"
    count = torch.cuda.device_count()
    if config.engine_gpus >= count:
        raise UnavailableError(
            f"{flag}: {count} GPU(s) are visible here, of which the learner needs the first; "
            f"take --engine-gpus {max(0, count - 1)}" + (" or less" if count > 1 else ", beside the learner")
        )
    if (why := why_no_own_processes()) is not None:
        raise UnavailableError(f"{flag}: {why}")


def own_gpus(config: Config, num_agents: int) -> list[tuple[int, ...]]:
    """The numbers of the GPUs of each engine, among the visible ones; empty without `--engine-gpus`.

    The last ones, since the learner has the first. One engine for adapters, one for each policy otherwise.
    Raises `ConfigError` where they cannot be divided evenly.
    """
    if not config.engine_gpus:
        return []
    import torch

    num_engines = 1 if config.policy == "lora" else count_policies(config, num_agents)[0]
    if config.engine_gpus % num_engines:
        raise ConfigError(
            f"--engine-gpus {config.engine_gpus}: with --policy full each of the {num_agents} agents has an "
            f"engine, and all have as many GPUs; give a multiple of {num_agents}"
        )
    share, count = config.engine_gpus // num_engines, torch.cuda.device_count()
    first = range(count - config.engine_gpus, count, share)
    return [tuple(range(k, k + share)) for k in first]


def engine_line(config: Config, num_agents: int) -> str | None:
    """What a plan says of an engine that is not just beside the learner. Raises what `own_gpus` does."""
    groups = own_gpus(config, num_agents)
    if groups:
        words = ", ".join("+".join(map(str, group)) for group in groups)
        return f"{len(groups)} of vLLM on GPU(s) {words}, in processes of their own; the learner on GPU 0"
    if config.engine_sleep == "on":
        return "vLLM beside the learner, asleep while it works"
    return None


def open_engine(
    config: Config, policies: Policies, folder: Path, tokenizer: ChatTokenizer
) -> BatchEngine | StreamEngine:
    """The engine of the settings. Raises what `check_engine_here` does."""
    check_engine_here(config)
    if takes_vllm(config):
        return _open_vllm(config, policies, folder, tokenizer)
    from mappa_train.engine.transformers import TransformersEngine

    return TransformersEngine(
        policies,
        tokenizer.stop_ids,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )


def _open_vllm(config: Config, policies: Policies, folder: Path, tokenizer: ChatTokenizer) -> StreamEngine:
    from mappa_train.engine.vllm import VllmEngine
    from mappa_train.engine.vllm_async import AsyncVllmEngine
    from mappa_train.engine.vllm_sampling import Sampling

    sampling = Sampling(
        agents=policies.agents,
        vocabulary=tokenizer.vocabulary,
        stop_ids=tokenizer.stop_ids,
        context_tokens=tokenizer.context_tokens,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
    probe_ids = tokenizer.encode([{"role": "user", "content": PROBE}])
    # On a CPU an engine with adapters takes three times as long for a token as one without.
    adapters = (config.lora_rank, config.lora_alpha) if has_gpu() and config.policy == "lora" else None
    gpus = own_gpus(config, len(policies.agents))
    if gpus:
        return AsyncVllmEngine(
            policies, folder, sampling, probe_ids=probe_ids, gpus=gpus, backend="nccl", adapters=adapters
        )
    sleeps = config.engine_sleep == "on"
    return VllmEngine(policies, folder, sampling, probe_ids=probe_ids, adapters=adapters, sleeps=sleeps)
