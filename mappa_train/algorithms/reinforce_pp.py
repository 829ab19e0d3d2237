"""REINFORCE++: the clipped surrogate on whitened token advantages, as a TorchRL `LossModule`.

Of TorchRL only the conventions of `LossModule` (keys in, keys out, one TensorDict) serve here: it has no
REINFORCE++, its GRPO loss misaligns ragged advantages, and its PPO mean counts masked tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torchrl.objectives.common import LossModule

from mappa_train.packing import Pack
from mappa_train.policies import hidden_states

LOGIT_CHUNK = 512
"""Tokens whose logits exist at once: [512, vocabulary] floats."""
MAX_IMPORTANCE = 2.0


def pack_from(record: TensorDictBase) -> Pack:
    """The pack of one record of the replay buffer."""
    return Pack(
        ids=record["ids"],
        positions=record["positions"],
        segment=record["segment"],
        parent=record["parent"],
        predictors=record["predictors"],
        targets=record["targets"],
        members=(),
        lengths=(),
    )


def token_logprobs(
    model: Any, pack: Pack, temperature: float, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log π(target) at each response token of the pack, float32 [t]; and the entropy there, if asked for.

    Logits are made for response tokens only, in chunks that the backward pass makes again.
    """
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = body.lm_head.weight
    hidden = hidden_states(model, pack)
    targets = pack.targets.to(hidden.device)

    def chunk(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(h.device.type, dtype=torch.bfloat16):
            logits = h @ head.t()
        logits = logits.float() / temperature
        total = logits.logsumexp(dim=-1)
        spread = total - ((logits - total[:, None]).exp() * logits).sum(dim=-1) if entropy else None
        return logits.gather(1, t[:, None])[:, 0] - total, spread

    parts = [
        checkpoint(chunk, h, t, use_reentrant=False) if torch.is_grad_enabled() else chunk(h, t)
        for h, t in zip(torch.split(hidden, LOGIT_CHUNK), torch.split(targets, LOGIT_CHUNK), strict=True)
    ]
    spreads = [p[1] for p in parts if p[1] is not None]
    return torch.cat([p[0] for p in parts]), torch.cat(spreads) if entropy else None


class ReinforcePPLoss(LossModule):  # type: ignore[misc]  # untyped base
    """Loss of one micro-batch (pack) of one agent.

    L = −Σ_t w_t · min(ρ_t A_t, clip(ρ_t, 1−ε, 1+ε) A_t) / N, with ρ_t = π / π_old and the detached weight
    w_t = min(π_old / π_sampler, 2) where the sampler's arithmetic differs from the learner's. N, the
    number of trained tokens of the whole optimizer batch, comes with the record (`num_tokens`): the mean
    is over tokens, not over sequences or micro-batches, and w does not change it.
    """

    in_keys = ("ids", "positions", "segment", "parent", "predictors", "targets")
    out_keys = ("loss_objective", "clipped", "max_log_ratio")

    def __init__(self, model: Any, *, clip: float, temperature: float) -> None:
        super().__init__()
        # Not registered as a submodule: the adapters of the other agents are not this loss's parameters.
        object.__setattr__(self, "model", model)
        self.clip = clip
        self.temperature = temperature

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """`loss_objective` [] with gradient; `clipped` [] tokens where the clip acted; `max_log_ratio` []."""
        logprobs, _ = token_logprobs(self.model, pack_from(tensordict), self.temperature)
        old = tensordict["old_logprobs"].to(logprobs.device)
        sampler = tensordict["sampler_logprobs"].to(logprobs.device)
        advantage = tensordict["advantages"].to(logprobs.device)
        trained = tensordict["trained"].to(logprobs.device)
        log_ratio = logprobs - old
        ratio = log_ratio.clamp(-20, 20).exp()
        plain = ratio * advantage
        bounded = ratio.clamp(1 - self.clip, 1 + self.clip) * advantage
        weight = (old - sampler).exp().clamp(max=MAX_IMPORTANCE)
        surrogate = torch.where(trained, weight * torch.minimum(plain, bounded), 0.0)
        return TensorDict(
            loss_objective=-surrogate.sum() / tensordict["num_tokens"].item(),
            clipped=((bounded < plain) & trained).sum().detach(),
            max_log_ratio=log_ratio.detach().abs().max(),
        )
