"""What code sees: not the host, not the network, not the tasks' answers."""

from __future__ import annotations

import ast
import asyncio
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_kit import SECRET, only_docker, only_namespace, run_once

from mappa_envs.sandbox import Sandbox, namespace, open_sandbox
from mappa_envs.sandbox.inside.seccomp import AUDIT_ARCH, CLONE, DENIED
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]

DATA_LOADERS = [
    "load_iris",
    "load_diabetes",
    "load_breast_cancer",
    "load_wine",
    "load_digits",
    "load_sample_images",
]

FOREIGN_PATHS = [
    *(
        "/x",
        "/opt/x",
        "/opt/packages/x",
        "/opt/packages/numpy/__init__.py",
        "/opt/python/x",
        "/opt/sandbox/x",
    ),
    *(
        "/opt/sandbox/inside/worker.py",
        "/dev/x",
        "/dev/mqueue/x",
        "/etc/x",
        "/etc/passwd",
        "/usr/x",
        "/empty/x",
    ),
    *("/ws/x", "/scratch/x", "/root/x", "/home/x", "/var/x", "/var/tmp/x", "/run/x", "/sys/x"),
    *("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"),
    "/proc/self/uid_map",
]


def test_host_files_are_not_there(run: Run, secret_file: Path) -> None:
    paths = [
        *map(str, (secret_file, Path(__file__), Path.home() / ".ssh", Path.cwd())),
        *(f"/proc/{pid}/root{secret_file}" for pid in ("1", "self", "thread-self")),
        *("/var/run/docker.sock", "/run/docker.sock", "/etc/machine-id", "/etc/ssh", "/boot/grub"),
    ]
    result = run(f"import os\nprint([p for p in {paths!r} if os.path.lexists(p)])")
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_no_secret_in_any_readable_file(run: Run) -> None:
    """All small files outside the libraries, those of /proc among them."""
    code = (
        "import os\n"
        f"secret = {SECRET[:7]!r}.encode() + {SECRET[7:]!r}.encode()\n"
        "for top in ('/etc', '/home', '/root', '/var', '/run', '/tmp', '/dev/shm', '/srv', '/mnt', '/ws',\n"
        "            '/scratch', '/workspace', '/proc'):\n"
        "  for root, folders, names in os.walk(top):\n"
        "    folders[:] = [f for f in folders if f not in ('task', 'map_files', 'sys', 'acpi', 'irq')]\n"
        "    for name in names:\n"
        "      if name in ('kmsg', 'mem', 'pagemap', 'kpagecount', 'kpageflags', 'kcore'): continue\n"
        "      try:\n"
        "        fd = os.open(f'{root}/{name}', os.O_RDONLY | os.O_NONBLOCK)\n"
        "        if secret in os.read(fd, 1 << 16): print(root, name)\n"
        "        os.close(fd)\n"
        "      except OSError: pass\n"
        "print('done', [k for k in os.environ if 'KEY' in k or 'TOKEN' in k or 'SECRET' in k])"
    )
    assert run(code).stdout == "done []\n"


def test_environment_is_made_of_known_names(run: Run) -> None:
    known = {
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8"),
        *("LANG", "HOME", "USER", "TMPDIR", "MPLCONFIGDIR", "MPLBACKEND", "OMP_NUM_THREADS"),
        *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "JOBLIB_MULTIPROCESSING"),
        # What its libraries set themselves.
        *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "LC_CTYPE"),
    }
    result = run(f"import os\nprint(sorted(set(os.environ) - {known!r}))")
    assert result.stdout == "[]\n"


def test_identity_is_powerless(run: Run) -> None:
    result = run(
        "import os\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print([int(status[k], 16) for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb')])\n"
        "print(status['NoNewPrivs'].strip(), status['Seccomp'].strip(), os.getuid() == os.geteuid() != 0)\n"
        "print(len(set(os.getresuid() + os.getresgid())), 0 in os.getgroups())\n"
        "for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]),\n"
        "             lambda: os.chroot('.'), lambda: os.nice(-5), lambda: os.chown('.', 0, 0)):\n"
        "  try: call(); print('did')\n"
        "  except OSError: pass\n"
    )
    assert result.stdout == "[0, 0, 0, 0]\n1 2 True\n1 False\n"


@only_namespace
def test_namespaces_show_nobody_else(run: Run) -> None:
    """A container has one set of process numbers; there, other processes are seen but closed."""
    code = "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()), os.getpid(), os.getuid())"
    assert run(code).stdout == "['1', '2'] 2 1000\n"


