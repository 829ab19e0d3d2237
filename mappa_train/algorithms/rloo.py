"""RLOO (Ahmadian et al., arXiv 2402.14740): each action against the mean of the others of its group.

A_t = G_i − mean(G_j of the group, j ≠ i) − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

The baseline does not know the action itself, so that the gradient has no bias; nothing is scaled. In a group
of one the first term is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mappa_train.algorithms import ActionReturns, Algorithm, register_algorithm

if TYPE_CHECKING:
    from torch import Tensor


@register_algorithm("rloo")
class RLOO(Algorithm):
    """A = G − mean of the others."""

    fixed = {"norm": "none"}  # noqa: RUF012  (typed in the base class)
    compares = True

    def advantages(self, batch: ActionReturns) -> Tensor:
        others = (batch.group_size() - 1).clamp(min=1)
        # n / (n − 1) · (G − mean): the same as G − mean of the others, and 0 in a group of one.
        return batch.tokens((batch.returns - batch.group_mean()) * batch.group_size() / others)
