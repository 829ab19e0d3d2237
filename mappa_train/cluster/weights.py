"""The weights of a step on their way to the workers: packed, named by digest, checked where they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from mappa_envs.errors import UnavailableError
from mappa_train.policies import Policies


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Every agent's weights as policy version `version`.

    `parts[agent]` refers to bytes in Ray's object store, one copy a node, `digests[agent]` is their SHA-256.
    """

    version: int
    parts: Mapping[str, Any]
    digests: Mapping[str, str]


def pack(state: Mapping[str, Tensor]) -> bytes:
    """A state as bytes; equal states give equal bytes."""
    return save({name: value.contiguous() for name, value in state.items()})


def digest(packed: bytes) -> str:
    """The SHA-256 of packed weights, in hex."""
    return hashlib.sha256(packed).hexdigest()


def publish(policies: Policies, version: int) -> Weights:
    """Put the current weights of all agents into the object store, for every worker to fetch."""
    import ray

    parts, digests = {}, {}
    for agent in policies.agents:
        packed = pack(policies.state(agent))
        parts[agent], digests[agent] = ray.put(packed), digest(packed)
    return Weights(version=version, parts=parts, digests=digests)


def take_over(weights: Weights, policies: Policies) -> None:
    """Load published weights. Raises `UnavailableError` if a policy then holds others than were published.

    What is compared is read back from the policy: that covers the transport and the loading.
    """
    import ray

    for agent in policies.agents:
        policies.load_state(agent, load(ray.get(weights.parts[agent])))
        found = digest(pack(policies.state(agent)))
        if found != weights.digests[agent]:
            raise UnavailableError(
                f"{agent}: its weights arrived damaged: sha256 {found[:12]}… instead of "
                f"{weights.digests[agent][:12]}…, version {weights.version}; resume from the checkpoint"
            )
