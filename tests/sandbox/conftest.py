"""One sandbox for all tests of a file; each test gets a workspace of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox import Limits, Sandbox, open_sandbox
from mappa_envs.types import ToolResult

Run = Callable[..., ToolResult]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        opened = open_sandbox("namespace", Limits(time_s=10.0, memory_mb=512, workspace_mb=32))
        asyncio.run(_first_run(opened))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield opened
    asyncio.run(opened.close())


async def _first_run(opened: Sandbox) -> None:
    async with await opened.open() as workspace:
        assert (await workspace.run("print(1)")).stdout == "1\n"


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Run blocks in a fresh workspace: `run(blocks, files=...)`."""

    async def once(blocks: str | Sequence[str], files: Mapping[str, Path | bytes] | None) -> ToolResult:
        async with await sandbox.open(files) as workspace:
            return await workspace.run(blocks)

    def call(blocks: str | Sequence[str], files: Mapping[str, Path | bytes] | None = None) -> ToolResult:
        return asyncio.run(once(blocks, files))

    return call
