"""The owner's end of the zygote: start it, send requests, notice its death.

Lives in one event loop (the sandbox's own). Descriptors travel beside the JSON datagrams.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from mappa_envs.errors import SandboxError, SandboxUnavailable

START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 60.0
"""For any answer that takes no time of its own; a loaded machine is slow, a dead zygote silent."""

MAX_MESSAGE_BYTES = 1 << 16
MAX_FDS = 64

Answer = tuple[dict[str, Any], list[int]]
"""A reply and the descriptors that came beside it."""


class ZygoteFailed(SandboxUnavailable):
    """It could not start; the message is its own."""


class Zygote:
    """One zygote process, from start to death. It is not restarted; make another one.

    `num_folders` is how many descriptors come with a workspace.
    """

    def __init__(self, *, num_folders: int) -> None:
        self.num_folders = num_folders
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once it is dead."""
        self._sending = asyncio.Lock()
        self._socket: socket.socket
        self._process: subprocess.Popen[bytes] | None = None
        self.alive = False

    async def start(self, spawn: Callable[[int], subprocess.Popen[bytes]]) -> None:
        """`spawn` gets the descriptor that the zygote is to talk on.

        Raises `ZygoteFailed` with the zygote's own word, `SandboxError` when it says nothing.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = spawn(theirs.fileno())
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)
        self.alive = True
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)
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
            raise ZygoteFailed(first["error"])

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
            async with asyncio.timeout(timeout_s):
                reply, fds = await asyncio.shield(answer)
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
            flags = socket.MSG_CMSG_CLOEXEC
            data, fds, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, MAX_FDS, flags)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
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
        self.ended.set_result(None)
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if not self._started.done():
            self._started.set_result({"op": "failed", "error": reason})
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