@only_docker
def test_each_workspace_of_a_container_has_its_own_user(sandbox: Sandbox) -> None:
    """In namespaces all see themselves as 1000."""
    code = "import os; print(os.getuid(), os.getgid(), os.stat('.').st_uid, oct(os.stat('.').st_mode))"

    async def scenario() -> list[str]:
        async with await sandbox.open() as one, await sandbox.open() as two:
            return [(await workspace.run(code)).stdout for workspace in (one, two)]

    first, second = (shown.split() for shown in asyncio.run(scenario()))
    assert int(first[0]) > 10_000
    assert first[:3] == [first[0]] * 3
    assert first[3] == second[3] == "0o40700"
    assert first[0] != second[0]


def test_nothing_but_the_own_folders_is_writable(run: Run) -> None:
    result = run(
        "import os\n"
        f"for p in {FOREIGN_PATHS!r}:\n"
        "  try: os.close(os.open(p, os.O_WRONLY | os.O_CREAT)); open(p, 'a').write('x'); print(p)\n"
        "  except OSError: pass\n"
        "for p in ('/x', '/ws/x', '/opt/x', '/dev/x', '/etc/x'):\n"
        "  for make in (os.mkdir, os.mkfifo, os.rmdir, lambda p: os.symlink('/', p),\n"
        "               lambda p: os.rename('/ws', p)):\n"
        "    try: make(p); print(p)\n"
        "    except OSError: pass\n"
        "for p in ('/workspace/x', '/tmp/x', '/dev/shm/x'): open(p, 'w').write('x')\n"
    )
    assert (result.stdout, result.stderr) == ("", "")
    assert [record.path for record in result.files] == ["x"]


@only_namespace
@pytest.mark.parametrize("owner", ["own uids", "one uid"])
def test_no_place_for_what_lasts(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: str
) -> None:
    """Nor where an ordinary user starts the sandbox, whose uid all episodes share: what does not belong to a
    run alone is mounted read-only, whoever owns it."""
    if owner == "one uid":
        monkeypatch.setattr(namespace, "pick_uid_base", lambda: None)
    table = tmp_path / "table.csv"
    table.write_text("a\n1\n")
    table.chmod(0o644)
    code = (
        "import os\n"
        "print(sorted({m[4] for m in map(str.split, open('/proc/self/mountinfo'))\n"
        "              if 'rw' in m[5].split(',') and m[4] != '/proc'}))\n"
        "for folder, folders, _ in os.walk('/'):\n"
        "  if folder == '/': folders[:] = set(folders) - {'proc', 'workspace', 'tmp'}\n"
        "  if folder == '/dev': folders.remove('shm')\n"
        "  try: open(folder + '/left.py', 'w'); print(folder)\n"
        "  except OSError: pass\n"
    )

    async def scenario() -> ToolResult:
        async with open_sandbox("namespace", shared=[table]) as sandbox:
            return await run_once(sandbox, code, {"table.csv": table})

    result = asyncio.run(scenario())
    places = ["/dev/full", "/dev/null", "/dev/random", "/dev/shm", "/dev/urandom", "/tmp", "/workspace"]
    assert (result.stdout, result.stderr) == (f"{places}\n", "")


@pytest.mark.parametrize(
    "module",
    [
        *("mappa_envs", "mappa_train", "mappa_envs.dsbench.tasks", "mappa_envs.dsbench.recipes"),
        *("reasoning_gym", "bokeh_sampledata", "bokeh", "torch", "pip", "pydantic", "pytest"),
    ],
)
def test_not_importable(run: Run, module: str) -> None:
    assert run(f"import {module}").exception == "ModuleNotFoundError"


def test_installing_is_impossible(run: Run) -> None:
    result = run(
        "import subprocess, sys\n"
        "for module in ('pip', 'ensurepip'):\n"
        "  done = subprocess.run([sys.executable, '-m', module, 'x'], capture_output=True)\n"
        "  print(module, done.returncode != 0)"
    )
    assert result.stdout == "pip True\nensurepip True\n"


def test_example_data_does_not_load(run: Run) -> None:
    result = run(
        "import sklearn.datasets as d, importlib.resources as r\n"
        f"for name in {DATA_LOADERS!r}:\n"
        "  try: getattr(d, name)(); print(name)\n"
        "  except (OSError, ImportError): pass\n"
        "try: print(list(r.files('sklearn.datasets.data').iterdir()))\n"
        "except (OSError, ImportError): pass"
    )
    assert result.stdout in ("", "[]\n")


