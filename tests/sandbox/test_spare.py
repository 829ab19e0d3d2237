"""A worker that waits for its run: what it copies ahead, and that nobody's run can change it."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import signal
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from census import children_of, sandbox_pids, wait_until, zygotes
from sandbox_kit import Run, in_fork, only_namespace

from mappa_envs.sandbox import Sandbox
from mappa_envs.sandbox.inside import pages

FRAMES = """
import sys
frame, found = sys._getframe(), {}
while frame:
    found |= {type(value).__name__: value for value in list(frame.f_locals.values())}
    frame = frame.f_back
"""


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def has(ranges: pages.Ranges, address: int) -> bool:
    return any(ranges[n] <= address < ranges[n] + ranges[n + 1] for n in range(0, len(ranges), 2))


def test_own_pages_are_those_written_to() -> None:
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = b"x" * len(memory)
        start = address_of(memory)

        def write() -> tuple[bool, bool]:
            memory[5 << 12] = 1
            ranges = pages.own_ranges()
            return has(ranges, start + (5 << 12)), has(ranges, start + (60 << 12))

        assert in_fork(write) == (True, False)


def test_pages_can_be_made_own_ahead() -> None:
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = b"x" * len(memory)
        start = address_of(memory)

        def copy() -> tuple[bool, bool, bytes]:
            pages.make_own(array("Q", [start + (5 << 12), 2 << 12]))
            ranges = pages.own_ranges()
            return has(ranges, start + (6 << 12)), has(ranges, start + (60 << 12)), memory[:]

        copied, more, content = in_fork(copy)
        if not copied:
            pytest.skip("this kernel has no MADV_POPULATE_WRITE")
        assert not more
        assert content == b"x" * (1 << 20)


def test_every_worker_knows_what_to_copy(run: Run) -> None:
    """A worker that does not know it says so in its report, which only our own rehearsal may read."""
    result = run(FRAMES + "print(len(found['Setting'].touched) > 20)")
    assert result.stdout == "True\n"


def test_the_spare_is_as_fresh_as_the_first(sandbox: Sandbox) -> None:
    """The next worker waits while a run spoils all that it can reach."""
    look = FRAMES + (
        "import gc, random\n"
        "z = found['Zygote']\n"
        "print(len(z.running), len(z.spares), sorted(vars(found['Setting'])))\n"
        "print(random.random(), gc.isenabled())\n"
        "print(len(sys.modules), sys.path, len(sys.argv), 'mark' in vars(sys))"
    )
    spoil = FRAMES + (
        "import random; random.seed(7); sys.mark = 1; sys.path.clear(); found['Zygote'].num_spares = 9\n"
        "vars(found['Setting']).clear(); found['Zygote'].touched.extend([1, 2]); sys.modules.clear()"
    )

    async def scenario() -> list[str]:
        shown = []
        async with await sandbox.open() as workspace:
            for code in (look, spoil, look, look):
                shown.append((await workspace.run(code)).stdout)
                await asyncio.sleep(0.2)  # time for a spare
        return shown

    first, _, *others = asyncio.run(scenario())
    assert first.endswith("1 False\n")
    assert others == [first, first]


@only_namespace
def test_a_waiting_spare_is_in_no_workspace(sandbox: Sandbox) -> None:
    """It is made before anybody knows whose run it will serve."""

    def views() -> list[str]:
        waiting = [pid for zygote in zygotes(sandbox_pids("namespace")) for pid in children_of(zygote)]
        try:
            return [Path(f"/proc/{pid}/mountinfo").read_text() for pid in waiting]
        except OSError:
            return []  # one of the run's own, which is just ending

    def is_as_it_should() -> bool:
        mounts = views()
        # Its init, which shares our view, and the spare; those of the run that was may take a moment to end.
        return (
            len(mounts) >= 2
            and not any(" /workspace " in text for text in mounts)
            and any(" /ws" not in text for text in mounts)
        )

    async def scenario() -> None:
        async with await sandbox.open({"secret.csv": b"1"}) as workspace:
            assert (await workspace.run("print(1)")).ok
            await asyncio.sleep(0.2)  # time for a spare
            assert await asyncio.to_thread(wait_until, is_as_it_should, 30), views()

    asyncio.run(scenario())


@only_namespace
def test_a_spare_that_died_is_replaced(run: Run, sandbox: Any) -> None:
    """By the kernel's hand when memory runs out, say: each later run would have to wait for its fork."""
    assert run("print(1)").ok
    (zygote,) = children_of(sandbox.inner.zygote._process.pid)

    def waiting_after_a_run() -> list[int]:
        assert run("print(1)").stdout == "1\n"
        time.sleep(0.3)  # until those of the run are gone
        assert wait_until(lambda: len(children_of(zygote)) == 2, 30)
        return children_of(zygote)

    for pid in waiting_after_a_run():  # its init and the spare
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: children_of(zygote) == [], 30)
    waiting_after_a_run()
