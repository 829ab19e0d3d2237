"""Weights and optimizers of which each rank has a part (`DTensor`), whole and in parts again.

So a checkpoint looks the same whatever number of ranks wrote it, and any number can read it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from mappa_envs.errors import ConfigError


def twin(model: Any) -> Any:
    """A copy of a model in the same memory, which neither may write to. Sharding copies what it takes."""
    weights = dict[int, Any]()  # by what they are copies of, as `deepcopy` looks them up
    for weight in model.parameters():
        weights[id(weight)] = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
    return copy.deepcopy(model, weights)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks, who must all ask; detached. One that is not sharded as it is."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def to_save(tensor: Tensor) -> Tensor:
    """A tensor on the CPU. One that is sharded must be asked for by all ranks, and the first alone gets it.

    The others get an empty tensor, since together they would need the memory of all.
    """
    gathered = whole(tensor)
    if isinstance(tensor, DTensor) and torch.distributed.get_rank() > 0:
        return gathered.new_empty(0, device="cpu")
    return gathered.cpu().contiguous()


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`state_dict`, the same for any number of ranks; what a rank other than the first gets is incomplete."""
    state: dict[str, Any] = tree_map(
        lambda value: to_save(value) if isinstance(value, DTensor) else value, optimizer.state_dict()
    )
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """The inverse, with any number of ranks: each has the whole state and takes its part.

    Learning rate, weight decay and betas stay those of the optimizer.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def part(value: Any, parameter: Tensor) -> Any:
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        placed = value.to(parameter.device)
        return distribute_tensor(placed, parameter.device_mesh, parameter.placements, src_data_rank=None)

    parts = {
        k: {name: part(value, parameters[k]) for name, value in entry.items()}
        for k, entry in state["state"].items()
    }
    # What the settings decide (decay, betas) is as they say now, and not as it was when the state was saved.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": parts})


def check_fit(policy: str, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise `ConfigError` where a checkpoint's weights are not the policy's, by name and shape."""
    found, wanted = ({name: tuple(value.shape) for name, value in some.items()} for some in (state, own))
    odd = min((name for name in found.keys() | wanted if found.get(name) != wanted.get(name)), default=None)
    if odd is not None:
        shapes = f"is {found.get(odd, 'missing')} there and {wanted.get(odd, 'unknown')} here"
        raise ConfigError(
            f"the weights of {policy} do not fit the run's settings: {odd} {shapes}. Was policy, lora_rank "
            "or model changed in its config.toml?"
        )
