"""REINFORCE++ with a baseline: the mean return of the group is taken off first, then as REINFORCE++.

A_t = whiten(R)_t,  R_t = G_i − mean(G of the group of i) − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

Unlike GRPO it does not divide by the spread of each group: a task on which the samples hardly differ does not
get the weight of one that they differ on. In a group of one nothing is left but the penalty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mappa_train.algorithms import ActionReturns, Algorithm, register_algorithm

if TYPE_CHECKING:
    from torch import Tensor


@register_algorithm("reinforce_pp_baseline")
class ReinforcePPBaseline(Algorithm):
    """A = whiten(R − mean of the group)."""

    compares = True

    def advantages(self, batch: ActionReturns) -> Tensor:
        return batch.whiten(batch.tokens(batch.returns - batch.group_mean()))
