"""An algorithm of a user's own, whose module brings the coach `taste`: it scores by the words alone.

For runs in processes of their own: `--algorithm taste:Taste --coach taste`, with this folder on PYTHONPATH.
TASTE=RANK:WHAT lets something happen to a rank (or `none`: a process that is no rank, as rollout workers are)
when its coach is first asked: crash, killed or hang.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time

from mappa_envs.coach import register_coach
from mappa_envs.coach.base import CoachRequest
from mappa_envs.testing import FakeCoach
from mappa_train.algorithms.reinforce_pp import ReinforcePP


class Taste(ReinforcePP):
    """REINFORCE++ under another name."""


def taste(request: CoachRequest) -> float:
    """A score that repeats."""
    rank, _, what = os.environ.get("TASTE", "").partition(":")
    if rank and rank == os.environ.get("RANK", "none"):
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "crash":
            raise RuntimeError("this rank was told to crash")
        time.sleep(600)
    return hashlib.sha256(request.turn.action.encode()).digest()[0] / 25.5


register_coach("taste", lambda: FakeCoach(taste))
