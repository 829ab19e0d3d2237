"""How a run shows on the screen what it does: plain lines, and the live table."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from run_fakes import AGENTS, make_line

from mappa_train import progress


def test_a_sign_of_life_names_the_step_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PHASE_INTERVAL_S", 0.0)
    shown = io.StringIO()
    plain = progress.PlainProgress(Console(file=shown))
    plain.phase("rollout", 3, 8)
    plain.start(2, AGENTS)
    plain.phase("learn", 1, 2)
    lines = shown.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("rollout 3/8 episodes", "step 1/2: learn 1/2 agents")
    plain.phase("eval", 1, 4)
    plain.step({"step": 1, "eval/outcome": 0.256})
    assert "step 1/2: eval 1/4 episodes" in shown.getvalue()
    assert "val outcome 0.26" in shown.getvalue()


def test_the_live_table_has_the_newest_measurement_on_val_tasks() -> None:
    console = Console(file=io.StringIO(), width=100)
    live = progress.LiveProgress(console)
    live.step(make_line(1))
    console.print(live._render())
    assert "val" not in console.file.getvalue()  # type: ignore[attr-defined]
    for step, outcome in ((2, 0.25), (4, 0.5)):
        live.step(make_line(step) | {"eval/outcome": outcome, "eval/success_rate": 2 * outcome})
        live.step(make_line(step + 1))
    console.print(live._render())
    words = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"outcome on val \(step 2, 4\) +0\.25 +0\.50", words)
    assert re.search(r"success on val \(step 2, 4\) +50 % +100 %", words)