def test_answers_are_nowhere(run: Run) -> None:
    """No file with the name of a data set, of a task list or of the code that makes tasks."""
    result = run(
        "import os\n"
        "stems = ('diabetes', 'breast_cancer', 'wine_data', 'linnerud', 'digits', 'test_answer', 'dsbench',\n"
        "         'baselines', 'recipes', 'answers', 'autompg', 'penguins', 'gapminder', 'titanic')\n"
        "for root, folders, names in os.walk('/'):\n"
        "  if root == '/': folders[:] = [f for f in folders if f not in ('proc', 'sys', 'dev')]\n"
        "  for name in names + folders:\n"
        "    stem, _, ending = name.partition('.')\n"
        "    bad = stem in stems or stem.startswith(('mappa', 'bokeh', 'reasoning_gym'))\n"
        "    if bad and not os.access(f'{root}/{name}', os.R_OK): continue  # the container's own, closed\n"
        "    if bad or ('iris' in stem and ending != 'rst'): print(root, name)\n"
        "print('done')"
    )
    # Code that only loads data, and number theory, have such names too.
    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.endswith((".rst", ".py", ".pyc"))] == ["done"]


def test_sockets(run: Run) -> None:
    result = run(
        "import socket\n"
        "for family in range(1, 46):\n"
        "  for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):\n"
        "    try: socket.socket(family, kind); print(family, kind)\n"
        "    except PermissionError: pass\n"
        "    except OSError as error: print(error)\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))\n"
    )
    assert (result.stdout, result.stderr) == ("b'x'\n", "")


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        ("import socket; socket.getaddrinfo('example.com', 80)", ["gaierror"]),
        ("import urllib.request as r; r.urlopen('http://1.1.1.1', timeout=3)", ["URLError"]),
        ("import socket; socket.create_connection(('127.0.0.1', 22), 1)", ["PermissionError"]),
    ],
    ids=["dns", "http", "local"],
)
def test_network(run: Run, code: str, errors: list[str]) -> None:
    assert run(code).exception in errors


def test_ends_of_pairs_cannot_be_led_elsewhere(run: Run) -> None:
    """A pair's end is a unix socket like any other, but for its way into the world."""
    result = run(
        "import socket\n"
        "for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW, 10):\n"
        "  try: socket.socketpair(socket.AF_UNIX, kind); print('pair', kind)\n"
        "  except OSError: pass\n"
        "for name in ('\\0x', '\\0', '/tmp/s', '/var/run/docker.sock', '\\0/tmp/.X11-unix/X0'):\n"
        "  a, b = socket.socketpair()\n"
        "  for act in (a.bind, a.connect, lambda name: a.listen(), lambda name: a.sendto(b'x', name)):\n"
        "    try: act(name); print(act, name)\n"
        "    except OSError: pass\n"
        "  try: a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); print('credentials')\n"
        "  except OSError: pass\n"
        "  a.send(b'x')\n"
        "  if a.getsockname() or b.getsockname(): print('named', a.getsockname())\n"
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_system_calls(run: Run) -> None:
    """Everything that the filter names answers as if forbidden, whatever it is given."""
    machine = platform.machine()
    numbers = {name: pair[list(AUDIT_ARCH).index(machine)] for name, pair in DENIED.items()}
    result = run(
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {numbers!r}.items():\n"
        "  if number >= 0 and (libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1):\n"
        "    print(name, ctypes.get_errno())\n"
        "for flag in (0x8000, 0x20000, *(1 << bit for bit in range(25, 31))):\n"
        f"  pid = libc.syscall({CLONE[machine]}, flag | 17, 0, 0, 0, 0)\n"
        "  if pid == 0: os._exit(0)\n"
        "  if pid > 0: print('clone', hex(flag))\n"
    )
    assert len(numbers) > 60
    assert (result.stdout, result.stderr) == ("", "")


def test_devices_are_harmless(run: Run) -> None:
    result = run(
        "import os, stat\n"
        "print(sorted(os.listdir('/dev')))\n"
        "for name in os.listdir('/dev'):\n"
        "  mode = os.stat('/dev/' + name).st_mode\n"
        "  if stat.S_ISBLK(mode): print(name)\n"
        "for kind in (stat.S_IFCHR, stat.S_IFBLK):\n"
        "  for folder in ('.', '/tmp', '/dev/shm'):\n"
        "    try: os.mknod(folder + '/device', kind | 0o666, os.makedev(1, 3)); print('made')\n"
        "    except OSError: pass\n"
        "for name in ('mem', 'kmsg', 'sda', 'vda', 'fuse', 'kvm', 'tty', 'net/tun'):\n"
        "  try: open('/dev/' + name); print(name)\n"
        "  except OSError: pass\n"
        "print(len(open('/dev/urandom', 'rb').read(8)), open('/dev/full', 'rb').read(2))\n"
    )
    first, *rest = result.stdout.splitlines()
    assert rest == [r"8 b'\x00\x00'"]
    assert {"null", "full", "random", "urandom", "fd", "shm"} <= set(ast.literal_eval(first))
    assert "zero" not in first  # it can be mapped
