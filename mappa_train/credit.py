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
from mappa_train.algorithms import FLAT_STD
from mappa_train.types import SampleCredit

log = logging.getLogger(__name__)

_Place = tuple[str, str, int]
"""A task, an agent, and which of its actions in an episode, from 0."""


class Gather(Protocol):
    """Collects a float64 tensor from every data-parallel rank, in rank order; each sends the same shape."""

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
    own score. Raises `ConfigError` on an unknown mode, `ValueError` on other shapes.
    """
    _check_shape("scored", scored, rewards)
    scored = scored.bool()
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


def _check_shape(name: str, flags: Tensor, values: Tensor) -> None:
    """Raise `ValueError` where one value would be spread over many flags, or the other way round."""
    if values.dim() != 1 or flags.shape != values.shape:
        shapes = f"{tuple(flags.shape)} beside values of {tuple(values.shape)}"
        raise ValueError(f"{name}: must have one entry for each value, both in one dimension, got {shapes}")


def token_returns(ret: float, logprobs: Tensor, ref_logprobs: Tensor, beta: float) -> Tensor:
    """The return of each token of one action: float64 [r].

    r_t = −β (log π_old − log π_ref)_t, with G added at the last token; undiscounted within the action:
    R_t = G − β Σ_{t'≥t} (log π_old − log π_ref)_{t'} (paper, REINFORCE++ with the penalty in the reward).
    """
    penalty = -beta * (logprobs.double() - ref_logprobs.double())
    return ret + penalty.flip(0).cumsum(0).flip(0)


def group_numbers(chosen: Sequence[SampleCredit], samples: Sequence[SampleCredit]) -> list[int]:
    """Which of the `chosen` samples are compared with each other, numbered from 0.

    A group is one agent's k-th actions of their episodes on one task: what it did in the same place.
    `samples` are all of the step, since those left out of learning count in k. Where only one episode comes
    to a k-th action, that joins the group of the (k−1)-th, and so on down. An action that meets no other
    episode even so is a group of one.
    """
    turns: dict[tuple[int, str], list[int]] = {}
    for s in samples:
        turns.setdefault((s.episode_index, s.action.agent), []).append(s.action.turn)
    places = [
        (s.task_id, s.action.agent, sorted(turns[s.episode_index, s.action.agent]).index(s.action.turn))
        for s in chosen
    ]
    episodes: dict[_Place, set[int]] = {}
    for place, s in zip(places, chosen, strict=True):
        episodes.setdefault(place, set()).add(s.episode_index)
    joined: dict[_Place, _Place] = {}
    for place in sorted(episodes, reverse=True):
        task_id, agent, k = place
        earlier = [j for j in range(k) if (task_id, agent, j) in episodes]
        if len(episodes[place]) == 1 and earlier:
            joined[place] = (task_id, agent, earlier[-1])
            episodes[joined[place]] |= episodes[place]
    numbers: dict[tuple[_Place, int], int] = {}
    found = []
    for i, place in enumerate(places):
        while place in joined:
            place = joined[place]
        alone = len(episodes[place]) == 1
        found.append(numbers.setdefault((place, i if alone else -1), len(numbers)))
    return found


def moments(values: Tensor, gather: Gather | None = None) -> tuple[float, float, float]:
    """Count, mean and population variance over all ranks, exactly: float64, centred, never Σx².

    `values` is float [t] of this rank and may be empty.
    """
    mine = torch.zeros(3, dtype=torch.float64)
    if values.numel():
        centred = values.double() - values.double().mean()
        # As float32, the count would lose tokens from 2^24 on.
        num_tokens = torch.tensor(values.numel(), dtype=torch.float64)
        mine = torch.stack([num_tokens, values.double().mean(), centred.square().sum()])
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
    groups: Sequence[Hashable] | Tensor | None = None,
    dist: Gather | None = None,
    *,
    scopes: Sequence[Hashable] | None = None,
    bare: Tensor | None = None,
    correction: int = 0,
) -> Tensor:
    """Global advantage normalization: A = (x − mean) · max(var, 1e-8)^−½ over the masked tokens.

    Parameters
    ----------
    values : float [t], returns of the tokens of all agents, tasks and (through `dist`) ranks.
    mask : bool [t]; the others get 0 and count in no statistic.
    groups : for each token the scope within which to normalize; None = one scope.
    dist : gathers across data-parallel ranks.
    scopes : all that `groups` may hold, on any rank; default: what it holds here, which with `dist` must
        then be the same on every rank.
    bare : the values without their KL penalty, float [t].
    correction : 0: population variance; 1: the sample variance (n − 1), as verl and TRL have it.

    Returns float32 [t]. A scope whose values, or bare values, differ by less than `FLAT_STD` gets 0 and a
    warning: else float noise, or a penalty that is meant to be small, would become all of the advantage.
    Raises `ValueError` on other shapes.
    """
    _check_shape("mask", mask, values)
    mask = mask.bool()  # numbers would be taken for places
    out = torch.zeros(values.shape, dtype=torch.float64)
    # The elements of a tensor are equal to no other.
    listed = groups.tolist() if isinstance(groups, Tensor) else groups
    names: Sequence[Hashable] = [None] * len(values) if listed is None else listed
    if len(names) != len(values):
        raise ValueError(f"groups: one for each of the {len(values)} values is needed, got {len(names)}")
    if scopes is None:
        scopes = sorted(set(names), key=str) if groups is not None else [None]
    numbers = {scope: k for k, scope in enumerate(scopes)}
    place = torch.tensor([numbers[name] for name in names], dtype=torch.int64)
    for scope, number in numbers.items():
        inside = mask & (place == number)
        count, mean, variance = moments(values[inside], dist)
        spread = variance if bare is None else min(variance, moments(bare[inside], dist)[2])
        if count > correction:
            variance *= count / (count - correction)
        if count and spread**0.5 < FLAT_STD:
            what = "all actions" if scope is None else f"the actions of {scope}"
            log.warning("the returns of %s are alike (std %.1e): no advantage", what, spread**0.5)
        elif count:
            out[inside] = (values[inside].double() - mean) * max(variance, 1e-8) ** -0.5
    return out.float()
