"""One container of the `docker` backend: made, talked to, and surely removed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mappa_envs.errors import ConfigError, DataError, SandboxError, SandboxUnavailable, boundary
from mappa_envs.sandbox.base import Limits
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, connect
from mappa_envs.sandbox.inside.isolation import FIRST_UID
from mappa_envs.sandbox.link import REPLY_TIMEOUT_S, START_TIMEOUT_S
from mappa_envs.sandbox.relay import HEADER, pack

NUM_WORKSPACES = 256
"""Open at a time in one container: each needs mounts that exist from its start."""

SILENCE_TIMEOUT_S = 60.0
"""Without a sign of life from the container, whoever waits for an answer is told that it is gone."""

REMOVE_TIMEOUT_S = 30.0
"""For the daemon to remove a container, which it may be doing already."""

CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER")
OWNER_LABEL = "mappa.sandbox.owner"
BUNDLE = (
    "types.py", "errors.py", "sandbox/base.py", "sandbox/copying.py", "sandbox/engine.py", "sandbox/link.py",
    "sandbox/output.py", "sandbox/trail.py", "sandbox/relay.py", "sandbox/waiting.py",
    "sandbox/inside/__init__.py", "sandbox/inside/blocks.py", "sandbox/inside/isolation.py",
    "sandbox/inside/linux.py", "sandbox/inside/pages.py", "sandbox/inside/seccomp.py",
    "sandbox/inside/start.py", "sandbox/inside/watchdog.py", "sandbox/inside/worker.py",
    "sandbox/inside/zygote.py",
)  # fmt: skip
"""What the container runs of this package, besides empty `__init__` files."""

_log = logging.getLogger(__name__)
_HOME = "/run/mappa"
_BOOT = f"""
import json, os, sys
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("nothing was sent in")
    return data
