"""`grading.judge` in a helper process (`grader_helper`), for submissions that come from agents.

A submission that takes too much processor time or memory is `too_large`. A fault of the helper itself, or a
machine that gives it no processor, raises (`SandboxError`): that is not the agent's.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from mappa_envs.child import HelperOutOfMemory, HelperPool, HelperTimeout
from mappa_envs.dsbench.grading import Figures, Grade, TaskSpec
from mappa_envs.dsbench.metrics import REPORT_KEYS
from mappa_envs.errors import DataError, SandboxError, boundary

TIMEOUT_S = 20.0
"""The most processor time for a submission; what is written with `DataFrame.to_csv` takes milliseconds."""

TIMEOUT_S_PER_MB = 2.0
"""More time for each MB of answers: a right submission is as long as they are."""

WAIT_FACTOR = 10.0
"""How many times as long as its processor time a verdict may take; after that the machine is at fault."""

MEMORY_MB = 4096

_helpers = HelperPool("mappa_envs.dsbench.grader_helper", memory_mb=MEMORY_MB)


async def judge_apart(submission: bytes, answers: Path, spec: TaskSpec) -> tuple[Grade, Figures]:
    """The verdict on a submission and its figures, as `grading.judge` gives them.

    Raises `DataError` on unusable answers, `SandboxError` when the helper process failed or got no processor.
    """
    limit_s = _limit_s(answers)
    arguments = {
        "answers": str(answers),
        "folder": os.getcwd(),
        "spec": dataclasses.asdict(spec),
        "limit_s": limit_s,
    }
    try:
        with boundary(SandboxError, "grading a submission", HelperTimeout):
            found = await _helpers.acall(
                "judge_here", arguments, data=submission, timeout_s=WAIT_FACTOR * limit_s
            )
    except HelperOutOfMemory:
        return _refused("the submission takes too much memory to read")
    if "too_long" in found:
        return _refused(f"the submission takes more than {limit_s:g} s of processor time to read")
    if "data_error" in found:
        raise DataError(found["data_error"])
    grade = found["grade"]
    return Grade(**{**grade, "warnings": tuple(grade["warnings"])}), found["figures"]


def _limit_s(answers: Path) -> float:
    try:
        return max(TIMEOUT_S, TIMEOUT_S_PER_MB * answers.stat().st_size / 2**20)
    except OSError as error:
        raise DataError(f"{answers}: the answers cannot be read: {error}") from error


def _refused(what: str) -> tuple[Grade, Figures]:
    advice = "write one row for each row of test.csv, with the id and the predictions only"
    return Grade(False, "too_large", None, (), f"{what}: {advice}"), dict.fromkeys(REPORT_KEYS)
