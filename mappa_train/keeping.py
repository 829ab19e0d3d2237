"""Which checkpoints of a run stay, and which of them is the best.

Best is where `eval/outcome` of metrics.jsonl is highest, the first of equals: the mean outcome on val tasks,
in which a failed attempt counts 0, so that none wins by failing where others meet what is hard. `best` beside
the checkpoints is a link to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_envs.errors import ConfigError
from mappa_train.checkpoint import RunFolder, show_steps
from mappa_train.config import did_you_mean
from mappa_train.report import write_report

BEST_BY = "eval/outcome"
BEST_LINK = "best"

Line = Mapping[str, Any]


def best_step(lines: Sequence[Line], steps: Sequence[int]) -> int | None:
    """The best of the checkpoints of these steps by the lines of metrics.jsonl; None if none was measured."""
    measured = [line for line in lines if line["step"] in steps and line.get(BEST_BY) is not None]
    return max(measured, key=lambda line: (line[BEST_BY], -line["step"]))["step"] if measured else None


def tidy(run: RunFolder, keep: int) -> None:
    """Mark the best checkpoint; with `keep`, delete all but the newest that many and the best."""
    steps = run.steps()
    best = best_step(run.read_metrics(), steps)
    if best is not None:
        _link(run, best)
    for step in steps[:-keep] if keep else []:
        if step != best:
            run.remove_checkpoint(step)


def put_in_order(run: RunFolder, keep: int) -> None:
    """Do what a run left undone that was killed behind its last checkpoint: `tidy`, scratch, the report.

    Raises `ConfigError` while another process writes to the run.
    """
    run.lock()
    run.truncate(run.latest() or 0)
    tidy(run, keep)
    write_report(run.path)


def pick_step(run: RunFolder, text: str | None) -> int | None:
    """The step of the checkpoint that `--step` names: a number or `best`. None stands for the newest.

    Raises `ConfigError` if there is no such checkpoint.
    """
    if text is None:
        return None
    steps = run.steps()
    if text == BEST_LINK:
        best = best_step(run.read_metrics(), steps)
        if best is None:
            raise ConfigError(
                "--step best: no checkpoint was measured on val tasks; train with --eval-every, or give the "
                f"number of a step; {_there_are(steps)}"
            )
        return best
    try:
        step = int(text)
    except ValueError:
        raise ConfigError(
            f"--step {text}: must be the number of a step with a checkpoint, or `best`, or left out for the "
            f"newest{did_you_mean(text, [BEST_LINK])}; {_there_are(steps)}"
        ) from None
    if step not in steps:
        raise ConfigError(f"--step {step}: no such checkpoint; {_there_are(steps)}")
    return step


def _there_are(steps: Sequence[int]) -> str:
    return f"there are those of step {show_steps(steps)}" if steps else "there is none yet"


def _link(run: RunFolder, step: int) -> None:
    """Point `checkpoints/best` there. Without it on file systems that know no links: figures decide."""
    link, target = run.checkpoints_path / BEST_LINK, run.checkpoint_path(step).name
    if link.is_symlink() and os.readlink(link) == target:
        return
    scratch = run.checkpoints_path / f".{BEST_LINK}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(target)
        scratch.replace(link)
