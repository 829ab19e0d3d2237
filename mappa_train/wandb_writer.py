"""The figures of a run to Weights & Biases, under the keys of metrics.jsonl; nothing that agents wrote."""

from __future__ import annotations

import dataclasses
import importlib
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mappa_envs.errors import UnavailableError
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.files import first_line, write_atomically

ID_FILE = "wandb_id"
"""In the run folder: the id under which W&B knows the run, so that a resumed one goes on there."""
_NOT_SENT = ("coach_base_url",)
"""Settings that may hold a password."""


def check_wandb(config: Config) -> None:
    """Raise `UnavailableError` where figures are to be sent and the package is not there."""
    if config.wandb and find_spec("wandb") is None:
        raise UnavailableError(f"--wandb {config.wandb}: needs wandb, not installed here; pip install wandb")


class WandbWriter:
    """One W&B run. Its own settings count: `WANDB_MODE=offline` writes to the run folder alone.

    A step that is taken again after a crash is sent again; W&B keeps what it has of it.
    Raises `UnavailableError` where W&B cannot be reached or knows no account.
    """

    def __init__(self, config: Config, run: RunFolder) -> None:
        wandb: Any = importlib.import_module("wandb")
        settings = {k: v for k, v in dataclasses.asdict(config).items() if k not in _NOT_SENT}
        try:
            self._run: Any = wandb.init(
                project=config.wandb,
                id=_run_id(run),
                name=run.path.resolve().name,
                dir=str(run.path),
                config=settings,
                resume="allow",
                # The screen is the progress display's, and what is printed there is nobody else's.
                settings=wandb.Settings(console="off", silent=True, disable_code=True, disable_git=True),
            )
        except wandb.errors.Error as error:
            raise UnavailableError(
                f"--wandb {config.wandb}: {first_line(error)}; run `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def write(self, line: Mapping[str, float | int | None]) -> None:
        """The figures of one step; undefined ones are left out."""
        figures = {key: value for key, value in line.items() if value is not None and key != "step"}
        self._run.log(figures, step=line["step"])

    def close(self) -> None:
        """Wait until everything is sent."""
        self._run.finish()


def _run_id(run: RunFolder) -> str:
    path = run.path / ID_FILE
    if not path.is_file():
        write_atomically(path, uuid.uuid4().hex[:12].encode())
    return path.read_text("ascii").strip()
