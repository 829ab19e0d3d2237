"""What a helper process of `grader_process` runs.

Apart from it, because this module imports what only the metrics need: at its start, so that the import does
not count towards the time of the first submission.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import scipy.stats  # noqa: F401
import sklearn.metrics  # noqa: F401

from mappa_envs.dsbench.grading import TaskSpec, judge
from mappa_envs.errors import DataError


class _TooLong(BaseException):
    """The processor time is used up. No `except Exception` on the way is to catch it."""


def judge_here(
    submission: bytes, *, answers: str, folder: str, spec: Mapping[str, Any], limit_s: float
) -> dict[str, Any]:
    """The verdict and the figures, as JSON values. `folder` is where a relative path starts.

    `limit_s` is of processor time: that the machine has other things to do is not the submission's fault.
    """
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s, 1)  # again each second: a finalizer drops it
    try:
        verdict, figures = judge(submission, Path(folder, answers), TaskSpec(**spec))
    except _TooLong:
        return {"too_long": True}
    except DataError as error:
        return {"data_error": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return {"grade": dataclasses.asdict(verdict), "figures": figures}


def _stop(number: int, frame: object) -> NoReturn:
    raise _TooLong
