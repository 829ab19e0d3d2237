"""A tiny run that is killed (SIGKILL) again and again, and resumed until it is finished: a script.

    python tests/train/killing.py FOLDER NUM_KILLS SEED

One process imports everything and forks one child an attempt. Where a child dies is drawn: after some time,
before some optimizer step, in the middle of some line, with half a file of weights, or before some change in
the run folder. Writes FOLDER/report.json: where each child died and what was on disk then.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tiny import make_model

from mappa_envs.coach.base import CoachRequest
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_train import team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.plan import make_env
from mappa_train.progress import SilentProgress
from mappa_train.settings import resolve

STEPS = 6
CHANGES = {
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.symlink",
    "shutil.rmtree",
}
DEATHS = {"time": 2.0, "update": 36, "line": 60, "weights": 12, "change": 150}
"""How a child can die; of what it is drawn from 0 (seconds, or how many of them come first)."""


def settings(model: Path, out: Path) -> Config:
    """Three agents, four episodes and six optimizer steps a step, every second step measured."""
    return resolve(
        {
            **{"model": str(model), "out": str(out), "lora_rank": 4, "lr": 1e-2, "debias": "task_role"},
            **{
                "steps": STEPS,
                "episodes_per_step": 4,
                "samples_per_task": 2,
                "max_tasks": 2,
                "minibatches": 2,
            },
            **{"max_new_tokens": 12, "token_budget": 256, "exploring_starts": 0.0, "watchdog_s": 0.0},
            **{"eval_every": 2, "eval_episodes": 2, "keep_checkpoints": 2},
        }
    )


def taste(request: CoachRequest) -> float:
    return hashlib.sha256(request.turn.action.encode()).digest()[0] / 25.5


def make_tasted_env(config: Config, split: str | None = None, **shared: Any) -> Any:
    return make_env(config, split, **({"coach": FakeCoach(taste)} | shared))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Does something at the call after the first `left`."""

    def __init__(self, left: int, act: Callable[[], None]) -> None:
        self.left, self.act = left, act

    def __call__(self) -> None:
        if self.left == 0:
            self.act()
        self.left -= 1


def arm(kind: str, count: int, out: Path) -> None:
    """Let this process die at the right moment."""
    if kind == "update":
        due = Countdown(count, die)
        step = torch.optim.AdamW.step
        torch.optim.AdamW.step = lambda self, *a, **k: (due(), step(self, *a, **k))[1]  # type: ignore[method-assign]
    elif kind == "line":
        RunFolder._append = tear_a_line(count)  # type: ignore[method-assign]
    elif kind == "weights":
        write = team.save_file
        torn: list[Path] = []
        due = Countdown(count, lambda: (os.truncate(torn[-1], torn[-1].stat().st_size // 2), die())[1])
        team.save_file = lambda state, path: (write(state, path), torn.append(path), due())[0]
    elif kind == "change":
        due = Countdown(count, die)
        # Of a link, the second is the place.
        sys.addaudithook(lambda event, a: due() if event in CHANGES and str(out) in str(a[:2]) else None)


def tear_a_line(count: int) -> Callable[[RunFolder, Path, Iterable[str]], None]:
    append, seen = RunFolder._append, [0]

    def torn(run: RunFolder, path: Path, lines: Iterable[str]) -> None:
        lines = list(lines)
        if seen[0] + len(lines) > count:
            content = "".join(line + "\n" for line in lines[: count - seen[0] + 1]).encode()
            with path.open("ab") as file:
                file.write(content[: -1 - len(lines[count - seen[0]]) // 3])
            die()
        seen[0] += len(lines)
        append(run, path, lines)

    return torn


def attempt(config: Config, out: Path, kind: str, moment: float) -> int:
    """Begin or resume a run in a child; its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # A forked process has to make a new pool of threads: not from several threads at once, in which
            # transformers would load a model.
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
            torch.set_num_threads(1)
            arm(kind, int(moment), out)
            begun = bool(RunFolder(out).steps())
            run = RunFolder.open(out) if begun else RunFolder.create(config)
            if begun:
                run.lock()
            trainer.train(run.config(), run, SilentProgress(), resume=begun)
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    if kind == "time":
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(root: Path, num_kills: int, seed: int) -> None:
    """Runs `whole` (nobody disturbs it), and `killed-0` and so on until enough children have died."""
    team.open_sandbox = lambda *args, **options: FakeSandbox()
    team.make_env = make_tasted_env
    model = make_model(root / "model")
    start = time.monotonic()
    assert attempt(settings(model, root / "whole"), root / "whole", "", 0) == 0
    seconds = time.monotonic() - start
    draw, kills, runs = random.Random(seed), [], 0
    while len(kills) < num_kills or (kills and not finished(root / f"killed-{runs}")):
        out = root / f"killed-{runs}"
        if finished(out):
            runs += 1
            continue
        kind = draw.choice(list(DEATHS)) if len(kills) < num_kills else ""
        moment = draw.random() * (seconds if kind == "time" else DEATHS.get(kind, 0))
        code = attempt(settings(model, out), out, kind, moment)
        assert code == 0 or code == -signal.SIGKILL, (kind, moment, code)
        if code:
            kills.append({"run": runs, "kind": kind, "moment": moment, **on_disk(out)})
        facts = {"kills": kills, "runs": runs + 1, "seconds": time.monotonic() - start}
        (root / "report.json").write_text(json.dumps(facts, indent=1))


def finished(out: Path) -> bool:
    return RunFolder(out).latest() == STEPS


def on_disk(out: Path) -> dict[str, int]:
    """The newest checkpoint, and how many steps have their figures."""
    run = RunFolder(out)
    lines = run.metrics_path.read_bytes().count(b"\n") if run.metrics_path.is_file() else 0
    return {"checkpoint": run.latest() or 0, "lines": lines}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
