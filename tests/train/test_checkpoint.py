from __future__ import annotations

import datetime
import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_fakes import make_rollout, make_run

from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_train.checkpoint import RunFolder, planned_path
from mappa_train.manifest import write_manifest
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
    with pytest.raises(ConfigError, match="no checkpoint of step 4; there are those of step 9, 10"):
        run.load(4)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ValueError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
    ],
)
def test_a_failed_save_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    run = make_run(tmp_path / "run")

    def fail(folder: Path) -> None:
        write_weights(folder)
        raise error

    with pytest.raises(UnavailableError, match=re.escape(f"{run.path}: the disk is full")):
        run.save(1, {"writer_0": fail}, {})
    assert list(run.checkpoints_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", ["PytorchStreamWriter failed writing file data/0", "unexpected pos 256 vs 150"]
)
def test_a_disk_that_torch_finds_full_is_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """What was written of the checkpoint is deleted, and then the disk is full no more."""
    run = make_run(tmp_path / "run")

    def fail(state: object, path: Path) -> None:
        raise RuntimeError(f"[enforce fail at inline_container.cc:664] . {words}")

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=0 if any(run.checkpoints_path.glob(".tmp-*/writer_0/*")) else 10**9)

    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr("shutil.disk_usage", usage)
    with pytest.raises(UnavailableError, match="the disk is full"):
        save(run, 1)
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
    with pytest.raises(ConfigError, match=r"x is no folder"):
        planned_path(resolve({"out": str(tmp_path / "x" / "y" / "z")}))
    with pytest.raises(ConfigError, match="too long"):
        planned_path(resolve({"out": str(tmp_path / ("x" * 300))}))
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        RunFolder.open(tmp_path)


def test_a_start_that_came_to_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    config = resolve({"out": str(tmp_path / "run")})
    first = RunFolder.create(config)
    first.append_episodes(1, [make_rollout(0)])
    first.append_metrics({"step": 1})  # killed before its checkpoint
    first.log_path.write_text("Traceback")
    (first.path / ".config.toml.123.tmp").touch()
    (first.checkpoints_path / ".tmp-abc" / "writer_0").mkdir(parents=True)
    again = RunFolder.create(config)
    assert sorted(item.name for item in again.path.iterdir()) == [".lock", "config.toml", "run.log"]
    assert again.log_path.read_text() == "Traceback"


@pytest.mark.parametrize("what", ["steps", "checkpoint", "foreign"])
def test_what_somebody_may_miss_is_in_the_way(tmp_path: Path, what: str) -> None:
    config = resolve({"out": str(tmp_path / "run")})
    run = RunFolder.create(config)
    if what == "steps":
        run.append_metrics({"step": 1})
        run.append_metrics({"step": 2})
    elif what == "checkpoint":
        save(run, 1)
    else:
        (run.path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        RunFolder.create(config)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"step": 2, "time', "line 2: damaged"),
        ('{"step": 2, "time_s": "much"}', r"line 2: damaged \('time_s' is no finite number"),
        ("[1]", "whole"),
        ('{"step": "2"}', "whole"),
        ('{"step": 2, "a": \x80}', "line 2"),
        ("[" * 100_000, "line 2"),
        ('{"step": 2, "time_s": NaN}', r"line 2: damaged \('time_s' is no finite number"),
        ('{"step": 2, "time_s": -Infinity}', "'time_s' is no finite number"),
        ('{"step": 2, "time_s": 1e400}', "'time_s' is no finite number"),
        (f'{{"step": 2, "time_s": 1{"0" * 400}}}', "line 2: damaged .*too large"),
    ],
)
def test_a_damaged_line_of_metrics_is_named_and_never_cut_off(tmp_path: Path, line: str, why: str) -> None:
    run = make_run(tmp_path / "run", steps=1)
    save(run, 3)
    with run.metrics_path.open("ab") as file:
        file.write(line.encode("latin-1") + b'\n{"step": 3}\n')
    with pytest.raises(DataError, match=why):
        run.read_metrics()
    if not line.startswith('{"step": 2'):
        with pytest.raises(DataError, match="line 2: damaged"):
            run.truncate(3)
    assert run.metrics_path.read_bytes().endswith(b'{"step": 3}\n')


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "[]", '{"agents": [1], "files": {}}', '{"agents": [], "files": {"x": 1}}'),
        *('{"agents": ["../x"], "files": {}}', '{"agents": [".."], "files": {}}'),
    ],
)
def test_a_damaged_manifest_is_one_clear_error(tmp_path: Path, manifest: str) -> None:
    run = make_run(tmp_path / "run")
    (save(run, 2) / "manifest.json").write_text(manifest)
    with pytest.raises(DataError, match=r"manifest\.json: damaged or missing .*delete .*step-000002 to use"):
        run.load()


def test_a_checkpoint_without_its_state_is_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = save(run, 2)
    for name in ("state.pt", "manifest.json"):
        (folder / name).unlink()
    write_manifest(folder, 2, ["writer_0"])
    with pytest.raises(DataError, match=r"state\.pt: missing"):
        run.load()


def test_resuming_clears_what_was_half_written_or_half_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    save(run, 1)
    save(run, 2)
    (run.checkpoint_path(1) / "manifest.json").unlink()
    (run.checkpoints_path / ".tmp-abc").mkdir()
    (run.checkpoints_path / ".best.77.tmp").symlink_to("step-000001")
    (run.path / ".report.html.77.tmp").touch()
    run.truncate(2)
    assert [item.name for item in run.checkpoints_path.iterdir()] == ["step-000002"]
    assert list(run.path.glob("*.tmp")) == list(run.path.glob(".*.tmp")) == []


def test_another_number_of_steps_is_all_that_changes(tmp_path: Path) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run"), "lr": "2e-4", "steps": 3}), MODEL)
    before = run.config_path.read_text()
    run.set_steps(12)
    assert run.config_path.read_text() == before.replace("\nsteps = 3\n", "\nsteps = 12\n")
    assert (run.config().steps, run.config().lr) == (12, 2e-4)
    run.config_path.write_text("lr = 0.5\n")
    run.set_steps(7)
    assert (run.config().steps, run.config().lr) == (7, 0.5)


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
