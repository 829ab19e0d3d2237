"""What run.log says of a run that goes well: what it ran on, and each step in a line."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.model import load_pretrained

log = logging.getLogger(__name__)

_PACKAGES = ("mappa", "torch", "transformers", "peft", "torchrl", "tensordict", "numpy")


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
