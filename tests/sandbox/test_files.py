"""Odd files: links, pipes, devices, names. The host records them, reads none that it should not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.sandbox import Sandbox, Workspace
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]
Play = Callable[[Callable[[Workspace], Awaitable[Any]]], Any]


def test_links_and_pipes_are_not_read(sandbox: Sandbox, secret_file: Path) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"train.csv": b"a", "d/in.csv": b"b"}) as workspace:
            result = await workspace.run(
                "import os\n"
                f"os.symlink({str(secret_file)!r}, 'leak.pkl'); os.symlink('/', 'root')\n"
                "os.symlink('train.csv', 'in.csv'); os.mkfifo('submission.csv'); os.symlink('d', 'e')\n"
                "os.symlink('/proc/self/fd/0', 'fd'); os.symlink('loop', 'loop'); os.symlink('..', 'up')\n"
                "os.link('train.csv', 'hard.csv')\n"
                "f = open('sparse', 'wb'); f.truncate(30 << 20)"
            )
            kinds = {record.path: record.kind for record in result.files}
            links = {"leak.pkl", "root", "in.csv", "e", "fd", "loop", "up"}
            assert {path for path, kind in kinds.items() if kind == "link"} == links
            assert (kinds["submission.csv"], kinds["hard.csv"]) == ("fifo", "csv")
            inside = [f"root{secret_file}", "e/in.csv", "up/x", "up/../etc/passwd", "root/etc/passwd"]
            for path in (*links, *inside, "submission.csv", "sparse", "d", "."):
                with pytest.raises(ValueError):  # noqa: PT011 - each says why in words of its own
                    await asyncio.wait_for(workspace.read(path, 1000), 30)
            assert await workspace.read("hard.csv", 1000) == b"a"
            assert await workspace.read("d/in.csv", 1000) == b"b"

    asyncio.run(scenario())


def test_hard_links_from_outside(run: Run) -> None:
    """Neither a file of the system nor one of another folder becomes a file of the workspace."""
    result = run(
        "import os\n"
        "import numpy, sys\n"
        "for path in ('/etc/passwd', '/proc/self/environ', numpy.__file__, '/proc/self/fd/1', '/dev/null',\n"
        "             '/opt/sandbox/inside/worker.py', os.path.realpath(sys.executable)):\n"
        "  for follow in (True, False):\n"
        "    try: os.link(path, 'stolen' + path.replace('/', '_'), follow_symlinks=follow); print(path)\n"
        "    except OSError: pass\n"
        "  try: os.rename(path, 'moved'); print(path)\n"
        "  except OSError: pass"
    )
    assert (result.stdout, result.stderr) == ("", "")
    assert result.files == ()


def test_links_in_the_way_of_a_write(sandbox: Sandbox) -> None:
    """Code that writes through its links stays within its own folders."""

    async def scenario() -> ToolResult:
        async with await sandbox.open() as one, await sandbox.open({"kept": b"kept"}) as two:
            result = await one.run(
                "import os\n"
                "for n in range(300):\n"
                "  for top in ('/ws', '/scratch', '..'):\n"
                "    for number in (n, 10_000 + n):\n"
                "      link = f'l{n}{top[1]}{number}'\n"
                "      os.symlink(f'{top}/{number}', link)\n"
                "      try: open(link + '/kept', 'r+').write('stolen')\n"
                "      except OSError: pass\n"
                "      os.unlink(link)\n"
            )
            assert await two.read("kept", 10) == b"kept"
            return result

    result = asyncio.run(scenario())
    assert (result.ok, result.stderr) == (True, "")


def test_a_name_that_changes_while_it_is_read(play: Play, secret_file: Path) -> None:
    """A file, then a link, then a folder, then a pipe, thousands of times a second."""
    swap = (
        "import os, time\n"
        "open('file', 'w').write('mine'); os.mkfifo('pipe'); os.mkdir('folder')\n"
        f"os.symlink({str(secret_file)!r}, 'link'); os.symlink('/etc/passwd', 'other')\n"
        "end = time.time() + 0.6\n"
        "while time.time() < end:\n"
        "  for name in ('file', 'link', 'other', 'pipe', 'folder'):\n"
        "    os.rename(name, 'x'); os.rename('x', name)\n"
    )

    async def read(workspace: Workspace) -> bytes | None:
        try:
            return await asyncio.wait_for(workspace.read("x", 1000), 30)
        except (FileNotFoundError, ValueError):
            return None

    async def scenario(workspace: Workspace) -> tuple[set[bytes | None], ToolResult]:
        swapping = asyncio.create_task(workspace.run(swap))
        seen: set[bytes | None] = set()
        while not swapping.done():
            seen.add(await read(workspace))
        return seen, await swapping

    seen, result = play(scenario)
    assert seen <= {None, b"mine"}
    assert result.ok


@pytest.mark.parametrize("odd", ["fifo", "socket", "link", "folder", "device", "sparse", "unreadable"])
def test_a_submission_that_is_no_file(play: Play, odd: str) -> None:
    make = {
        "fifo": "os.mkfifo('submission.csv')",
        "socket": "os.mknod('submission.csv', stat.S_IFSOCK | 0o666)",
        "link": "os.symlink('submission.csv', 'submission.csv')",
        "folder": "os.mkdir('submission.csv')",
        "device": "os.mknod('submission.csv', stat.S_IFCHR | 0o666, os.makedev(1, 5))",
        "sparse": "open('submission.csv', 'w').truncate(20 << 20)",
        "unreadable": "open('submission.csv', 'w').write('a'); os.chmod('submission.csv', 0)",
    }

    async def scenario(workspace: Workspace) -> tuple[ToolResult, str]:
        result = await workspace.run(f"import os, stat\n{make[odd]}")
        try:
            await asyncio.wait_for(workspace.read("submission.csv", 1 << 20), 30)
        except (FileNotFoundError, ValueError) as error:
            return result, type(error).__name__
        return result, "read"

    result, outcome = play(scenario)
    kinds = [record.kind for record in result.files]
    if odd == "device":
        assert (result.exception, kinds, outcome) == ("PermissionError", [], "FileNotFoundError")
    elif odd == "unreadable":
        # The trusted side may well read what the agent's own code could not.
        assert (len(kinds), result.ok) == (1, True)
        assert outcome in ("read", "ValueError")
    else:
        known = {"fifo": ["fifo"], "socket": ["other"], "link": ["link"], "folder": [], "sparse": ["csv"]}
        assert outcome == "ValueError"
        assert result.ok
        assert kinds == known[odd] or (odd == "sparse" and kinds == ["other"])


def test_names(play: Play) -> None:
    names = [
        b"two\nlines",
        b"\xff\xfe",
        b"tab\t",
        b"\x1b[31mred",
        b"-rf",
        b"'\"$(x)`",
        b"x" * 255,
        b"a\\b",
        b" ",
    ]
    names += [
        "ü.csv".encode(),
        "\u202egpj.csv".encode(),
        b"\xed\xa0\x80",
        b"\x01",
        b"\x7f",
        b"~",
        b"*",
        b"...",
    ]

    async def scenario(workspace: Workspace) -> tuple[ToolResult, ToolResult, list[bytes]]:
        made = await workspace.run(f"for name in {names!r}:\n  with open(name, 'wb') as f: f.write(name)")
        read = [await workspace.read(os.fsdecode(name), 1000) for name in names]
        removed = await workspace.run(f"import os\nfor name in {names!r}: os.unlink(name)")
        return made, removed, read

    made, removed, read = play(scenario)
    assert read == names
    expected = sorted(name.decode("utf-8", "backslashreplace") for name in names)
    assert sorted(record.path for record in made.files) == expected
    assert {record.change for record in made.files} == {"created"}
    assert sorted((record.path, record.change) for record in removed.files) == [
        (n, "deleted") for n in expected
    ]


def test_paths_that_are_no_paths(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        bad = ["", "/", "/etc/passwd", "..", "../x", "a\0b", "x/../../x", "\udcff\0", "a" * 5000, "./../."]
        bad.append("\ud800")  # cannot be a file's name
        for path in bad:
            with pytest.raises((ValueError, FileNotFoundError)):
                await workspace.read(path, 10)

    play(scenario)


def test_files_that_their_owner_locked(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        result = await workspace.run(
            "import os\nos.mkdir('d'); open('d/x', 'w').write('1'); open('y', 'w').write('2')\n"
            "os.chmod('y', 0); os.chmod('d', 0); os.chmod('.', 0)"
        )
        assert result.ok
        assert (await workspace.run("print(1)")).stdout == "1\n"

    play(scenario)


def test_deep_folders(play: Play) -> None:
    code = "import os\nfor _ in range(2000):\n  os.mkdir('d'); os.chdir('d')\nopen('x', 'w')"

    async def scenario(workspace: Workspace) -> None:
        assert (await workspace.run(code)).ok
        assert (await workspace.run("print(1)")).stdout == "1\n"

    play(scenario)


def test_the_workspace_itself_cannot_be_replaced(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        await workspace.run(
            "import os\n"
            "for act in (lambda: os.rmdir('/workspace'), lambda: os.rename('/workspace', '/tmp/w'),\n"
            "            lambda: os.unlink('/workspace'), lambda: os.symlink('/', '/workspace'),\n"
            "            lambda: os.rmdir(os.getcwd()), lambda: os.rename(os.getcwd(), '/tmp/v')):\n"
            "  try: act(); print('did')\n"
            "  except OSError: pass\n"
            "open('/workspace/a', 'w').write('1')\n"
        )
        assert await workspace.read("a", 10) == b"1"
        result = await workspace.run("import os; print(os.listdir('.'), os.listdir('/workspace'))")
        assert result.stdout == "['a'] ['a']\n"

    play(scenario)


def test_times_from_the_past_hide_no_change(play: Play) -> None:
    async def scenario(workspace: Workspace) -> ToolResult:
        await workspace.run("open('a', 'w').write('1')")
        return await workspace.run(
            "import os\nfound = os.stat('a'); f = open('a', 'r+'); f.write('2'); f.close()\n"
            "os.utime('a', ns=(found.st_atime_ns, found.st_mtime_ns))"
        )

    assert [(record.path, record.change) for record in play(scenario).files] == [("a", "changed")]
