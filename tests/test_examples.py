"""Every example runs as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_expert_team_is_evaluated() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "evaluate_team.py", "--tasks", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 2}
    assert rows["episodes"].split("│")[2].strip() == "2"
    assert rows["success, %"].split("│")[2].split() == ["100", "[34,", "100]"]
    assert done.stdout.count("runs") >= 1
