"""How much memory a run needs, before it starts; and what to turn when it was too much.

The plan is arithmetic on the shapes of the model's weights, read from the headers of its files: nothing is
loaded. Every part is what the code holds at its worst moment, an update, a rollout or the loading: what
belongs to one is not added to another. docs/learner.md says how far it was off where it was measured.
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
from mappa_train.gpu import has_gpu
from mappa_train.router import count_policies

LIBRARIES = 700e6
"""Python with torch, transformers and the environments: 0.6 GB after the imports, and some more later."""
SLACK = 1.2
"""What the allocator and the gradients under way add to activations; measured."""
PROMPT_TOKENS = 1024
"""Length of prompts that the sampler's cache is planned for."""
LOGIT_COPIES = 20
"""Bytes of one logit in an update: bf16, and in float32 the logits and what their gradient is made of."""
TOLERANCE = 1.1
"""The plan is an estimate: a run that seems to need no more than so much of what is free is tried."""

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
    """One line of the plan, in bytes. `when`: always, or only in an "update", a "rollout" or "loading"."""

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
            for moment in ("update", "rollout", "loading")
        }
        return max(sums.values())

    def describe(self) -> str:
        """What the peak is made of."""
        return ", ".join(f"{part.name} {_gb(part.num_bytes)}" for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes of a device for one process: all that it could have, and what it can have now."""

    total: float
    free: float


@dataclass(frozen=True, kw_only=True)
class MemoryCheck:
    """A plan as lines of text, and why a run cannot begin by it now (None: it can)."""

    lines: tuple[str, ...]
    shortage: str | None = None


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


def memory_plan(
    config: Config, shape: ModelShape, num_agents: int, *, gpu: bool, warm_start: bool = False
) -> MemoryPlan:
    """What a learner of these settings needs for a team of `num_agents`, on a GPU or on the machine.

    A warm start samples nothing, and has one policy's optimizer at a time.
    """
    num_policies, num_trained = count_policies(config, num_agents)
    num_optimizers = 1 if warm_start else num_trained
    parts = _weights(config, shape, num_policies, num_trained, num_optimizers)
    if config.learners_per_agent > 1 and config.shard == "ddp" and not warm_start:
        # Kept from one update to the next; gradients that are summed up before an exchange are beside them.
        (gradients,) = (part.num_bytes for part in parts if part.name == "gradients")
        parts.append(Part(name="DDP buckets", num_bytes=gradients * num_trained))
    if config.shard == "fsdp":
        parts = [replace(part, num_bytes=part.num_bytes / config.learners_per_agent) for part in parts]
        if not gpu:  # where there is one, it is in the machine's memory: `plan_memory`
            parts.append(_whole_model(config, shape))
        if config.policy == "full" and not config.num_rollout_workers:
            parts.append(Part(name="sampler", num_bytes=4.0 * shape.num_parameters * num_policies))
    answers = min(128, config.token_budget // 4)  # a quarter of a micro-batch; logits of 128 at once at most
    parts += [
        Part(name="activations", num_bytes=activations(config, shape), when="update"),
        Part(name="logits", num_bytes=float(answers * shape.vocabulary * LOGIT_COPIES), when="update"),
        Part(name="libraries", num_bytes=LIBRARIES),
    ]
    if not config.num_rollout_workers and not warm_start:
        parts += _sampling(config, shape, gpu=gpu)
    return MemoryPlan(parts=tuple(parts), device="GPU" if gpu else "machine")


def _whole_model(config: Config, shape: ModelShape) -> Part:
    """What each rank holds in the machine's memory until it is sharded."""
    size = (2 if config.policy == "lora" else 4) * shape.num_parameters
    return Part(name="whole model", num_bytes=float(size), when="loading")


def _sampling(config: Config, shape: ModelShape, *, gpu: bool) -> list[Part]:
    """What the embedded engine needs: full policies sample from themselves, adapters from a merged copy.

    vLLM needs that copy, too, while it is given new weights, but no cache of ours.
    """
    exact = 2 if gpu and config.policy == "lora" else 4
    length = PROMPT_TOKENS + config.max_new_tokens
    cached = _num_sampled(config) * length * shape.num_layers * 2 * shape.key_width
    parts = [Part(name="sampler's cache", num_bytes=float(cached * exact), when="rollout")] if cached else []
    if config.policy == "lora":
        merged = sum(rows * columns for rows, columns in shape.matrices)
        parts += [
            Part(name="sampler", num_bytes=float(exact * shape.num_parameters), when="rollout"),
            Part(name="merged weights", num_bytes=float(exact * merged), when="rollout"),
        ]
    return parts


def _num_sampled(config: Config) -> int:
    """How many sequences the embedded engine samples at once here, at most; 0 where another samples."""
    if config.engine == "vllm" or config.num_rollout_workers:
        return 0
    return min(64, config.episodes_per_step, config.concurrent_episodes)


def _weights(
    config: Config, shape: ModelShape, num_policies: int, num_trained: int, num_optimizers: int
) -> list[Part]:
    """Weights and optimizer. Gradients are there for one policy at a time; frozen ones need no reference."""
    size = float(shape.num_parameters)
    if config.policy == "full":
        references = num_trained if config.init else 1
        return [
            Part(name="weights", num_bytes=4 * size * num_policies),
            Part(name="reference", num_bytes=4 * size * references),
            Part(name="gradients", num_bytes=4 * size, when="update"),
            Part(name="bf16 copy", num_bytes=2 * size, when="update"),
            Part(name="optimizer", num_bytes=8 * size * num_optimizers),
        ]
    adapter = float(config.lora_rank * sum(rows + columns for rows, columns in shape.matrices))
    references = num_trained if config.init else 0
    return [
        Part(name="base (also reference)", num_bytes=2 * size),
        Part(name="adapters", num_bytes=4 * adapter * (num_policies + references)),
        Part(name="gradients", num_bytes=4 * adapter, when="update"),
        Part(name="optimizers", num_bytes=8 * adapter * num_optimizers),
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


def measure_room(*, gpu: bool, num_sharing: int = 1) -> Room:
    """The memory of the GPU, or of the machine and its control group in equal parts for `num_sharing`.

    What this process already has of the machine counts as free: the plan has the libraries, and they are
    loaded by now. So does what the kernel only keeps of files.
    """
    if gpu:
        import torch

        free, total = torch.cuda.mem_get_info()
        return Room(total=float(total), free=float(free))
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max", or more than the machine has
        group = room_in_group(Path("/sys/fs/cgroup"))
        total, free = min(total, int(group.total)), min(free, int(group.free))
    own = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = page * int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return Room(total=total / num_sharing, free=min(total, free + own * num_sharing) / num_sharing)


def room_in_group(root: Path) -> Room:
    """Of the limit of the control group at `root`, of version 2 or 1; caches are given back when needed.

    Raises `OSError` or `ValueError` where there is no limit; that of version 1 is then a huge number.
    """
    if (root / "memory.max").exists():
        group, limit_file, used_file, prefix = root, "memory.max", "memory.current", ""
    else:
        group, prefix = root / "memory", "total_"
        limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
    limit, used = (int((group / name).read_text("ascii")) for name in (limit_file, used_file))
    counts = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
    names = ("inactive_file", "active_file", "slab_reclaimable")
    cached = sum(int(counts.get(prefix + name, 0)) for name in names)
    return Room(total=float(limit), free=float(limit - used + cached))


def plan_memory(config: Config, folder: Path, num_agents: int, *, warm_start: bool = False) -> MemoryCheck:
    """The plan of a run, beside the memory that there is."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        return MemoryCheck(lines=(f"unknown: {', '.join(missing)} is not installed",))
    gpu = has_gpu()
    try:
        shape = read_shape(folder)
    except ConfigError as error:
        return MemoryCheck(lines=(f"unknown: {error}",))
    plan = memory_plan(config, shape, num_agents, gpu=gpu, warm_start=warm_start)
    sharing = num_sharing(config)
    room = measure_room(gpu=gpu, num_sharing=1 if gpu else sharing)
    check = _compare(plan, room, advice(config, warm_start=warm_start))
    if not gpu or config.shard != "fsdp":
        return check
    libraries = Part(name="libraries", num_bytes=LIBRARIES)
    loading = MemoryPlan(parts=(_whole_model(config, shape), libraries), device="machine")
    knobs = f"fewer --learners-per-agent (it is {config.learners_per_agent})"
    knobs = f"try {'--policy lora, ' if config.policy == 'full' else ''}{knobs}"
    host = _compare(loading, measure_room(gpu=False, num_sharing=sharing), knobs)
    return MemoryCheck(lines=check.lines + host.lines, shortage=check.shortage or host.shortage)


def _compare(plan: MemoryPlan, room: Room, knobs: str) -> MemoryCheck:
    there = f"{_gb(room.free)} GB are free of {_gb(room.total)} GB on this {plan.device}"
    lines = (f"about {_gb(plan.peak)} GB; {there}", f"of it, in GB: {plan.describe()}")
    return MemoryCheck(lines=lines, shortage=_shortage(plan, room, knobs))


def _shortage(plan: MemoryPlan, room: Room, knobs: str) -> str | None:
    if plan.peak <= TOLERANCE * room.free:
        return None
    need, device = f"this run needs about {_gb(plan.peak)} GB", plan.device
    if plan.peak > TOLERANCE * room.total:
        return f"{need}, more than the {_gb(room.total)} GB that this {device} can give it; {knobs}"
    return (
        f"{need}, and of the {_gb(room.total)} GB of this {device} only {_gb(room.free)} GB are free now: "
        f"wait until what has the rest is done, or {knobs}"
    )


def num_sharing(config: Config) -> int:
    """How many learners share the memory of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", config.learners_per_agent))


def check_memory(config: Config, folder: Path, num_agents: int, *, warm_start: bool = False) -> None:
    """The plan into run.log, before anything is loaded. Raises `UnavailableError` if it cannot fit."""
    check = plan_memory(config, folder, num_agents, warm_start=warm_start)
    if check.shortage is not None:
        raise UnavailableError(". ".join((check.shortage, *check.lines[1:])))
    for line in check.lines:
        log.info("memory: %s", line)


def advice(config: Config, *, warm_start: bool = False) -> str:
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
    if (at_once := _num_sampled(config)) > 1 and not warm_start:
        knobs.append(f"fewer --concurrent-episodes ({at_once} are sampled at once)")
    return f"try {', '.join(knobs)}" if knobs else "take a smaller --model"


@contextlib.contextmanager
def out_of_memory(config: Config, *, warm_start: bool = False) -> Iterator[None]:
    """Turn an allocation that failed into an `UnavailableError` that says which settings to turn."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or [""])[0]
        knobs = advice(config, warm_start=warm_start)
        if not warm_start:
            knobs += ". Of a run with a checkpoint: in its config.toml, but for policy and model, then resume"
        raise UnavailableError(f"out of memory ({first[:200] or 'MemoryError'}); {knobs}") from error


def _is_out_of_memory(error: BaseException) -> bool:
    # By name: importing torch only to look at an error would be a second one.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in str(error) or "Cannot allocate memory" in str(error)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f}"
