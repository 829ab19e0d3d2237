"""run.log: everything that libraries say, tracebacks, what a run ran on, and each step in a line.

Messages and tracebacks may quote an agent or a file, and the log is read in terminals: what could steer one
is replaced.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_train.config import Config
from mappa_train.model import load_pretrained

if TYPE_CHECKING:
    from rich.console import Console

    from mappa_train.checkpoint import RunFolder

log = logging.getLogger(__name__)

_PACKAGES = ("mappa", "torch", "transformers", "peft", "torchrl", "tensordict", "numpy")


def harmless(text: str) -> str:
    """The text with U+FFFD for all that is not printable, but for the ends of lines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def log_to(path: Path, console: Console, who: str = "") -> None:
    """Everything that libraries say goes to run.log; our own warnings are shown too.

    `who` begins the lines of one of several processes.
    """
    handler = _File(path, encoding="utf-8")
    handler.setFormatter(_Harmless(f"%(asctime)s {who}%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in ("mappa_train", "mappa_envs"):
        logging.getLogger(name).handlers = [_Screen(console)]


def log_traceback(run: Path | None, *, always: bool) -> Path | None:
    """Append the current traceback to a run's run.log, and return where it is.

    Where there is no run folder it goes to a temporary file if `always`, else nowhere.
    """
    if run is not None and run.is_dir():
        path = run / "run.log"
    elif always:
        handle, name = tempfile.mkstemp(prefix="mappa-", suffix=".log")
        os.close(handle)
        path = Path(name)
    else:
        return None
    text = harmless(traceback.format_exc())
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        if always:
            print(text, end="", file=sys.stderr)
    return path


class _File(logging.FileHandler):
    """On a full disk it is silent: what the run itself cannot write then is said once, and ends it."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing then; by default it would print a traceback for every message."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Harmless(logging.Formatter):
    """Makes the whole record harmless, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class _Screen(logging.Handler):
    """Our warnings, through the console that draws the progress."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        words = harmless(record.getMessage()).replace("\n", " ")
        self._console.print(f"{record.levelname.lower()}: {words}", markup=False, soft_wrap=True)


def log_start(config: Config, run: RunFolder, agents: tuple[str, ...], device: str, done: int) -> None:
    """Versions, machine, model, paths and seed; `done` is the step that the run goes on from."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    log.info("%s", f"resumed after step {done}" if done else "a new run")
    log.info("python %s on %s; %s", platform.python_version(), platform.platform(), versions)
    log.info("device %s, %d CPUs; process %d", device, os.cpu_count() or 1, os.getpid())
    model = load_pretrained(config.model)
    log.info("model %s, sha256 %s, in %s", model.description, model.sha256, model.folder)
    log.info("run folder %s; tasks %s (%s)", run.path.resolve(), config.tasks, config.split)
    log.info("seed %d; steps %d to %d; agents %s", config.seed, done + 1, config.steps, ", ".join(agents))


def log_step(line: Mapping[str, Any], total: int) -> None:
    """The figures of a step that are worth a look."""
    names = ("score/mean", "outcome/success", "unscored", "tokens/trained", "eval/outcome", "time_s")
    known = ((name, line.get(name)) for name in names)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in known if value is not None)
    log.info("step %d of %d: %s", line["step"], total, figures)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
