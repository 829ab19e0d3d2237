"""Two episodes at the same time: neither reads, disturbs or reaches the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from sandbox_kit import until_there

from mappa_envs.sandbox import Sandbox
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Meet = Callable[[str], tuple[ToolResult, ToolResult]]

VICTIM = """
import multiprocessing.shared_memory, os, sys, tempfile, threading, time
secret = "VICTIM_" + "5ECRET"
os.environ["API_KEY"] = secret
kept = open("secret.txt", "w+"); kept.write(secret); kept.flush()
for folder in ("/tmp", "/dev/shm"):
    open(folder + "/secret.txt", "w").write(secret)
    os.chmod(folder + "/secret.txt", 0o666)
os.chmod("secret.txt", 0o666); os.chmod(".", 0o777)
shared = multiprocessing.shared_memory.SharedMemory("victim_shared", create=True, size=64)
shared.buf[: len(secret)] = secret.encode()
child = os.fork()
if child == 0:
    time.sleep(0.4)
    os._exit(7)
thread = threading.Thread(target=time.sleep, args=(0.2,)); thread.start()
open("ready", "w").close()
started = time.time()
while not os.path.exists("stop") and time.time() < started + 0.5:
    time.sleep(0.02)
thread.join()
print(os.waitpid(child, 0)[1] >> 8, sorted(os.listdir()), open("secret.txt").read() == secret)
print(bytes(shared.buf[: len(secret)]).decode() == secret, open("/tmp/secret.txt").read() == secret)
shared.close(); shared.unlink()
print(time.time())
"""

OTHERS = """
import os
others = {p for p in os.listdir("/proc") if p.isdigit()} - {str(os.getpid())}
if os.stat("/proc/1").st_uid == os.getuid():
    others.remove("1")  # the run's own init, in namespaces that an ordinary user made
