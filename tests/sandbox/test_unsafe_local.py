"""The sandbox without isolation: the same results and trails, and a warning that it is none."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from census import is_alive, wait_until

import mappa_envs
from mappa_envs.errors import ConfigError, DataError, SandboxError, SandboxUnavailable
from mappa_envs.sandbox import Limits, Workspace
from mappa_envs.sandbox.unsafe_local import UnsafeLocalSandbox
from mappa_envs.testing.expert import expert_action
from mappa_envs.types import ToolResult

Run = Callable[..., ToolResult]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[UnsafeLocalSandbox]:
    with pytest.warns(RuntimeWarning, match="own rights"):
        opened = UnsafeLocalSandbox(Limits(time_s=5.0, memory_mb=512, workspace_mb=8))
    yield opened
    asyncio.run(opened.close())


@pytest.fixture
def run(sandbox: UnsafeLocalSandbox) -> Run:
    def call(blocks: str | list[str], files: dict[str, bytes] | None = None) -> ToolResult:
        return use(sandbox, lambda workspace: workspace.run(blocks), files)

    return call


def use(
    sandbox: UnsafeLocalSandbox,
    work: Callable[[Workspace], Awaitable[Any]],
    files: dict[str, bytes] | None = None,
) -> Any:
    """Do it with a fresh workspace."""

    async def scenario() -> Any:
        async with await sandbox.open(files) as workspace:
            return await work(workspace)

    return asyncio.run(scenario())


def test_blocks_share_their_names_and_stop_at_the_first_that_raises(run: Run) -> None:
    result = run(["x = 20", "print(x + 1)", "1 / 0", "print('never')"])
    assert (result.stdout, result.exit_code, result.exception) == ("21\n", 1, "ZeroDivisionError")
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "block_3.py", line 1, in <module>\n    1 / 0\n'
        "    ~~^~~\nZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(
    ("code", "exit_code", "exception"),
    [
        ("import sys; sys.exit()", 0, None),
        ("import sys; sys.exit(3)", 3, "SystemExit"),
        ("exit('bye')", 1, "SystemExit"),
        ("import os; os._exit(7)", 7, None),
        ("import os; os.kill(os.getpid(), 9)", -9, None),
        ("class Mine(Exception): pass\nraise Mine", 1, "Mine"),
        ("print(1", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("class Bad(Exception):\n  def __str__(self): raise ValueError\nraise Bad", 1, "Bad"),
    ],
)
def test_exit_code_and_exception(run: Run, code: str, exit_code: int, exception: str | None) -> None:
    result = run(code)
    assert (result.exit_code, result.exception, result.limit) == (exit_code, exception, None)


def test_the_interpreter_ends_as_it_should(run: Run) -> None:
    result = run(
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('exit'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "open('left_open', 'w').write('kept')\nfile = open('b', 'w'); file.write('kept too')\n"
        "print('main', input.__name__, __name__, end=' ')"
    )
    assert result.stdout == "main input __main__ thread\nexit\n"
    assert [(record.path, record.size) for record in result.files] == [("b", 8), ("left_open", 4)]


def test_same_code_same_output(run: Run) -> None:
    code = (
        "import random, numpy as np\n"
        "print(random.random(), np.random.rand(), hash('text'), {'b', 'a', 'c'}, '\\ud800')"
    )
    assert run(code).stdout == run(code).stdout != ""


def test_output_keeps_head_and_tail_and_a_flood_ends_the_run(run: Run) -> None:
    text = "".join(f"{n:07}\n" for n in range(10_000))
    result = run("for n in range(10_000): print(f'{n:07}')")
    assert result.stdout == f"{text[:8192]}\n... [{len(text) - 16384} bytes cut] ...\n{text[-8192:]}"
    flood = run("import os\nwhile True: os.write(1, b'x' * 65536)")
    assert (flood.limit, flood.exit_code, len(flood.stdout) < 17_000) == ("output", -9, True)


@pytest.mark.slow
def test_time_limit_keeps_the_output_and_kills_the_children() -> None:
    with pytest.warns(RuntimeWarning):
        hasty = UnsafeLocalSandbox(Limits(time_s=2.0))
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '99']).pid)\nwhile True: pass"
    result = use(hasty, lambda workspace: workspace.run(code))
    assert (result.limit, result.exit_code) == ("time", -9)
    assert 2 <= result.duration_s < 60
    asyncio.run(hasty.close())
    assert wait_until(lambda: not is_alive(int(result.stdout)), 30)


def test_a_process_that_leaves_its_group_delays_nobody(run: Run) -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '99'], start_new_session=True).pid)"
    result = run(code)
    assert (result.ok, result.limit) == (True, None)
    assert is_alive(int(result.stdout))  # nobody has waited for it
    os.kill(int(result.stdout), signal.SIGKILL)


def test_limits_of_a_process(run: Run) -> None:
    result = run("open('big', 'wb').write(bytes(9 << 20))")
    assert (result.exception, result.ok) == ("OSError", False)
    code = "import os, resource\nprint([n / os.cpu_count() for n in resource.getrlimit(resource.RLIMIT_CPU)])"
    assert run(code).stdout == "[10.0, 10.0]\n"  # of all threads together
    if sys.platform == "linux":
        result = run("x = bytearray(600 << 20)")
        assert (result.exception, result.limit) == ("MemoryError", "memory")


def test_no_key_reaches_the_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    result = run("import os\nprint(dict(os.environ))\nprint(os.path.expanduser('~') == os.getcwd(), input)")
    assert "PYTHONHASHSEED" in result.stdout
    assert "SOME_API_KEY" not in result.stdout
    assert result.stdout.splitlines()[1].startswith("True")
    assert run("input()").exception == "EOFError"


def test_file_trail(sandbox: UnsafeLocalSandbox) -> None:
    async def scenario(workspace: Workspace) -> None:
        assert (await workspace.run("print(open('old.csv').read())")).files == ()
        result = await workspace.run(
            "import os, pickle, numpy as np\n"
            "open('old.csv', 'a').write('3,4\\n')\n"
            "os.remove('sub/gone.txt')\n"
            "os.makedirs('new/deep')\n"
            "pickle.dump({'a': 1}, open('new/deep/m.pkl', 'wb'))\n"
            "np.save('x.npy', np.ones(3))\n"
            "os.symlink('/etc', 'link'); os.mkfifo('pipe')\n"
        )
        assert {record.path: (record.change, record.kind) for record in result.files} == {
            "link": ("created", "link"),
            "new/deep/m.pkl": ("created", "pickle"),
            "old.csv": ("changed", "csv"),
            "pipe": ("created", "fifo"),
            "sub/gone.txt": ("deleted", "other"),
            "x.npy": ("created", "npy"),
        }
        old = next(record for record in result.files if record.path == "old.csv")
        assert (old.size, old.sha256) == (12, hashlib.sha256(b"a,b\n1,2\n3,4\n").hexdigest())
        again = await workspace.run("f = open('old.csv', 'r+'); f.write('A')")
        assert [(record.path, record.change) for record in again.files] == [("old.csv", "changed")]

    use(sandbox, scenario, {"old.csv": b"a,b\n1,2\n", "sub/gone.txt": b"x", "kept.txt": b"same"})


def test_inspect(sandbox: UnsafeLocalSandbox) -> None:
    async def scenario(workspace: Workspace) -> None:
        script = "import pandas as pd\nreport({'rows': len(pd.read_csv('a.csv'))})\nreport(2)"
        assert await workspace.inspect(script) == {"rows": 1}
        for nothing in ("pass", "1 / 0", "report('x' * (1 << 21))"):
            assert await workspace.inspect(nothing) is None
        assert await workspace.inspect("while True: pass", time_s=0.5) is None
        # A module of the workspace cannot stand in for a library.
        await workspace.run("open('fractions.py', 'w').write('x = 1')")
        assert await workspace.inspect("import fractions; report(hasattr(fractions, 'Fraction'))") is True

    use(sandbox, scenario, {"a.csv": b"x\n1\n"})


def test_read_follows_no_link(sandbox: UnsafeLocalSandbox) -> None:
    async def scenario(workspace: Workspace) -> None:
        await workspace.run(
            "import os\nos.symlink('d', 'to_d'); os.symlink('/etc/passwd', 'out'); os.mkfifo('pipe')"
        )
        assert await workspace.read("d/a.txt", 5) == b"12345"
        with pytest.raises(ValueError, match="larger"):
            await workspace.read("d/a.txt", 4)
        for path in ("none", "d/a.txt/b", ""):
            with pytest.raises(FileNotFoundError):
                await workspace.read(path, 5)
        for path in ("d", "../x", "/etc/passwd", "d/a.txt\0", "to_d/a.txt", "out", "pipe", "d/../d/a.txt"):
            with pytest.raises(ValueError, match=r"cannot be read|regular"):
                await workspace.read(path, 5)

    use(sandbox, scenario, {"d/a.txt": b"12345"})


def test_cancelling_and_closing_kill(sandbox: UnsafeLocalSandbox) -> None:
    folders: list[Path] = []

    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(workspace.run("while True: pass"), 0.5)
            result = await workspace.run("import os; print(os.getcwd())")
        folders.append(Path(result.stdout.strip()))
        running = asyncio.create_task(workspace.run("pass"))
        with pytest.raises(SandboxError, match="closed"):
            await running
        workspace = await sandbox.open()
        running = asyncio.create_task(workspace.run("while True: pass"))
        await asyncio.sleep(0.3)
        await workspace.close()
        await workspace.close()
        with pytest.raises((asyncio.CancelledError, SandboxError)):
            await running

    asyncio.run(scenario())
    assert not folders[0].exists()


def test_what_cannot_be_opened(
    sandbox: UnsafeLocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(workspace: Workspace) -> None:
        raise AssertionError

    for name in ("../m", "/m", "", "a\0"):
        with pytest.raises(ConfigError, match="files"):
            use(sandbox, nothing, {name: b""})
    with pytest.raises(DataError, match="missing"):
        asyncio.run(sandbox.open({"missing": tmp_path / "missing"}))
    for package in ("no-such-package", "mappa"):
        with pytest.warns(RuntimeWarning), pytest.raises(ConfigError, match="packages"):
            UnsafeLocalSandbox(packages=[package])
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(SandboxUnavailable, match="unsafe-local needs"):
        UnsafeLocalSandbox()


@pytest.mark.slow
def test_the_expert_solves_a_task_in_it() -> None:
    with pytest.warns(RuntimeWarning):
        sandbox = UnsafeLocalSandbox()
    env: Any = mappa_envs.make("dsbench-v0", split=None, sandbox=sandbox)
    env.reset(seed=0, options={"task_id": "iris-species"})
    task = next(task for task in env.tasks if task.task_id == "iris-species")
    while env.episode.stop_reason is None:
        env.step(expert_action(env.agent_selection, task))
    env.close()
    asyncio.run(sandbox.close())
    assert env.episode.success
    statuses = {artifact.path: artifact.status for turn in env.episode.turns for artifact in turn.artifacts}
    assert set(statuses.values()) == {"valid"}
    assert {"X_train.pkl", "model.pkl", "submission.csv"} <= statuses.keys()
