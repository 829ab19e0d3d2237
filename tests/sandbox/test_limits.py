"""Code that takes all it can get is stopped by the limit that it hits, and the result says which."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable

import pytest
from sandbox_kit import run_once

from mappa_envs.sandbox import Sandbox
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
slow = pytest.mark.slow  # one of each sort is enough between two edits
Run = Callable[..., ToolResult]


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal, time\n"
        "for s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        "time.sleep(99)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nif os.fork() == 0:\n  os.setsid()\nwhile True: pass",
        pytest.param(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", marks=slow
        ),
        pytest.param("import atexit, time; atexit.register(time.sleep, 99)", marks=slow),
        pytest.param("import numpy as np\na = np.ones((3000, 3000))\nwhile True: a @ a", marks=slow),
        pytest.param("import os\nread, _ = os.pipe()\nos.read(read, 1)", marks=slow),
        pytest.param("class Stay:\n  def __del__(self):\n    while True: pass\nstay = Stay()", marks=slow),
    ],
    ids=["loop", "deaf", "stop", "child", "thread", "atexit", "numpy", "pipe", "finalizer"],
)
def test_time(attack: Run, code: str) -> None:
    result = attack(code)
    assert (result.limit, result.exit_code, result.ok) == ("time", -9, False)
    assert 0.5 <= result.duration_s < 60


def test_only_the_clock_ends_a_run_that_uses_all_cores(run: Run) -> None:
    """The kernel's limit on processor time counts all threads together."""
    code = "import os, resource\nprint([n / os.cpu_count() for n in resource.getrlimit(resource.RLIMIT_CPU)])"
    assert run(code).stdout == "[15.0, 15.0]\n"


def test_what_was_printed_before_the_kill_is_kept(attack: Run) -> None:
    result = attack(
        "import sys\nprint('first'); print('second', file=sys.stderr); print('no end', end='')\n"
        "while True: pass"
    )
    assert (result.stdout.splitlines()[0], result.stderr, result.limit) == ("first", "second\n", "time")


def test_infinite_print_is_cut_the_same_way_each_time(sandbox: Sandbox) -> None:
    code = "n = 0\nwhile True:\n  print('A' * 1000, n)\n  n += 1"

    async def scenario() -> list[ToolResult]:
        async with await sandbox.open() as workspace:
            return [await workspace.run(code) for _ in range(2)]

    first, second = asyncio.run(scenario())
    assert first.limit == second.limit == "output"
    assert first.exit_code == second.exit_code == -9
    assert first.stdout == second.stdout
    assert f"[{1000 * 16384 - 16384} bytes cut]" in first.stdout


def test_both_streams_flooded_from_many_processes(run: Run) -> None:
    result = run(
        "import os\nos.fork(); os.fork()\ndata = b'x' * 65536\n"
        "while True: os.write(1, data); os.write(2, data)"
    )
    assert (result.limit, result.exit_code) == ("output", -9)
    assert max(len(result.stdout), len(result.stderr)) < 16384 + 100


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        pytest.param("import os\nfor _ in range(9999): os.fork()", marks=slow),
        pytest.param("import os\nwhile True:\n  if os.fork() == 0: os.setsid()", marks=slow),
    ],
    ids=["quiet", "loud", "sessions"],
)
def test_fork_bomb(attack: Run, code: str) -> None:
    result = attack(code)
    assert not result.ok
    assert result.limit in ("processes", "time", "memory") or result.exception == "BlockingIOError"


def test_chain_of_forks_that_outruns_its_killers(attack: Run) -> None:
    """Each link ends as soon as the next one lives, so no list of processes is ever right."""
    result = attack(
        "import os, sys\nif os.fork() == 0:\n  os.setsid()\n  while True:\n    if os.fork(): os._exit(0)\n"
        "    open('late', 'a').write('x')"
    )
    assert (result.exit_code, result.limit) == (0, None)


def test_thread_bomb(attack: Run) -> None:
    result = attack(
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    )
    assert not result.ok
    assert result.exception == "RuntimeError" or result.limit in ("processes", "time", "memory")


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nwhile True: a.append(bytearray(10 << 20))",
        "import numpy as np\nnp.ones((20000, 20000))",
        pytest.param(
            "import numpy as np\na = np.ones(1000)\nwhile True: a = np.concatenate([a, a])", marks=slow
        ),
        "import os\nfor _ in range(8):\n  if os.fork() == 0:\n    a = bytearray(100 << 20)\n"
        "    for i in range(0, len(a), 4096): a[i] = 1\n    while True: pass\nwhile True: pass",
        pytest.param("x = 'x'\nwhile True: x += x", marks=slow),
    ],
    ids=["list", "numpy", "numpy_grows", "children", "text"],
)
def test_memory(lean: Sandbox, code: str) -> None:
    result = asyncio.run(run_once(lean, code))
    assert (result.limit, result.ok) == ("memory", False)


