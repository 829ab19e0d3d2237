"""Hostile code: it is stopped in time, sees nothing of the host, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Limits, Sandbox, Workspace, open_sandbox
from mappa_envs.sandbox.namespace import NamespaceSandbox
from mappa_envs.types import ToolResult

Run = Callable[..., ToolResult]


def tight(code: str, limits: Limits) -> ToolResult:
    """A run in a sandbox of its own limits."""

    async def scenario() -> ToolResult:
        async with open_sandbox("namespace", limits) as sandbox, await sandbox.open() as workspace:
            result = await workspace.run(code)
            assert (await workspace.run("print('alive')")).stdout == "alive\n"
            return result

    return asyncio.run(scenario())


@pytest.fixture(scope="module")
def impatient(sandbox: Sandbox) -> Iterator[Sandbox]:
    limits = Limits(time_s=0.5, memory_mb=256, workspace_mb=16, workspace_files=200)
    opened = open_sandbox("namespace", limits)  # after `sandbox`, which skips where there is none
    yield opened
    asyncio.run(opened.close())


@pytest.fixture(scope="module")
def attack(impatient: Sandbox) -> Run:
    """Run code under tight limits; the sandbox must answer the next episode at once."""

    async def scenario(code: str) -> ToolResult:
        async with await impatient.open() as workspace:
            result = await workspace.run(code)
            started = time.monotonic()
            assert (await workspace.run("print('alive')")).stdout == "alive\n"
            assert time.monotonic() - started < 3
            return result

    return lambda code: asyncio.run(scenario(code))


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal, time\n"
        "for s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\n"
        "time.sleep(99)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nif os.fork() == 0:\n  os.setsid()\nwhile True: pass",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()",
        "import atexit, time; atexit.register(time.sleep, 99)",
    ],
)
def test_time(attack: Run, code: str) -> None:
    result = attack(code)
    assert (result.limit, result.exit_code, result.ok) == ("time", -9, False)
    assert 0.5 <= result.duration_s < 2.5


def test_output_before_the_kill_is_kept(attack: Run) -> None:
    result = attack("print('first')\nwhile True: pass")
    assert (result.stdout, result.limit) == ("first\n", "time")


def test_infinite_print_is_cut_the_same_way_each_time(sandbox: Sandbox) -> None:
    code = "n = 0\nwhile True:\n  print('A' * 1000, n)\n  n += 1"

    async def scenario() -> list[ToolResult]:
        async with await sandbox.open() as workspace:
            return [await workspace.run(code) for _ in range(2)]

    first, second = asyncio.run(scenario())
    assert first.limit == second.limit == "output"
    assert first.stdout == second.stdout
    assert f"[{1000 * 16384 - 16384} bytes cut]" in first.stdout


def test_fork_bomb(attack: Run) -> None:
    result = attack("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass")
    assert result.limit in ("processes", "time")


def test_thread_bomb(attack: Run) -> None:
    result = attack(
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    )
    assert result.exception == "RuntimeError" or result.limit in ("processes", "time")


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nwhile True: a.append(bytearray(10 << 20))",
        "import numpy as np\nnp.ones((20000, 20000))",
        "import mmap\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, 3 << 30, 4096): m[i] = 1",
        "import os\nfor _ in range(6):\n  if os.fork() == 0:\n    a = bytearray(100 << 20)\n"
        "    for i in range(0, len(a), 4096): a[i] = 1\n    while True: pass\nwhile True: pass",
    ],
)
def test_memory(code: str) -> None:
    result = tight(code, Limits(time_s=10, memory_mb=200))
    assert (result.limit, result.ok) == ("memory", False)


@pytest.mark.parametrize(
    "code",
    [
        "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))",
        "n = 0\nwhile True:\n  open(f'f{n}', 'w').close()\n  n += 1",
    ],
)
def test_disk(attack: Run, code: str) -> None:
    result = attack(code)
    assert (result.limit, result.exception) == ("disk", "OSError")


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_scratch_folders_are_small(run: Run, folder: str) -> None:
    code = (
        f"f = open('{folder}/x', 'wb', 0)\nn = 0\ntry:\n  while n < 999: n += f.write(bytes(1 << 20)) >> 20"
    )
    assert 0 < int(run(code + "\nexcept OSError: print(n)").stdout) <= 64


def test_host_is_invisible(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    home = str(Path.home())
    result = run(
        "import os\n"
        f"paths = ['/etc/shadow', '/root', '/home', {home!r}, {str(Path(__file__).parent)!r}, '/var',\n"
        "  '/run', '/var/run/docker.sock', '/sys', '/boot', '/ws/1', '/proc/1/root/etc/shadow', '/bin/sh']\n"
        "print([p for p in paths if os.path.exists(p)], [k for k in os.environ if 'KEY' in k])\n"
        "print(sorted(p for p in os.listdir('/proc') if p.isdigit()), os.getpid(), os.getuid())\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
        "print([l for l in open('/proc/self/status') if l.startswith(('CapEff', 'NoNew', 'Seccomp:'))])\n"
    )
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[:2] == ["[] []", "['1', '2'] 2 1000"]
    assert len(lines[2].split()) <= 6  # three streams, the report pipe, the listing itself
    assert lines[3] == r"['CapEff:\t0000000000000000\n', 'NoNewPrivs:\t1\n', 'Seccomp:\t2\n']"


def test_nothing_but_the_workspace_is_writable(run: Run) -> None:
    result = run(
        "for p in ('/x', '/opt/x', '/opt/packages/x', '/opt/sandbox/inside/x', '/dev/x', '/etc/x',\n"
        "          '/usr/x', '/empty/x', '/ws/x', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger'):\n"
        "  try: open(p, 'w').write('x'); print(p)\n"
        "  except OSError: pass\n"
        "for p in ('/workspace/x', '/tmp/x', '/dev/shm/x'): open(p, 'w').write('x')\n"
    )
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.parametrize(
    "module", ["mappa_envs", "mappa_train", "torch", "reasoning_gym", "bokeh_sampledata", "pip", "pydantic"]
)
def test_not_importable(run: Run, module: str) -> None:
    assert run(f"import {module}").exception == "ModuleNotFoundError"


@pytest.mark.parametrize(
    "name", ["load_iris", "load_diabetes", "load_breast_cancer", "load_wine", "load_digits"]
)
def test_example_data_is_hidden(run: Run, name: str) -> None:
    assert run(f"from sklearn.datasets import {name} as load\nload()").exception == "FileNotFoundError"


def test_example_data_is_nowhere(run: Run) -> None:
    result = run(
        "import os\n"
        "for root, _, names in os.walk('/opt'):\n"
        "  for name in names:\n"
        "    stem, _, kind = name.partition('.')\n"
        "    if kind != 'rst' and ('iris' in stem or stem in ('diabetes', 'breast_cancer', 'wine_data')):\n"
        "      print(root, name)\n"
    )
    assert result.stdout == ""


def test_sockets(run: Run) -> None:
    result = run(
        "import socket\n"
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 38, 40):\n"
        "  try: socket.socket(family, socket.SOCK_STREAM); print(family)\n"
        "  except PermissionError: pass\n"
        "socket.socketpair()\n"
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_system_calls(run: Run) -> None:
    result = run(
        "import ctypes, os, platform, sys\n"
        "sys.path.append('/opt/sandbox')\n"
        "from inside.seccomp import DENIED\n"
        "column = ['x86_64', 'aarch64'].index(platform.machine())\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, numbers in DENIED.items():\n"
        "  if numbers[column] < 0: continue\n"
        "  if libc.syscall(numbers[column], 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:\n"
        "    print(name, ctypes.get_errno())\n"
        "for pid in (1, os.getppid(), -1):\n"
        "  try: os.kill(pid, 9)\n"
        "  except OSError: pass\n"
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_links_and_pipes_are_not_read(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"train.csv": b"a"}) as workspace:
            await workspace.run(
                "import os\n"
                "os.symlink('/etc/shadow', 'leak.pkl'); os.symlink('/', 'root')\n"
                "os.symlink('train.csv', 'in.csv'); os.mkfifo('submission.csv')\n"
                "os.link('train.csv', 'hard.csv')\n"
                "f = open('sparse', 'wb'); f.truncate(30 << 20)"
            )
            for path in ("leak.pkl", "root/etc/shadow", "in.csv", "submission.csv", "sparse"):
                with pytest.raises(ValueError, match=path):
                    await asyncio.wait_for(workspace.read(path, 1000), 1)
            assert await workspace.read("hard.csv", 1000) == b"a"

    asyncio.run(scenario())


def test_unreadable_files(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            result = await workspace.run(
                "import os\nos.mkdir('d'); open('d/x', 'w').write('1'); open('y', 'w').write('2')\n"
                "os.chmod('y', 0); os.chmod('d', 0); os.chmod('.', 0)"
            )
            assert result.ok
            await workspace.run("print(1)")

    asyncio.run(scenario())


def test_deep_folders(sandbox: Sandbox) -> None:
    code = "import os\nfor _ in range(2000):\n  os.mkdir('d'); os.chdir('d')\nopen('x', 'w')"

    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            assert (await workspace.run(code)).ok
            assert (await workspace.run("print(1)")).stdout == "1\n"

    asyncio.run(scenario())


def test_background_processes_die_with_the_run(sandbox: Sandbox) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0:\n"
        "    time.sleep(0.2); open('late', 'w').write('x'); time.sleep(99)\n"
        "  os._exit(0)\n"
        "print('left')"
    )

    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            assert (await workspace.run(code)).stdout == "left\n"
            await asyncio.sleep(0.4)
            with pytest.raises(FileNotFoundError):
                await workspace.read("late", 10)

    asyncio.run(scenario())


def test_forged_words_on_every_descriptor(run: Run) -> None:
    result = run(
        "import os\n"
        "for fd in range(3, 64):\n"
        '  try: os.write(fd, b\'{"exception": "Fine", "exit_code": 0, "limit": null}\\nstarted\' * 9)\n'
        "  except OSError: pass\n"
        "raise ValueError"
    )
    assert (result.exit_code, result.limit, result.ok) == (1, None, False)


def test_flooding_the_report_pipe(attack: Run) -> None:
    assert attack("import os\nwhile True: os.write(4, b'x' * 65536)").limit == "time"


def test_poison_stays_in_its_run(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            poison = (
                "import builtins, sys, numpy\n"
                "builtins.print = numpy.mean = None; sys.modules['json'] = 5\n"
                "for name in ('zipfile', 'sympy', 'json', 'sitecustomize'):\n"
                "  open(name + '.py', 'w').write('raise SystemExit(9)')\n"
                "open('helper.py', 'w').write('value = 7')\n"
            )
            assert (await workspace.run(poison)).ok
            result = await workspace.run("import zipfile, sympy, json, numpy, helper; print(helper.value)")
            assert result.stdout == "7\n"
            assert await workspace.inspect("import zipfile, sympy; report(1)") == 1
            assert await workspace.inspect("import helper; report(1)") is None

    asyncio.run(scenario())


def test_episodes_do_not_see_each_other(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"s": b"EPISODE_SECRET"}) as one, await sandbox.open() as two:
            await one.run("secret = 'EPISODE_SECRET' * 100; print(secret)")
            look = (
                "import gc, os\n"
                "a, b = 'EPISODE', '_SECRET'\n"
                "print([o for o in gc.get_objects() if type(o) in (dict, list) and a + b in str(o)[:9999]])\n"
                "print(os.listdir('/ws'), os.listdir('.'))"
            )
            assert (await two.run(look)).stdout == "[]\n[] []\n"

    asyncio.run(scenario())


def test_many_workspaces_at_once(sandbox: Sandbox) -> None:
    async def one(number: int) -> str:
        async with await sandbox.open({"n": str(number).encode()}) as workspace:
            result = await workspace.run("print(open('n').read())")
            assert result.files == ()
            return result.stdout

    async def scenario() -> list[str]:
        return await asyncio.gather(*map(one, range(40)))

    for _ in range(3):
        assert asyncio.run(scenario()) == [f"{n}\n" for n in range(40)]


def test_waiting_for_a_turn_costs_no_time_limit() -> None:
    async def scenario() -> None:
        async with NamespaceSandbox(Limits(time_s=0.6), num_concurrent=1) as sandbox:
            spaces = [await sandbox.open() for _ in range(4)]
            results = await asyncio.gather(*(s.run("import time; time.sleep(0.3)") for s in spaces))
            assert [result.limit for result in results] == [None] * 4

    asyncio.run(scenario())


def test_dead_zygote_is_replaced() -> None:
    async def scenario() -> None:
        async with NamespaceSandbox() as sandbox:
            workspace = await sandbox.open()
            running = asyncio.create_task(workspace.run("while True: pass"))
            await asyncio.sleep(0.2)
            assert sandbox._zygote is not None
            assert sandbox._zygote._process is not None
            sandbox._zygote._process.kill()
            with pytest.raises(SandboxError, match="gone"):
                await running
            with pytest.raises(SandboxError, match="died"):
                await workspace.run("print(1)")
            await workspace.close()
            async with await sandbox.open() as other:
                assert (await other.run("print(1)")).stdout == "1\n"

    asyncio.run(scenario())


def test_forked_copy_refuses(sandbox: Sandbox) -> None:
    async def scenario() -> Workspace:
        return await sandbox.open()

    workspace = asyncio.run(scenario())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(workspace.run("print(1)"))
        except SandboxError:
            os._exit(3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    asyncio.run(workspace.close())


def test_owner_killed_leaves_nothing() -> None:
    code = (
        "import asyncio\n"
        "from mappa_envs.sandbox import open_sandbox\n"
        "async def main():\n"
        "  sandbox = open_sandbox('namespace')\n"
        "  workspace = await sandbox.open()\n"
        "  print('open', flush=True)\n"
        "  await workspace.run('import os\\nos.fork()\\nwhile True: pass')\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"open\n"
    time.sleep(0.3)
    family = _descendants(owner.pid)
    assert len(family) >= 5  # boot, zygote, init, worker, its child
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5
    while any(map(_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in family if _alive(pid)]


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        waiting += (new := children.get(waiting.pop(), []))
        found += new
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
