"""Code that breaks what is around it in its own process: its run fails or ends, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sandbox_kit import run_once

from mappa_envs.sandbox import Sandbox, Workspace
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]
Play = Callable[[Callable[[Workspace], Awaitable[Any]]], Any]

HOSTILE = {
    "name": "class Meta(type):\n  __name__ = property(lambda self: 1 / 0)\n"
    "class Odd(Exception, metaclass=Meta): pass\nraise Odd",
    "no_name": "class Meta(type):\n  __name__ = property(lambda self: 7)\n"
    "class Odd(Exception, metaclass=Meta): pass\nraise Odd",
    "text": "class Odd(Exception):\n  def __str__(self): raise self\n  __repr__ = __str__\nraise Odd",
    "class": "class Odd(Exception):\n  __class__ = property(lambda self: 1 / 0)\nraise Odd",
    "notes": "error = ValueError('\\ud800\\x1b[2J')\nerror.__notes__ = [error, b'x', 7]\nraise error",
    "group": "error = ValueError()\nfor _ in range(5000): error = ExceptionGroup('g', [error])\nraise error",
    "chain": "error = None\n"
    "for n in range(3000):\n  new = ValueError(n); new.__cause__ = error; error = new\nraise error",
    "circle": "a, b = ValueError(1), ValueError(2)\na.__context__ = b; b.__context__ = a\nraise a",
    "code": "class Odd(int):\n  def __and__(self, other): return 'zero'\nraise SystemExit(Odd(3))",
    "truth": "class Odd(int):\n  def __bool__(self): 1 / 0\nraise SystemExit(Odd(3))",
    "streams": "import sys\ndel sys.stdout, sys.stderr, sys.__stderr__\nraise SystemExit('words')",
    "hooks": "import sys, traceback\nsys.excepthook = traceback.print_exception = None\nsys.settrace(1 / 0)",
    "lines": "import linecache\nlinecache.getline = linecache.cache = None\n1 / 0",
    "surrogates": "x = '\ud800'\n1 / 0",
    "zero": "1 / 0\n\0",
}


@pytest.mark.slow
def test_hostile_exceptions_fail_their_run_alone(play: Play) -> None:
    async def scenario(workspace: Workspace) -> dict[str, ToolResult]:
        return {name: await workspace.run(code) for name, code in HOSTILE.items()}

    for name, failed in play(scenario).items():
        assert (failed.exit_code, failed.limit) == (3 if name == "code" else 1, None), name
        assert failed.exception is None or failed.exception.isidentifier(), name


@pytest.mark.slow
def test_a_message_without_end_is_a_flood(run: Run) -> None:
    result = run("raise ValueError('x' * (40 << 20))")
    assert (result.limit, result.exit_code) == ("output", -9)
    assert len(result.stderr) < 16384 + 100


@pytest.mark.slow
def test_a_stack_without_end_is_stopped(attack: Run) -> None:
    result = attack("import sys\nsys.setrecursionlimit(10**9)\ndef down(): down()\ndown()")
    assert not result.ok
    assert result.limit in ("memory", "time") or result.exit_code == -11


def test_children_that_nobody_waits_for(run: Run) -> None:
    """With SIGCHLD ignored the kernel clears them away; without, they are zombies until the run ends."""
    result = run(
        "import os, signal, time\n"
        "for way in (signal.SIG_IGN, signal.SIG_DFL):\n"
        "  signal.signal(signal.SIGCHLD, way)\n"
        "  for _ in range(3):\n    if os.fork() == 0: os._exit(0)\n"
        "time.sleep(0.02); print('over')"
    )
    assert (result.stdout, result.limit, result.ok) == ("over\n", None, True)


def test_files_without_a_name_are_gone_with_their_run(play: Play) -> None:
    """One that gets a name later is a file like any other."""
    code = (
        "import ctypes, os\n"
        "nameless = [os.open('.', os.O_TMPFILE | os.O_RDWR) for _ in range(3)]\n"
        "os.write(nameless[0], b'kept'); os.ftruncate(nameless[1], 8 << 20)\n"
        "path = f'/proc/self/fd/{nameless[0]}'.encode()\n"
        "print(ctypes.CDLL(None).linkat(-100, path, -100, b'named', 0x400))\n"
    )

    async def scenario(workspace: Workspace) -> tuple[ToolResult, bytes]:
        return await workspace.run(code), await workspace.read("named", 10)

    result, content = play(scenario)
    assert [(record.path, record.change) for record in result.files] == [("named", "created")]
    assert content == b"kept"


@pytest.mark.slow
def test_who_cannot_be_looked_into_has_the_same_limits(lean: Sandbox) -> None:
    """A process that is not dumpable belongs to root in /proc; so does one whose program nobody may read."""
    code = (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "for _ in range(8):\n  if os.fork() == 0:\n    a = bytearray(100 << 20)\n"
        "    for i in range(0, len(a), 4096): a[i] = 1\n    time.sleep(20)\ntime.sleep(20)"
    )
    result = asyncio.run(run_once(lean, code))
    assert (result.limit, result.exit_code) == ("memory", -9)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import faulthandler, time; faulthandler.dump_traceback_later(0.01, exit=True); time.sleep(9)", 1),
        ("import ctypes, signal, os; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.kill(os.getpid(), 15)", -15),
        ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (99999, 99999))", 1),
        ("import gc; gc.callbacks.append(lambda *_: 1 / 0); gc.collect(); print('on')", 0),
        ("import sys; sys.settrace(lambda *_: 1 / 0)\ndef call(): pass\ncall()", 1),
        ("import atexit, os; atexit.register(os._exit, 5)", 5),
    ],
    ids=["faulthandler", "death_signal", "raising", "gc", "trace", "atexit"],
)
def test_hooks_end_in_their_run(run: Run, code: str, exit_code: int) -> None:
    result = run(code)
    assert (result.exit_code, result.limit) == (exit_code, None)
