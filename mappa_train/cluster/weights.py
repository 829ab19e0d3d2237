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
    """Every policy's weights as policy version `version`.

    `parts[policy]` refers to bytes in Ray's object store, one copy a node; `digests[policy]` is their
    SHA-256.
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
    """Put the current weights of all policies into the object store, for every worker to fetch."""
    import ray

    parts, digests = {}, {}
    for policy in policies.names:
        packed = pack(policies.state(policy))
        parts[policy], digests[policy] = ray.put(packed), digest(packed)
    return Weights(version=version, parts=parts, digests=digests)


def take_over(weights: Weights, policies: Policies) -> None:
    """Load published weights. Raises `UnavailableError` if a policy then holds others than were published.

    What is compared is read back from the policy: that covers the transport and the loading.
    """
    import ray

    for policy in policies.names:
        policies.load_state(policy, load(ray.get(weights.parts[policy])))
        found = digest(pack(policies.state(policy)))
        if found != weights.digests[policy]:
            raise UnavailableError(
                f"{policy}: its weights arrived damaged: sha256 {found[:12]}… instead of "
                f"{weights.digests[policy][:12]}…, version {weights.version}; resume from the checkpoint"
            )
