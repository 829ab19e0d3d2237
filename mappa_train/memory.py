"""How much memory a run needs, before it starts; and what to turn when it was too much.

The plan is arithmetic on the shapes of the model's weights, read from the headers of its files: nothing is
loaded. Every part is what the code holds at its worst moment, either an update or a rollout: what belongs to
one of the two is not added to the other. docs/learner.md says how far it was off where it was measured.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from mappa_envs.errors import ConfigError, UnavailableError, boundary
from mappa_train.config import Config

LIBRARIES = 700e6
"""Python with torch, transformers and the environments: 0.6 GB after the imports, and some more later."""
SLACK = 1.2
"""What the allocator and the gradients under way add to activations; measured."""
PROMPT_TOKENS = 1024
"""Length of prompts that the sampler's cache is planned for."""
LOGIT_COPIES = 20
"""Bytes of one logit in an update: bf16, and in float32 the logits and what their gradient is made of."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a causal language model. `matrices`: (out, in) of its linear layers, but for the head."""

    num_parameters: int
    matrices: tuple[tuple[int, int], ...]
    num_layers: int
    hidden: int
    intermediate: int
    query_width: int
    key_width: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """One line of the plan, in bytes. `when`: always, or only in an "update" or a "rollout"."""

    name: str
    num_bytes: float
    when: str = "always"


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What a run needs on the device that it computes on ("GPU" or "machine")."""

    parts: tuple[Part, ...]
    device: str

    @property
    def peak(self) -> float:
        """Bytes at the worst moment."""
        sums = {
            moment: sum(part.num_bytes for part in self.parts if part.when in ("always", moment))
            for moment in ("update", "rollout")
        }
        return max(sums.values())

    def describe(self, available: float) -> list[str]:
        """The plan as lines of text."""
        inside = ", ".join(f"{part.name} {_gb(part.num_bytes)}" for part in self.parts)
        return [
            f"about {_gb(self.peak)} of {_gb(available)} GB on this {self.device}",
            f"of it, in GB: {inside}",
        ]


def read_shape(folder: Path) -> ModelShape:
    """The sizes of a model in a folder of transformers. Raises `ConfigError` if it has no safetensors."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    with boundary(ConfigError, f"{folder}: not a model of transformers", OSError, ValueError, KeyError):
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as tensors:
                names = list(tensors.keys())
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
        table = json.loads((folder / "config.json").read_text("utf-8"))
        table = table.get("text_config", table)
        heads = int(table["num_attention_heads"])
        width = int(table.get("head_dim") or table["hidden_size"] // heads)
        if not shapes:
            raise ValueError("no *.safetensors in it")
        return ModelShape(
            num_parameters=sum(_product(shape) for shape in shapes.values()),
            matrices=tuple(
                (shape[0], shape[1])
                for name, shape in shapes.items()
                if len(shape) == 2 and "embed" not in name and "lm_head" not in name
            ),
            num_layers=int(table["num_hidden_layers"]),
            hidden=int(table["hidden_size"]),
            intermediate=int(table["intermediate_size"]),
            query_width=heads * width,
            key_width=int(table.get("num_key_value_heads") or heads) * width,
            vocabulary=int(table["vocab_size"]),
        )


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def memory_plan(config: Config, shape: ModelShape, num_agents: int, *, gpu: bool) -> MemoryPlan:
    """What a learner of these settings needs for a team of `num_agents`, on a GPU or on the machine."""
    parts = _weights(config, shape, num_agents)
    if config.shard == "fsdp":
        parts = [replace(part, num_bytes=part.num_bytes / config.learners_per_agent) for part in parts]
        if config.policy == "full" and config.engine != "vllm":
            parts.append(Part(name="sampler", num_bytes=4.0 * shape.num_parameters * num_agents))
    answers = min(512, config.token_budget // 4)  # a quarter of a micro-batch; logits of 512 at once at most
    parts += [
        Part(name="activations", num_bytes=activations(config, shape), when="update"),
        Part(name="logits", num_bytes=float(answers * shape.vocabulary * LOGIT_COPIES), when="update"),
        Part(name="libraries", num_bytes=LIBRARIES),
    ]
    if config.engine != "vllm" and not config.num_rollout_workers:
        parts += _sampling(config, shape, gpu=gpu)
    return MemoryPlan(parts=tuple(parts), device="GPU" if gpu else "machine")


def _sampling(config: Config, shape: ModelShape, *, gpu: bool) -> list[Part]:
    """What the embedded engine needs: full policies sample from themselves, adapters from a merged copy."""
    exact = 2 if gpu and config.policy == "lora" else 4
    batch = min(64, config.episodes_per_step, config.concurrent_episodes)
    cached = batch * (PROMPT_TOKENS + config.max_new_tokens) * shape.num_layers * 2 * shape.key_width
    parts = [Part(name="sampler's cache", num_bytes=float(cached * exact), when="rollout")]
    if config.policy == "lora":
        merged = sum(rows * columns for rows, columns in shape.matrices)
        parts += [
            Part(name="sampler", num_bytes=float(exact * shape.num_parameters)),
            Part(name="merged weights", num_bytes=float(exact * merged), when="rollout"),
        ]
    return parts


def _weights(config: Config, shape: ModelShape, num_agents: int) -> list[Part]:
    """Weights and optimizer. Gradients are there for one agent at a time."""
    size = float(shape.num_parameters)
    if config.policy == "full":
        references = num_agents if config.init else 1
        return [
            Part(name="weights", num_bytes=4 * size * num_agents),
            Part(name="reference", num_bytes=4 * size * references),
            Part(name="gradients", num_bytes=4 * size, when="update"),
            Part(name="bf16 copy", num_bytes=2 * size, when="update"),
            Part(name="optimizer", num_bytes=8 * size * num_agents),
        ]
    adapter = float(config.lora_rank * sum(rows + columns for rows, columns in shape.matrices))
    frozen = num_agents if config.init else 0
    return [
        Part(name="base (also reference)", num_bytes=2 * size),
        Part(name="adapters", num_bytes=4 * adapter * (num_agents + frozen)),
        Part(name="gradients", num_bytes=4 * adapter, when="update"),
        Part(name="optimizers", num_bytes=8 * adapter * num_agents),
    ]


def activations(config: Config, shape: ModelShape) -> float:
    """Bytes that the backward pass of one micro-batch keeps.

    A layer keeps, for each token: what its two norms saw in float32, and in bf16 the inputs of its linear
    layers, queries, keys and values (repeated for every head) and the answer of the attention with copies of
    two of them, and of the feed-forward part the gate, its activation, the other factor and the product.
    """
    d, q, f = shape.hidden, shape.query_width, shape.intermediate
    layer = 2 * 4 * d + 2 * (2 * d + 7 * q + 4 * f)
    if config.policy == "lora":
        layer += 2 * 7 * config.lora_rank
    else:
        layer += 2 * 2 * d + 2 * 4 * q
    if config.gradient_checkpointing == "on":
        kept = shape.num_layers * 2 * d + layer
    else:
        kept = shape.num_layers * layer
    return SLACK * config.token_budget * kept


def available_memory(*, gpu: bool) -> float:
    """Bytes that this process can have: of the GPU, or of the machine and its control group.

    What it has already counts in: the plan has the libraries, and they are loaded by now.
    """
    if gpu:
        import torch

        return float(torch.cuda.mem_get_info()[0])
    free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
        free = min(free, _left_in_group(Path("/sys/fs/cgroup")))
    with contextlib.suppress(OSError, ValueError, IndexError):
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        free += float(resident * os.sysconf("SC_PAGE_SIZE"))
    return free


def _left_in_group(group: Path) -> float:
    """Of the limit of a control group; files that are only cached are given back when memory is needed."""
    limit = int((group / "memory.max").read_text("ascii"))
    used = int((group / "memory.current").read_text("ascii"))
    counts = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
    cached = int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
    return float(limit - used + cached)


def plan_memory(config: Config, folder: Path, num_agents: int) -> list[str]:
    """The plan of a run as text. Raises `UnavailableError`, with the knobs, if it cannot fit."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        return [f"unknown: {', '.join(missing)} is not installed"]
    import torch

    gpu = torch.cuda.is_available()
    try:
        shape = read_shape(folder)
    except ConfigError as error:
        return [f"unknown: {error}"]
    plan = memory_plan(config, shape, num_agents, gpu=gpu)
    available = available_memory(gpu=gpu)
    if not gpu:
        available /= num_sharing(config)
    if plan.peak > available:
        raise UnavailableError(
            f"this run needs about {_gb(plan.peak)} GB and this {plan.device} has {_gb(available)} GB left; "
            f"{advice(config)}. {plan.describe(available)[1]}"
        )
    return plan.describe(available)


def num_sharing(config: Config) -> int:
    """How many learners share the memory of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.learners_per_agent))


