"""Every example runs as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_expert_team_plays_an_episode() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "expert_team.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "success True" in done.stdout
    assert done.stdout.count("score") == 3
