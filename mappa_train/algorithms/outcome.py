"""The sparse baseline: REINFORCE++ on the outcome of the episode alone; what a coach scored is not used.

A_t = whiten(R)_t,  R_t = outcome of the episode − β Σ_{t'≥t} (log π_old − log π_ref)_{t'}

Every action of an episode gets the same G, whoever helped or harmed.
"""

from __future__ import annotations

from mappa_train.algorithms import register_algorithm
from mappa_train.algorithms.reinforce_pp import ReinforcePP


@register_algorithm("outcome")
class Outcome(ReinforcePP):
    """A = whiten(R), with G = the episode's outcome."""

    fixed = {"returns": "outcome"}  # noqa: RUF012  (typed in the base class)
