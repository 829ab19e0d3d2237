"""One sandbox for all tests of a module, and one small task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspection_bench import Bench, TinyTask, tiny_task

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox import Sandbox, open_sandbox


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    try:
        sandbox = open_sandbox("namespace")
        asyncio.run(_probe(sandbox))
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield Bench(sandbox)
    asyncio.run(sandbox.close())


async def _probe(sandbox: Sandbox) -> None:
    async with await sandbox.open({}) as workspace:
        await workspace.run("pass")


@pytest.fixture
def task(tmp_path: Path) -> TinyTask:
    return tiny_task("accuracy", tmp_path)
