"""What the screen shows while a run goes on: a live table on a terminal, one line a step elsewhere.

No text of an agent is ever printed here, and nothing is read as markup.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mappa_envs.evaluation import artifact_rate
from mappa_train.checkpoint import RunFolder
from mappa_train.report import read_episodes
from mappa_train.run_log import harmless

Line = Mapping[str, Any]


PHASE_INTERVAL_S = 15.0
"""Between two lines about one step, where nobody watches a display."""
_LOOK_S = 1.0
"""How often it is looked at whether a line is due."""
_STOP_S = 5.0
"""What a line under way gets at the end; nobody may be reading the pipe."""


class Progress(Protocol):
    """Who is told how far a run is."""

    def start(self, total_steps: int, agents: Sequence[str], first_step: int = 1) -> None:
        """The run begins at `first_step` (more than 1: resumed)."""
        ...

    def phase(self, name: str, done: int, total: int) -> None:
        """Inside a step: "rollout" or "eval" with finished episodes, "learn" with updated agents; often.

        Without a `start` there are no steps, as when a checkpoint is measured.
        """
        ...

    def step(self, metrics: Line) -> None:
        """A step is finished; `metrics` is its line of metrics.jsonl."""
        ...

    def say(self, line: str) -> None:
        """Something that is worth a line, such as what a run takes up."""
        ...

    def finish(self, first: Line | None, last: Line | None, run_path: Path) -> None:
        """The run is over; `first` and `last` are lines of metrics.jsonl."""
        ...

    def stop(self) -> None:
        """Leave the screen alone from now on. May be called twice."""
        ...


def make_progress(console: Console) -> Progress:
    """The live display on a terminal, else plain lines."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class SilentProgress:
    """Shows nothing; for tests and for processes that are not the first."""

    def start(self, total_steps: int, agents: Sequence[str], first_step: int = 1) -> None: ...

    def phase(self, name: str, done: int, total: int) -> None: ...

    def say(self, line: str) -> None: ...

    def step(self, metrics: Line) -> None: ...

    def finish(self, first: Line | None, last: Line | None, run_path: Path) -> None: ...

    def stop(self) -> None: ...


