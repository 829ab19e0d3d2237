"""What the sandbox's tests share besides fixtures: backends, sandboxes, and looks at what is left."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from census import Census, settle

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox import Limits, Sandbox, Workspace, open_sandbox
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, connect
from mappa_envs.types import ToolResult

Run = Callable[..., ToolResult]
Play = Callable[[Callable[[Workspace], Awaitable[Any]]], Any]

SECRET = "sk-host-5up3r5ecret"
"""In the environment of this process and in a file beside it, before any sandbox starts."""

DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])
only_namespace = pytest.mark.parametrize("kind", ["namespace"], indirect=True)
only_docker = pytest.mark.parametrize("kind", [DOCKER], indirect=True)


def need_docker() -> None:
    try:
        client = connect()
    except SandboxUnavailable as error:
        _lacking(str(error))
    if not client.images.list(DEFAULT_IMAGE):
        _lacking(f"no image {DEFAULT_IMAGE}: python -m mappa_envs build-image [--offline]")
    client.close()


def _lacking(reason: str) -> NoReturn:
    if os.environ.get("MAPPA_REQUIRE_DOCKER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


OPEN: list[Sandbox] = []
"""All that `opened` keeps open."""


def opened(kind: str, limits: Limits, shared: Sequence[Path] = ()) -> Iterator[Sandbox]:
    """A sandbox that has run something, closed at the end."""
    sandbox = open_sandbox(kind, limits, shared=shared)
    try:
        asyncio.run(alive(sandbox))
    except SandboxUnavailable as error:
        if kind == "docker":
            _lacking(str(error))
        pytest.skip(str(error))
    OPEN.append(sandbox)
    yield sandbox
    OPEN.remove(sandbox)
    asyncio.run(sandbox.close())


async def alive(sandbox: Sandbox) -> None:
    async with await sandbox.open() as workspace:
        assert (await workspace.run("print('alive')")).stdout == "alive\n"


async def run_once(
    sandbox: Sandbox, blocks: str | Sequence[str], files: Mapping[str, Path | bytes] | None = None
) -> ToolResult:
    """One run in a workspace of its own."""
    async with await sandbox.open(files) as workspace:
        return await workspace.run(blocks)


async def attack_once(sandbox: Sandbox, code: str, files: Mapping[str, Path | bytes] | None) -> ToolResult:
    async with await sandbox.open(files) as workspace:
        result = await workspace.run(code)
        async with asyncio.timeout(20):
            assert (await workspace.run("print('alive')")).stdout == "alive\n"
        return result


def assert_gone(kind: str, before: Census) -> None:
    """Nothing is there that was not there at `before`, at once or after a moment."""
    assert settle(kind, before).growth_since(before) == {}


def in_fork(function: Callable[[], Any]) -> Any:
    """What it returns in a fork of this process."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


async def until_there(workspace: Workspace, name: str) -> None:
    """A run has made this file."""
    async with asyncio.timeout(60):
        while True:
            try:
                await workspace.read(name, 1 << 20)
                return
            except FileNotFoundError:
                await asyncio.sleep(0.01)


async def still_for(workspace: Workspace, name: str, seconds: float = 0.3) -> None:
    """A file that something might still be writing does not change any more; nor does any other."""
    seen = await _content(workspace, name)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.05)
        assert await _content(workspace, name) == seen
    assert (await workspace.run("print('alive')")).files == ()


async def _content(workspace: Workspace, name: str) -> bytes | None:
    try:
        return await workspace.read(name, 64 << 20)
    except FileNotFoundError:
        return None
