"""What both real backends do with a zygote: workspaces, runs, inspections, the file trail.

Bound to the event loop that it is first used in. The `namespace` backend runs it in a thread of
this process, the `docker` backend inside the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.errors import ConfigError, SandboxError, boundary
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.sandbox.copying import copy_all, memory_file, read_file, relative_path
from mappa_envs.sandbox.inside import linux
from mappa_envs.sandbox.inside.isolation import SHARED
from mappa_envs.sandbox.link import MAX_FDS, REPLY_TIMEOUT_S, Answer, Zygote
from mappa_envs.sandbox.output import MAX_REPORT_BYTES, OUTPUT_FACTOR, Death, RunOutput
from mappa_envs.sandbox.trail import Snapshot, compare, list_files, look_into, take_snapshot, wipe
from mappa_envs.sandbox.waiting import in_thread, outlast
from mappa_envs.types import ToolResult

MAX_CLAIM_BYTES = 4096
"""Of what a run that is not trusted reports."""

_FILES_PER_REQUEST = MAX_FDS // 2
_FEW_FILES, _FEW_BYTES = 50, 1 << 19
_MAX_SHOWN = 200  # descriptors that travel in one message
_MAX_NAME_BYTES = 200  # so that the names of a request fit into its message
_log = logging.getLogger(__name__)


class Engine(Sandbox):
    """Starts nothing before the first workspace is opened, and anew when its zygote has died.

    Runs as many at a time as there are cores, first come, first served.
    `open` must run to its end, which `ThreadedSandbox` sees to.

    Parameters
    ----------
    launch : starts a zygote and waits until it is ready.
    limits : what one run may use.
    shared : files that workspaces show without a copy: path here → path that the zygote sees.
    num_workspaces : that may be open at a time.
    """

    def __init__(
        self,
        launch: Callable[[], Awaitable[Zygote]],
        limits: Limits,
        *,
        shared: Mapping[Path, str],
        num_workspaces: int,
    ) -> None:
        self.limits = limits
        self.turns = asyncio.Semaphore(os.cpu_count() or 1)
        self.zygote: Zygote | None = None
        self.shared = shared
        self._launch = launch
        self._num_workspaces = num_workspaces
        self._starting = asyncio.Lock()
        self._workspaces: set[EngineWorkspace] = set()
        self._free_numbers: list[int] = []
        self._num_used = 0

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> EngineWorkspace:
        contents = {_check_name(name): content for name, content in (files or {}).items()}
        zygote = await self.living_zygote()
        number = self._take_number()
        limits = self.limits
        fields = {
            "workspace": number,
            "megabytes": limits.workspace_mb,
            # The root folder takes one.
            "num_inodes": limits.workspace_files + 1,
        }
        try:
            _, folders = await zygote.request("open", fields, num_fds=zygote.num_folders)
        except SandboxError:
            # It may be there all the same, where this process had no room for its descriptors.
            await self.remove(zygote, number)
            raise
        workspace = EngineWorkspace(self, zygote, number, folders)
        self._workspaces.add(workspace)
        try:
            with boundary(SandboxError, "filling a workspace", OSError):
                await workspace.fill(contents)
        except BaseException:
            await workspace.close()
            raise
        return workspace

    async def living_zygote(self) -> Zygote:
        """The zygote, started where there is none that lives."""
        async with self._starting:
            if self.zygote is None or not self.zygote.alive:
                with boundary(SandboxError, "starting the sandbox process", OSError):
                    self.zygote = await self._launch()
                self._free_numbers, self._num_used = [], 0
            return self.zygote

    def _take_number(self) -> int:
        if self._free_numbers:
            return self._free_numbers.pop()
        if self._num_used >= self._num_workspaces:
            raise SandboxError(f"all {self._num_workspaces} workspaces of this sandbox are open: close some")
        self._num_used += 1
        return self._num_used

    def forget(self, workspace: EngineWorkspace) -> None:
        """It is being closed."""
        self._workspaces.discard(workspace)

    async def remove(self, zygote: Zygote, number: int) -> None:
        """Delete a workspace; its number may be used again. Where this fails, the zygote has died, or the
        place is not clean: nobody gets it again."""
        if zygote.alive:
            with contextlib.suppress(SandboxError):
                await zygote.request("close", {"workspace": number})
                if zygote is self.zygote:
                    self._free_numbers.append(number)

    async def close(self) -> None:
        async with self._starting:
            try:
                await asyncio.gather(*(workspace.close() for workspace in list(self._workspaces)))
            finally:
                if self.zygote is not None:
                    self.zygote.abort("closed")
                    self.zygote = None


class EngineWorkspace(Workspace):
    """Folders that we hold by descriptors: the workspace and, where workers do not get one of their
    own from the kernel, a scratch folder that stands in for /tmp."""

    def __init__(self, engine: Engine, zygote: Zygote, number: int, folders: list[int]) -> None:
        self._engine = engine
        self._zygote = zygote
        self._number = number
        self._root_fd = folders[0]
        self._scratch_fds = folders[1:]
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._shown: dict[str, Path] = {}
        self._before = Snapshot()

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        sources = [blocks] if isinstance(blocks, str) else list(blocks)
        with self._tracked(), boundary(SandboxError, "running code", OSError):
            return await self._run(sources)

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        with self._tracked(), boundary(SandboxError, "inspecting", OSError):
            return await self._inspect(script, time_s)

    async def read(self, path: str, max_bytes: int) -> bytes:
        self._check_open()
        with self._tracked():
            return await in_thread(self._read, path, max_bytes)

    @contextlib.contextmanager
    def _tracked(self) -> Iterator[None]:
        """What `close` is to cancel and to wait for."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def fill(self, files: dict[str, Path | bytes]) -> None:
        """Copy the task's files in and take the first snapshot."""
        sources = {name: file for name, file in files.items() if isinstance(file, Path)}
        self._shown = {name: path for name, path in sources.items() if path in self._engine.shared}
        if len(self._shown) > _MAX_SHOWN:
            raise ConfigError(
                f"files: {len(self._shown)} shared files; a workspace shows at most {_MAX_SHOWN}"
            )
        for name, path in self._shown.items():
            target = self._engine.shared[path]
            await self._zygote.request("show", {"workspace": self._number, "name": name, "target": target})
        names = [name for name in files if name not in self._shown]
        for start in range(0, len(names), _FILES_PER_REQUEST):
            some = names[start : start + _FILES_PER_REQUEST]
            fields = {"workspace": self._number, "names": some}
            _, fds = await self._zygote.request("create", fields, num_fds=len(some))
            await in_thread(copy_all, [files[name] for name in some], fds)
        if files:
            self._before = await in_thread(take_snapshot, self._root_fd)

    async def close(self) -> None:
        self.closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        # To its end, whoever stops waiting for it: half of it done, nobody could do the rest.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        folders = (self._root_fd, *self._scratch_fds)
        try:
            for fd in folders if self._scratch_fds else ():
                await in_thread(wipe, fd)
        finally:
            for fd in folders:
                os.close(fd)
            self._engine.forget(self)
        await self._engine.remove(self._zygote, self._number)

    async def _run(self, blocks: list[str]) -> ToolResult:
        async with self._busy, self._engine.turns:
            self._check_open()
            limits = self._engine.limits
            death = await self._execute(blocks, limits.time_s, MAX_CLAIM_BYTES, trusted=False)
            # Whatever it left running is dead: nothing can change under our eyes.
            before, self._before = self._before, await self._snapshot()
            return ToolResult(
                stdout=death.stdout,
                stderr=death.stderr,
                exit_code=death.exit_code,
                exception=death.exception,
                limit=death.limit or self._hidden_limit(death),
                duration_s=death.duration_s,
                files=compare(before, self._before),
            )

    async def _snapshot(self) -> Snapshot:
        """Here where there is little: the way to another thread and back would take longer."""
        space = os.statvfs(self._root_fd)
        if space.f_files - space.f_ffree <= _FEW_FILES:
            files = list_files(self._root_fd)
            # As they pretend to be: what they take says nothing of how long reading sparse ones does.
            if sum(entry.size for entry in files.values()) <= _FEW_BYTES:
                return look_into(self._root_fd, files)
        return await in_thread(take_snapshot, self._root_fd)

    async def _inspect(self, script: str, time_s: float) -> Any:
        async with self._busy, self._engine.turns:
            self._check_open()
            death = await self._execute([script], time_s, MAX_REPORT_BYTES, trusted=True)
            if death.report is None:
                _log.debug("no report (exit %s, limit %s): %s", death.exit_code, death.limit, death.stderr)
            return death.report

    async def _execute(
        self, blocks: list[str], time_s: float, max_report_bytes: int, *, trusted: bool
    ) -> Death:
        """One worker from birth to death. Cancelled, it kills the worker and waits for its end."""
        limits = self._engine.limits
        numbers: list[int] = []

        def flood() -> None:
            # In the task set, as the loop itself holds tasks only weakly.
            self._tasks.add(task := loop.create_task(self._kill(numbers, "output")))
            task.add_done_callback(self._tasks.discard)

        loop = asyncio.get_running_loop()
        most = limits.output_bytes * OUTPUT_FACTOR
        output = RunOutput(limits.output_bytes, most, max_report_bytes, flood)
        try:
            with memory_file(json.dumps({"blocks": blocks, "trusted": trusted}).encode()) as code_fd:
                fields = self._run_request(time_s, read_only=trusted)
                number, answer = await self._zygote.send("run", fields, [code_fd, *output.write_fds])
            numbers.append(number)
            output.handed_over()
            reply = await self._await_death(number, answer, time_s)
            # All writers are dead: what remains is in the pipes.
            output.drain()
        finally:
            output.close()
            for fd in self._scratch_fds:
                if os.listdir(fd):
                    await in_thread(wipe, fd)
                else:
                    wipe(fd)  # its permissions
        return Death(
            exit_code=reply["exit_code"],
            limit="output" if output.flooded else reply["limit"],
            duration_s=reply["duration_s"],
            stdout=output.stdout.text(),
            stderr=output.stderr.text(),
            report=output.first_report(),
        )

    def _run_request(self, time_s: float, *, read_only: bool) -> dict[str, Any]:
        limits = self._engine.limits
        return {
            "workspace": self._number,
            "read_only": read_only,
            "limits": {
                "time_s": time_s,
                "memory_bytes": limits.memory_mb << 20,
                "processes": limits.processes,
                "file_bytes": limits.workspace_mb << 20,
            },
        }

    async def _await_death(
        self, number: int, answer: asyncio.Future[Answer], time_s: float
    ) -> dict[str, Any]:
        try:
            reply, _ = await self._zygote.receive(answer, time_s + REPLY_TIMEOUT_S)
        except asyncio.CancelledError:
            # Who gives up closes the workspace next, which cancels once more.
            await outlast(asyncio.get_running_loop().create_task(self._end(number, answer)))
            raise
        return reply

    async def _end(self, number: int, answer: asyncio.Future[Answer]) -> None:
        """Nothing of the run lives any more, or the zygote does not."""
        with contextlib.suppress(SandboxError):
            await self._kill([number], None)
            await self._zygote.receive(answer, REPLY_TIMEOUT_S)

    async def _kill(self, run_number: list[int], limit: str | None) -> None:
        if run_number and self._zygote.alive:
            await self._zygote.send("kill", {"run": run_number[0], "limit": limit})

    def _hidden_limit(self, death: Death) -> Any:
        """Limits that do not kill but make calls fail, which then made the code fail."""
        if death.exit_code == 0:
            return None
        if death.exception == "MemoryError":
            # Its own word, which cannot make a failed run look better.
            return "memory"
        space = os.statvfs(self._root_fd)
        full = space.f_bavail * space.f_bsize < 65_536 or space.f_ffree == 0
        return "disk" if full else None

    def _read(self, path: str, max_bytes: int) -> bytes:
        if "\0" in path or not _is_encodable(path):
            raise ValueError(f"{path!r} cannot be read: no file has such a name")
        return read_file(path, max_bytes, lambda: self._open(path))

    def _open(self, path: str) -> int:
        """A descriptor of a file of the workspace, or of the shared one that stands there."""
        if path in self._shown and self._is_as_shown(path):
            return os.open(self._shown[path], os.O_RDONLY | os.O_CLOEXEC)
        return linux.open_beneath(self._root_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)

    def _is_as_shown(self, path: str) -> bool:
        """Is it still what stands here for a shared file: a link, or an empty file to mount it on?"""
        fd = linux.open_beneath(self._root_fd, path, os.O_PATH)
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        return stat.S_ISLNK(found.st_mode) or found.st_size == 0

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this workspace is closed")
        if not self._zygote.alive:
            raise SandboxError("the sandbox process died and took this workspace along: open a new one")


def number_files(files: Sequence[Path]) -> dict[Path, str]:
    """Each existing file that everybody may read → its path inside; others are copied like any file."""
    able = [path for path in dict.fromkeys(files) if path.is_file() and path.stat().st_mode & stat.S_IROTH]
    return {path: f"{SHARED}/{number}" for number, path in enumerate(able)}


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _check_name(name: str) -> str:
    path = relative_path(name)
    encoded = name.encode(errors="replace")
    if len(encoded) > _MAX_NAME_BYTES or name != encoded.decode():
        raise ConfigError(f"files: {name!r} is longer than {_MAX_NAME_BYTES} bytes or no valid text")
    return path
