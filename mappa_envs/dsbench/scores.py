"""The figures of an evaluation of DSBench, with the fair ones, in which a failed run counts, too.

    >>> figures(episodes)["fair_accuracy"]
    0.719

A run fails when it leaves no valid submission. The plain figures are means over the runs that did not fail,
so a team that fails on the hard tasks can only gain by it; the fair ones count every run. Where a valid
submission itself leaves a figure undefined, the run counts there as if it had failed: scores that are no
probabilities have no accuracy and no F1, numbers too large to be squared have no RMSE.

| task type | plain | fair, and what a failed run gets |
|---|---|---|
| classification | `accuracy`, `f1`, `roc_auc` | `fair_accuracy` 0.5, `fair_f1` 0 |
| regression | `mae`, `mae_pct`, `rmse`, `rmse_pct`, `r2` | `fair_mae_pct` 50, `fair_rmse_pct` 50 |

`rmse_pct` and `mae_pct` are in percent of the range of the true values; they may exceed 50, since a
submission can be worse than none. The values of failed runs are those of the MAPPA paper, which has no
`mae_pct`. `mae` and `rmse` are in the units of each task's target: read them task by task, as their mean over
several tasks depends on those units, and nothing fair can be said for a failed run. For other task types
nothing is defined. Of a figure that the task leaves undefined (percent of a range of 0), the run is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappa_envs.stats import mean
from mappa_envs.types import Episode

PLAIN = {
    "classification": ("accuracy", "f1", "roc_auc"),
    "regression": ("mae", "mae_pct", "rmse", "rmse_pct", "r2"),
}
"""Task type → the figures that apply to it."""

FAILED = {"accuracy": 0.5, "f1": 0.0, "mae_pct": 50.0, "rmse_pct": 50.0}
"""What a failed run gets in the fair version of a figure."""


def figures(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """All figures of these episodes, plain and fair, always the same keys; None = not defined here."""
    plain: dict[str, float | None] = {}
    fair: dict[str, float | None] = {}
    for task_type, names in PLAIN.items():
        mine = [episode for episode in episodes if episode.task_type == task_type]
        for name in names:
            plain[name] = mean(episode.metrics.get(name) for episode in mine if episode.success)
            if name in FAILED:
                fair[f"fair_{name}"] = mean(_fair(episode, name) for episode in mine)
    return plain | fair


def _fair(episode: Episode, name: str) -> float | None:
    found = episode.metrics.get(name)
    failed = not episode.success or (found is None and _spoils(episode))
    return FAILED[name] if failed else found


def _spoils(episode: Episode) -> bool:
    """Whether a valid submission, and not the task, is why a figure of its task type is undefined."""
    has = {name for name, value in episode.metrics.items() if value is not None}
    # Labels and probabilities have an accuracy, numbers that can be written down an RMSE.
    return not has & {"rmse", "accuracy"}
