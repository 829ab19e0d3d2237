"""How good an outcome is, where blame depends on it."""

from __future__ import annotations

from mappa_envs.types import Outcome

DISAPPOINTING, GOOD, GOOD_FIT = 0.5, 0.9, 0.9
"""Of the relative score; the last one of the ROC-AUC or R² where there is none."""


def is_poor(outcome: Outcome) -> bool:
    """A valid submission that is no better than a guess."""
    figures = outcome.metrics
    if not outcome.success:
        return False
    if (relative := figures.get("relative")) is not None:
        return relative <= 0
    if (area := figures.get("roc_auc")) is not None:
        return area < 0.55
    if (error := figures.get("rmse_pct")) is not None:
        return error > 50
    return (r2 := figures.get("r2")) is not None and r2 <= 0


def is_good(outcome: Outcome) -> bool:
    """So near to a good model that no mistake of any weight can be in the submission."""
    figures = outcome.metrics
    if (relative := figures.get("relative")) is not None:
        return outcome.success and relative >= GOOD
    return outcome.success and any((figures.get(name) or 0.0) >= GOOD_FIT for name in ("roc_auc", "r2"))


def disappoints(outcome: Outcome) -> bool:
    """Invalid, poor, or less than half way from a guess to a good model."""
    relative = outcome.metrics.get("relative")
    return not outcome.success or is_poor(outcome) or (relative is not None and relative < DISAPPOINTING)
