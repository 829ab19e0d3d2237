"""How a run shows on the screen what it does: plain lines, and the live table."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from run_fakes import AGENTS, make_line, make_run

from mappa_train import progress


@pytest.fixture
def quick_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life in hundredths of a second."""
    monkeypatch.setattr(progress, "PHASE_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "_LOOK_S", 0.005)


def test_a_sign_of_life_names_step_and_time_of_the_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("mappa_train.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = io.StringIO()
    plain = progress.PlainProgress(Console(file=shown))
    plain.stop()  # no thread: time is told by hand here
    plain.phase("rollout", 3, 8)
    now[0] = 20.0
    assert plain._sign_of_life(*plain._phase) == "rollout 3/8 episodes, 20s"
    plain.start(2, AGENTS)
    plain.phase("learn", 0, 2)
    now[0] = 85.0
    plain.phase("learn", 1, 2)
    assert plain._sign_of_life(*plain._phase) == "step 1/2: learn 1/2 agents, 1m05s"
    plain.phase("eval", 1, 4)
    assert plain._sign_of_life(*plain._phase) == "step 1/2: eval 1/4 episodes, 0s"
    plain.step({"step": 1, "eval/outcome": 0.256})
    assert "val outcome 0.26" in shown.getvalue()


def test_a_sign_of_life_comes_although_nobody_calls_and_none_after_the_end(
    quick_signs: None, tmp_path: Path
) -> None:
    shown = io.StringIO()
    plain = progress.PlainProgress(Console(file=shown))
    plain.phase("rollout", 0, 8)
    while shown.getvalue().count("rollout 0/8 episodes, ") < 3:
        time.sleep(0.001)
    plain.stop()
    assert not plain._speaker.is_alive()
    plain.phase("rollout", 1, 8)
    plain.finish(None, None, tmp_path)
    plain.stop()
    assert shown.getvalue().splitlines()[-2:] == [
        f"run:    {tmp_path}",
        f"report: {tmp_path / 'report.html'}",
    ]


def test_a_reader_who_leaves_ends_the_run_at_its_next_step_and_interrupts_nothing(
    quick_signs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `python -m mappa_train | head -1`."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    plain = progress.PlainProgress(Console(file=Gone()))
    # As rich does, but for pointing this process's stdout elsewhere.
    monkeypatch.setattr(plain.console, "on_broken_pipe", lambda: sys.exit(1))
    plain.phase("rollout", 0, 8)
    plain._speaker.join(60)
    assert not plain._speaker.is_alive()
    plain.stop()
    for speak in (
        lambda: plain.phase("rollout", 1, 8),
        lambda: plain.say("a"),
        lambda: plain.step(make_line(1)),
    ):
        with pytest.raises(BrokenPipeError):
            speak()


def test_the_live_table_keeps_its_header_beside_the_bar() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    live = progress.LiveProgress(console)
    live.step(make_line(1))
    console.print(live._render())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in plain.splitlines()]
    assert set(lines[1]) <= set("━╸╺")
    assert lines[2].split("  ")[-2:] == ["first step", "last step"]


def test_one_step_is_not_compared_with_itself(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    run = make_run(tmp_path / "run", steps=2)
    first, last = run.read_metrics()
    console.print(progress.comparison(first, first, AGENTS, run.path))
    words = console.file.getvalue()  # type: ignore[attr-defined]
    assert (words.count("step 1"), words.count("+"), words.count("change")) == (1, 0, 0)
    console.print(progress.comparison(first, last, AGENTS, run.path))
    assert "change" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_opening_can_be_pasted_and_steers_no_terminal() -> None:
    words = progress.opening(Path("runs/a b\x1b[2J"), "tiny", "cpu")
    assert words.endswith("tiny on cpu; look at it: python -m mappa_train view 'runs/a b\ufffd[2J'")


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
    assert re.search(r"success rate on val \(step 2, 4\) +50 % +100 %", words)
