"""A machine that has run out of descriptors, processes or the will to start: told apart from what agents do.

Such a fault is the sandbox's, never an agent's, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest
from sandbox_kit import in_fork, only_docker, only_namespace

from mappa_envs.errors import SandboxError, SandboxUnavailable
from mappa_envs.sandbox import Sandbox, Workspace, container, namespace, open_sandbox, trail
from mappa_envs.sandbox.inside import isolation
from mappa_envs.sandbox.inside import zygote as inside
from mappa_envs.sandbox.link import Zygote
from mappa_envs.types import ToolResult

NUM_ENOUGH = 12


@contextlib.contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """This process can open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.open(os.devnull, os.O_RDONLY)]
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 20), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(os.dup(filler[0]))
        for _ in range(number):
            os.close(filler.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filler:
            os.close(fd)


async def _with_few(act: str, workspace: Workspace, sandbox: Sandbox) -> list[object]:
    """What comes of it with no descriptor, with one, with two …"""
    outcomes: list[object] = []
    for number in range(NUM_ENOUGH):
        with descriptors_left(number):
            try:
                if act == "open":
                    outcomes.append(await sandbox.open({"a.csv": b"1"}))
                elif act == "run":
                    outcomes.append(await workspace.run("print(1)"))
                else:
                    outcomes.append(await workspace.read("kept.csv", 10))
            except SandboxError as error:
                outcomes.append(error)
    return outcomes


@pytest.mark.usefixtures("unharmed")
@only_namespace
@pytest.mark.parametrize("act", ["open", "run", "read"])
def test_without_descriptors_the_sandbox_fails_and_no_agent(sandbox: Sandbox, act: str) -> None:
    """The fixture sees that neither descriptors nor mounts are left."""

    async def scenario() -> None:
        async with await sandbox.open({"kept.csv": b"1"}) as workspace:
            outcomes = await _with_few(act, workspace, sandbox)
            assert isinstance(outcomes[0], SandboxError)
            assert "open files" in str(outcomes[0])
            assert not isinstance(outcomes[-1], SandboxError)
            for outcome in outcomes:
                if isinstance(outcome, ToolResult):
                    assert (outcome.stdout, outcome.files) == ("1\n", ())
                elif isinstance(outcome, Workspace):
                    await outcome.close()
            result = await workspace.run("print(open('kept.csv').read())")
            assert (result.stdout, result.files) == ("1\n", ())

    asyncio.run(scenario())


@pytest.mark.slow
@only_namespace
def test_a_sandbox_that_cannot_start_may_start_later(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = open_sandbox(kind)

    def start(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            for _ in range(2):
                with pytest.raises(SandboxError, match="can't start new thread"):
                    await sandbox.open()
        with descriptors_left(4), pytest.raises(SandboxError, match=r"starting .* open files"):
            await sandbox.open()
        async with sandbox, await sandbox.open() as workspace:
            assert (await workspace.run("print(1)")).stdout == "1\n"

    asyncio.run(scenario())


def test_a_trail_is_not_written_without_descriptors(tmp_path: Path) -> None:
    """Every file would seem to be deleted."""
    (tmp_path / "a").touch()
    root_fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in (0, 1):
            with descriptors_left(number), pytest.raises(OSError, match="Too many open files"):
                trail.take_snapshot(root_fd)
        assert list(trail.take_snapshot(root_fd).entries) == [b"a"]
    finally:
        os.close(root_fd)


def test_a_process_that_cannot_be_started_leaves_no_descriptor() -> None:
    def spawn(control_fd: int) -> subprocess.Popen[bytes]:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def scenario() -> None:
        gc.collect()  # what other tests left may hold some
        before = len(os.listdir("/proc/self/fd"))
        zygote = Zygote(num_folders=1)
        with pytest.raises(BlockingIOError):
            await zygote.start(spawn)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


class Alone(isolation.Uids):
    """With a first process for each run, as in namespaces, but without those."""

    def before_fork(self) -> int:
        return os.posix_spawnp("sleep", ("sleep", "600"), os.environ)

    def kill_all(self, key: int, init: int, workers: set[int]) -> None:
        os.kill(init, signal.SIGKILL)


def _left_by(act: Callable[[inside.Zygote], None]) -> tuple[str, bool, int]:
    """In a fork: what `act` raises, whether children are left, and how many descriptors."""

    def try_it() -> tuple[str, bool, int]:
        ours, theirs = socket.socketpair()
        zygote = inside.Zygote({"isolation": "uids", "control_fd": theirs.detach()})
        zygote.isolation = Alone()
        said, before = "", len(os.listdir("/proc/self/fd"))
        try:
            act(zygote)
        except OSError as error:
            said = str(error.strerror)
        try:
            os.waitpid(-1, os.WNOHANG)
            children = True
        except ChildProcessError:
            children = False
        with ours:
            return said, children, len(os.listdir("/proc/self/fd")) - before

    return cast(tuple[str, bool, int], in_fork(try_it))


def _wait(channel: socket.socket, setting: object) -> NoReturn:
    """A worker for which there is no work. Forgotten, it ends some day."""
    signal.alarm(60)
    try:
        channel.recv(1)
    finally:
        os._exit(0)


@pytest.mark.parametrize("num_watched", [0, 1])
def test_a_worker_that_cannot_be_watched_is_not_left(
    monkeypatch: pytest.MonkeyPatch, num_watched: int
) -> None:
    """Nor is the first process of its run, nor a descriptor of either."""
    calls, pidfd_open = itertools.count(), os.pidfd_open

    def fail(pid: int) -> int:
        if next(calls) < num_watched:
            return pidfd_open(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", fail)
    monkeypatch.setattr(inside.worker, "main", _wait)
    assert _left_by(lambda zygote: zygote.fork_worker() and None) == ("Too many open files", False, 0)


def test_a_run_that_cannot_be_sent_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is killed, and whoever asked for it hears of it."""

    def fail(*about: object) -> NoReturn:
        raise OSError(109, "Too many references")

    def send_off(zygote: inside.Zygote) -> None:
        zygote.running[7] = step = zygote.fork_worker()
        step.run = 7
        try:
            zygote.send_off(step, {}, [])
        finally:
            assert not zygote.running
            while zygote.by_fd:
                events = zygote.poll.poll(60_000)
                assert events
                for fd, _ in events:
                    zygote.on_event(step, fd)
                zygote.bury()

    monkeypatch.setattr(inside.worker, "main", _wait)
    monkeypatch.setattr(socket, "send_fds", fail)
    assert _left_by(send_off) == ("Too many references", False, 0)


def test_of_folders_that_cannot_all_be_opened_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = isolation.Uids()
    monkeypatch.setattr(uids, "path", lambda number: str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="scratch"):
        uids.folders(1)
    assert len(os.listdir("/proc/self/fd")) == before


@only_namespace
@pytest.mark.parametrize("hard", [256, 2000])
def test_a_low_limit_on_open_files_is_raised_or_named(
    kind: str, monkeypatch: pytest.MonkeyPatch, hard: int
) -> None:
    lower = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard})); "
    monkeypatch.setattr(namespace, "_BOOT", lower + namespace._BOOT)

    async def scenario() -> str:
        async with open_sandbox(kind) as sandbox, await sandbox.open() as workspace:
            return (await workspace.run("print(1)")).stdout

    if hard == 2000:
        assert asyncio.run(scenario()) == "1\n"
        return
    with pytest.raises(SandboxUnavailable, match=r"open files: at most 256 .* ulimit -n"):
        asyncio.run(scenario())


def test_the_killer_waits_for_room_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zygote, which calls it until nobody is left, must not die of it."""

    tried = []

    def fork() -> NoReturn:
        tried.append(os.getpid())
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    isolation._kill_all_of(4_000_000)
    assert tried == [os.getpid()]


@only_namespace
@pytest.mark.parametrize(("num_bytes", "elsewhere"), [(1000, False), (20 << 20, True)])
def test_a_large_file_is_hashed_where_nobody_waits(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, num_bytes: int, elsewhere: bool
) -> None:
    """All other episodes of the sandbox wait for its loop; a small file is read there, as that is quicker."""
    threads = []
    look = trail._look_inside

    def look_and_tell(root_fd: int, path: bytes, hashed: bool) -> tuple[str, str]:
        threads.append(threading.current_thread().name)
        return look(root_fd, path, hashed)

    async def scenario() -> None:
        async with await sandbox.open() as workspace:
            result = await workspace.run(f"open('model.pkl', 'wb').truncate({num_bytes})")
            assert [record.size for record in result.files] == [num_bytes]

    monkeypatch.setattr(trail, "_look_inside", look_and_tell)
    asyncio.run(scenario())
    assert [name != "mappa-sandbox" for name in threads] == [elsewhere]


@pytest.mark.usefixtures("unharmed")
@only_docker
def test_a_container_that_does_not_start_is_removed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = container._options
    wrong = {"entrypoint": ["/no/such/program"], "init": False}  # the daemon makes it, but cannot start it
    monkeypatch.setattr(container, "_options", lambda *about: options(*about) | wrong)

    async def scenario() -> None:
        async with open_sandbox(kind) as sandbox:
            with pytest.raises(SandboxError, match="starting the container"):
                await sandbox.open()

    asyncio.run(scenario())
