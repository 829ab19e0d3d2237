"""A sandbox without processes, for fast tests of what is built on one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.sandbox.trail import kind_of
from mappa_envs.types import Change, FileRecord, ToolResult

RunScript = Callable[[Sequence[str], dict[str, bytes]], ToolResult]
InspectScript = Callable[[str, dict[str, bytes]], Any]


class FakeSandbox(Sandbox):
    """Runs nothing: a callback says what each run shows.

    Parameters
    ----------
    script : gets the blocks and the workspace's files, which it may edit; returns the result, whose
        file trail is filled in where it is empty. Default: an empty success.
    inspector : gets an inspection script and the files (a copy); returns what it would report.
        Default: None.
    """

    def __init__(
        self,
        script: RunScript | None = None,
        inspector: InspectScript | None = None,
    ) -> None:
        self.limits = Limits()
        self.script = script
        self.inspector = inspector
        self.workspaces: list[FakeWorkspace] = []
        self.closed = False

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> FakeWorkspace:
        contents = {
            name: content if isinstance(content, bytes) else content.read_bytes()
            for name, content in (files or {}).items()
        }
        workspace = FakeWorkspace(self, contents)
        self.workspaces.append(workspace)
        return workspace

    async def close(self) -> None:
        self.closed = True
        for workspace in self.workspaces:
            await workspace.close()


class FakeWorkspace(Workspace):
    """`files` and `runs` (the blocks of each run so far) are there to be looked at."""

    def __init__(self, sandbox: FakeSandbox, files: dict[str, bytes]) -> None:
        self._sandbox = sandbox
        self.files = files
        self.runs: list[tuple[str, ...]] = []
        self.closed = False

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        self._check_open()
        sources = (blocks,) if isinstance(blocks, str) else tuple(blocks)
        self.runs.append(sources)
        before = dict(self.files)
        result = self._sandbox.script(sources, self.files) if self._sandbox.script else ToolResult()
        return result if result.files else replace(result, files=_trail(before, self.files))

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        self._check_open()
        return self._sandbox.inspector(script, dict(self.files)) if self._sandbox.inspector else None

    async def read(self, path: str, max_bytes: int) -> bytes:
        self._check_open()
        if path not in self.files:
            raise FileNotFoundError(2, "no such file in the workspace", path)
        if len(self.files[path]) > max_bytes:
            raise ValueError(f"{path!r} is larger than {max_bytes} bytes")
        return self.files[path]

    async def close(self) -> None:
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this workspace is closed")


def _trail(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> tuple[FileRecord, ...]:
    records = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        change: Change = "deleted" if path not in after else "changed" if path in before else "created"
        content = after.get(path, before.get(path, b""))
        digest = "" if change == "deleted" else hashlib.sha256(content).hexdigest()
        kind = kind_of(path.encode(), content[:4096])
        records.append(FileRecord(path=path, change=change, size=len(content), sha256=digest, kind=kind))
    return tuple(records)
