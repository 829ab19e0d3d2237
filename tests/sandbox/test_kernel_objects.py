"""What the kernel would keep for a run besides its processes' memory, and what it would start for one."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mappa_envs.sandbox import Sandbox, Workspace
from mappa_envs.sandbox.inside import watchdog
from mappa_envs.sandbox.inside.zygote import MAX_SHARING, Step, Zygote
from mappa_envs.types import ToolResult

unharmed = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]
Play = Callable[[Callable[[Workspace], Awaitable[Any]]], Any]


@unharmed
def test_no_memory_is_shared_without_a_file(run: Run) -> None:
    """Unmapped by all but one page, it would stay whole, and no process would seem to hold it."""
    result = run(
        "import mmap, multiprocessing, os\n"
        "try: mmap.mmap(-1, 1 << 20)\n"
        "except PermissionError: print('refused')\n"
        "print(os.path.exists('/dev/zero'), len(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE)))\n"
        "value, many = multiprocessing.Value('i', 3), multiprocessing.Array('d', 4)\n"
        "if os.fork() == 0: value.value = 7; many[2] = 1.5; os._exit(0)\n"
        "os.wait(); print(value.value, many[:])"
    )
    assert (result.stdout, result.stderr) == ("refused\nFalse 1048576\n7 [0.0, 0.0, 1.5, 0.0]\n", "")


@unharmed
def test_shared_files_are_within_the_limit_of_their_folder(run: Run) -> None:
    result = run(
        "import mmap\n"
        "for folder in ('/dev/shm', '/tmp', '.'):\n"
        "  with open(folder + '/x', 'w+b') as file:\n"
        "    file.truncate(16 << 20)\n"
        "    memory = mmap.mmap(file.fileno(), 0)\n"
        "    memory[-1] = 1; print(len(memory) >> 20)\n"
    )
    assert (result.stdout, result.stderr) == ("16\n16\n16\n", "")


def test_what_is_in_the_swap_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can send its pages there: `madvise` with MADV_PAGEOUT."""
    kept = {"RssAnon": 40, "VmSwap": 10, "RssShmem": 0, "VmPTE": 1, "Threads": 1}
    status = {
        "self": kept,
        "7": kept | {"RssAnon": 0, "VmSwap": 90},
        "8": kept | {"RssAnon": 20, "VmSwap": 5},
    }
    rollup = {"Pss_Anon": 30, "Pss_Shmem": 0, "SwapPss": 200}
    monkeypatch.setattr(watchdog, "all_pids", lambda: [7, 8])
    monkeypatch.setattr(
        watchdog, "_fields", lambda path: rollup if "rollup" in path else status[path.split("/")[2]]
    )
    used = watchdog.usage({1}, lambda pid: 1, set(), workers={7})[1]
    assert used.resident_bytes == (90 - 50 + 1) + (25 + 1)
    assert used.exact_bytes(0) == 2 * 230 + 2 - 50


def test_memory_far_beyond_the_limit_is_not_looked_at_any_closer() -> None:
    """Nor is it let grow in the pause that an exact look is followed by."""
    zygote, memory_bytes = Zygote.__new__(Zygote), 1000
    ours, theirs = socket.socketpair()
    with ours, theirs:
        step = Step(1, 0, ours, -1, -1, limits={"memory_bytes": memory_bytes}, next_look=math.inf)
        for num_bytes, is_too_much in ((MAX_SHARING * memory_bytes, False), (17 * memory_bytes, True)):
            used = watchdog.Usage(resident_bytes=num_bytes)
            assert zygote.takes_too_much(step, used) == is_too_much


@unharmed
def test_runs_die_first_when_memory_runs_out(run: Run) -> None:
    """And not who watches them."""
    assert run("print(open('/proc/self/oom_score_adj').read().strip())").stdout == "1000\n"


@unharmed
def test_crashes_start_no_program_of_the_host(run: Run) -> None:
    """A host may hand core dumps to one, which a limit of 0 does not keep it from, but a limit of 1 does."""
    result = run(
        "import resource\n"
        "core, none = resource.RLIMIT_CORE, (0, 0)\n"
        "print(*set(resource.getrlimit(core)) - {0, 1})\n"
        "for act in (lambda: resource.setrlimit(core, none), lambda: resource.prlimit(0, core, none)):\n"
        "  try: act(); print('changed')\n"
        "  except (OSError, ValueError): pass\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); print(resource.getrlimit(7)[0])\n"
    )
    assert (result.stdout, result.stderr) == ("\n64\n", "")


@unharmed
def test_nothing_is_more_urgent_than_its_watcher(run: Run) -> None:
    result = run(
        "import os\n"
        "for act in (lambda: os.setpriority(os.PRIO_PROCESS, 0, -1),\n"
        "            lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),\n"
        "            lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))):\n"
        "  try: act(); print('did')\n"
        "  except OSError: pass"
    )
    assert (result.stdout, result.stderr) == ("", "")


@unharmed
def test_a_report_without_end_is_a_flood(sandbox: Sandbox) -> None:
    """Its descriptor is not meant for the code, which can find it all the same."""

    async def scenario() -> ToolResult:
        async with await sandbox.open() as workspace:
            return await workspace.run("import os\ndata = bytes(1 << 20)\nwhile True: os.write(4, data)")

    result = asyncio.run(scenario())
    assert (result.limit, result.exit_code, result.exception) == ("output", -9, None)


@unharmed
def test_long_paths_are_not_kept(play: Play) -> None:
    """Ten thousand of them, nested, would be megabytes in every record of the run."""

    async def scenario(workspace: Workspace) -> ToolResult:
        return await workspace.run(
            "import os\nopen('n' * 255, 'w').close()\n"
            "for _ in range(3):\n  os.mkdir('d' * 250); os.chdir('d' * 250); open('f' * 9, 'w').close()\n"
        )

    paths = [record.path for record in play(scenario).files]
    assert paths == [f"{'d' * 250}/{'d' * 250}/fffffffff", f"{'d' * 250}/fffffffff", "n" * 255]
