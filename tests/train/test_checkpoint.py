from __future__ import annotations

import datetime
import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_fakes import make_run

from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_train.checkpoint import RunFolder, planned_path
from mappa_train.model import LoadedModel
from mappa_train.settings import resolve

MODEL = LoadedModel(folder=Path("/m"), source="wheel", sha256="ab" * 32, description='the "model"')


def write_weights(folder: Path) -> None:
    (folder / "adapter.bin").write_bytes(b"weights")


def save(run: RunFolder, step: int) -> Path:
    return run.save(step, {"writer_0": write_weights}, {"rng": torch.get_rng_state(), "version": step})


def test_a_checkpoint_loads_as_it_was_saved(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = save(run, 2)
    assert folder.name == "step-000002"
    found = run.load()
    assert (found.step, found.state["version"]) == (2, 2)
    assert torch.equal(found.state["rng"], torch.get_rng_state())
    assert (found.agents["writer_0"] / "adapter.bin").read_bytes() == b"weights"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"writer_0/adapter.bin", "state.pt"}


def test_steps_are_sorted_and_unfinished_ones_do_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert run.latest() is None
    for step in (9, 10, 1_000_000):
        save(run, step)
    (run.checkpoints_path / "step-000011").mkdir()
    assert run.steps() == [9, 10, 1_000_000]
    with pytest.raises(ConfigError, match="no checkpoint of step 4; there are 9, 10"):
        run.load(4)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")

    def fail(folder: Path) -> None:
        write_weights(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UnavailableError, match=re.escape(f"{run.path}: the disk is full")):
        run.save(1, {"writer_0": fail}, {})
    assert list(run.checkpoints_path.iterdir()) == []


def test_interrupting_a_save_keeps_the_earlier_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    save(run, 1)

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.save(1, {"writer_0": interrupt}, {})
    assert run.load().step == 1


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (save(run, 1) / "writer_0" / "adapter.bin").write_bytes(b"wXights")
    with pytest.raises(DataError, match=r"adapter\.bin: damaged"):
        run.load()


def test_resuming_repeats_no_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, episodes=2)
    save(run, 1)
    save(run, 3)
    with run.metrics_path.open("a") as file:
        file.write('{"step": 4, "time')
    run.truncate(1)
    assert [line["step"] for line in run.read_metrics()] == [1]
    steps = [json.loads(line)["step"] for line in run.episodes_path.read_text().splitlines()]
    assert steps == [1, 1]
    assert run.steps() == [1]
    run.truncate(0)
    assert run.read_metrics() == []


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    with run.metrics_path.open("a") as file:
        file.write('{"step": 3, "ti')
    assert [line["step"] for line in run.read_metrics()] == [1, 2]


def test_settings_and_model_are_kept(tmp_path: Path) -> None:
    config = resolve({"out": str(tmp_path / "run"), "lr": "2e-4"})
    run = RunFolder.create(config, MODEL)
    assert RunFolder.open(run.path).config() == config
    run.check_model(MODEL)
    other = LoadedModel(folder=Path("/m"), source="hub", sha256="cd" * 32, description="")
    with pytest.raises(ConfigError, match=r"began from other weights \(wheel, sha256 abababababab"):
        run.check_model(other)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        RunFolder.create(resolve({"out": str(tmp_path)}))
    with pytest.raises(ConfigError, match="exists and is not empty"):
        planned_path(resolve({"out": str(tmp_path / "x")}))
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        RunFolder.open(tmp_path)


def test_default_names_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime.datetime(2026, 3, 4, 5, 6, 7)
    config = resolve({"seed": 3})
    first = planned_path(config, now)
    assert first == Path("runs/dsbench-v0-20260304-050607-3")
    first.mkdir(parents=True)
    assert planned_path(config, now) == Path("runs/dsbench-v0-20260304-050607-3-2")


def test_two_processes_cannot_write_to_one_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    code = f"from mappa_train.checkpoint import *; RunFolder.open(Path({str(run.path)!r})).lock()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another process is writing to this run" in done.stderr