"""


@pytest.fixture
def meet(sandbox: Sandbox) -> Meet:
    """Run an attack while a victim runs, and look at what the victim shows: (victim's, attacker's)."""
    return lambda attack: asyncio.run(_meet(sandbox, attack))


async def _meet(sandbox: Sandbox, attack: str) -> tuple[ToolResult, ToolResult]:
    for _ in range(5):  # on a busy machine the attack may come when the victim has gone
        async with await sandbox.open() as house, await sandbox.open() as den:
            victim = asyncio.create_task(house.run(VICTIM))
            await until_there(house, "ready")
            attacker = await den.run(attack)
            attack_started = time.time() - attacker.duration_s
            result = await victim
        lines = result.stdout.splitlines()
        assert lines[:2] == ["7 ['ready', 'secret.txt'] True", "True True"], result
        assert (result.ok, result.stderr) == (True, "")
        assert [record.path for record in result.files] == ["ready", "secret.txt"]
        if attack_started < float(lines[2]):
            return result, attacker
    pytest.fail("they did not run at the same time")


def test_signals(meet: Meet) -> None:
    """To all processes but its own: one by one, by group, by descriptor, by thread."""
    _, attacker = meet(
        "import ctypes, os, signal\n"
        "libc = ctypes.CDLL(None)\n"
        "pids = {int(p) for p in os.listdir('/proc') if p.isdigit()} | {*range(1, 1000), os.getppid()}\n"
        "for s in (9, 19, 15, 2):\n"
        "  for pid in sorted(pids - {0, os.getpid()}):\n"
        "    for act in (os.kill, os.killpg, lambda p, s: signal.pidfd_send_signal(os.pidfd_open(p), s),\n"
        "                lambda p, s: libc.tgkill(p, p, s) and None):\n"
        "      try: act(pid, s)\n"
        "      except OSError: pass\n"
        "  try: os.kill(-1, s)\n"
        "  except OSError: pass\n"
        "print('survived')"
    )
    assert (attacker.stdout, attacker.stderr) == ("survived\n", "")


def test_proc_of_others_is_closed(meet: Meet) -> None:
    _, attacker = meet(
        f"{OTHERS}"
        "for pid in others:\n"
        "  for name in ('environ', 'maps', 'smaps', 'smaps_rollup', 'auxv', 'io', 'stack', 'syscall',\n"
        "               'personality', 'numa_maps', 'mem', 'pagemap', 'oom_score_adj'):\n"
        "    modes = ('rb', 'r+b') if name in ('mem', 'oom_score_adj') else ('rb',)\n"
        "    for mode in modes:\n"
        "      if (name, mode) == ('oom_score_adj', 'rb'): continue\n"
        "      try:\n"
        "        with open(f'/proc/{pid}/{name}', mode, buffering=0) as f:\n"
        "          if f.read(1) or mode == 'r+b': print(pid, name, mode)\n"
        "      except OSError: pass\n"
        "  for name in ('cwd', 'root', 'exe', 'ns/mnt', 'ns/net', 'fd/0', 'fd/1', 'fd/3', 'fd/4'):\n"
        "    try: print(pid, name, os.readlink(f'/proc/{pid}/{name}'))\n"
        "    except OSError: pass\n"
        "  for name in ('fd', 'fdinfo', 'map_files', 'cwd', 'root', 'root/workspace', 'root/ws'):\n"
        "    try: print(pid, name, os.listdir(f'/proc/{pid}/{name}'))\n"
        "    except OSError: pass\n"
        "print('done')"
    )
    assert (attacker.stdout, attacker.stderr) == ("done\n", "")


def test_memory_of_others_is_closed(meet: Meet) -> None:
    """Reading and changing it by system calls, and taking descriptors out of it."""
    _, attacker = meet(
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "buffer = ctypes.create_string_buffer(64)\n"
        "class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
        "vec = Vec(ctypes.addressof(buffer), 64)\n"
        "for pid in [int(p) for p in os.listdir('/proc') if p.isdigit()]:\n"
        "  for request in (16, 0x4206):\n"
        "    if libc.ptrace(request, pid, 0, 0) == 0: print('ptrace', pid)\n"
        "  for call in (libc.process_vm_readv, libc.process_vm_writev):\n"
        "    if call(pid, ctypes.byref(vec), 1, ctypes.byref(vec), 1, 0) >= 0: print('vm', pid)\n"
        "  if pid != os.getpid():\n"
        "    for fd in range(8):\n"
        "      if libc.syscall(438, libc.syscall(434, pid, 0), fd, 0) >= 0: print('getfd', pid, fd)\n"
        "if libc.ptrace(0, 0, 0, 0) == 0: print('traceme')\n"
        "print('done')"
    )
    assert (attacker.stdout, attacker.stderr) == ("done\n", "")


def test_schedule_and_limits_of_others_stay(meet: Meet) -> None:
    _, attacker = meet(
        f"{OTHERS}import resource\n"
        "for pid in map(int, others):\n"
        "  for name, act in {\n"
        "      'limit': lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),\n"
        "      'cores': lambda: os.sched_setaffinity(pid, {0}),\n"
        "      'nice': lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),\n"
        "      'policy': lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),\n"
        "      'group': lambda: os.setpgid(pid, os.getpid())}.items():\n"
        "    try: act(); print(pid, name)\n"
        "    except OSError: pass\n"
        "print('done')"
    )
    assert (attacker.stdout, attacker.stderr) == ("done\n", "")


def test_files_of_others_are_out_of_sight(meet: Meet) -> None:
    _, attacker = meet(
        "import os\n"
        "from multiprocessing import shared_memory\n"
        "names = ['secret.txt', '../secret.txt', '/tmp/secret.txt', '/dev/shm/secret.txt']\n"
        "own = [os.stat(folder) for folder in ('.', '/tmp', '/dev/shm')]\n"
        "for top in ('/ws', '/scratch', '/run', '/var', '/home', '/mnt'):\n"
        "  numbers = (*range(260), *range(10_000, 10_260))\n"
        "  for folder in [f'{top}/{n}{end}' for n in numbers for end in ('', '/own')]:\n"
        "    try: found = os.stat(folder)\n"
        "    except OSError: found = None\n"
        "    if found and any(os.path.samestat(found, one) for one in own): continue\n"
        "    names += [f'{folder}/{name}' for name in ('secret.txt', 'ready', 'victim_shared')]\n"
        "    try: print(folder, os.listdir(folder))\n"
        "    except OSError: pass\n"
        "    try: open(f'{folder}/stop', 'w'); print('wrote', folder)\n"
        "    except OSError: pass\n"
        "for name in names:\n"
        "  for act in (lambda: open(name, 'rb').read(99), lambda: os.truncate(name, 0),\n"
        "              lambda: os.link(name, 'stolen'), lambda: os.chmod(name, 0o777),\n"
        "              lambda: os.unlink(name)):\n"
        "    try: act(); print(name)\n"
        "    except OSError: pass\n"
        "try: shared_memory.SharedMemory('victim_shared'); print('shared')\n"
        "except OSError: pass\n"
        "for top in ('/tmp', '/dev/shm', '/workspace', '.'):\n"
        "  for root, _, files in os.walk(top):\n"
        "    for file in files: print(root, file)\n"
        "print('done')"
    )
    assert (attacker.stdout, attacker.stderr) == ("done\n", "")


def test_no_descriptor_leads_to_others(meet: Meet) -> None:
    """Whatever is open leads to itself: through a descriptor of a folder one could climb."""
    _, attacker = meet(
        "import os, stat\n"
        "here = os.stat('.').st_dev, os.stat('.').st_ino\n"
        "for fd in range(256):\n"
        "  try: found = os.fstat(fd)\n"
        "  except OSError: continue\n"
        "  if stat.S_ISDIR(found.st_mode):\n"
        "    for path in ('..', '../..', '../secret.txt', '../1', '../2', '../10001', 'secret.txt'):\n"
        "      try: names = os.listdir(os.open(path, os.O_RDONLY, dir_fd=fd))\n"
        "      except OSError: continue\n"
        "      if 'secret.txt' in names: print(fd, path, names)\n"
        "  elif stat.S_ISREG(found.st_mode): print('file', fd, os.readlink(f'/proc/self/fd/{fd}'))\n"
        "print('done')"
    )
    assert (attacker.stdout, attacker.stderr) == ("done\n", "")


def test_memory_that_was_handed_down_holds_nothing_of_others(meet: Meet) -> None:
    """The worker is a copy of a process that also started the victim."""
    _, attacker = meet(
        "import gc, re\n"
        "text, data = re.compile('VICTIM_[0-9]ECRET'), re.compile(b'VICTIM_[0-9]ECRET')\n"
        "some = [o for o in gc.get_objects() if type(o) in (dict, list, tuple)]\n"
        "found = [o for o in some if text.search(str(o)[:9999])]\n"
        "num_bytes = hits = 0\n"
        "for line in open('/proc/self/maps'):\n"
        "  fields = line.split()\n"
        "  if fields[1].startswith('rw') and (len(fields) == 5 or '[heap]' in line):\n"
        "    start, end = (int(x, 16) for x in fields[0].split('-'))\n"
        "    with open('/proc/self/mem', 'rb', buffering=0) as mem:\n"
        "      mem.seek(start); block = mem.read(min(end - start, 1 << 26))\n"
        "    num_bytes += len(block); hits += len(data.findall(block))\n"
        "print(num_bytes > 10 << 20, hits, found)"
    )
    assert (attacker.stdout, attacker.stderr) == ("True 0 []\n", "")


def test_abstract_sockets_reach_nobody(sandbox: Sandbox) -> None:
    """The ends of a pair can be taken apart and given a name that is no file."""
    listener = (
        "import ctypes, os, socket, time\n"
        "libc = ctypes.CDLL(None)\n"
        "ends = []\n"
        "for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n"
        "  try: ends.append(socket.socketpair(socket.AF_UNIX, kind)[0])\n"
        "  except OSError: continue\n"
        "  try: ends[-1].bind(f'\\0meeting{kind}')\n"
        "  except OSError: pass\n"
        "  try: ends[-1].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)\n"
        "  except OSError: pass\n"
        "  ends[-1].settimeout(0.3)\n"
        "  libc.connect(ends[-1].fileno(), ctypes.create_string_buffer(16), 2)\n"
        "open('ready', 'w').close(); time.sleep(0.3)\n"
        "for end in ends:\n"
        "  try: print('heard', end.recv(99) or 1 / 0)\n"
        "  except (OSError, ZeroDivisionError): pass"
    )
    speaker = (
        "import socket\n"
        "for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n"
        "  for act in ('sendto', 'connect'):\n"
        "    try:\n"
        "      a, b = socket.socketpair(socket.AF_UNIX, kind); name = f'\\0meeting{kind}'\n"
        "      a.sendto(b'hello', name) if act == 'sendto' else a.connect(name)\n"
        "      print(act, kind)\n"
        "    except OSError: pass\n"
    )

    async def scenario() -> tuple[ToolResult, ToolResult]:
        async with await sandbox.open() as one, await sandbox.open() as two:
            listening = asyncio.create_task(one.run(listener))
            await until_there(one, "ready")
            return await two.run(speaker), await listening

    said, heard = asyncio.run(scenario())
    assert (said.stdout, heard.stdout, heard.stderr) == ("", "", "")


def test_many_workspaces_at_once(sandbox: Sandbox) -> None:
    async def one(number: int) -> str:
        async with await sandbox.open({"n": str(number).encode()}) as workspace:
            result = await workspace.run("print(open('n').read())")
            assert result.files == ()
            return result.stdout

    async def scenario() -> list[str]:
        return await asyncio.gather(*map(one, range(40)))

    assert asyncio.run(scenario()) == [f"{n}\n" for n in range(40)]


@pytest.mark.slow
def test_each_has_its_own_room_and_its_own_processes(sandbox: Sandbox) -> None:
    """Both take nearly all that one may have, which is less than they have together."""
    code = (
        "import os, time\n"
        "for name in ('a', '/tmp/a', '/tmp/b'): open(name, 'wb').write(bytes(30 << 20))\n"
        "for _ in range(40):\n  if os.fork() == 0: time.sleep(9); os._exit(0)\n"
        "time.sleep(max(0, {end} - time.monotonic())); print('fine')"
    )

    async def scenario() -> list[ToolResult]:
        async with await sandbox.open() as one, await sandbox.open() as two:
            end = time.monotonic() + 0.6
            return await asyncio.gather(one.run(code.format(end=end)), two.run(code.format(end=end)))

    assert [(result.stdout, result.limit) for result in asyncio.run(scenario())] == [("fine\n", None)] * 2


@pytest.mark.slow
def test_a_greedy_neighbour_costs_others_little(sandbox: Sandbox) -> None:
    """A fork bomb, a thread bomb and a writer beside an honest run, which must end well."""
    bombs = [
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "import threading, time\nwhile True:\n  try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
        "  except RuntimeError: time.sleep(0.01)",
        "a = []\nwhile True: a.append(bytearray(10 << 20))",
        "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))",
    ]

    async def honest() -> ToolResult:
        async with await sandbox.open() as workspace:
            return await workspace.run("import os, time\npid = os.fork()\nif pid: os.wait(); print('fine')")

    async def bomb(code: str) -> ToolResult:
        async with await sandbox.open() as workspace:
            return await workspace.run(code)

    async def scenario() -> tuple[list[ToolResult], list[ToolResult]]:
        good = asyncio.gather(*(honest() for _ in range(6)))
        bad = asyncio.gather(*(bomb(code) for code in bombs))
        return await good, await bad

    good, bad = asyncio.run(scenario())
    assert [(result.ok, result.stdout) for result in good] == [(True, "fine\n")] * 6
    assert not any(result.ok for result in bad)
