"""Large files of the host that workspaces show without a copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mappa_envs.pipeline import LARGE_FILE_BYTES, large_files
from mappa_envs.sandbox import Limits, open_sandbox
from mappa_envs.types import Task


def test_shared_files_are_seen_and_cannot_be_changed(kind: str, tmp_path: Path) -> None:
    table = tmp_path / "big.csv"
    table.write_bytes(b"a,b\n" + b"1,2\n" * (1 << 20))  # 4 MB, twice what a workspace holds
    table.chmod(0o644)
    files = {"train.csv": table, "sub/deep.csv": table, "small.csv": b"x"}

    async def scenario() -> None:
        limits = Limits(time_s=20, workspace_mb=2)
        async with open_sandbox(kind, limits, shared=[table]) as sandbox:
            async with await sandbox.open(files) as one, await sandbox.open() as other:
                code = (
                    "import pandas as pd\n"
                    "print(len(pd.read_csv('train.csv')), len(pd.read_csv('sub/deep.csv')))\n"
                    "for mode in ('w', 'a', 'r+'):\n"
                    "  try: open('train.csv', mode).write('x'); print('written')\n"
                    "  except OSError: pass\n"
                    "open('mine.csv', 'w').write('1')"
                )
                result = await one.run(code)
                assert (result.stdout, result.stderr) == ("1048576 1048576\n", "")
                assert [record.path for record in result.files] == ["mine.csv"]
                assert await one.read("train.csv", 1 << 23) == table.read_bytes()
                assert await one.inspect("report(open('train.csv').readline())") == "a,b\n"
                assert (await other.run("import os; print(os.listdir('.'))")).stdout == "[]\n"
                if kind == "namespace":  # in a container each may read them under a number
                    look = await one.run("import os; print(os.path.exists('/shared/0'))")
                    assert look.stdout == "False\n"
            async with await sandbox.open(files) as again:
                assert (await again.run("print(open('train.csv').readline())")).stdout == "a,b\n\n"
        assert table.read_bytes().startswith(b"a,b\n1,2\n")

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_removed_shared_file_is_the_agents_loss(kind: str, tmp_path: Path) -> None:
    table = tmp_path / "big.csv"
    table.write_bytes(b"a\n")
    table.chmod(0o644)

    async def scenario() -> None:
        async with (
            open_sandbox(kind, Limits(time_s=20), shared=[table]) as sandbox,
            await sandbox.open({"d/train.csv": table}) as one,
        ):
            await one.run("import os, shutil\nos.rename('d', 'e')")
            assert (await one.run("print(open('d/train.csv').read())")).exception == "FileNotFoundError"
            with pytest.raises(FileNotFoundError):
                await one.read("d/train.csv", 100)

    asyncio.run(scenario())


def test_large_files_of_tasks(tmp_path: Path) -> None:
    large, small = tmp_path / "large.csv", tmp_path / "small.csv"
    with large.open("wb") as file:
        file.truncate(LARGE_FILE_BYTES + 1)
    small.write_bytes(b"a\n")
    files = {"train.csv": large, "test.csv": small, "gone.csv": tmp_path / "gone.csv"}
    task = Task(task_id="t", task_type="x", split="train", prompt="", files=files)
    assert large_files([task, task]) == [large]
