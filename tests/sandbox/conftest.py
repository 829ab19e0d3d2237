"""One sandbox of each backend and of each set of limits for all tests; each test gets a workspace.

Tests run on both backends. For "docker" a daemon and the image must be there, else they are
skipped, or fail where MAPPA_REQUIRE_DOCKER=1 says that they must run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from census import Census, settle, steady

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


@pytest.fixture(scope="session", params=["namespace", DOCKER])
def kind(request: pytest.FixtureRequest) -> str:
    """The backend."""
    if request.param == "docker":
        _need_docker()
    return str(request.param)


def _need_docker() -> None:
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


@pytest.fixture(scope="session")
def secret_file() -> Iterator[Path]:
    """A world-readable file of the host that holds `SECRET`; the environment holds it too."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Nothing but the sandbox may be what hides it.
        os.chmod(folder, 0o755)
        path = Path(folder) / "id_rsa"
        path.write_text(SECRET)
        patch.setenv("OPENAI_API_KEY", SECRET)
        yield path


_open: list[Sandbox] = []


def opened(kind: str, limits: Limits) -> Iterator[Sandbox]:
    """A sandbox that has run something, closed at the end."""
    sandbox = open_sandbox(kind, limits)
    try:
        asyncio.run(_alive(sandbox))
    except SandboxUnavailable as error:
        if kind == "docker":
            _lacking(str(error))
        pytest.skip(str(error))
    _open.append(sandbox)
    yield sandbox
    _open.remove(sandbox)
    asyncio.run(sandbox.close())


async def _alive(sandbox: Sandbox) -> None:
    async with await sandbox.open() as workspace:
        assert (await workspace.run("print('alive')")).stdout == "alive\n"


@pytest.fixture(scope="session")
def sandbox(kind: str, secret_file: Path) -> Iterator[Sandbox]:
    """With time and memory to spare, and a small disk."""
    yield from opened(kind, Limits(time_s=10.0, memory_mb=512, workspace_mb=32))


@pytest.fixture(scope="session")
def impatient(kind: str, sandbox: Sandbox) -> Iterator[Sandbox]:
    """For what runs until it is stopped."""
    yield from opened(kind, Limits(time_s=0.5, memory_mb=256, workspace_mb=16, workspace_files=200))


@pytest.fixture(scope="session")
def lean(kind: str, sandbox: Sandbox) -> Iterator[Sandbox]:
    """For what takes all the memory that it gets; files may be large, where they are sparse."""
    yield from opened(kind, Limits(time_s=10.0, memory_mb=256, workspace_mb=2500))


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Run blocks in a fresh workspace: `run(blocks, files=...)`."""
    return lambda blocks, files=None: asyncio.run(run_once(sandbox, blocks, files))


@pytest.fixture
def attack(impatient: Sandbox) -> Run:
    """The same under tight limits; the workspace must answer at once afterwards."""
    return lambda code, files=None: asyncio.run(_attack(impatient, code, files))


@pytest.fixture
def play(sandbox: Sandbox) -> Play:
    """Hand a coroutine function a fresh workspace and return what it returns."""

    async def scenario(act: Callable[[Workspace], Awaitable[Any]]) -> Any:
        async with await sandbox.open() as workspace:
            return await act(workspace)

    return lambda act: asyncio.run(scenario(act))


async def run_once(
    sandbox: Sandbox, blocks: str | Sequence[str], files: Mapping[str, Path | bytes] | None = None
) -> ToolResult:
    """One run in a workspace of its own."""
    async with await sandbox.open(files) as workspace:
        return await workspace.run(blocks)


async def _attack(sandbox: Sandbox, code: str, files: Mapping[str, Path | bytes] | None) -> ToolResult:
    async with await sandbox.open(files) as workspace:
        result = await workspace.run(code)
        started = time.monotonic()
        assert (await workspace.run("print('alive')")).stdout == "alive\n"
        assert time.monotonic() - started < 3
        return result


@pytest.fixture
def unharmed(kind: str, sandbox: Sandbox, quiet: dict[int, Census]) -> Iterator[None]:
    """Around a test: afterwards nothing is left on the machine and another episode runs well."""
    if len(_open) not in quiet:
        quiet[len(_open)] = steady(kind)
    yield
    before = quiet.pop(len(_open))
    assert_gone(kind, before)
    quiet[len(_open)] = before
    asyncio.run(_alive(sandbox))


@pytest.fixture(scope="session")
def quiet(kind: str) -> dict[int, Census]:
    """What there is while nothing runs, by the number of sandboxes that are open."""
    return {}


def assert_gone(kind: str, before: Census) -> None:
    """Nothing is there that was not there at `before`, at once or after a moment."""
    assert settle(kind, before).growth_since(before) == {}


async def still_for(workspace: Workspace, name: str, seconds: float = 0.5) -> None:
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
