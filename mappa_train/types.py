"""The records that cross a boundary inside `mappa_train`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import Tensor

from mappa_envs.types import Episode


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt for one agent's current policy.

    `prompt_ids` are int64 [p]. `key` names the action for ever (seed, step, episode, turn): the
    sampling noise is drawn from it, so that batching changes nothing.
    """

    agent: str
    prompt_ids: Tensor
    key: tuple[int, int, int, int]

    @property
    def seed(self) -> int:
        """63 bits of the key's digest, for a generator of random numbers."""
        digest = hashlib.sha256(",".join(map(str, self.key)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was sampled: `token_ids` int64 [r] (the stop token included), `logprobs` float32 [r].

    `truncated` says that the length limit, not a stop token, ended it. `policy_version` counts the
    updates of the policy that sampled.
    """

    token_ids: Tensor
    logprobs: Tensor
    truncated: bool
    policy_version: int


@dataclass(frozen=True, kw_only=True)
class Action:
    """One sampled action with the exact ids it was conditioned on and made of. Nothing is tokenized twice."""

    agent: str
    turn: int
    prompt_ids: Tensor
    generation: Generation


@dataclass(frozen=True, kw_only=True)
class EpisodeRollout:
    """One finished episode and its actions in turn order (`actions[k].turn == episode.turns[k].index`).

    `index` counts the episodes of the run from 0 and never changes. `num_reruns` is how often a fault of the
    sandbox had ended it before: of those attempts nothing is kept.
    """

    index: int
    episode: Episode
    actions: tuple[Action, ...]
    num_reruns: int = 0


@dataclass(frozen=True, kw_only=True)
class SampleCredit:
    """An action with what it is worth: the input of the learner.

    `ret` is G_i of the credit rule (None: left out of learning, as unscored, masked or frozen).
    """

    action: Action
    task_id: str
    task_type: str
    episode_index: int
    ret: float | None


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """What one update of one agent showed.

    Means over the trained tokens of all ranks, those of `loss` and `grad_norm` over the optimizer steps;
    `lr` is the last one's. `kl` is log π_old − log π_ref (k1), in nats a token. `clipfrac` is None when there
    was one minibatch and one epoch, since the clip cannot act then.
    """

    num_tokens: int
    num_actions: int
    loss: float | None
    kl: float | None
    clipfrac: float | None
    entropy: float | None
    grad_norm: float | None
    lr: float
