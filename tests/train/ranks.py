"""Updates of tiny policies in float64, by one process or by several that talk over gloo.

python tests/train/ranks.py MODEL_FOLDER OUT_FOLDER CASES   (started twice by test_distributed; RANK and
the like in the environment, as torchrun sets them; CASES are the settings of each case, in JSON)

Each case makes three updates and leaves CASE-RANK.pt, what they added to all weights, and CASE-saved.pt, a
checkpoint. Where there is OUT_FOLDER/CASE-given.pt, it makes one more update after it, instead.
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

from mappa_train.distributed import ALONE, Ranks, join
from mappa_train.learner import Learner
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.sharding import whole
from mappa_train.types import SampleCredit

RETS = (0.9, 0.2, 0.1, 0.8, 0.5, None, 0.7, 0.3, 0.6, 0.4, 0.2, 0.75)
SHARDS = ((0, 2, 4, 5, 6, 7, 8, 10), (1, 3, 9, 11))
"""Unequal; rank 1 has one agent's actions on one task alone, and none of the other agent's."""

Policies = FullPolicies | LoRAPolicies


def float64_policies(folder: Path, policy: str = "full", **settings: Any) -> Policies:
    """Policies whose arithmetic hardly rounds; use within `no_autocast`."""
    options: dict[str, Any] = {
        "checkpointing": settings.get("gradient_checkpointing") == "on",
        "frozen": settings.get("frozen_agents", "").split(","),
        "shared": settings.get("shared_policy") == "on",
    }
    policies = (
        FullPolicies(folder, AGENTS, **options)
        if policy == "full"
        else LoRAPolicies(folder, AGENTS, rank=4, alpha=8, seed=0, **options)
    )
    for name in policies.trained:
        policies.activate(name).double()
        with policies.reference(name) as reference:
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
    ranks: Ranks = ALONE,
    rets: Sequence[float | None] = RETS,
    policy: str = "full",
    saved: Path | None = None,
    given: Path | None = None,
    **settings: Any,
) -> torch.Tensor:
    """What some updates in float64 add to all weights, with the samples `pick`ed of them all.

    They go on from the checkpoint `given`, if any; the checkpoint after them is `saved`.
    """
    if ranks.size > 1:
        settings["learners_per_agent"] = ranks.size
    with pytest.MonkeyPatch.context() as patch, no_autocast(patch):
        samples = make_samples(FullPolicies(folder, AGENTS), rets)
        chosen = samples if pick is None else [samples[k] for k in pick]
        patch.setattr("transformers.models.llama.modeling_llama.LlamaRMSNorm.forward", exact_norm)
        policies = float64_policies(folder, policy, **settings)
        before = torch.cat([flat(policies, name) for name in policies.names])
        state = torch.load(given, weights_only=True) if given is not None else None
        for name in policies.names if state is not None else ():
            policies.load_state(name, state["weights"][name])
        learner = Learner(policies, make_config(lr=1e-3, **settings), ranks)
        if state is not None:
            learner.load_state(state["learner"])
        for _ in range(updates):
            learner.update([of_version(sample, learner.version) for sample in chosen])
        if saved is not None:
            weights = {name: policies.state(name) for name in policies.names}
            checkpoint = {"weights": weights, "learner": learner.state()}
            if ranks.is_first:
                torch.save(checkpoint, saved)
        return torch.cat([flat(policies, name) for name in policies.names]) - before


def flat(policies: Policies, name: str) -> torch.Tensor:
    return torch.cat([whole(p).flatten().clone() for p in policies.parameters(name)])


def of_version(sample: SampleCredit, version: int) -> SampleCredit:
    generation = replace(sample.action.generation, policy_version=version)
    return replace(sample, action=replace(sample.action, generation=generation))


def main(folder: str, out: str, cases: str) -> None:
    torch.set_num_threads(1)  # as in the test: the float32 sampler must say the same
    ranks = join()
    for number, settings in enumerate(json.loads(cases)):
        given = Path(out) / f"{number}-given.pt"
        files = {"given": given} if given.is_file() else {"saved": Path(out) / f"{number}-saved.pt"}
        updates = 1 if given.is_file() else 3
        delta = delta_of_updates(
            Path(folder), SHARDS[ranks.rank], updates=updates, ranks=ranks, **files, **settings
        )
        torch.save(delta, Path(out) / f"{number}-{ranks.rank}.pt")
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
