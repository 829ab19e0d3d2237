"""The `unsafe-local` backend: ordinary processes in a temporary folder, without any isolation.

For trying the environments by hand on a machine that cannot isolate, with agents that one trusts as
oneself. It shows the same outputs and file trails as the `namespace` backend, but slowly: each run starts a
cold interpreter and imports its libraries anew.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from mappa_envs.errors import ConfigError, DataError, SandboxError, SandboxUnavailable, boundary
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.sandbox.copying import relative_path
from mappa_envs.sandbox.io_thread import ThreadedSandbox
from mappa_envs.sandbox.output import MAX_REPORT_BYTES, OUTPUT_FACTOR, Death, HeadTail, first_report
from mappa_envs.sandbox.rootfs import ENVIRONMENT, canonical
from mappa_envs.sandbox.unsafe_files import Stamp, compare, read, scan
from mappa_envs.types import ToolResult

DRAIN_S = 1.0
"""How long to wait for the last output when a process that escaped still holds the pipes."""

PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH")
"""All that a run sees of the caller's environment: where programs and libraries are."""

_DRIVER = Path(__file__).with_name("unsafe_driver.py")
_log = logging.getLogger(__name__)
T = TypeVar("T")


class UnsafeLocalSandbox(ThreadedSandbox["_Folders"]):
    """Runs agents' code with the rights of the user who runs this: warns so at every construction.

    What holds: a clean environment, the wall-clock limit (from the start of the interpreter), bounded
    output, the size of a single file (`workspace_mb`), and on Linux the memory of each single process.
    At its end a run's process group is killed.

    What does not hold: code can read and write all that the user can, the answers of the embedded tasks
    included; it can use the network; it can leave its process group and go on running. The workspace as a
    whole has no limit of bytes or files, a run none of processes, and on macOS none of memory. An
    inspection sees the workspace writable, and what it loads can forge its report.

    Parameters
    ----------
    limits : what one run may use, as far as it can be enforced.
    packages : distributions that agents' code needs. Anything that is installed can be imported anyway;
        a missing one is a `ConfigError`.

    Raises `SandboxUnavailable` on Windows.
    """

    def __init__(self, limits: Limits | None = None, packages: Sequence[str] = ()) -> None:
        if os.name != "posix":
            raise SandboxUnavailable("sandbox: unsafe-local needs Linux, macOS or WSL 2")
        warnings.warn(
            "sandbox unsafe-local: no isolation; agents' code runs with your own rights and can read, change"
            " and send away all that you can",
            RuntimeWarning,
            stacklevel=2,
        )
        limits = limits or Limits()
        for name in packages:
            _check_package(name)
        super().__init__(_Folders(limits), limits)


def _check_package(name: str) -> None:
    try:
        importlib.metadata.distribution(canonical(name))
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"packages: {name!r} is not installed: pip install {name}") from None


