"""Things of the scientific stack and of Python that break in sandboxes of this sort, each shown to work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from census import command, descendants, sandbox_pids, zygotes
from sandbox_kit import run_once

from mappa_envs.sandbox import Sandbox
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]

BOOST = (
    "import numpy as np\n"
    "from sklearn.ensemble import HistGradientBoostingClassifier as Boost\n"
    "X = np.random.rand(300, 3); y = X[:, 0] > 0.5\n"
    "print(round(Boost(max_iter=3).fit(X, y).score(X, y), 1))\n"
)
CLUSTER = (
    "import numpy as np\n"
    "from sklearn.cluster import KMeans\n"
    "X = np.random.rand(300, 3)\n"
    "print(KMeans(3, n_init=2).fit(X).labels_.shape)\n"
)


def test_openmp_after_openmp(sandbox: Sandbox) -> None:
    """A pool of threads that a fork did not copy makes the next parallel loop wait for ever."""

    async def scenario() -> list[str]:
        async with await sandbox.open() as workspace:
            each = [(await workspace.run(code)).stdout for code in (BOOST, CLUSTER, BOOST)]
            return [*each, (await workspace.run([BOOST, CLUSTER, BOOST])).stdout]

    assert asyncio.run(scenario()) == ["1.0\n", "(300,)\n", "1.0\n", "1.0\n(300,)\n1.0\n"]


def test_openmp_in_children(run: Run) -> None:
    result = run(
        BOOST + "import os\nif os.fork() == 0:\n  import sklearn\n"
        "  Boost(max_iter=2).fit(X, y); print('child'); os._exit(0)\nprint(os.wait()[1])"
    )
    assert (result.stdout, result.limit) == ("1.0\nchild\n0\n", None)


def test_memory_limit_is_not_one_of_address_space(lean: Sandbox) -> None:
    """OpenBLAS alone reserves more addresses than the limit has bytes."""
    result = asyncio.run(
        run_once(
            lean,
            "import resource, numpy as np\n"
            "a = np.ones(100 * 2**20 // 8); print(a.sum() > 0)\n"
            "size = next(line for line in open('/proc/self/status') if line.startswith('VmSize'))\n"
            "print(int(size.split()[1]) // 1024 > 256, resource.getrlimit(resource.RLIMIT_AS)[0])",
        )
    )
    assert (result.stdout, result.stderr, result.limit) == ("True\nTrue -1\n", "", None)


@pytest.mark.parametrize("num_jobs", [2, -1])
def test_parallel_search_starts_no_interpreters(run: Run, num_jobs: int) -> None:
    """A cold interpreter that imports scikit-learn takes longer than most fits."""
    result = run(
        "import os, resource, numpy as np\n"
        "from sklearn.ensemble import RandomForestClassifier as Forest\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from sklearn.model_selection import GridSearchCV, cross_val_score\n"
        "X = np.random.rand(200, 3); y = X[:, 0] > 0.5\n"
        f"GridSearchCV(LogisticRegression(), {{'C': [0.1, 1, 10]}}, n_jobs={num_jobs}, cv=3).fit(X, y)\n"
        f"cross_val_score(Forest(10, n_jobs={num_jobs}), X, y, n_jobs={num_jobs})\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "try: os.waitpid(-1, os.WNOHANG); print('children')\n"
        "except ChildProcessError: print('none')"
    )
    assert (result.stdout, result.stderr) == ("0\nnone\n", "")


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, 2]))", "[1, 2]\n"),
        (
            "import multiprocessing as m\nq = m.Queue()\ndef f(): q.put(7)\n"
            "p = m.Process(target=f); p.start(); print(q.get()); p.join(); print(p.exitcode)",
            "7\n0\n",
        ),
        (
            "from concurrent.futures import ProcessPoolExecutor as P\n"
            "with P(2) as p: print(list(p.map(abs, [-1, 2])))",
            "[1, 2]\n",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor as P\n"
            "with P(8) as p: print(sum(p.map(abs, range(-50, 0))))",
            "1275\n",
        ),
        (
            "from multiprocessing.shared_memory import SharedMemory as S\nimport os\n"
            "s = S(create=True, size=99)\nif os.fork() == 0: s.buf[0] = 5; os._exit(0)\n"
            "os.wait(); print(s.buf[0]); s.close(); s.unlink()",
            "5\n",
        ),
        (
            "import asyncio\nasync def main():\n  async def f(n): await asyncio.sleep(0.01); return n\n"
            "  print(await asyncio.gather(*map(f, range(3))), await asyncio.to_thread(abs, -4))\n"
            "asyncio.run(main())",
            "[0, 1, 2] 4\n",
        ),
        (
            "import tempfile, os\nwith tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write('1')\n"
            "with tempfile.NamedTemporaryFile() as f: f.write(b'x'); print(os.path.dirname(f.name))\n"
            "tempfile.TemporaryFile().write(b'x')",
            "/tmp\n",
        ),
        (
            "import subprocess, sys\n"
            "print(subprocess.run([sys.executable, '-c', 'import numpy; print(numpy.arange(3).sum())'],\n"
            "  capture_output=True, text=True).stdout)",
            "3\n\n",
        ),
        (
            "import asyncio, sys\nasync def main():\n"
            "  p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)', stdout=-1)\n"
            "  print((await p.communicate())[0])\nasyncio.run(main())",
            "b'1\\n'\n",
        ),
        (
            "import joblib\nprint(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(n) for n in (-1, 2)))",
            "[1, 2]\n",
        ),
    ],
    ids=[
        *("pool", "process", "process_pool", "thread_pool", "shared_memory", "asyncio", "tempfile"),
        *("subprocess", "asyncio_subprocess", "joblib"),
    ],
)
def test_works(run: Run, code: str, stdout: str) -> None:
    result = run(code)
    assert (result.stdout, result.stderr, result.ok) == (stdout, "", True)


@pytest.mark.parametrize(
    ("code", "exception"),
    [
        ("import subprocess; subprocess.run('echo hi', shell=True)", "FileNotFoundError"),
        ("import multiprocessing as m; m.get_context('forkserver').Pool(1)", "PermissionError"),
        ("import multiprocessing as m; m.Manager()", "EOFError"),
        (
            "import multiprocessing as m, concurrent.futures as c\n"
            "with c.ProcessPoolExecutor(1, m.get_context('spawn')) as p: p.submit(abs, -3).result()",
            "BrokenProcessPool",
        ),
        ("input()", "EOFError"),
    ],
    ids=["shell", "forkserver", "manager", "spawn", "input"],
)
def test_fails_at_once_and_says_so(run: Run, code: str, exception: str) -> None:
    result = run(code)
    assert (result.exception, result.limit) == (exception, None)


def test_imports_after_the_change_of_identity(run: Run) -> None:
    """What is not imported beforehand must be readable by whom the worker has become."""
    result = run(
        "import importlib\n"
        "for name in ('sqlite3', 'urllib.request', 'xml.etree.ElementTree', 'email.mime.text', 'lzma',\n"
        "            'bz2', 'curses', 'scipy.signal', 'scipy.interpolate', 'scipy.integrate', 'scipy.io',\n"
        "             'sklearn.manifold', 'sklearn.gaussian_process', 'sklearn.neural_network',\n"
        "             'sympy.physics.units', 'pandas.plotting', 'numpy.testing', 'zoneinfo', 'unittest',\n"
        "             'http.client', 'ssl', 'ctypes.util', 'decimal', 'statistics', 'fractions', 'pdb'):\n"
        "  importlib.import_module(name)\n"
        "import zoneinfo, sqlite3\n"
        "cursor = sqlite3.connect(':memory:').execute('select 6 * 7')\n"
        "print(zoneinfo.ZoneInfo('Europe/Paris'), cursor.fetchone())"
    )
    assert (result.stdout, result.stderr) == ("Europe/Paris (42,)\n", "")


def test_who_and_where_am_i(run: Run) -> None:
    result = run(
        "import getpass, grp, os, pathlib, pwd\n"
        "me, us = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())\n"
        "print(getpass.getuser(), me.pw_dir, us.gr_gid > 0)\n"
        "print(os.path.expanduser('~'), pathlib.Path.home(), os.getcwd(), pathlib.Path('x').resolve().name)\n"
        "print(os.path.samefile('.', '/workspace'), os.access('.', os.W_OK), __file__, __name__)"
    )
    assert result.stderr == ""
    assert result.stdout == (
        "agent /workspace True\n/workspace /workspace /workspace x\nTrue True /workspace/main.py __main__\n"
    )


def test_output_is_written_line_by_line(attack: Run) -> None:
    result = attack(
        "import sys, time\nprint('one')\nprint('two', file=sys.stderr)\n"
        "sys.stdout.write('three\\nrest')\ntime.sleep(99)"
    )
    assert (result.limit, result.stderr) == ("time", "two\n")
    assert result.stdout.startswith("one\nthree\n")


def test_the_zygote_has_one_thread(kind: str) -> None:
    """A fork copies one thread: locks that the others hold would never be let go."""
    if kind == "docker" and os.geteuid() != 0:
        pytest.skip("only root sees the threads of a container's processes")
    python = [pid for pid in sandbox_pids(kind) if "inside.start" in command(pid)]
    found = zygotes(descendants()) if kind == "namespace" else python
    assert found
    assert {len(os.listdir(f"/proc/{pid}/task")) for pid in found} == {1}


def test_seeds_are_the_same_for_the_same_code(run: Run) -> None:
    code = (
        "import random, uuid, numpy as np\n"
        "from sklearn.ensemble import RandomForestClassifier as Forest\n"
        "print(random.random(), np.random.rand(), random.sample('abc', 3))\n"
        "print(hash('text'), list({'b', 'a', 'c'}))\n"
        "X = np.random.rand(100, 4)\n"
        "print(Forest(5).fit(X, X[:, 0] > 0.5).predict_proba(X[:3]))"
    )
    first, second = run(code), run(code)
    assert first.ok
    assert first.stdout == second.stdout


def test_true_randomness_is_not_the_same(run: Run) -> None:
    code = "import os, secrets, uuid; print(os.urandom(8), secrets.token_hex(8), uuid.uuid4())"
    assert run(code).stdout != run(code).stdout


def test_a_pickle_of_ones_own_class(sandbox: Sandbox) -> None:
    """Its class lives in `__main__`, which is another module each time."""
    define = "class Model:\n  def __init__(self): self.a = 5\n"

    async def scenario() -> ToolResult:
        async with await sandbox.open() as workspace:
            await workspace.run(define + "import pickle, joblib\npickle.dump(Model(), open('m.pkl', 'wb'))")
            return await workspace.run(define + "import pickle\nprint(pickle.load(open('m.pkl', 'rb')).a)")

    assert asyncio.run(scenario()).stdout == "5\n"
