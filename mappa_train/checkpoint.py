"""The run folder: settings, metrics, episodes, checkpoints. What is written survives a crash at any point.

runs/NAME/config.toml  metrics.jsonl  episodes.jsonl  credit.jsonl  run.log  report.html  tensorboard/
          checkpoints/step-000010/<agent>/…  state.pt  manifest.json
          start/<agent>/…  where the policies began, if not at the model itself
          coach_cost.json  what an LLM coach has cost the run

What goes on disk goes there whole: files and checkpoints by a rename, lines by an append whose torn end is
cut off when the run is resumed. A checkpoint exists once its manifest does, and ceases to with it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mappa_envs.errors import ConfigError, DataError
from mappa_train.config import Config, did_you_mean, to_toml, toml_string
from mappa_train.files import disk_errors, first_line, sync_folder, user_path, write_atomically
from mappa_train.manifest import MANIFEST, remove, verify_files, write_manifest
from mappa_train.model import LoadedModel
from mappa_train.settings import resolve

if TYPE_CHECKING:
    from mappa_train.credit_log import ActionCredit
    from mappa_train.types import EpisodeRollout

STATE = "state.pt"
LOCK = ".lock"
_OF_A_RUN = frozenset(
    (
        *(LOCK, "config.toml", "metrics.jsonl", "episodes.jsonl", "credit.jsonl", "run.log", "report.html"),
        *("tensorboard", "wandb", "wandb_id", "checkpoints", "start", "coach_cost.json", "calibration.json"),
    )
)
"""What a start that came to nothing may have left: nobody misses it."""
_SCRATCH = re.compile(r"\..+\.\d+\.tmp")
_STEP_NAME = re.compile(r"step-(\d{6,})")
_LINE_STEP = re.compile(rb'\{\s*"step":\s*(\d+)')


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint: each agent's folder, and the `state` that was saved beside them."""

    step: int
    folder: Path
    agents: Mapping[str, Path]
    state: Mapping[str, Any]


