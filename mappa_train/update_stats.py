"""What an update of one policy showed, over all ranks; and what of it is of which agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from tensordict import TensorDict
from torch import Tensor

from mappa_train.credit import Gather
from mappa_train.credit_log import ActionCredit
from mappa_train.types import SampleCredit, UpdateStats


@dataclass(frozen=True, kw_only=True)
class AdvantageStats:
    """Token returns before normalization, and what became of each action, over all agents and ranks."""

    mean: float | None
    std: float | None
    actions: tuple[ActionCredit, ...]


def pooled_stats(
    packs: Sequence[TensorDict | Mapping[str, Tensor]],
    gather: Gather,
    *,
    losses: Sequence[float],
    norms: Sequence[float],
    clips: tuple[int, int],
    lr: float,
) -> UpdateStats:
    """The figures of all ranks' `packs`.

    `losses` and `norms`, of each optimizer step, are of all ranks already. `clips` are this rank's tokens
    where the clip acted, and all where it could have acted.
    """

    def of_tokens(key: str) -> Tensor:
        return torch.cat([torch.empty(0), *(pack[key] for pack in packs)])

    kl, entropy = of_tokens("old_logprobs") - of_tokens("ref_logprobs"), of_tokens("entropy")
    means = [float(kl.mean()), float(entropy.mean())] if packs else [0.0, 0.0]
    num_actions = sum(len(pack["members"]) for pack in packs)
    mine = torch.tensor([len(kl), num_actions, *clips, *means], dtype=torch.float64)
    parts = torch.stack(list(gather(mine)))
    num_tokens, actions, clipped, could_clip = (int(total) for total in parts[:, :4].sum(0))
    # Of one rank, the share is exactly 1.
    shares = parts[:, 0] / max(num_tokens, 1)
    kl_mean, entropy_mean = (float((shares * parts[:, k]).sum()) for k in (4, 5))
    return UpdateStats(
        num_tokens=num_tokens,
        num_actions=actions,
        loss=sum(losses) / len(losses) if losses else None,
        kl=kl_mean if num_tokens else None,
        clipfrac=clipped / could_clip if could_clip else None,
        entropy=entropy_mean if num_tokens else None,
        grad_norm=sum(norms) / len(norms) if norms else None,
        lr=lr,
    )


def of_each_actor(
    update: UpdateStats,
    packs: Sequence[TensorDict],
    samples: Sequence[SampleCredit],
    agents: Sequence[str],
    gather: Gather,
) -> dict[str, UpdateStats]:
    """The figures of a policy's update by the agents that act with it; `packs` are this rank's.

    Counts, KL and entropy are of each agent's own actions. The rest is the policy's, since its gradient is
    one. A pack's `members` are places in `samples`.
    """
    if len(agents) == 1:
        return {agents[0]: update}
    found = {}
    for agent in agents:
        mine = [part for pack in packs if len((part := _part_of(agent, pack, samples))["members"])]
        own = pooled_stats(mine, gather, losses=(), norms=(), clips=(0, 0), lr=update.lr)
        found[agent] = replace(own, loss=update.loss, grad_norm=update.grad_norm, clipfrac=update.clipfrac)
    return found


def _part_of(agent: str, pack: TensorDict, samples: Sequence[SampleCredit]) -> dict[str, Tensor]:
    """What `pooled_stats` needs of a pack, for the actions of one agent."""
    members = pack["members"]
    is_mine = torch.tensor([samples[k].action.agent == agent for k in members.tolist()], dtype=torch.bool)
    tokens = is_mine.repeat_interleave(pack["lengths"])
    names = ("old_logprobs", "ref_logprobs", "entropy")
    return {"members": members[is_mine], **{name: pack[name][tokens] for name in names}}