def check_memory(config: Config, folder: Path, num_agents: int) -> None:
    """The plan into run.log, before anything is loaded. Raises `UnavailableError` if it cannot fit."""
    for line in plan_memory(config, folder, num_agents):
        log.info("memory: %s", line)


def advice(config: Config) -> str:
    """Which settings to turn for less memory, those that help most first."""
    knobs = []
    if config.policy == "full":
        knobs.append("--policy lora")
        if config.learners_per_agent > 1 and config.shard == "ddp":
            knobs.append("--shard fsdp")
    if config.gradient_checkpointing == "off":
        knobs.append("--gradient-checkpointing on")
    if config.token_budget > 64:
        knobs.append(f"a smaller --token-budget (it is {config.token_budget})")
    if config.episodes_per_step > 1:
        knobs.append(f"fewer --episodes-per-step (it is {config.episodes_per_step})")
    return f"try {', '.join(knobs)}" if knobs else "take a smaller --model"


@contextlib.contextmanager
def out_of_memory(config: Config) -> Iterator[None]:
    """Turn an allocation that failed into an `UnavailableError` that says which settings to turn."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or [""])[0]
        raise UnavailableError(f"out of memory ({first[:200] or 'MemoryError'}); {advice(config)}") from error


def _is_out_of_memory(error: BaseException) -> bool:
    # By name: importing torch only to look at an error would be a second one.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in str(error) or "Cannot allocate memory" in str(error)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f}"
