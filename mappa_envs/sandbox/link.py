"""The owner's end of the zygote: start it, send requests, notice its death.

Lives in one event loop (the sandbox's own). Descriptors travel beside the JSON datagrams.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mappa_envs.errors import SandboxError, SandboxUnavailable
from mappa_envs.sandbox.rootfs import ENVIRONMENT, IMPORTS, Rootfs

START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""For any answer that takes no time of its own; a loaded machine is slow, a dead zygote silent."""

MAX_MESSAGE_BYTES = 1 << 16
MAX_FDS = 64
NUM_UIDS = 65_536
_UID_BASES = (1_000_000_000, 1_000_000, 100_000)
_BOOT = "import sys; sys.path.append(sys.argv[1]); from inside.boot import main; main()"

Answer = tuple[dict[str, Any], list[int]]
"""A reply and the descriptors that came beside it."""


class Zygote:
    """One zygote process, from start to death. It is not restarted; make another one."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._sending = asyncio.Lock()
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self.alive = False

    async def start(self, rootfs: Rootfs) -> None:
        """Raises `SandboxUnavailable` where this machine does not allow it, else `SandboxError`."""
        loop = asyncio.get_running_loop()
        self._spawn(rootfs)
        self.alive = True
        loop.add_reader(self._socket.fileno(), self._read)
        try:
            first = await asyncio.wait_for(asyncio.shield(self._started), START_TIMEOUT_S)
        except TimeoutError:
            self.abort(f"no sign of life for {START_TIMEOUT_S:.0f} s after its start")
            raise SandboxError(f"the sandbox did not start within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            self.abort("start was cancelled")
            raise
        if first["op"] == "failed":
            self.abort("it could not start")
            raise SandboxUnavailable(f"no namespace sandbox here: {first['error']}. {remedy(first)}")

    def _spawn(self, rootfs: Rootfs) -> None:
        control_fd = self._theirs.fileno()
        uid_base = pick_uid_base()
        zygote = {
            "control_fd": control_fd,
            "num_spares": 1,
            "many_uids": uid_base is not None,
            "environment": ENVIRONMENT,
            "imports": IMPORTS,
        }
        plan = {
            "owner_pid": os.getpid(),
            "uid_base": uid_base,
            "num_uids": NUM_UIDS,
            "control_fd": control_fd,
            "binds": rootfs.binds,
            "masks": rootfs.masks,
            "command": rootfs.command,
            "environment": ENVIRONMENT,
            "zygote": zygote,
        }
        # Popen, never a bare fork: the caller may have threads, CUDA, secrets in memory.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _BOOT, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
            pass_fds=[control_fd],
            start_new_session=True,
            cwd="/",
        )
        self._theirs.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(plan).encode())
            self._process.stdin.close()

    async def request(self, op: str, fields: dict[str, Any], *, num_fds: int = 0) -> Answer:
        """Send and wait for the answer; the caller owns the `num_fds` descriptors that come with it.

        Raises `SandboxError` when the zygote reports one, is dead or silent, and where this process
        may not open more files.
        """
        _, answer = await self.send(op, fields)
        reply, fds = await self.receive(answer, REPLY_TIMEOUT_S)
        if len(fds) != num_fds:
            _close_all(fds)
            raise SandboxError(f"{op}: too many open files in this process (raise `ulimit -n`)")
        return reply, fds

    async def send(
        self, op: str, fields: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[int, asyncio.Future[Answer]]:
        """The first half of `request`: the number of the request and its answer to come."""
        if not self.alive:
            raise SandboxError("the sandbox process is dead")
        number = next(self._ids)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        data = json.dumps({"op": op, "id": number, **fields}).encode()
        self._waiting[number] = answer
        try:
            async with self._sending:
                await self._send(data, fds)
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return number, answer

    async def _send(self, data: bytes, fds: Sequence[int]) -> None:
        while self.alive:
            try:
                socket.send_fds(self._socket, [data], list(fds))
                return
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                self.abort(f"sending: {error}")
        raise SandboxError("the sandbox process is dead")

    async def receive(self, answer: asyncio.Future[Answer], timeout_s: float) -> Answer:
        """The second half of `request`."""
        try:
            reply, fds = await asyncio.wait_for(asyncio.shield(answer), timeout_s)
        except asyncio.CancelledError:
            answer.add_done_callback(_discard)
            raise
        except TimeoutError:
            self.abort(f"no answer within {timeout_s:.0f} s")
            raise SandboxError(f"the sandbox process gave no answer within {timeout_s:.0f} s") from None
        if "error" in reply:
            _close_all(fds)
            raise SandboxError(reply["error"])
        return reply, fds

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def resume() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_writer(self._socket.fileno(), resume)
        try:
            await asyncio.wait_for(ready, REPLY_TIMEOUT_S)
        except TimeoutError:
            self.abort("it reads no requests")
            raise SandboxError("the sandbox process reads no requests") from None
        finally:
            if self.alive:
                loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            self.abort("its process ended")
            return
        message = json.loads(data)
        if "op" in message:
            if not self._started.done():
                self._started.set_result(message)
            return
        answer = self._waiting.pop(message["id"], None)
        if answer is None or answer.done():
            _close_all(fds)
        else:
            answer.set_result((message, fds))

    def abort(self, reason: str) -> None:
        """Kill it, and fail all who wait for an answer."""
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if not self._started.done():
            self._started.set_result({"op": "failed", "errno": 0, "error": reason})
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxError(f"the sandbox process is gone: {reason}"))
                answer.exception()  # waiters may have left; that is no unhandled error
        self._waiting.clear()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _discard(answer: asyncio.Future[Answer]) -> None:
    """Nobody waits for it any more, but its descriptors are open."""
    if not answer.cancelled() and answer.exception() is None:
        _close_all(answer.result()[1])


def pick_uid_base() -> int | None:
    """For root: the first of a range of host uids that belong to nobody. None: use one's own uid."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    for base in _UID_BASES:
        if any(start <= base and base + NUM_UIDS <= start + count for start, _, count in ranges):
            return base
    return None


def remedy(failure: dict[str, Any]) -> str:
    """What the user can do about a failed start."""
    text = failure["error"]
    if text.startswith("import:"):
        return "Reinstall the package that it names."
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if apparmor.exists() and apparmor.read_text().strip() == "1":
        return "AppArmor forbids user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    clone = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if clone.exists() and clone.read_text().strip() == "0":
        return "User namespaces are off: sudo sysctl kernel.unprivileged_userns_clone=1"
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return "User namespaces are off: sudo sysctl user.max_user_namespaces=15000"
    if "mount proc" in text or "unshare" in text:
        return (
            "Inside a container: start it with --security-opt seccomp=unconfined --security-opt"
            " apparmor=unconfined --security-opt systempaths=unconfined, or run on the host."
        )
    return "A Linux 5.9 or later with user namespaces is needed."
