"""Runs inside the container: takes requests from standard input, answers on standard output.

The `docker` backend sends this file and those it needs (`BUNDLE` in `container.py`) in when a container
starts, so the image holds none of it. A message is a JSON object and a blob, led by their lengths.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mappa_envs.errors import SandboxError, SandboxUnavailable
from mappa_envs.sandbox.base import Limits
from mappa_envs.sandbox.engine import Engine, EngineWorkspace
from mappa_envs.sandbox.inside.isolation import SCRATCH_FD
from mappa_envs.sandbox.link import Zygote, ZygoteFailed

HEADER = struct.Struct("!II")
HEARTBEAT_S = 5.0
_HERE = Path(__file__).parent
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_START = (
    f"import sys; sys.path.append({str(_HERE)!r}); from inside.start import main;"
    f" sys.path.remove({str(_HERE)!r}); main()"
)


def pack(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    """One message as it goes over the stream."""
    text = json.dumps(message).encode()
    return HEADER.pack(len(text), len(blob)) + text + blob


class Relay:
    """One engine and whoever asks something of it, each request in a task of its own."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._engine = Engine(
            self._launch,
            Limits(**config["limits"]),
            shared={Path(path): path for path in config["shared"]},
            num_workspaces=config["num_workspaces"],
        )
        self._workspaces: dict[int, EngineWorkspace] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until standard input or the zygote ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, sys.stdout.buffer
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        self._writing = asyncio.Lock()
        try:
            zygote = await self._engine.living_zygote()
        except (SandboxError, SandboxUnavailable) as error:
            await self._send(pack({"op": "failed", "error": str(error)}))
            return
        await self._send(pack({"op": "ready"}))
        # When a zygote dies, its workers may live on with ids that new ones would get: all ends with it.
        work = {loop.create_task(self._listen(reader)), loop.create_task(self._beat()), zygote.ended}
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        os._exit(0)  # whoever still waits learns it from the end of the stream

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                text_size, blob_size = HEADER.unpack(await reader.readexactly(HEADER.size))
                request = json.loads(await reader.readexactly(text_size))
                blob = await reader.readexactly(blob_size)
                self._accept(request, blob)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._send(pack({"op": "alive"}))

    async def _send(self, message: bytes) -> None:
        async with self._writing:
            self._writer.write(message)
            await self._writer.drain()

    def _accept(self, request: dict[str, Any], blob: bytes) -> None:
        number = request["id"]
        if request["op"] == "cancel":
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        task = asyncio.get_running_loop().create_task(self._answer(request, blob))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _answer(self, request: dict[str, Any], blob: bytes) -> None:
        try:
            value, content = await getattr(self, "do_" + request["op"])(request, blob)
            answer = pack({"id": request["id"], "value": value}, content)
        except asyncio.CancelledError:
            reason = "the workspace was closed meanwhile"
            answer = pack({"id": request["id"], "error": reason, "kind": "SandboxError"})
        except Exception as error:  # noqa: BLE001 - the other side sorts them
            answer = pack({"id": request["id"], "error": str(error), "kind": type(error).__name__})
        await self._send(answer)

    async def do_open(self, request: dict[str, Any], blob: bytes) -> tuple[int, bytes]:
        files: dict[str, Path | bytes] = {name: Path(path) for name, path in request["shown"]}
        start = 0
        for name, size in request["files"]:
            files[name] = blob[start : start + size]
            start += size
        number = request["id"]
        self._workspaces[number] = await self._engine.open(files)
        return number, b""

    async def do_run(self, request: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        return asdict(await self._workspaces[request["workspace"]].run(request["blocks"])), b""

    async def do_inspect(self, request: dict[str, Any], _: bytes) -> tuple[Any, bytes]:
        workspace = self._workspaces[request["workspace"]]
        return await workspace.inspect(request["script"], time_s=request["time_s"]), b""

    async def do_read(self, request: dict[str, Any], _: bytes) -> tuple[None, bytes]:
        workspace = self._workspaces[request["workspace"]]
        return None, await workspace.read(request["path"], request["max_bytes"])

    async def do_close(self, request: dict[str, Any], _: bytes) -> tuple[None, bytes]:
        await self._workspaces.pop(request["workspace"]).close()
        return None, b""

    async def _launch(self) -> Zygote:
        zygote = Zygote(num_folders=2)
        try:
            await zygote.start(self._spawn)
        except ZygoteFailed as error:
            raise SandboxUnavailable(str(error)) from None
        return zygote

    def _spawn(self, control_fd: int) -> subprocess.Popen[bytes]:
        zygote = {"isolation": "uids", "control_fd": control_fd, **self._config["zygote"]}
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-c", _START, json.dumps(zygote)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # stderr is the container's: what it says, the owner's errors quote
            env=self._config["environment"] | kept,
            pass_fds=[control_fd, SCRATCH_FD],
        )


def main(config: dict[str, Any]) -> None:
    """Serve until the owner hangs up; the container ends with this process."""
    os.umask(0o022)
    # For the zygote, while it imports; its workers get folders of their own.
    scratch = os.open("/scratch/0", os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(scratch, SCRATCH_FD)
    if not os.path.lexists("/dev/shm"):
        os.symlink(f"/proc/self/fd/{SCRATCH_FD}", "/dev/shm")
    # Mapped and shared, it is memory that no look at a process finds. Where the engine holds on to it, the
    # container's own limit remains.
    with contextlib.suppress(OSError):
        os.unlink("/dev/zero")
    asyncio.run(Relay(config).serve())
