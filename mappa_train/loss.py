"""The policy loss, as a TorchRL `LossModule`, and the logprobs that it is made of.

Of TorchRL only the conventions of `LossModule` (keys in, keys out, one TensorDict) serve here: it has no
REINFORCE++, its GRPO loss misaligns ragged advantages, and its PPO mean counts masked tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torchrl.objectives.common import LossModule

from mappa_envs.errors import ConfigError
from mappa_train.algorithms import ActionReturns, Algorithm
from mappa_train.packing import Pack
from mappa_train.policies import hidden_states

LOGIT_CHUNK = 128
"""Tokens whose logits exist at once: [128, vocabulary] floats."""
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

    Logits are made for response tokens only, in chunks that the backward pass makes again. A float64 model
    gives float64.
    """
    if isinstance(model, LogprobModule | DistributedDataParallel):
        found: tuple[Tensor, Tensor | None] = model(pack, temperature, entropy=entropy)
        return found
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = body.lm_head.weight
    hidden = hidden_states(model, pack)
    targets = pack.targets.to(hidden.device)

    def chunk(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(h.device.type, dtype=torch.bfloat16):
            logits = h @ head.t()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        total = logits.logsumexp(dim=-1)
        spread = total - ((logits - total[:, None]).exp() * logits).sum(dim=-1) if entropy else None
        return logits.gather(1, t[:, None])[:, 0] - total, spread

    parts = [
        checkpoint(chunk, h, t, use_reentrant=False) if torch.is_grad_enabled() else chunk(h, t)
        for h, t in zip(torch.split(hidden, LOGIT_CHUNK), torch.split(targets, LOGIT_CHUNK), strict=True)
    ]
    spreads = [p[1] for p in parts if p[1] is not None]
    return torch.cat([p[0] for p in parts]), torch.cat(spreads) if entropy else None


class LogprobModule(nn.Module):
    """`token_logprobs` of a model as the forward of a module.

    DDP and FSDP act in the forward of what they wrap: a head that is used outside takes no part.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, pack: Pack, temperature: float, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The same as `token_logprobs`."""
        return token_logprobs(self.model, pack, temperature, entropy=entropy)


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The k3 estimate of KL(π ‖ π_ref) at sampled tokens, [t]: π_ref/π − 1 − log(π_ref/π), never negative."""
    difference = (ref_logprobs - logprobs).clamp(-20, 20)
    return difference.expm1() - difference


def find_advantages(algorithm: Algorithm, batch: ActionReturns) -> Tensor:
    """What the algorithm makes of a batch, float32 [t]. Raises `ConfigError` if it is not that.

    An algorithm may be anybody's; what goes into it is finite, so that what is not is its own making.
    """
    who, found = f"{type(algorithm).__name__}.advantages", algorithm.advantages(batch)
    if not isinstance(found, Tensor) or found.shape != batch.penalties.shape:
        raise ConfigError(
            f"{who} returned {_shown(found)} for {len(batch.penalties)} tokens: return a tensor of one "
            "finite number a token"
        )
    found = found.float()
    if bad := int((~found.isfinite()).sum()):
        raise ConfigError(
            f"{who} returned numbers of which {bad} of {len(found)} are not finite: return one finite number "
            "a token"
        )
    return found


def find_surrogate(
    algorithm: Algorithm, log_ratio: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """What the algorithm maximises, and where its clip acted, each [t]. Raises `ConfigError` if not that."""
    found: object = algorithm.surrogate(log_ratio, advantages, clip)
    parts = found if isinstance(found, tuple) else (found,)
    if len(parts) != 2 or any(not isinstance(p, Tensor) or p.shape != log_ratio.shape for p in parts):
        raise ConfigError(
            f"{type(algorithm).__name__}.surrogate returned {' and '.join(map(_shown, parts))} for "
            f"{len(log_ratio)} tokens: return two tensors, one number a token: "
            "what is maximised, and where the clip acted"
        )
    return parts[0], parts[1]


def _shown(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return f"what is no tensor ({type(found).__name__})"


class PolicyLoss(LossModule):  # type: ignore[misc]  # untyped base
    """Loss of one micro-batch (pack) of one agent.

    L = Σ_t c_t (−w_t · s_t + β · k3_t) / N. s_t is the algorithm's surrogate. The detached w_t =
    min(π_old / π_sampler, 2) is for a sampler whose arithmetic differs from the learner's. β is 0 unless the
    KL penalty is in the loss. c_t and N are `weights` and `denominator` of the record: for a mean over
    tokens, 1 and the tokens of the whole optimizer batch; for one over sequences, 1 / (length of the action)
    and the actions of the batch. So neither micro-batches nor w change what is divided by.
    """

    in_keys = ("ids", "positions", "segment", "parent", "predictors", "targets")
    out_keys = ("loss_objective", "clipped", "max_log_ratio")

    def __init__(
        self, model: Any, algorithm: Algorithm, *, clip: float, temperature: float, beta: float = 0.0
    ) -> None:
        super().__init__()
        # Not registered as a submodule: the adapters of the other agents are not this loss's parameters.
        object.__setattr__(self, "model", model)
        self.algorithm = algorithm
        self.clip = clip
        self.temperature = temperature
        self.beta = beta

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """`loss_objective` [] with gradient; `clipped` [] tokens where the clip acted; `max_log_ratio` []."""
        logprobs, _ = token_logprobs(self.model, pack_from(tensordict), self.temperature)

        def of_record(key: str) -> Tensor:
            value: Tensor = tensordict[key]
            return value.to(logprobs.device)

        old, weights = of_record("old_logprobs"), of_record("weights")
        log_ratio = logprobs - old
        surrogate, clipped = find_surrogate(self.algorithm, log_ratio, of_record("advantages"), self.clip)
        importance = (old - of_record("sampler_logprobs")).exp().clamp(max=MAX_IMPORTANCE)
        loss = -importance * surrogate
        if self.beta:
            loss = loss + self.beta * k3(logprobs, of_record("ref_logprobs"))
        return TensorDict(
            loss_objective=(loss * weights).sum() / tensordict["denominator"].item(),
            clipped=clipped.sum().detach(),
            max_log_ratio=log_ratio.detach().abs().max(),
        )