class _Folders(Sandbox):
    """Bound to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turns = asyncio.Semaphore(os.cpu_count() or 1)
        self.workspaces: set[_Folder] = set()

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> _Folder:
        contents = {relative_path(name): content for name, content in (files or {}).items()}
        workspace = _Folder(self)
        self.workspaces.add(workspace)
        try:
            await asyncio.to_thread(workspace.fill, contents)
        except BaseException:
            await workspace.close()
            raise
        return workspace

    async def close(self) -> None:
        await asyncio.gather(*(workspace.close() for workspace in list(self.workspaces)))


class _Folder(Workspace):
    """A temporary folder with two others in it: the workspace, and one for temporary files."""

    def __init__(self, sandbox: _Folders) -> None:
        self._sandbox = sandbox
        self._home = tempfile.TemporaryDirectory(prefix="mappa-", ignore_cleanup_errors=True)
        # Without links, as macOS has them in the names of its temporary folders.
        home = Path(self._home.name).resolve()
        self._root, self._temporary = home / "workspace", home / "tmp"
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._before: dict[bytes, Stamp] = {}

    def fill(self, files: Mapping[str, Path | bytes]) -> None:
        """Copy the task's files in. Raises `DataError`."""
        self._root.mkdir()
        self._temporary.mkdir()
        for name, content in files.items():
            target = self._root / name
            with boundary(DataError, f"copying {name} into the workspace", OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    target.write_bytes(content)
                else:
                    shutil.copyfile(content, target)
        self._before = scan(self._root)

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        return await self._tracked(self._run([blocks] if isinstance(blocks, str) else list(blocks)))

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        return await self._tracked(self._inspect(script, time_s))

    async def read(self, path: str, max_bytes: int) -> bytes:
        self._check_open()
        return await asyncio.to_thread(read, self._root, path, max_bytes)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sandbox.workspaces.discard(self)
        try:
            await asyncio.to_thread(self._home.cleanup)
        except RecursionError:
            _log.warning("%s holds folders nested too deeply to delete them", self._home.name)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this workspace is closed")

    async def _run(self, blocks: list[str]) -> ToolResult:
        async with self._busy, self._sandbox.turns:
            self._check_open()
            death = await self._execute(blocks, self._sandbox.limits.time_s, trusted=False)
            before, self._before = self._before, await asyncio.to_thread(scan, self._root)
            files = await asyncio.to_thread(compare, self._root, before, self._before)
        starved = death.exit_code and death.exception == "MemoryError"
        return ToolResult(
            stdout=death.stdout,
            stderr=death.stderr,
            exit_code=death.exit_code,
            exception=death.exception,
            limit=death.limit or ("memory" if starved else None),
            duration_s=death.duration_s,
            files=files,
        )

    async def _inspect(self, script: str, time_s: float) -> Any:
        async with self._busy, self._sandbox.turns:
            self._check_open()
            death = await self._execute([script], time_s, trusted=True)
        if death.report is None:
            _log.debug("no report (exit %s, limit %s): %s", death.exit_code, death.limit, death.stderr)
        return death.report

    async def _execute(self, blocks: list[str], time_s: float, *, trusted: bool) -> Death:
        """One process from birth to death. Cancelled, it kills the process and waits for its end."""
        limits = self._sandbox.limits
        work = {
            "blocks": blocks,
            "trusted": trusted,
            "limits": {
                "file_bytes": limits.workspace_mb << 20,
                "memory_bytes": limits.memory_mb << 20,
                # That of all threads together.
                "cpu_s": (int(time_s) + 5) * (os.cpu_count() or 1),
            },
        }
        output = _Output(limits.output_bytes)
        limit: Literal["time", "output"] | None = None
        start = time.monotonic()
        try:
            process = await self._start(json.dumps(work).encode(), output)
            output.on_flood = lambda: _kill_group(process.pid)
            try:
                await asyncio.wait_for(process.wait(), time_s)
            except TimeoutError:
                limit = "time"
            finally:
                # Its group outlives it as long as there are others in it.
                _kill_group(process.pid)
                exit_code = await process.wait()
            duration_s = time.monotonic() - start
            await output.end()
        finally:
            output.close()
        return Death(
            exit_code=exit_code,
            limit="output" if output.flooded else limit,
            duration_s=duration_s,
            stdout=output.streams[0].text(),
            stderr=output.streams[1].text(),
            report=first_report(bytes(output.report), MAX_REPORT_BYTES),
        )

    async def _start(self, work: bytes, output: _Output) -> asyncio.subprocess.Process:
        stdout, stderr, report = [await output.pipe(sink) for sink in output.sinks]
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        fixed = {name: text for name, text in ENVIRONMENT.items() if name not in PASSED_ON}
        places = {
            "HOME": str(self._root),
            "TMPDIR": str(self._temporary),
            "MPLCONFIGDIR": str(self._temporary),
        }
        try:
            with boundary(SandboxError, "starting an interpreter", OSError), tempfile.TemporaryFile() as file:
                file.write(work)
                file.seek(0)
                return await asyncio.create_subprocess_exec(
                    *(sys.executable, "-s", "-P", "-B", str(_DRIVER), str(report)),
                    stdin=file,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[report],
                    cwd=self._root,
                    env={**environment, **fixed, **places},
                    start_new_session=True,
                )
        finally:
            for fd in (stdout, stderr, report):
                os.close(fd)


class _Output:
    """The three pipes of a run: stdout, stderr and the report."""

    def __init__(self, limit: int) -> None:
        self.streams = [HeadTail(limit, limit * OUTPUT_FACTOR) for _ in range(2)]
        self.sinks: list[Callable[[bytes], None]] = [
            lambda data: self._keep(self.streams[0], data),
            lambda data: self._keep(self.streams[1], data),
            lambda data: self.report.extend(data[: MAX_REPORT_BYTES + 1 - len(self.report)]),
        ]
        self.flooded = False
        self.on_flood: Callable[[], None] = lambda: None
        self.report = bytearray()
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.ReadTransport] = []

    async def pipe(self, sink: Callable[[bytes], None]) -> int:
        """The writing end of a new pipe, whose content goes to the sink. To be closed by the caller."""
        read_fd, write_fd = os.pipe()
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read_fd, "rb", 0)
        )
        self._transports.append(transport)
        self._tasks.append(asyncio.ensure_future(_pump(stream, sink)))
        return write_fd

    def _keep(self, stream: HeadTail, data: bytes) -> None:
        if not stream.add(data) and not self.flooded:
            self.flooded = True
            self.on_flood()

    async def end(self) -> None:
        """Wait for the end of all pipes, but not for a process that holds them and lives on."""
        await asyncio.wait(self._tasks, timeout=DRAIN_S)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for transport in self._transports:
            transport.close()


async def _pump(stream: asyncio.StreamReader, sink: Callable[[bytes], None]) -> None:
    while data := await stream.read(1 << 16):
        sink(data)


def _kill_group(group: int) -> None:
    # macOS says "not permitted" where only zombies are left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
