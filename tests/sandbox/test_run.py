"""What a run shows: output, errors, exit codes, files; and that it shows the same each time."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_envs.errors import ConfigError, DataError, SandboxError
from mappa_envs.sandbox import Limits, Sandbox, open_sandbox
from mappa_envs.types import ToolResult

Run = Callable[..., ToolResult]


def test_blocks_share_their_names(run: Run) -> None:
    result = run(["x = 20", "def f(): return x + 1", "print(f() * 2)"])
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("42\n", "", 0, True)


def test_stops_at_the_first_block_that_raises(run: Run) -> None:
    result = run(["print('a')", "1 / 0", "print('b')"])
    assert result.stdout == "a\n"
    assert (result.exit_code, result.exception, result.ok) == (1, "ZeroDivisionError", False)
    assert result.stderr == (
        'Traceback (most recent call last):\n  File "block_2.py", line 1, in <module>\n    1 / 0\n'
        "    ~~^~~\nZeroDivisionError: division by zero\n"
    )


def test_syntax_error(run: Run) -> None:
    result = run("print('never')\nprint(1")
    assert (result.stdout, result.exit_code, result.exception) == ("", 1, "SyntaxError")
    assert result.stderr.startswith('  File "main.py", line 2\n')


@pytest.mark.parametrize(
    ("code", "exit_code", "exception"),
    [
        ("import sys; sys.exit()", 0, None),
        ("import sys; sys.exit(3)", 3, "SystemExit"),
        ("exit('bye')", 1, "SystemExit"),
        ("import os; os._exit(7)", 7, None),
        ("import os; os.abort()", -6, None),
        ("import os; os.kill(os.getpid(), 9)", -9, None),
        ("import ctypes; ctypes.string_at(0)", -11, None),
        ("class Mine(Exception): pass\nraise Mine", 1, "Mine"),
        ("raise type('no identifier', (Exception,), {})", 1, None),
        ("raise type('x' * 101, (Exception,), {})", 1, None),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("class Bad(Exception):\n  def __str__(self): raise ValueError\nraise Bad", 1, "Bad"),
    ],
)
def test_exit_code_and_exception(run: Run, code: str, exit_code: int, exception: str | None) -> None:
    result = run(code)
    assert (result.exit_code, result.exception, result.limit) == (exit_code, exception, None)


def test_output_keeps_head_and_tail(run: Run) -> None:
    text = "".join(f"{n:07}\n" for n in range(10_000))
    result = run("for n in range(10_000): print(f'{n:07}')")
    head, tail = text[:8192], text[-8192:]
    assert result.stdout == f"{head}\n... [{len(text) - 16384} bytes cut] ...\n{tail}"


def test_output_that_is_no_utf8(run: Run) -> None:
    result = run("import os\nos.write(1, b'a\\xffb')\nprint('\\ud800')")
    assert result.stdout == "a\ufffdb\\ud800\n"


def test_what_the_interpreter_does_at_its_end(run: Run) -> None:
    result = run(
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('exit'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "print('main', end=' ')"
    )
    assert result.stdout == "main thread\nexit\n"


def test_file_trail(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        files = {"old.csv": b"a,b\n1,2\n", "sub/gone.txt": b"x", "kept.txt": b"same"}
        async with await sandbox.open(files) as workspace:
            assert (await workspace.run("print(open('old.csv').read())")).files == ()
            result = await workspace.run(
                "import os, pickle, numpy as np\n"
                "open('old.csv', 'a').write('3,4\\n')\n"
                "os.remove('sub/gone.txt')\n"
                "os.makedirs('new/deep')\n"
                "pickle.dump({'a': 1}, open('new/deep/m.pkl', 'wb'))\n"
                "np.save('x.npy', np.ones(3))\n"
                "os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')\n"
                "open(b'\\xff.txt', 'w').write('hi')\n"
            )
            found = {record.path: (record.change, record.kind) for record in result.files}
            assert found == {
                "link": ("created", "link"),
                "new/deep/m.pkl": ("created", "pickle"),
                "old.csv": ("changed", "csv"),
                "pipe": ("created", "fifo"),
                "sub/gone.txt": ("deleted", "text"),
                "x.npy": ("created", "npy"),
                "\\xff.txt": ("created", "text"),
            }
            assert [record.path for record in result.files] == sorted(found, key=_as_bytes)
            old = next(record for record in result.files if record.path == "old.csv")
            assert (old.size, old.sha256) == (12, hashlib.sha256(b"a,b\n1,2\n3,4\n").hexdigest())

    asyncio.run(scenario())


def _as_bytes(path: str) -> bytes:
    return path.encode().replace(b"\\xff", b"\xff")


def test_rewrite_at_once_is_seen(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"a.txt": b"1"}) as workspace:
            for digit in "23456":
                result = await workspace.run(f"f = open('a.txt', 'r+'); f.write('{digit}')")
                assert [record.change for record in result.files] == ["changed"]
                assert result.files[0].sha256 == hashlib.sha256(digit.encode()).hexdigest()

    asyncio.run(scenario())


def test_libraries(run: Run) -> None:
    result = run(
        "import numpy, pandas, scipy.signal, sklearn.manifold, sympy, joblib, dateutil, sqlite3, asyncio\n"
        "import xml.etree.ElementTree, zoneinfo, multiprocessing\n"
        "from sklearn.model_selection import GridSearchCV\n"
        "from sklearn.linear_model import LogisticRegression as L\n"
        "from sklearn.ensemble import HistGradientBoostingClassifier as H\n"
        "X = numpy.random.rand(200, 3); y = X[:, 0] > 0.5\n"
        "GridSearchCV(L(), {'C': [0.1, 1]}, n_jobs=2, cv=2).fit(X, y); H(max_iter=3).fit(X, y)\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2]))\n"
        "async def main(): return 5\n"
        "print(asyncio.run(main()), zoneinfo.ZoneInfo('Europe/Paris'))\n"
        "class Model: pass\n"
        "joblib.dump(Model(), 'm.joblib'); print(type(joblib.load('m.joblib')).__name__)"
    )
    assert (result.stdout, result.stderr) == ("[1, 2]\n5 Europe/Paris\nModel\n", "")


def test_inspect_reports_once_and_cannot_write(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"a.csv": b"x\n1\n"}) as workspace:
            script = "import pandas as pd\nreport({'rows': len(pd.read_csv('a.csv'))})\nreport(2)"
            assert await workspace.inspect(script) == {"rows": 1}
            write = "try: open('b', 'w')\nexcept OSError as error: report(error.errno)"
            assert await workspace.inspect(write) in (errno.EPERM, errno.EROFS)
            assert await workspace.inspect("pass") is None
            assert await workspace.inspect("1 / 0") is None
            assert await workspace.inspect("while True: pass", time_s=0.2) is None
            assert await workspace.inspect("report('x' * (1 << 21))") is None
            assert (await workspace.run("import os; print(os.listdir())")).stdout == "['a.csv']\n"

    asyncio.run(scenario())


def test_read(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open({"d/a.txt": b"12345"}) as workspace:
            assert await workspace.read("d/a.txt", 5) == b"12345"
            with pytest.raises(ValueError, match="larger"):
                await workspace.read("d/a.txt", 4)
            with pytest.raises(FileNotFoundError):
                await workspace.read("none", 5)
            for path in ("d", "../x", "/etc/passwd", "d/a.txt\0", "d/../../x"):
                with pytest.raises(ValueError, match=r"cannot be read|regular"):
                    await workspace.read(path, 5)

    asyncio.run(scenario())


def test_files_from_host(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "big.bin"
    source.write_bytes(b"z" * 3_000_000)

    async def scenario() -> None:
        async with await sandbox.open({"b.bin": source}) as workspace:
            result = await workspace.run("import os; print(os.path.getsize('b.bin')); os.remove('b.bin')")
            assert result.stdout == "3000000\n"
        with pytest.raises(DataError, match="missing"):
            await sandbox.open({"m": tmp_path / "missing"})
        for name in ("../m", "/m", "", "a\0", "\ud800", "x" * 201):
            with pytest.raises(ConfigError, match="files"):
                await sandbox.open({name: b""})
        many = {f"folder/{n}-" + "ü" * 90: b"x" for n in range(100)}
        async with await sandbox.open(many) as workspace:
            assert (await workspace.run("import os; print(len(os.listdir('folder')))")).stdout == "100\n"
        with pytest.raises(DataError, match="workspace_mb"):
            await sandbox.open({"m": bytes(40 << 20)})

    asyncio.run(scenario())


def test_cancelling_kills(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(workspace.run("open('a', 'w').close()\nwhile True: pass"), 0.3)
            result = await asyncio.wait_for(workspace.run("print('next')"), 60)
            assert result.stdout == "next\n"

    asyncio.run(scenario())


def test_closed_workspace_refuses(sandbox: Sandbox) -> None:
    async def scenario() -> None:
        workspace = await sandbox.open()
        running = asyncio.create_task(workspace.run("while True: pass"))
        await asyncio.sleep(0.1)
        await workspace.close()
        await workspace.close()
        with pytest.raises((asyncio.CancelledError, SandboxError)):
            await running
        with pytest.raises(SandboxError, match="closed"):
            await workspace.run("print(1)")

    asyncio.run(scenario())


def test_unknown_settings() -> None:
    with pytest.raises(ConfigError, match="namespace, docker"):
        open_sandbox("jail")
    for name in ("time_s", "memory_mb", "processes", "output_bytes", "workspace_mb", "workspace_files"):
        for value in (0, float("inf"), float("nan")):
            with pytest.raises(ConfigError, match=name):
                Limits(**{name: value})


@pytest.mark.parametrize("package", ["no-such-package", "mappa", "bokeh_sampledata"])
def test_refused_packages(kind: str, package: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="packages"):
            async with open_sandbox(kind, packages=[package]) as sandbox:
                await sandbox.open()

    asyncio.run(scenario())


@pytest.mark.parametrize("backend", ["namespace", "docker"])
def test_client_is_light(backend: str) -> None:
    heavy = ("pandas", "sklearn", "torch", "pydantic", "docker", "requests")
    code = f"import sys, mappa_envs.sandbox.{backend}\nprint([m for m in {heavy} if m in sys.modules])"

    async def scenario() -> bytes:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=-1)
        return (await process.communicate())[0]

    assert asyncio.run(scenario()) == b"[]\n"
