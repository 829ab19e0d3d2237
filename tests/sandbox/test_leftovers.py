"""Nothing outlives its run: no process, no file outside the workspace, no change to the interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sandbox_kit import still_for, until_there

from mappa_envs.sandbox import Sandbox, Workspace
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Play = Callable[[Callable[[Workspace], Awaitable[Any]]], Any]

DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)
        os.chdir("/")
        while True:
            open("/workspace/late", "a").write("x")
            time.sleep(0.001)
    os._exit(0)
while not os.path.exists("/workspace/late"):
    time.sleep(0.001)
print("left")
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "os._exit(3)",
        *(
            pytest.param(ending, marks=pytest.mark.slow)
            for ending in ("os.kill(os.getpid(), 9)", "1 / 0", "import ctypes; ctypes.string_at(0)")
        ),
    ],
    ids=["end", "exit", "kill", "error", "crash"],
)
def test_a_daemon_dies_with_its_run(play: Play, ending: str) -> None:
    async def scenario(workspace: Workspace) -> None:
        result = await workspace.run(DAEMON + ending)
        assert (result.stdout, result.limit) == ("left\n", None)
        assert [record.path for record in result.files] == ["late"]
        await still_for(workspace, "late")

    play(scenario)


@pytest.mark.slow
def test_a_crowd_of_daemons_dies_with_its_run(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        result = await workspace.run(
            "import os, time\n"
            "for n in range(20):\n"
            "  if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    while True: open('late', 'a').write('x')\n"
            "time.sleep(0.1)"
        )
        assert result.ok
        await still_for(workspace, "late")

    play(scenario)


def test_threads_that_never_end_do_not_either(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        result = await workspace.run(
            "import threading, time\n"
            "def write():\n"
            "  while True: open('late', 'a').write('x')\n"
            "threading.Thread(target=write, daemon=True).start(); time.sleep(0.05)"
        )
        assert result.ok
        await still_for(workspace, "late")

    play(scenario)


def test_runs_that_follow_at_once(play: Play) -> None:
    """The next one starts while the memory of the last one is still being freed."""
    code = "import numpy as np\na = np.ones(4_000_000)\nprint({n})"

    async def scenario(workspace: Workspace) -> list[ToolResult]:
        return [await workspace.run(code.format(n=n)) for n in range(30)]

    results = play(scenario)
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(30)]
    assert {(result.exit_code, result.limit, result.stderr) for result in results} == {(0, None, "")}


@pytest.mark.slow
def test_a_cancelled_run_is_dead_before_the_next(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        running = asyncio.create_task(workspace.run(DAEMON + "while True: pass"))
        await until_there(workspace, "late")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await workspace.run("print('next')")
        assert (result.stdout, [record.path for record in result.files]) == ("next\n", ["late"])
        await still_for(workspace, "late")

    play(scenario)


def test_closing_kills(sandbox: Sandbox) -> None:
    """The fixture sees that no process is left."""

    async def scenario() -> None:
        workspace = await sandbox.open()
        running = asyncio.create_task(workspace.run(DAEMON + "while True: pass"))
        await until_there(workspace, "late")
        await workspace.close()
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            await running

    asyncio.run(scenario())


def test_scratch_folders_are_fresh_each_time(sandbox: Sandbox) -> None:
    leave = (
        "import os\n"
        "from multiprocessing import shared_memory, resource_tracker\n"
        "resource_tracker.register = lambda *_: None\n"
        "for folder in ('/tmp/1', '/dev/shm/2'):\n"
        "  os.makedirs(f'{folder}d/e'); open(f'{folder}d/e/x', 'w').write('x')\n"
        "  os.mkfifo(f'{folder}p'); os.symlink('/', f'{folder}l')\n"
        "  open(f'{folder}{chr(10)}', 'w'); open(os.fsencode(folder) + b'\\xff', 'w')\n"
        "  os.chmod(f'{folder}d/e', 0); os.chmod(f'{folder}d', 0)\n"
        "open('/tmp/.h', 'w'); open('/dev/shm/.i', 'w')\n"
        "shared_memory.SharedMemory('kept', create=True, size=10)\n"
    )
    look = "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('.'))"

    async def scenario() -> list[str]:
        async with await sandbox.open() as one, await sandbox.open() as two:
            left = await one.run(leave)
            assert (left.stderr, left.files) == ("", ())
            return [(await workspace.run(look)).stdout for workspace in (one, two)]

    assert asyncio.run(scenario()) == ["[] [] []\n"] * 2


def test_scratch_folders_of_a_killed_run_are_cleared(impatient: Sandbox) -> None:
    async def scenario() -> str:
        async with await impatient.open() as workspace:
            result = await workspace.run("open('/tmp/x', 'w'); open('/dev/shm/x', 'w')\nwhile True: pass")
            assert result.limit == "time"
            return (
                await workspace.run("import os; print(os.listdir('/tmp') + os.listdir('/dev/shm'))")
            ).stdout

    assert asyncio.run(scenario()) == "[]\n"


def test_poison_stays_in_its_run(play: Play) -> None:
    async def scenario(workspace: Workspace) -> None:
        poison = (
            "import builtins, sys, numpy, os, signal\n"
            "builtins.print = numpy.mean = None; sys.modules['json'] = 5; os.environ['PYTHONPATH'] = '/tmp'\n"
            "sys.path.insert(0, '/tmp'); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "folders = ['.', '/tmp', '/dev/shm', '.local/lib/python3.11/site-packages']\n"
            "for folder in folders:\n"
            "  os.makedirs(folder, exist_ok=True)\n"
            "  for name in ('zipfile', 'sympy', 'json', 'encodings', 'sitecustomize', 'usercustomize'):\n"
            "    try: open(f'{folder}/{name}.py', 'w').write('raise SystemExit(9)')\n"
            "    except OSError: pass\n"
            "open('helper.py', 'w').write('value = 7'); open('x.pth', 'w').write('import os; os._exit(9)')\n"
            "os.umask(0o777)\n"
        )
        assert (await workspace.run(poison)).ok
        result = await workspace.run(
            "import zipfile, sympy, json, numpy, helper, os, signal\n"
            "print(helper.value, numpy.mean([2]), signal.getsignal(15) == signal.SIG_DFL, os.umask(0o022))\n"
        )
        assert result.stdout == "7 2.0 True 18\n"
        assert await workspace.inspect("import zipfile, sympy; report(1)") == 1
        assert await workspace.inspect("import helper; report(1)") is None

    play(scenario)


def test_poison_does_not_reach_the_next_episode(sandbox: Sandbox) -> None:
    """Where a number is used again, its owner must find nothing of the last one."""
    poison = (
        "import ctypes, os, sys\n"
        "import numpy, pandas\n"
        "poisoned = ('numpy', 'pandas', 'inside.worker', 'mappa_envs.sandbox.inside.worker')\n"
        "for module in [sys.modules[name] for name in poisoned if name in sys.modules]:\n"
        "  for name in list(module.__dict__):\n"
        "    if callable(getattr(module, name, None)):\n"
        "      setattr(module, name, lambda *_, **__: os._exit(99))\n"
        "ctypes.memset(id(10 ** 6), 0, 0)\n"
        "open('sitecustomize.py', 'w').write('1 / 0'); os.chmod('.', 0)\n"
        "os._exit(0)\n"
    )
    check = (
        "import os, numpy as np, pandas as pd\n"
        "print(np.arange(3).sum(), len(pd.DataFrame({'a': [1]})), os.listdir())"
    )

    async def scenario() -> list[str]:
        shown = []
        for _ in range(3):
            async with await sandbox.open() as workspace:
                await workspace.run(poison)
            async with await sandbox.open() as workspace:
                shown.append((await workspace.run(check)).stdout)
        return shown

    assert asyncio.run(scenario()) == ["3 1 []\n"] * 3


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(os.getppid() or 1, 9)",
        "import os\nfor p in {*range(1, 50)} - {os.getpid()}:\n  try: os.kill(p, 9)\n  except OSError: pass",
        "import os; os.kill(-1, 9)",
        "import os; os.killpg(0, 9)",
    ],
    ids=["parent", "low", "all", "group"],
)
def test_killing_what_is_around(play: Play, code: str) -> None:
    async def scenario(workspace: Workspace) -> tuple[ToolResult, ToolResult]:
        return await workspace.run(code), await workspace.run("print('alive')")

    first, second = play(scenario)
    assert first.limit is None
    assert first.exit_code in (0, 1, -9)
    assert second.stdout == "alive\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os; os._exit(7)", 7),
        ("import os; os.abort()", -6),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import ctypes; ctypes.string_at(0)", -11),
        (
            "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(4)'])",
            4,
        ),
    ],
    ids=["exit", "abort", "kill", "segfault", "exec"],
)
def test_odd_ends(play: Play, code: str, exit_code: int) -> None:
    async def scenario(workspace: Workspace) -> tuple[ToolResult, ToolResult]:
        return await workspace.run(code), await workspace.run("print('alive')")

    first, second = play(scenario)
    assert (first.exit_code, first.limit, first.ok) == (exit_code, None, exit_code == 0)
    assert second.stdout == "alive\n"
