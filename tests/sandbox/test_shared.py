"""Large files of the host that workspaces show without a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kit import opened

from mappa_envs.pipeline import LARGE_FILE_BYTES, large_files
from mappa_envs.sandbox import Limits, Sandbox
from mappa_envs.types import Task


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 MB, twice what a workspace holds."""
    path = tmp_path_factory.mktemp("shared") / "big.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * (1 << 20))
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def showing(kind: str, sandbox: Sandbox, table: Path) -> Iterator[Sandbox]:
    """With the table as a shared file."""
    yield from opened(kind, Limits(time_s=20, workspace_mb=2), shared=[table])


def test_shared_files_are_seen_and_cannot_be_changed(kind: str, showing: Sandbox, table: Path) -> None:
    files = {"train.csv": table, "sub/deep.csv": table, "small.csv": b"x"}
    content = table.read_bytes()

    async def scenario() -> None:
        async with await showing.open(files) as one, await showing.open() as other:
            code = (
                "import pandas as pd\n"
                "print(len(pd.read_csv('train.csv')), len(pd.read_csv('sub/deep.csv')))\n"
                "for mode in ('w', 'a', 'r+'):\n"
                "  try: open('train.csv', mode).write('x'); print('written')\n"
                "  except OSError: pass\n"
                "for name in ('mine.csv', 'sub/mine.csv'): open(name, 'w').write('1')"
            )
            result = await one.run(code)
            assert (result.stdout, result.stderr) == ("1048576 1048576\n", "")
            assert [record.path for record in result.files] == ["mine.csv", "sub/mine.csv"]
            assert await one.read("train.csv", 1 << 23) == content
            assert await one.inspect("report(open('train.csv').readline())") == "a,b\n"
            assert (await other.run("import os; print(os.listdir('.'))")).stdout == "[]\n"
            if kind == "namespace":  # in a container each may read them under a number
                look = await one.run("import os; print(os.path.exists('/shared/0'))")
                assert look.stdout == "False\n"
        async with await showing.open(files) as again:
            assert (await again.run("print(open('train.csv').readline())")).stdout == "a,b\n\n"

    asyncio.run(scenario())
    assert table.read_bytes() == content


@pytest.mark.slow
def test_a_removed_shared_file_is_the_agents_loss(showing: Sandbox, table: Path) -> None:
    async def scenario() -> None:
        async with await showing.open({"d/train.csv": table}) as one:
            await one.run("import os, shutil\nos.rename('d', 'e')")
            assert (await one.run("print(open('d/train.csv').read())")).exception == "FileNotFoundError"
            with pytest.raises(FileNotFoundError):
                await one.read("d/train.csv", 100)

    asyncio.run(scenario())


def test_a_link_on_the_way_to_a_shared_file_is_not_followed(
    showing: Sandbox, table: Path, tmp_path: Path
) -> None:
    """Not even to look whether the file is still there."""
    (tmp_path / "train.csv").touch()

    async def scenario() -> None:
        async with await showing.open({"d/train.csv": table}) as one:
            result = await one.run(f"import os\nos.rename('d', 'e'); os.symlink({str(tmp_path)!r}, 'd')")
            assert result.ok
            with pytest.raises(ValueError, match="symbolic links"):
                await one.read("d/train.csv", 1 << 23)

    asyncio.run(scenario())


def test_large_files_of_tasks(tmp_path: Path) -> None:
    large, small = tmp_path / "large.csv", tmp_path / "small.csv"
    with large.open("wb") as file:
        file.truncate(LARGE_FILE_BYTES + 1)
    small.write_bytes(b"a\n")
    files = {"train.csv": large, "test.csv": small, "gone.csv": tmp_path / "gone.csv"}
    task = Task(task_id="t", task_type="x", split="train", prompt="", files=files)
    assert large_files([task, task]) == [large]
