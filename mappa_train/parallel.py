"""Policies that several processes train together: PyTorch's DDP, or FSDP2 (`fully_shard`).

`ddp`: every rank has all weights; gradients are averaged. `fsdp`: each rank has a part of the weights,
gradients and optimizer, and layers are put together when they are needed. Both act when the module that they
wrap is called, so that module's forward (`LogprobModule`) gives the logprobs, head and all. Both average over
ranks: a rank's loss is Σ of its tokens / (tokens of all ranks) · ranks. All ranks must make the same calls.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mappa_train.loss import LogprobModule
from mappa_train.packing import Pack
from mappa_train.policies import pick_device


class Distributor:
    """Wraps the models of policies; called once for each, in the same order on every rank.

    `kind` is "ddp" or "fsdp". With DDP the policy's weights, alone, must be trainable at that moment.
    `samples`: whether something on these ranks samples from the policies, and so needs all weights of each.
    """

    def __init__(self, kind: str, *, samples: bool) -> None:
        self.shards = kind == "fsdp"
        self.samples = samples
        self._sharded: dict[int, nn.Module] = {}

    def __call__(self, model: Any) -> nn.Module:
        if not self.shards:
            with warnings.catch_warnings():
                # Newer versions have another name for it.
                warnings.simplefilter("ignore", FutureWarning)
                return DistributedDataParallel(LogprobModule(model), broadcast_buffers=False)
        if id(model) not in self._sharded:  # adapters of several agents share one
            self._sharded[id(model)] = _shard(model)
        return self._sharded[id(model)]


def _shard(model: Any) -> nn.Module:
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    # What is still in the machine's memory goes to the device layer by layer, and only a part of each stays.
    mesh = init_device_mesh(pick_device().type, (torch.distributed.get_world_size(),))
    for layer in body.model.layers:
        fully_shard(layer, mesh=mesh)
    module = LogprobModule(model)
    fully_shard(module, mesh=mesh)
    return module


def idle_pack() -> Pack:
    """The least that a pass can be made of, for a rank that has nothing left when others have."""
    nought = torch.zeros(1, dtype=torch.int64)
    return Pack(
        ids=torch.zeros(2, dtype=torch.int64),
        positions=torch.arange(2),
        segment=torch.zeros(2, dtype=torch.int64),
        parent=nought,
        predictors=nought,
        targets=nought,
        members=(),
        lengths=(),
    )


def exchange(module: Any, *, now: bool) -> contextlib.AbstractContextManager[None]:
    """A pass within this exchanges gradients `now`, or leaves it to a later one (FSDP: always now).

    FSDP could wait, too, but would then hold whole gradients.
    """
    if isinstance(module, DistributedDataParallel) and not now:
        waiting: contextlib.AbstractContextManager[None] = module.no_sync()
        return waiting
    return contextlib.nullcontext()
