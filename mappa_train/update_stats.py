"""What an update of one agent showed, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from mappa_train.credit import Gather
from mappa_train.types import UpdateStats


def pooled_stats(
    packs: Sequence[TensorDict],
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