class RunFolder:
    """One run on disk. Make one with `create` or `open`; hold it while writing (`lock`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.toml"
        self.metrics_path = path / "metrics.jsonl"
        self.episodes_path = path / "episodes.jsonl"
        self.credit_path = path / "credit.jsonl"
        self.log_path = path / "run.log"
        self.report_path = path / "report.html"
        self.events_path = path / "tensorboard"
        self.checkpoints_path = path / "checkpoints"
        self.start_path = path / "start"
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, config: Config, model: LoadedModel | None = None) -> RunFolder:
        """A new run folder with its config.toml. Raises `ConfigError` if it exists and is not empty.

        What a start left behind that came to nothing is removed, but for its run.log.
        """
        path = planned_path(config)
        with _disk_errors(path):
            if not path.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                sync_folder(path.parent)
            run = cls(path)
            run.lock()
            for item in path.iterdir():
                if item.name not in (LOCK, run.log_path.name):
                    remove(item)
            text = to_toml(replace(config, out=str(path)))
            write_atomically(run.config_path, (text + _resolved_table(model)).encode())
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run. Raises `ConfigError` where there is none."""
        run = cls(path)
        if not run.config_path.is_file():
            what = "there is no such folder" if not path.is_dir() else "no run: it has no config.toml"
            raise ConfigError(f"{path}: {what}")
        return run

    def lock(self) -> None:
        """Keep other processes from writing to this run; released when this process ends."""
        file = (self.path / LOCK).open("ab")
        try:
            # A POSIX lock: unlike flock's, it does not live on in a sandbox process that was forked.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return  # a file system without locks
            raise ConfigError(f"{self.path}: another process is writing to this run; wait for it") from None
        self._lock = file

    def config(self) -> Config:
        """The settings that the run was started with."""
        return resolve({}, file=self.config_path, takes_idle=True)

    def set_steps(self, steps: int) -> None:
        """Write another number of training steps into config.toml; all else in it stays."""
        text = self.config_path.read_text("utf-8")
        line = f"steps = {steps}"
        changed, count = re.subn(r"(?m)^[ \t]*steps[ \t]*=.*$", line, text, count=1)
        with _disk_errors(self.path):
            write_atomically(self.config_path, (changed if count else f"{line}\n{text}").encode())

    def check_model(self, model: LoadedModel) -> None:
        """Raise `ConfigError` if the run was started from other weights."""
        import tomllib

        known = tomllib.loads(self.config_path.read_text("utf-8")).get("resolved", {})
        source, digest = str(known.get("model_source")), str(known.get("model_sha256"))
        if known and (source, digest) != (model.source, model.sha256):
            raise ConfigError(
                f"{self.path}: the run began from other weights ({source}, sha256 {digest[:12]}…) "
                f"than are here ({model.source}, sha256 {model.sha256[:12]}…)"
            )

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """One step's figures, as made by `metrics.step_metrics`."""
        self._append(self.metrics_path, [json.dumps(line, allow_nan=False)])

    def append_episodes(self, step: int, rollouts: Iterable[EpisodeRollout]) -> None:
        """A step's episodes, one line each."""
        lines = (
            f'{{"step": {step}, "index": {item.index}, "episode": {item.episode.to_json()}}}'
            for item in rollouts
        )
        self._append(self.episodes_path, lines)

    def append_credit(self, step: int, actions: Iterable[ActionCredit]) -> None:
        """What a step's update made of its actions, one line each."""
        self._append(self.credit_path, (item.to_json(step) for item in actions))

    def _append(self, path: Path, lines: Iterable[str]) -> None:
        with _disk_errors(self.path):
            is_new = not path.exists()
            with path.open("ab") as file:
                for line in lines:
                    file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_folder(self.path)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines of metrics.jsonl, in order; [] before the first step.

        Raises `DataError` at a line that holds no step's figures.
        """
        if not self.metrics_path.is_file():
            return []
        lines = self.metrics_path.read_bytes().splitlines(keepends=True)
        complete = (line for line in lines if line.endswith(b"\n"))
        return [_figures(line, self.metrics_path, number) for number, line in enumerate(complete, 1)]

    def truncate(self, step: int) -> None:
        """Drop what came after `step`, half-written things too, so that a resumed run repeats no line."""
        for path in (self.metrics_path, self.episodes_path, self.credit_path):
            if path.is_file():
                os.truncate(path, _end_of_step(path, step))
        for later in (number for number in self.steps() if number > step):
            self.remove_checkpoint(later)
        have = {self.checkpoint_path(number).name for number in self.steps()}
        unfinished = [item for item in self.checkpoints_path.glob("step-*") if item.name not in have]
        scratch = [*self.checkpoints_path.glob(".tmp-*"), *self.checkpoints_path.glob(".*.tmp")]
        for item in (*unfinished, *scratch, *self.path.glob(".*.tmp")):
            remove(item)

    def remove_checkpoint(self, step: int) -> None:
        """Delete a checkpoint. One that is deleted by half does not count as one."""
        remove(self.checkpoint_path(step))

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        if not self.checkpoints_path.is_dir():
            return []
        names = [_STEP_NAME.fullmatch(item.name) for item in self.checkpoints_path.iterdir()]
        return sorted(
            int(name[1]) for name in names if name and (self.checkpoints_path / name[0] / MANIFEST).is_file()
        )

    def latest(self) -> int | None:
        """The step of the newest checkpoint, None if there is none."""
        return max(self.steps(), default=None)

    def checkpoint_path(self, step: int) -> Path:
        """The folder of a step's checkpoint, whether it is there or not."""
        return self.checkpoints_path / f"step-{step:06d}"

    def save(self, step: int, files: Mapping[str, Callable[[Path], None]], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; it is there completely or not at all.

        `files[agent]` writes that agent's files into the empty folder that it gets. `state` may hold
        tensors, numbers, texts, lists and dicts: it is read with `weights_only=True`.
        """
        import torch

        with _disk_errors(self.path):
            if not self.checkpoints_path.is_dir():
                self.checkpoints_path.mkdir()
                sync_folder(self.path)
            scratch = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.checkpoints_path))
        try:
            # Inside, since a disk that is full is no longer so when the rest of a checkpoint is deleted.
            with _disk_errors(self.path):
                for agent, write in files.items():
                    (scratch / agent).mkdir()
                    write(scratch / agent)
                torch.save(dict(state), scratch / STATE)
                write_manifest(scratch, step, sorted(files))
                final = self.checkpoint_path(step)
                remove(final)
                scratch.chmod(0o755)
                scratch.rename(final)
                sync_folder(self.checkpoints_path)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return final

    def load(self, step: int | None = None) -> Checkpoint:
        """The checkpoint of a step (None: the newest), its files verified.

        Raises `ConfigError` if there is none, `DataError` if a file is damaged.
        """
        import torch

        have = self.steps()
        if not have:
            raise ConfigError(f"{self.path}: there is no checkpoint yet; start the run again")
        step = have[-1] if step is None else step
        if step not in have:
            raise ConfigError(
                f"{self.path}: no checkpoint of step {step}; there are those of step {show_steps(have)}"
            )
        folder = self.checkpoint_path(step)
        names = verify_files(folder, f"delete {folder} to use an earlier checkpoint")
        if not (folder / STATE).is_file():
            raise DataError(f"{folder / STATE}: missing; delete {folder} to use an earlier checkpoint")
        state = torch.load(folder / STATE, weights_only=True, map_location="cpu")
        agents = {agent: folder / agent for agent in names}
        return Checkpoint(step=step, folder=folder, agents=agents, state=state)


def planned_path(config: Config, now: datetime.datetime | None = None, kind: str = "") -> Path:
    """Where a new run of these settings goes. Raises `ConfigError` if something is there.

    `kind` begins the name where `config.out` does not give one.
    """
    if config.out:
        path = user_path(config.out, "--out")
        place = next(item for item in (path, *path.absolute().parents) if item.exists())
        if place != path and not place.is_dir():
            raise ConfigError(f"--out {config.out}: {place} is no folder; choose another")
        if path.exists() and not _is_free(path):
            begun = any((path / "checkpoints").glob("step-*"))
            advice = f", or continue the run there with: python -m mappa_train resume {config.out}"
            raise ConfigError(
                f"--out {config.out}: exists and is not empty; "
                + (f"choose another folder{advice}" if begun else "choose another folder, or delete it")
            )
        return path
    moment = now or datetime.datetime.now()
    name = f"{kind}{config.env.replace('/', '-')}-{moment:%Y%m%d-%H%M%S}-{config.seed}"
    path = Path("runs") / name
    number = 1
    while path.exists():  # two runs begun in the same second
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def _is_free(path: Path) -> bool:
    """Whether a run can begin in a folder: there is nothing, or what is left of a start without a checkpoint.

    The figures of one step may be there: a run can die between them and the checkpoint.
    """
    if not path.is_dir():
        return False
    names = {item.name for item in path.iterdir()}
    if not names - {LOCK}:
        return True
    foreign = [name for name in names if name not in _OF_A_RUN and not _SCRATCH.fullmatch(name)]
    run = RunFolder(path)
    lines = run.metrics_path.read_bytes().count(b"\n") if run.metrics_path.is_file() else 0
    return not foreign and lines <= 1 and not run.steps()


def _figures(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """A line of metrics.jsonl. Raises `DataError`."""
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or type(found.get("step")) is not int:
            raise ValueError('it is no JSON object with a whole "step"')
        for key, value in found.items():
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
                raise ValueError(f"{key[:80]!r} is no finite number")
    except (ValueError, OverflowError, RecursionError) as error:
        why = first_line(error)
        raise DataError(f"{path}, line {number}: damaged ({why}); mend it or delete the line") from None
    return found


def _resolved_table(model: LoadedModel | None) -> str:
    """What the settings came to on this machine; not a setting itself."""
    if model is None:
        return ""
    facts = {
        "model_source": model.source,
        "model_sha256": model.sha256,
        "model_folder": str(model.folder),
        "model_description": model.description,
    }
    lines = [f"{key} = {toml_string(value)}" for key, value in facts.items()]
    return "\n[resolved]\n" + "\n".join(lines) + "\n"


def _end_of_step(path: Path, step: int) -> int:
    """The offset behind the last complete line of a step up to `step`; lines are in the order of steps.

    Raises `DataError` at a whole line that begins with no step: what follows it must not be cut off.
    """
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            found = _LINE_STEP.match(line)
            if not line.endswith(b"\n") or (found and int(found[1]) > step):
                break
            if not found:
                raise DataError(f"{path}, line {number}: damaged; mend it or delete the line, then resume")
            end += len(line)
    return end


def show_steps(steps: Sequence[int]) -> str:
    """Steps for a message; of many, the first and the last."""
    words = [str(step) for step in steps]
    return ", ".join(words if len(words) <= 12 else [*words[:4], "…", *words[-4:]])


def find_run(name: str) -> Path:
    """The folder of a run, with or without `runs/`. Raises `ConfigError`, with a suggestion."""
    path = user_path(name)
    for candidate in (path, Path("runs") / name):
        if (candidate / "config.toml").is_file():
            return candidate
    beside = path.parent if path.parent != Path() else Path("runs")
    names = [item.name for item in beside.iterdir() if item != path] if beside.is_dir() else []
    looked = "" if path.is_absolute() else " (also looked in runs/)"
    why = "is no run folder: it has no config.toml" if path.is_dir() else "there is no such run folder"
    raise ConfigError(f"{name}: {why}{looked}{did_you_mean(path.name, names)}")


def _disk_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    return disk_errors(
        folder,
        "free some space, then resume (before the first checkpoint: start again)",
        "choose another folder with --out",
    )
