"""What a helper process of `grader_process` runs.

Apart from it, because this module imports what only the metrics need: at its start, so that the import does
not count towards the time of the first submission.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scipy.stats  # noqa: F401
import sklearn.metrics  # noqa: F401

from mappa_envs.dsbench.grading import TaskSpec, judge
from mappa_envs.errors import DataError


def judge_here(submission: bytes, *, answers: str, folder: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict and the figures, as JSON values. `folder` is where a relative path starts."""
    try:
        verdict, figures = judge(submission, Path(folder, answers), TaskSpec(**spec))
    except DataError as error:
        return {"data_error": str(error)}
    return {"grade": dataclasses.asdict(verdict), "figures": figures}