sent = json.loads(read(int.from_bytes(read(4), "big")))
for name, text in sent["files"].items():
    path = os.path.join({_HOME!r}, "mappa_envs", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
sys.path.insert(0, {_HOME!r})
from mappa_envs.sandbox.relay import main
main(sent["config"])
"""
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, SandboxError, SandboxUnavailable, ValueError)
}


class Container:
    """One container from start to end, and the stream of its first process."""

    def __init__(self) -> None:
        self.alive = False
        self.docker: Any = None
        """The `docker` package's object for it."""
        self._client: Any = None
        self._name: str | None = None
        """Set before the daemon hears of it: also where its answer never comes, there may be a container."""
        self._attached: Any = None
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._started: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._stream = _Demultiplexer()
        self._last_heard = time.monotonic()
        # Sending blocks when the container does not read; one thread keeps messages whole and in order.
        self._sender = ThreadPoolExecutor(1, "mappa-docker-send")
        self._sending: Future[None] | None = None

    async def start(
        self, image: str, limits: Limits, shared: Mapping[Path, str], config: dict[str, Any]
    ) -> None:
        """Raises `SandboxUnavailable`, with what to do, where there is no daemon or no such image."""
        await asyncio.to_thread(self._create, image, limits, shared)
        self.alive = True
        self._watching = self._loop.create_task(self._watch_silence())
        try:
            threading.Thread(target=self._receive, name="mappa-docker-receive", daemon=True).start()
            sent = json.dumps({"files": _bundle(), "config": config}).encode()
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._send(len(sent).to_bytes(4, "big") + sent)
                first = await self._started
        except TimeoutError:
            await self.stop("no sign of life after its start")
            raise SandboxError(f"the container did not start within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await self.stop("start was cancelled")
            raise
        if first["op"] == "failed":
            await self.stop("it could not start")
            if first["error"].startswith("packages:"):
                raise ConfigError(first["error"])
            raise SandboxUnavailable(
                f"the sandbox does not start in image {image!r}: {first['error']}."
                " Build the image again: python -m mappa_envs build-image"
            )

    def _create(self, image: str, limits: Limits, shared: Mapping[Path, str]) -> None:
        client = self._client = connect()
        import docker
        import requests

        foreign = (docker.errors.DockerException, requests.RequestException)
        try:
            with boundary(SandboxError, "starting the container", *foreign):
                sweep(client)
                options = _options(client.info(), limits, shared)
                self._name = f"mappa-sandbox-{uuid.uuid4().hex}"
                try:
                    self.docker = client.containers.create(image, name=self._name, **options)
                except docker.errors.ImageNotFound:
                    raise SandboxUnavailable(
                        f"Docker has no image {image!r}: correct the name, or build it: python -m mappa_envs"
                        f" build-image{'' if image == DEFAULT_IMAGE else f' --tag {image}'}"
                        " (with --offline where no registry can be reached)"
                    ) from None
                self._attach_and_start()
        except BaseException:
            self._remove()  # one that never ran stays for ever
            raise

    def _attach_and_start(self) -> None:
        self._attached = self.docker.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        self._socket: socket.socket = getattr(self._attached, "_sock", self._attached)
        self._socket.settimeout(None)
        self.docker.start()

    async def ask(self, request: dict[str, Any], blob: bytes = b"") -> tuple[Any, bytes]:
        """The value and the blob of the answer. Raises what was raised in there, `SandboxError` if it is
        gone. Cancelled, it waits until the work has ended in there."""
        if not self.alive:
            raise SandboxError("the sandbox's container died and took this workspace along: open a new one")
        number = next(self._ids)
        future: asyncio.Future[tuple[dict[str, Any], bytes]] = self._loop.create_future()
        if not self._waiting:
            self._last_heard = time.monotonic()
        self._waiting[number] = future
        try:
            await self._send(pack({**request, "id": number}, blob))
            answer, content = await asyncio.shield(future)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):  # it died, and the work with it
                await self._send(pack({"op": "cancel", "id": number}))
                await asyncio.wait([future], timeout=REPLY_TIMEOUT_S)
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" not in answer:
            return answer["value"], content
        if answer["kind"] == "FileNotFoundError":
            raise FileNotFoundError(errno.ENOENT, "no such file in the workspace", request["path"])
        raise _ERRORS.get(answer["kind"], SandboxError)(answer["error"])

    async def _send(self, data: bytes) -> None:
        """At once where the container has room for all of it, which saves the way to the thread and back."""
        try:
            if type(self._socket) is socket.socket and (self._sending is None or self._sending.done()):
                with contextlib.suppress(BlockingIOError):
                    data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
            if data:
                self._sending = self._sender.submit(self._socket.sendall, data)
                await asyncio.shield(asyncio.wrap_future(self._sending))
        except (OSError, RuntimeError) as error:
            raise SandboxError(f"the sandbox's container is gone: {error}") from None

    def _receive(self) -> None:
        """In a thread: whatever comes, until the stream ends."""
        with contextlib.suppress(OSError, RuntimeError):  # the loop may have ended before us
            while data := self._socket.recv(1 << 18):
                self._loop.call_soon_threadsafe(self._hear, data)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lose, "its stream ended")

    def _hear(self, data: bytes) -> None:
        self._last_heard = time.monotonic()
        for message, blob in self._stream.feed(data):
            if "op" not in message:
                future = self._waiting.get(message["id"])
                if future is not None and not future.done():
                    future.set_result((message, blob))
            elif message["op"] in ("ready", "failed") and not self._started.done():
                self._started.set_result(message)

    async def _watch_silence(self) -> None:
        """The docker package waits for ever; we do not."""
        while self.alive:
            await asyncio.sleep(min(1.0, SILENCE_TIMEOUT_S / 4))
            if self._waiting and time.monotonic() - self._last_heard > SILENCE_TIMEOUT_S:
                self._lose(f"no sign of life for {SILENCE_TIMEOUT_S:.0f} s")

    def _lose(self, reason: str) -> None:
        """Fail all who wait for an answer, and clean up."""
        if not self.alive:
            return
        self.alive = False
        self._watching.cancel()
        self._cleaning = self._loop.create_task(asyncio.to_thread(self._remove))
        said = self._stream.errors.decode("utf-8", "replace").strip()[-1000:]
        reason = f"{reason}: {said}" if said else reason
        if not self._started.done():
            self._started.set_result({"op": "failed", "error": reason})
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxError(f"the sandbox's container is gone: {reason}"))
                future.exception()  # waiters may have left; that is no unhandled error

    async def stop(self, reason: str) -> None:
        """Kill and remove it; nothing of it is left afterwards."""
        self._lose(reason)
        await self._cleaning

    def _remove(self) -> None:
        if self._attached is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._attached.close()
            self._socket.close()  # what attach_socket gave is only one holder of it
        self._sender.shutdown(wait=False)
        if self._name is not None:
            self._client.api.timeout = REMOVE_TIMEOUT_S
            remove(self._client, self._name)
        self._client.close()


