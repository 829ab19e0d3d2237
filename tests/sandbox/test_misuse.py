"""Callers that give up, close twice or close too early; and what a workspace leaves to the next one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from census import children_of, is_alive
from sandbox_kit import only_namespace, run_once, until_there

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Limits, Sandbox, copying, engine, open_sandbox


def test_opens_that_were_given_up_leave_nothing(sandbox: Sandbox) -> None:
    files = {f"f{n}.csv": b"secret" * 1000 for n in range(40)}

    async def scenario() -> None:
        for n in range(60):
            opening = asyncio.ensure_future(sandbox.open(files))
            await asyncio.sleep(0.0001 * n)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
        # Two at a time: had the others kept their places, the container would be full.
        for _ in range(100):
            async with await sandbox.open({"mine": b"1"}) as one, await sandbox.open() as two:
                assert not two.closed
        async with await sandbox.open({"mine": b"1"}) as one:
            assert (await one.run("import os; print(os.listdir('.'))")).stdout == "['mine']\n"

    asyncio.run(scenario())


@pytest.mark.usefixtures("unharmed")
def test_closing_meets_everything_else(kind: str) -> None:
    async def scenario() -> None:
        sandbox = open_sandbox(kind, Limits(time_s=10))
        workspace = await sandbox.open()
        running = asyncio.ensure_future(workspace.run("while True: pass"))
        await asyncio.sleep(0.1)
        results = await asyncio.gather(
            sandbox.close(),
            sandbox.close(),
            sandbox.open(),
            workspace.close(),
            running,
            return_exceptions=True,
        )
        assert results[0] is results[1] is None
        assert isinstance(results[2], SandboxError)
        assert results[3] is None
        assert isinstance(results[4], SandboxError)
        with pytest.raises(SandboxError, match="closed"):
            await workspace.run("print(1)")
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.open()
        await workspace.close()
        await sandbox.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.usefixtures("unharmed")
def test_a_close_that_was_given_up_goes_on_to_its_end(sandbox: Sandbox) -> None:
    """The fixture sees that no process, mount, file or descriptor is left."""

    async def scenario() -> None:
        for delay_s in (0.0, 0.0002, 0.001, 0.004):
            workspace = await sandbox.open({"kept.csv": b"1"})
            running = asyncio.ensure_future(workspace.run("while True: pass"))
            await asyncio.sleep(0.05)
            closing = asyncio.ensure_future(workspace.close())
            await asyncio.sleep(delay_s)
            closing.cancel()
            results = await asyncio.gather(closing, running, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError | None)
            assert isinstance(results[1], SandboxError)

    asyncio.run(scenario())


@only_namespace
def test_closing_after_giving_up_waits_for_the_end_of_the_run(sandbox: Any) -> None:
    """Its number, and with it its user, may be the next workspace's."""
    code = "a = b'x' * (300 << 20)\nopen('ready', 'w').close()\nwhile True: pass"  # such memory takes a while

    async def scenario() -> list[int]:
        workspace = await sandbox.open()
        running = asyncio.ensure_future(workspace.run(code))
        await until_there(workspace, "ready")
        (zygote,) = children_of(sandbox.inner.zygote._process.pid)
        pids = children_of(zygote)
        running.cancel()
        await asyncio.sleep(0)
        await workspace.close()
        return [pid for pid in pids if is_alive(pid)]

    assert asyncio.run(scenario()) == []


@only_namespace
def test_a_close_waits_for_who_reads(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace's descriptor would be closed, or that of another folder by then."""
    began, seen = threading.Event(), []

    def read_late(path: str, max_bytes: int, open_it: Callable[[], int]) -> bytes:
        began.set()
        time.sleep(0.1)
        seen.append(copying.read_file(path, max_bytes, open_it))
        return seen[0]

    async def scenario() -> None:
        workspace = await sandbox.open({"a.csv": b"mine"})
        reading = asyncio.ensure_future(workspace.read("a.csv", 10))
        await asyncio.to_thread(began.wait)
        await workspace.close()
        assert seen == [b"mine"]
        with pytest.raises(SandboxError, match="closed meanwhile"):
            await reading

    monkeypatch.setattr(engine, "read_file", read_late)
    asyncio.run(scenario())


def test_a_mapped_write_is_in_the_trail(sandbox: Sandbox) -> None:
    """The times of a file do not tell: its page was already writable when the writing came."""
    code = (
        "import mmap\nfile = open('model.pkl', 'r+b')\nview = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED)\n"
        "view[0]; view[0:4] = b'EVIL'"
    )

    async def scenario() -> None:
        async with await sandbox.open({"model.pkl": b"GOODGOOD"}) as workspace:
            result = await workspace.run(code)
            assert [(record.path, record.change) for record in result.files] == [("model.pkl", "changed")]
            assert (await workspace.run("print(open('model.pkl').read())")).files == ()

    asyncio.run(scenario())


def test_a_workspace_hands_nothing_down_to_the_next(sandbox: Sandbox) -> None:
    """Not even what belongs to its folder: extended attributes, access lists, modes."""
    code = (
        "import os, struct\n"
        "entries = [struct.pack('<HHI', kind, 0, 0xffffffff) for kind in (1, 4, 32)]\n"
        "access = struct.pack('<I', 2) + b''.join(entries)\n"
        "for name in ('.', '/tmp/.'):\n"
        "  for key, value in (('user.note', b'hello'), ('system.posix_acl_default', access)):\n"
        "    try: os.setxattr(name, key, value)\n"
        "    except OSError: pass\n"
        "os.chmod('.', 0)"
    )
    look = "import os\nprint(os.listxattr('.'), os.listxattr('/tmp/.'), open('train.csv').read())"

    async def scenario() -> None:
        for _ in range(3):
            async with await sandbox.open() as workspace:
                await workspace.run(code)
            async with await sandbox.open({"train.csv": b"a"}) as workspace:
                assert (await workspace.run(look)).stdout == "[] [] a\n"

    asyncio.run(scenario())


@pytest.mark.slow
def test_memory_of_many_programs_is_added_up(lean: Sandbox) -> None:
    """Each has what the worker was forked with, and less than the limit."""
    child = "b = bytearray(60 << 20); import time; time.sleep(20)"
    code = (
        "import subprocess, sys, time\n"
        f"ones = [subprocess.Popen([sys.executable, '-I', '-S', '-c', {child!r}]) for _ in range(8)]\n"
        "time.sleep(20)"
    )

    result = asyncio.run(run_once(lean, code))
    assert (result.limit, result.exit_code) == ("memory", -9)
