"""REINFORCE++ (Hu et al., arXiv 2501.03262): one global baseline and one global scale, no groups.

A_t = (R_t − mean(R)) · max(var(R), 1e-8)^−½,  R_t = G_i − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

with mean and population variance over the tokens of the scope of `--norm`: by default all agents and tasks
of a step, through one baseline and one scale. The default, and the paper's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mappa_train.algorithms import ActionReturns, Algorithm, register_algorithm

if TYPE_CHECKING:
    from torch import Tensor


@register_algorithm("reinforce_pp")
class ReinforcePP(Algorithm):
    """A = whiten(R)."""

    def advantages(self, batch: ActionReturns) -> Tensor:
        return batch.whiten(batch.tokens(batch.returns))