class _Demultiplexer:
    """From Docker's stream of stdout and stderr to messages. `errors`: the end of stderr."""

    def __init__(self) -> None:
        self.errors = bytearray()
        self._raw = bytearray()
        self._out = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The messages that are complete with this piece."""
        self._raw += data
        while len(self._raw) >= 8:
            size = int.from_bytes(self._raw[4:8], "big")
            if len(self._raw) < 8 + size:
                break
            kind, piece = self._raw[0], self._raw[8 : 8 + size]
            del self._raw[: 8 + size]
            if kind == 1:
                self._out += piece
            else:
                self.errors = (self.errors + piece)[-10_000:]
        messages = []
        while len(self._out) >= HEADER.size:
            text_size, blob_size = HEADER.unpack_from(self._out)
            end = HEADER.size + text_size + blob_size
            if len(self._out) < end:
                break
            text = self._out[HEADER.size : HEADER.size + text_size]
            messages.append((json.loads(text), bytes(self._out[HEADER.size + text_size : end])))
            del self._out[:end]
        return messages


def _options(info: Mapping[str, Any], limits: Limits, shared: Mapping[Path, str]) -> dict[str, Any]:
    """What the container may do and what it sees. `info`: what the daemon says of its machine."""
    memory_bytes = info["MemTotal"] * 3 // 4
    return {
        "entrypoint": ["python3", "-I", "-S", "-B", "-c", _BOOT],
        "command": [],
        "user": "0:0",
        "working_dir": "/",
        "hostname": "sandbox",
        "stdin_open": True,
        "network_mode": "none",
        "ipc_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        "pids_limit": info["NCPU"] * limits.processes + 100,
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "tmpfs": _mounts(limits),
        "volumes": {str(path.resolve()): {"bind": place, "mode": "ro"} for path, place in shared.items()},
        "init": True,
        "auto_remove": True,
        # The default log file grows outside all limits.
        "log_config": {"Type": "none"},
        "labels": {OWNER_LABEL: _owner()},
    }


def _mounts(limits: Limits) -> dict[str, str]:
    """Folder → options of the tmpfs there: our own code's, and two for each workspace (see `Uids`)."""
    # Docker's own message queue file system would be open to all, and outlive their runs.
    mounts = {_HOME: "size=4m,mode=700", "/dev/mqueue": "size=4k,mode=700"}
    for number in range(NUM_WORKSPACES + 1):
        door = f"mode=710,uid=0,gid={FIRST_UID + number}"
        # Two inodes are the folder that is mounted and the workspace in it.
        mounts[f"/ws/{number}"] = f"size={limits.workspace_mb}m,nr_inodes={limits.workspace_files + 2},{door}"
        mounts[f"/scratch/{number}"] = f"size=64m,nr_inodes=20000,{door}"
    return mounts


def remove(client: Any, container: str) -> None:
    """Kill and delete a container, by name or id, and wait until it is gone. Idempotent."""
    import docker
    import requests

    deadline, last = time.monotonic() + REMOVE_TIMEOUT_S, None
    while time.monotonic() < deadline:
        try:
            client.api.remove_container(container, force=True)
        except docker.errors.NotFound:
            return
        except (docker.errors.APIError, requests.RequestException) as error:
            last = error
            time.sleep(0.05)  # it is being removed already
    _log.warning(
        "container %s is still there after %.0f s (%s): docker rm -f %s",
        *(container, REMOVE_TIMEOUT_S, last, container),
    )


def sweep(client: Any) -> None:
    """Remove the containers of owners that are dead, should a daemon have kept one."""
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
        place, pid, start = container.labels[OWNER_LABEL].split("/")
        here, _, _ = _owner().split("/")
        if place == here and _start_time(int(pid)) != start:
            remove(client, container.id)


def _owner() -> str:
    """Which process of which machine: place / pid / start time."""
    place = platform.node()
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Two containers on one machine may both see this daemon, but not each other's processes.
        place = f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    return f"{place}/{os.getpid()}/{_start_time(os.getpid())}"


def _start_time(pid: int) -> str:
    """Tells a process from a later one with its number; without /proc only whether there is one."""
    if Path("/proc/self/stat").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "unknown"


def _bundle() -> dict[str, str]:
    package = Path(__file__).parents[1]
    files = {name: (package / name).read_text("utf-8") for name in BUNDLE}
    return files | {"__init__.py": "", "sandbox/__init__.py": ""}
