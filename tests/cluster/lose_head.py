"""A run that kills the head of its own Ray in the middle of a step: MODEL OUT ASKED.

ASKED is the number of the coach's verdict before which it does so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import processes
from processes import MARK
from test_main_job import ONE_BY_ONE, Taste, run_it, settings


def kill_head() -> None:
    mark = f"{MARK}=head".encode()
    found = processes.find(lambda title, env: "gcs_server" in title.split()[0] and mark in env)
    assert len(found) == 1, found
    processes.kill(found)
    time.sleep(600)  # without the verdict, nothing but the loss of the head can end this


if __name__ == "__main__":
    model, out, asked = sys.argv[1:]
    Taste.deeds = {int(asked): kill_head}
    run_it(settings(Path(model), Path(out), **ONE_BY_ONE, num_rollout_workers=1))