def test_what_forks_inherit_is_no_memory_of_theirs(lean: Sandbox) -> None:
    """Each seems to hold all that the zygote has imported: together more than any sharing would explain."""
    code = (
        "import os, time\n"
        "for _ in range(40):\n"
        "  if os.fork() == 0: time.sleep(0.5); os._exit(0)\n"
        "for _ in range(40): os.wait()\n"
        "print('done')"
    )
    result = asyncio.run(run_once(lean, code))
    assert (result.stdout, result.limit) == ("done\n", None)


@slow
def test_zip_bomb(lean: Sandbox) -> None:
    """120 kB that become 120 MB of text and 480 MB of numbers.

    pandas turns the failed allocation into an error of its own, which the result cannot tell from others.
    """
    press = zlib.compressobj(6, wbits=31)
    bomb = press.compress(b"a\n") + b"".join(press.compress(b"1\n" * 1_000_000) for _ in range(60))
    bomb += press.flush()
    code = "import pandas as pd\npd.read_csv('bomb.csv', compression='gzip', low_memory=False)"
    result = asyncio.run(run_once(lean, code, {"bomb.csv": bomb}))
    assert (result.exit_code, result.files) in [(1, ()), (-9, ())]
    assert result.limit == "memory" or "out of memory" in result.stderr


def test_disk_full(attack: Run) -> None:
    result = attack("f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))")
    assert (result.limit, result.exception) == ("disk", "OSError")
    assert [record.path for record in result.files] == ["big"]
    assert 15 << 20 < result.files[0].size <= 16 << 20


def test_a_real_two_gigabyte_model(run: Run) -> None:
    result = run(
        "chunk = bytes(8 << 20)\nwith open('model.pkl', 'wb', 0) as f:\n  for _ in range(256): f.write(chunk)"
    )
    assert (result.limit, result.exception) == ("disk", "OSError")
    assert result.files[0].size <= 32 << 20


def test_a_sparse_two_gigabyte_model(lean: Sandbox) -> None:
    """It takes no room, so it may be there, but nobody reads all of it."""

    async def scenario() -> ToolResult:
        async with await lean.open() as workspace:
            result = await workspace.run("open('model.pkl', 'wb').truncate(2 << 30)")
            with pytest.raises(ValueError, match="larger"):
                await asyncio.wait_for(workspace.read("model.pkl", 100 << 20), 30)
            return result

    result = asyncio.run(scenario())
    assert result.ok
    assert [(r.path, r.size, r.sha256) for r in result.files] == [("model.pkl", 2 << 30, "")]


def test_a_hundred_thousand_files(run: Run) -> None:
    result = run("for n in range(100_000): open(f'f{n}', 'w').close()")
    assert (result.limit, result.exception) == ("disk", "OSError")
    assert len(result.files) == 10_000


def test_folders_and_links_count_as_files(attack: Run) -> None:
    result = attack(
        "import os\nn = 0\nwhile True:\n"
        "  os.mkdir(f'd{n}'); os.symlink('x', f'd{n}/l'); os.mkfifo(f'd{n}/p'); n += 1"
    )
    assert (result.limit, result.exception) == ("disk", "OSError")
    assert len(result.files) <= 200


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_scratch_folders_are_small(run: Run, folder: str) -> None:
    code = (
        f"f = open('{folder}/x', 'wb', 0)\nn = 0\ntry:\n  while n < 999: n += f.write(bytes(1 << 20)) >> 20"
    )
    assert 0 < int(run(code + "\nexcept OSError: print(n)").stdout) <= 64


@slow
def test_scratch_folders_hold_few_files(run: Run) -> None:
    result = run(
        "import os\nfor folder in ('/tmp', '/dev/shm'):\n  n = 0\n  try:\n    while n < 50_000:\n"
        "      open(f'{folder}/{n}', 'w').close(); n += 1\n  except OSError: pass\n  print(n < 50_000)"
    )
    assert result.stdout == "True\nTrue\n"


def test_descriptors(run: Run) -> None:
    result = run("files = []\nwhile True: files.append(open('/dev/null'))")
    assert (result.exit_code, result.exception, result.limit) == (1, "OSError", None)


def test_waiting_for_a_turn_costs_no_time(impatient: Sandbox) -> None:
    """Each takes a tenth of its time, and the last ones wait for longer than that time before they begin."""
    num_turns = os.cpu_count() or 1

    async def scenario() -> list[ToolResult]:
        nap = "import time; time.sleep(0.05)"
        return await asyncio.gather(*(run_once(impatient, nap) for _ in range(12 * num_turns)))

    assert {result.limit for result in asyncio.run(scenario())} == {None}
