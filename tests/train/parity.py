"""Our side of the comparison with other libraries: the same numbers through our algorithms and our loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from mappa_train.algorithms import ActionReturns, Algorithm
from mappa_train.algorithms.grpo import GRPO
from mappa_train.algorithms.reinforce_pp import ReinforcePP
from mappa_train.algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from mappa_train.algorithms.rloo import RLOO
from mappa_train.credit import normalize, token_returns
from mappa_train.loss import PolicyLoss, k3

TOLERANCE = 2e-6


class OpenRLHFGroupNorm(GRPO):
    epsilon = 1e-9


class TRLGroupNorm(GRPO):
    epsilon = 1e-4


class DualClip(ReinforcePP):
    """verl's default: where A < 0, the objective is never below c · A with c = 3."""

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        objective, clipped = super().surrogate(log_ratio, advantages, clip)
        return objective.maximum(3.0 * advantages).where(advantages < 0, objective), clipped


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Which of our algorithms is the counterpart, and with which convention of the variance."""

    algorithm: type[Algorithm]
    correction: int = 0


ADVANTAGES = {
    "openrlhf/reinforce": Ours(algorithm=ReinforcePP),
    "openrlhf/reinforce_baseline": Ours(algorithm=ReinforcePPBaseline),
    "openrlhf/group_norm": Ours(algorithm=OpenRLHFGroupNorm),
    "openrlhf/rloo": Ours(algorithm=RLOO),
    "verl/reinforce_plus_plus": Ours(algorithm=ReinforcePP, correction=1),
    "verl/reinforce_plus_plus_baseline": Ours(algorithm=ReinforcePPBaseline, correction=1),
    "verl/grpo": Ours(algorithm=GRPO),
    "verl/rloo": Ours(algorithm=RLOO),
    "trl/grpo": Ours(algorithm=TRLGroupNorm),
    "trl/rloo": Ours(algorithm=RLOO),
}
"""By the other library's name of the estimator. Those of verl and TRL but the first have no token penalty."""

LOSSES: dict[str, tuple[type[Algorithm], str]] = {
    "openrlhf/token": (ReinforcePP, "token"),
    "openrlhf/sequence": (ReinforcePP, "sequence"),
    "openrlhf/dual_clip": (DualClip, "token"),
    "verl/token-mean": (ReinforcePP, "token"),
    "verl/seq-mean-token-mean": (ReinforcePP, "sequence"),
    "verl/dual_clip": (DualClip, "token"),
}


def make_batch(
    returns: Tensor,
    groups: Tensor,
    lengths: Tensor,
    logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    correction: int = 0,
) -> ActionReturns:
    """What the learner would hand to an algorithm: logprobs [t] in the order of the actions."""
    penalties = torch.zeros(int(lengths.sum()), dtype=torch.float64)
    if logprobs is not None and ref_logprobs is not None:
        parts = zip(logprobs.split(lengths.tolist()), ref_logprobs.split(lengths.tolist()), strict=True)
        penalties = torch.cat([token_returns(0.0, old, ref, beta) for old, ref in parts])

    def whiten(values: Tensor) -> Tensor:
        advantages = normalize(values, torch.ones(len(values), dtype=torch.bool), correction=correction)
        # Who has the sample variance (verl) adds 1e-8 to it, where we have it as a floor.
        variance = values.var()
        return advantages * (variance / (variance + 1e-8)).sqrt() if correction else advantages

    return ActionReturns(
        returns=returns.double(),
        groups=groups,
        num_groups=int(groups.max()) + 1,
        lengths=lengths,
        penalties=penalties,
        whiten=whiten,
    )


def advantages(name: str, case: Mapping[str, Any]) -> Tensor:
    """Ours, float32 [t], for an estimator of another library."""
    ours = ADVANTAGES[name]
    batch = make_batch(
        torch.tensor(case["scores"]),
        torch.tensor(case["groups"]),
        torch.tensor(case["lengths"]),
        torch.tensor(case["logprobs"]),
        torch.tensor(case["ref_logprobs"]),
        case["beta"],
        ours.correction,
    )
    return ours.algorithm().advantages(batch).float()


def loss(name: str, case: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Our loss [] and its gradient by each logprob [t], float32."""
    algorithm, mean = LOSSES[name]
    logprobs = torch.tensor(case["new_logprobs"], requires_grad=True)
    old, lengths = torch.tensor(case["old_logprobs"]), torch.tensor(case["lengths"])
    weights = torch.ones(len(old))
    if mean == "sequence":
        weights = (1.0 / lengths).repeat_interleave(lengths)
    record = TensorDict(
        old_logprobs=old,
        sampler_logprobs=old,
        advantages=torch.tensor(case["advantages"]),
        weights=weights,
        denominator=torch.tensor(float(len(lengths) if mean == "sequence" else len(old))),
        **dict.fromkeys(("ids", "positions", "segment", "parent", "predictors", "targets"), torch.zeros(1)),
    )
    with pytest.MonkeyPatch.context() as patch:
        # The model's part is tested elsewhere; here the logprobs are given.
        patch.setattr("mappa_train.loss.token_logprobs", lambda *args, **options: (logprobs, None))
        out = PolicyLoss(None, algorithm(), clip=case["clip"], temperature=1.0)(record)
    out["loss_objective"].backward()
    assert logprobs.grad is not None
    return out["loss_objective"].detach(), logprobs.grad


def kl(name: str, case: Mapping[str, Any]) -> Tensor:
    """Our estimate of the KL at each token, [t]: "…/k1" or "…/k3"."""
    new, ref = torch.tensor(case["new_logprobs"]), torch.tensor(case["ref_logprobs"])
    # Both libraries cut k3 at 10, and with it its gradient; TRL and we do not.
    return k3(new, ref).clamp(max=10) if name.endswith("k3") else new - ref


def difference(ours: Tensor, theirs: Any) -> float:
    """The largest difference, in units of the largest value where that is above 1: both are float32."""
    expected = torch.tensor(theirs)
    return float((ours - expected).abs().max() / expected.abs().max().clamp(min=1.0))