class PlainProgress:
    """For logs and pipes: one line a step, and between them a sign of life every `PHASE_INTERVAL_S`.

    A thread gives it, from the first `phase` to `stop`: one batch of samples may take minutes, and meanwhile
    nobody calls.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total, self.first_step, self.done = 0, 1, 0
        self.agents: tuple[str, ...] = ()
        self.began = self.spoke = self._since = time.monotonic()
        self._phase = ("", 0, 0)
        self._ended = threading.Event()
        self._left = False
        """The reader of a pipe has left, which the thread noticed."""
        self._speaker = threading.Thread(target=self._speak, name="mappa-progress", daemon=True)

    def start(self, total_steps: int, agents: Sequence[str], first_step: int = 1) -> None:
        self._begin(total_steps, agents, first_step)
        self.say(f"{total_steps - first_step + 1} step(s) to go; agents: {', '.join(agents)}")

    def _begin(self, total_steps: int, agents: Sequence[str], first_step: int) -> None:
        self.total, self.agents, self.first_step = total_steps, tuple(agents), first_step
        self.done, self.began = first_step - 1, time.monotonic()

    def phase(self, name: str, done: int, total: int) -> None:
        if name != self._phase[0]:
            self._since = time.monotonic()
        self._phase = (name, done, total)
        self._check_reader()
        if self._speaker.ident is None and not self._ended.is_set():
            self._speaker.start()

    def _speak(self) -> None:
        while not self._ended.wait(_LOOK_S):
            # A line for each episode would bury the steps.
            if not self._phase[0] or time.monotonic() - self.spoke < PHASE_INTERVAL_S:
                continue
            try:
                self._print(self._sign_of_life(*self._phase))
            except (OSError, SystemExit) as error:  # rich makes the second of a broken pipe
                # Said when the run calls next: while it is being interrupted, it would interrupt that.
                self._left = any(isinstance(item, BrokenPipeError) for item in (error, error.__context__))
                return  # any other fault the run itself meets at its next line

    def _check_reader(self) -> None:
        if self._left:
            raise BrokenPipeError

    def _sign_of_life(self, name: str, done: int, total: int) -> str:
        step = f"step {self.done + 1}/{self.total}: " if self.total else ""
        unit = "agents" if name == "learn" else "episodes"
        return f"{step}{name} {done}/{total} {unit}, {duration(time.monotonic() - self._since)}"

    def say(self, line: str) -> None:
        self._check_reader()
        self._print(line)

    def _print(self, line: str) -> None:
        self.spoke = time.monotonic()
        self.console.print(Text(line), soft_wrap=True)

    def step(self, metrics: Line) -> None:
        self.done, self._phase = int(metrics["step"]), ("", 0, 0)
        scores = " ".join(f"{agent} {number(metrics.get(f'score/{agent}'))}" for agent in self.agents)
        parts = [
            f"step {self.done}/{self.total}",
            f"score {number(metrics.get('score/mean'))} ({scores})",
            f"success rate {percent(metrics.get('outcome/success'))}",
            f"{number(metrics.get('throughput/tokens_per_s'), 0)} tokens/s",
            f"{duration(self.elapsed_s)} gone, {duration(self.left_s)} left",
        ]
        if metrics.get("eval/outcome") is not None:
            parts.insert(3, f"val outcome {number(metrics['eval/outcome'])}")
        self.say("  ".join(parts))

    def finish(self, first: Line | None, last: Line | None, run_path: Path) -> None:
        self.stop()
        if first is not None and last is not None:
            self.console.print(comparison(first, last, self.agents, run_path))
        self.console.print(
            Text(f"run:    {run_path}\nreport: {RunFolder(run_path).report_path}"), soft_wrap=True
        )

    def stop(self) -> None:
        self._ended.set()
        if self._speaker.is_alive():
            self._speaker.join(_STOP_S)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float | None:
        """From the mean time of the steps so far; None before the first is done."""
        finished = self.done - self.first_step + 1
        return (self.total - self.done) * self.elapsed_s / finished if finished > 0 else None


class LiveProgress(PlainProgress):
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._phase = ("starting", 0, 0)
        self._first: Line = {}
        self._now: Line = {}
        self._measured: tuple[Line, Line] | None = None
        """The first step that was measured on val tasks, and the last."""
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def start(self, total_steps: int, agents: Sequence[str], first_step: int = 1) -> None:
        self._begin(total_steps, agents, first_step)
        self._live.start()

    def phase(self, name: str, done: int, total: int) -> None:
        self._phase = (name, done, total)

    def step(self, metrics: Line) -> None:
        self.done = int(metrics["step"])
        self._first = self._first or metrics
        self._now = metrics
        if metrics.get("eval/outcome") is not None:
            self._measured = (self._measured[0] if self._measured else metrics, metrics)
        self._phase = ("rollout", 0, 0)

    def stop(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        name, done, total = self._phase
        step = min(self.done + 1, self.total)
        left = "" if self.left_s is None else f", about {duration(self.left_s)} left"
        head = Text(f"step {step}/{self.total}  {name} {done}/{total}  {duration(self.elapsed_s)} gone{left}")
        bar = ProgressBar(total=self.total, completed=self.done + _share(name, done, total), width=60)
        rows: list[tuple[str, str, Callable[[float | None], str]]] = [("mean score", "score/mean", number)]
        rows += [(f"score {agent}", f"score/{agent}", number) for agent in self.agents]
        rows += [("success rate", "outcome/success", percent)]
        rows += [("tokens/s", "throughput/tokens_per_s", number)]
        table = Table("", "first step", "last step", box=None, pad_edge=False)
        for title, key, show in rows:
            table.add_row(Text(title), show(self._first.get(key)), show(self._now.get(key)))
        if self._measured is not None:
            first, last = self._measured
            where = f"val (step {first['step']}, {last['step']})"
            table.add_row(f"outcome on {where}", number(first["eval/outcome"]), number(last["eval/outcome"]))
            before, now = first.get("eval/success_rate"), last.get("eval/success_rate")
            table.add_row(f"success rate on {where}", percent(before), percent(now))
        # A bar ends without a newline; its padding brings one.
        return Group(head, Padding(bar), table)


def opening(run_path: Path, model: str, device: str) -> str:
    """Which run begins, on what, and how to look at it meanwhile."""
    path = shlex.quote(str(run_path))
    return harmless(f"run {path}: {model} on {device}; look at it: python -m mappa_train view {path}")


def _share(name: str, done: int, total: int) -> float:
    """How much of a step is done; sampling is most of it."""
    part = done / total if total else 0.0
    return {"rollout": 0.8 * part, "learn": 0.8 + 0.2 * part, "eval": 1.0}.get(name, 0.0)


def comparison(first: Line, last: Line, agents: Sequence[str], run_path: Path) -> Table:
    """The first step against the last one; where these are the same, its figures alone."""
    names = [f"step {first['step']}", f"step {last['step']}", "change"]
    num_shown = 1 if first["step"] == last["step"] else 3
    table = Table("", *names[:num_shown])
    for column in table.columns[1:]:
        column.justify = "right"
    rows = [(f"score {agent}", f"score/{agent}") for agent in agents]
    for title, key in [*rows, ("score of all", "score/mean")]:
        before, after = first.get(key), last.get(key)
        cells = [number(before), number(after), change(before, after)]
        table.add_row(Text(title), *cells[:num_shown])
    rates = [("success rate", first.get("outcome/success"), last.get("outcome/success"))]
    valid = [artifact_rate(read_episodes(run_path, int(line["step"]))) for line in (first, last)]
    rates.append(("valid artifacts", valid[0], valid[1]))
    for title, before, after in rates:
        points = "–" if before is None or after is None else f"{100 * (after - before):+.0f} pts"
        table.add_row(title, *[percent(before), percent(after), points][:num_shown])
    return table


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where it is undefined."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in [0, 1] in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"


def change(before: float | None, after: float | None) -> str:
    """The signed difference."""
    return "–" if before is None or after is None else f"{after - before:+.2f}"


def duration(seconds: float | None) -> str:
    """Seconds as 42s, 3m05s or 2h07m."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
