"""GRPO (Shao et al., arXiv 2402.03300): each action against its group, in units of the group's spread.

A_t = (G_i − mean(G of the group)) / (std(G of the group) + 1e-6) − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

with the sample standard deviation. In a group of one, or where all returns are alike, the first term is 0.
GRPO to the letter has its penalty in the loss and its mean over sequences: `--kl loss --loss-mean sequence`.
What speaks against it here: in a team the actions of a group follow on different inputs, since the teammates
before them acted differently, and dividing by a group's spread makes the easy and the hopeless tasks loudest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mappa_train.algorithms import FLAT_STD, ActionReturns, Algorithm, register_algorithm

if TYPE_CHECKING:
    from torch import Tensor


@register_algorithm("grpo")
class GRPO(Algorithm):
    """A = (G − mean) / (std + 1e-6) within the group."""

    fixed = {"norm": "none"}  # noqa: RUF012  (typed in the base class)
    compares = True
    epsilon: ClassVar[float] = 1e-6
    """Added to the standard deviation."""

    def advantages(self, batch: ActionReturns) -> Tensor:
        std = batch.group_std()
        scaled = (batch.returns - batch.group_mean()) / (std + self.epsilon)
        return batch.tokens(scaled.where(std >= FLAT_STD, 0.0))
