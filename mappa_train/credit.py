"""From scores to advantages: pure functions on tensors.

Notation: action i of an episode of n actions has the reward r_i = score_i / 10. G_i is its return,
t runs over the tokens of one action, β is the weight of the KL penalty.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from mappa_envs.errors import ConfigError

log = logging.getLogger(__name__)

FLAT_STD = 1e-4
"""Returns that differ by less than this (std) differ by float noise: their advantages are 0."""


class Gather(Protocol):
    """Collects a float64 tensor from every data-parallel rank, in rank order."""

    def __call__(self, values: Tensor) -> Sequence[Tensor]: ...


def returns(rewards: Tensor, scored: Tensor, gamma: float, mode: str) -> Tensor:
    """The return G_i of each action of one episode.

    Parameters
    ----------
    rewards : float [n], r_i in [0, 1] in turn order; the value of an unscored action is ignored. With
        mode "outcome" the episode's outcome at every place.
    scored : bool [n].
    gamma : discount over actions, in (0, 1].
    mode : "to_go_mean": G_i = Σ_{j≥i} γ^{j−i} r_j / Σ_{j≥i} γ^{j−i} over the scored j. "to_go": the sum
        alone (the paper's text), rescaled by Σ γ over all j / Σ γ over the scored j, so that an outage
        of the coach punishes nobody. "per_action": G_i = r_i (the released code). "outcome": as given.

    Returns float64 [n]; nan where no j ≥ i is scored, and for an unscored i in the modes that need its
    own score. Raises `ConfigError` on an unknown mode.
    """
    values = torch.where(scored, rewards.double(), 0.0)
    if mode == "outcome":
        return rewards.double().clone()
    if mode == "per_action":
        return torch.where(scored, values, torch.nan)
    if mode not in ("to_go", "to_go_mean"):
        raise ConfigError(f"returns: unknown mode {mode!r}; known: to_go_mean, to_go, per_action, outcome")
    out = torch.full((len(values),), torch.nan, dtype=torch.float64)
    total = weight = everything = 0.0
    for i in reversed(range(len(values))):
        known = float(scored[i])
        total = float(values[i]) + gamma * total
        weight = known + gamma * weight
        everything = 1.0 + gamma * everything
        if scored[i]:
            out[i] = total / weight * (everything if mode == "to_go" else 1.0)
    return out


def token_returns(ret: float, logprobs: Tensor, ref_logprobs: Tensor, beta: float) -> Tensor:
    """The return of each token of one action: float64 [r].

    r_t = −β (log π_old − log π_ref)_t, with G added at the last token; undiscounted within the action:
    R_t = G − β Σ_{t'≥t} (log π_old − log π_ref)_{t'} (paper, REINFORCE++ with the penalty in the reward).
    """
    penalty = -beta * (logprobs.double() - ref_logprobs.double())
    return ret + penalty.flip(0).cumsum(0).flip(0)


def moments(values: Tensor, gather: Gather | None = None) -> tuple[float, float, float]:
    """Count, mean and population variance over all ranks, exactly: float64, centred, never Σx².

    `values` is float [t] of this rank and may be empty.
    """
    mine = torch.zeros(3, dtype=torch.float64)
    if values.numel():
        centred = values.double() - values.double().mean()
        mine = torch.stack(
            [torch.tensor(float(values.numel())), values.double().mean(), centred.square().sum()]
        )
    count, mean, squares = 0.0, 0.0, 0.0
    for part in gather(mine) if gather is not None else [mine]:
        n, m, s = (float(x) for x in part)
        if n == 0:
            continue
        delta, total = m - mean, count + n
        squares += s + delta * delta * count * n / total
        mean += delta * n / total
        count = total
    return count, mean, squares / count if count else 0.0


def normalize(
    values: Tensor,
    mask: Tensor,
    groups: Sequence[Hashable] | None = None,
    dist: Gather | None = None,
) -> Tensor:
    """Global advantage normalization: A = (x − mean) · max(var, 1e-8)^−½ over the masked tokens.

    Parameters
    ----------
    values : float [t], returns of the tokens of all agents, tasks and (through `dist`) ranks.
    mask : bool [t]; the others get 0 and count in no statistic.
    groups : for each token the scope within which to normalize; None = one scope. With `dist`, every
        rank must hold the same set of groups.
    dist : gathers across data-parallel ranks.

    Returns float32 [t]. A scope whose values differ by less than `FLAT_STD` gets 0 and a warning.
    """
    out = torch.zeros(values.shape, dtype=torch.float64)
    names: Sequence[Hashable] = groups if groups is not None else [None] * len(values)
    for name in sorted(set(names), key=str):
        inside = mask & torch.tensor([other == name for other in names], dtype=torch.bool)
        count, mean, variance = moments(values[inside], dist)
        if count and variance**0.5 < FLAT_STD:
            log.warning("returns of scope %s are all alike (std %.1e): no advantage", name, variance**0.5)
            continue
        if count:
            out[inside] = (values[inside].double() - mean) * max(variance, 1e-8) ** -0.5
    return out.float()
