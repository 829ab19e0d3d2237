"""The clipped surrogate on the bare returns: neither a baseline nor a scale. For comparison.

A_t = R_t = G_i − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

Scores are never negative, so that every action becomes likelier, good ones more so: what whitening is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mappa_train.algorithms import ActionReturns, Algorithm, register_algorithm

if TYPE_CHECKING:
    from torch import Tensor


@register_algorithm("ppo_clip")
class PPOClip(Algorithm):
    """A = R."""

    fixed = {"norm": "none"}  # noqa: RUF012  (typed in the base class)

    def advantages(self, batch: ActionReturns) -> Tensor:
        return batch.tokens(batch.returns)
