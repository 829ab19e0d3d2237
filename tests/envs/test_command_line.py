"""`python -m mappa_envs`: what its commands print, and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mappa_envs import __main__ as command
from mappa_envs.sandbox import doctor

TOML = 'metric = "rmse"\nid = "id"\ntargets = ["y\\u001b[31m"]\n'


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of tasks whose names steer a terminal."""
    task = tmp_path / "red\x1b[31m"
    task.mkdir()
    (task / "task.toml").write_text(TOML)
    (task / "train.csv").write_text('id,a,"y\x1b[31m"\n1,2,3\n2,3,4\n3,4,5\n')
    (task / "test.csv").write_text("id,a\n4,2\n5,3\n")
    (task / "answers.csv").write_text('id,"y\x1b[31m"\n4,1\n5,2\n')
    return tmp_path


def test_names_of_tasks_and_columns_cannot_steer_the_terminal(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["data", "check", str(hostile)]) == 0
    assert command.main(["data", "list", "--tasks", str(hostile)]) == 0
    assert command.main(["data", "check", str(hostile / "\x1b[31m")]) == 2
    shown = capsys.readouterr()
    assert shown.out.count("red\ufffd[31m") == 2
    assert "\x1b" not in shown.out + shown.err


def test_a_csv_and_a_folder_without_task_toml_are_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "houses"
    folder.mkdir()
    table = folder / "train.csv"
    table.write_text("id,rooms,price\n1,2,3\n")
    for arguments in (["data", "check", str(table)], ["data", "list", "--tasks", str(table)]):
        assert command.main(arguments) == 2
        said = capsys.readouterr().err
        assert f"{table} is a CSV; " in said
        assert "a table task is a folder with task.toml, train.csv, test.csv, answers.csv (docs/ds" in said
    for path in (folder, tmp_path):
        assert command.main(["data", "check", str(path)]) == 2
        said = capsys.readouterr().err
        assert said == (
            f"mappa_envs: {folder}: there is a train.csv here; task.toml is missing (docs/dsbench.md)\n"
        )


def test_an_interrupt_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "probe", interrupted)
    assert command.main(["doctor"]) == 130
    assert capsys.readouterr().err == "mappa_envs: interrupted\n"


def test_a_reader_who_leaves_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `python -m mappa_envs data list | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert command.main(["data", "list"]) == 0


def test_what_cannot_be_opened_or_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `python -m mappa_envs data list > /dev/full`."""
    assert command.main(["data", "check", "x" * 5000]) == 2
    assert capsys.readouterr().err.startswith("mappa_envs: [Errno 36] File name too long")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert command.main(["data", "list"]) == 3
    assert capsys.readouterr().err == "mappa_envs: [Errno 28] No space left on device\n"
