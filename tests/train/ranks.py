"""Three updates of tiny policies in float64, by one process or by several that talk over gloo.

python tests/train/ranks.py MODEL_FOLDER STORE_FILE RANK OUT_FILE SETTINGS   (started by test_learner)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import AGENTS, make_config, make_samples, no_autocast

from mappa_train.credit import Gather, all_gather
from mappa_train.learner import Learner
from mappa_train.policies import FullPolicies
from mappa_train.types import SampleCredit

RETS = (0.9, 0.2, 0.1, 0.8, 0.5, None, 0.7, 0.3, 0.6, 0.4, 0.2, 0.75)
SHARDS = ((0, 2, 4, 5, 6, 7, 8, 10), (1, 3, 9, 11))
"""Unequal; rank 1 has one agent's actions on one task alone, and none of the other agent's."""


def float64_policies(folder: Path) -> FullPolicies:
    """Full policies whose arithmetic hardly rounds; use within `no_autocast`."""
    policies = FullPolicies(folder, AGENTS)
    for agent in AGENTS:
        policies.activate(agent).double()
        with policies.reference(agent) as reference:
            reference.double()
    return policies


def exact_norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The model's normalization without its detour over float32."""
    scale = (hidden.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
    return torch.as_tensor(self.weight * hidden * scale)


def delta_of_updates(
    folder: Path,
    pick: Sequence[int] | None = None,
    *,
    updates: int = 1,
    gather: Gather | None = None,
    rets: Sequence[float | None] = RETS,
    **settings: Any,
) -> torch.Tensor:
    """What some updates in float64 add to all weights, with the samples `pick`ed of them all."""
    with pytest.MonkeyPatch.context() as patch, no_autocast(patch):
        samples = make_samples(FullPolicies(folder, AGENTS), rets)
        chosen = samples if pick is None else [samples[k] for k in pick]
        patch.setattr("transformers.models.llama.modeling_llama.LlamaRMSNorm.forward", exact_norm)
        policies = float64_policies(folder)
        before = torch.cat([flat(policies, agent) for agent in AGENTS])
        learner = Learner(policies, make_config(lr=1e-3, **settings), gather)
        for version in range(updates):
            learner.update([of_version(sample, version) for sample in chosen])
        return torch.cat([flat(policies, agent) for agent in AGENTS]) - before


def flat(policies: FullPolicies, agent: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policies.parameters(agent)])


def of_version(sample: SampleCredit, version: int) -> SampleCredit:
    generation = replace(sample.action.generation, policy_version=version)
    return replace(sample, action=replace(sample.action, generation=generation))


def main(folder: str, store: str, rank: str, out: str, settings: str) -> None:
    torch.set_num_threads(1)  # as in the test: the float32 sampler must say the same
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=len(SHARDS)
    )
    delta = delta_of_updates(
        Path(folder), SHARDS[int(rank)], updates=3, gather=all_gather, **json.loads(settings)
    )
    torch.save(delta, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
