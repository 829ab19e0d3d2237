"""The `docker` backend: one long-lived container without network, and the warm workers inside it.

For machines whose kernel gives no namespaces to ordinary programs, and for those who want Docker's
limits around the sandbox as well. The container's root file system is read-only, its first process
keeps six capabilities, workers none; each workspace is a tmpfs of its own that one user id may enter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mappa_envs.errors import DataError, SandboxError, boundary
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.sandbox.container import NUM_WORKSPACES, Container
from mappa_envs.sandbox.engine import number_files
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE
from mappa_envs.sandbox.io_thread import ThreadedSandbox
from mappa_envs.sandbox.rootfs import ENVIRONMENT, IMPORTS, MASKS, REFUSED, canonical
from mappa_envs.types import FileRecord, ToolResult


class DockerSandbox(ThreadedSandbox["_Containers"]):
    """Starts nothing before the first workspace is opened. See `open_sandbox`.

    Parameters
    ----------
    limits : what one run may use.
    packages : distributions that the image must hold beyond the default ones.
    shared : host files that workspaces show read-only instead of a copy. The daemon must see them: where it
        runs on another machine, leave it empty.
    image : made by `python -m mappa_envs build-image`, or one's own with the same libraries.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        *,
        shared: Sequence[Path] = (),
        image: str = DEFAULT_IMAGE,
    ) -> None:
        limits = limits or Limits()
        for name in packages:
            canonical(name)
        super().__init__(_Containers(limits, tuple(packages), image, number_files(shared)), limits)


class _Containers(Sandbox):
    """The one container, started where there is none that lives. Bound to one event loop."""

    def __init__(
        self, limits: Limits, packages: tuple[str, ...], image: str, shared: dict[Path, str]
    ) -> None:
        self.limits = limits
        self.container: Container | None = None
        self._packages = packages
        self._image = image
        self._shared = shared
        self._starting = asyncio.Lock()

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        container = await self._living()
        files = dict(files or {})
        shown = [
            (name, self._shared[p]) for name, p in files.items() if isinstance(p, Path) and p in self._shared
        ]
        for name, _ in shown:
            del files[name]
        contents = await asyncio.to_thread(_read_all, files)
        sizes = [(name, len(content)) for name, content in contents.items()]
        request = {"op": "open", "files": sizes, "shown": shown}
        number, _ = await container.ask(request, b"".join(contents.values()))
        return _DockerWorkspace(container, number)

    async def _living(self) -> Container:
        async with self._starting:
            if self.container is None or not self.container.alive:
                if self.container is not None:
                    await self.container.stop("it died")
                container = Container()
                await container.start(self._image, self.limits, self._shared, self._config())
                self.container = container
            return self.container

    def _config(self) -> dict[str, Any]:
        zygote = {
            "imports": IMPORTS, "packages": self._packages, "masks": MASKS, "refused": sorted(REFUSED)
        }  # fmt: skip
        return {
            "limits": asdict(self.limits),
            "shared": list(self._shared.values()),
            "num_workspaces": NUM_WORKSPACES,
            "environment": ENVIRONMENT,
            "zygote": zygote,
        }

    async def close(self) -> None:
        async with self._starting:
            if self.container is not None:
                await self.container.stop("closed")
                self.container = None


class _DockerWorkspace(Workspace):
    def __init__(self, container: Container, number: int) -> None:
        self._container = container
        self._number = number

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        sources = [blocks] if isinstance(blocks, str) else list(blocks)
        value, _ = await self._ask({"op": "run", "blocks": sources})
        return ToolResult(**{**value, "files": tuple(FileRecord(**record) for record in value["files"])})

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        return (await self._ask({"op": "inspect", "script": script, "time_s": time_s}))[0]

    async def read(self, path: str, max_bytes: int) -> bytes:
        return (await self._ask({"op": "read", "path": path, "max_bytes": max_bytes}))[1]

    async def _ask(self, request: dict[str, Any]) -> tuple[Any, bytes]:
        if self.closed:
            raise SandboxError("this workspace is closed")
        return await self._container.ask({**request, "workspace": self._number})

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._container.alive:
                with contextlib.suppress(SandboxError):  # it is gone, and the workspace with it
                    await self._container.ask({"op": "close", "workspace": self._number})


def _read_all(files: Mapping[str, Path | bytes]) -> dict[str, bytes]:
    contents = {}
    for name, content in files.items():
        if isinstance(content, bytes):
            contents[name] = content
        else:
            with boundary(DataError, f"copying {content}", OSError):
                contents[name] = content.read_bytes()
    return contents
