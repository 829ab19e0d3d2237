"""The tables that a task gives, as far as agents left them alone. Runs inside the sandbox, in workers."""

from __future__ import annotations

import hashlib
import io
from typing import Any

from mappa_envs.dsbench.pickle_checks import Fault
from mappa_envs.dsbench.safe_pickle import read_bytes


def read_table(name: str, job: dict[str, Any]) -> Any:
    """train.csv or test.csv as a DataFrame, or None where it is large or not as the task gave it."""
    import pandas as pd

    try:
        data = read_bytes(name, job["max_compared_bytes"])
    except Fault:
        return None
    known = job[f"{name.removesuffix('.csv')}_sha256"]
    return pd.read_csv(io.BytesIO(data)) if hashlib.sha256(data).hexdigest() == known else None
