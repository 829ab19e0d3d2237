"""One sandbox of each backend and of each set of limits for all tests; each test gets a workspace.

Tests run on both backends. For "docker" a daemon and the image must be there, else they are
skipped, or fail where MAPPA_REQUIRE_DOCKER=1 says that they must run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from census import Census, steady
from sandbox_kit import (
    DOCKER,
    OPEN,
    SECRET,
    Play,
    Run,
    alive,
    assert_gone,
    attack_once,
    need_docker,
    opened,
    run_once,
)

from mappa_envs.sandbox import Limits, Sandbox, Workspace, image_build


@pytest.fixture(scope="session", params=["namespace", DOCKER])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend."""
    if request.param == "docker":
        need_docker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_build, "CONNECT_TIMEOUT_S", 120)  # the daemon may be busy
        yield str(request.param)


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
    return lambda code, files=None: asyncio.run(attack_once(impatient, code, files))


@pytest.fixture
def play(sandbox: Sandbox) -> Play:
    """Hand a coroutine function a fresh workspace and return what it returns."""

    async def scenario(act: Callable[[Workspace], Awaitable[Any]]) -> Any:
        async with await sandbox.open() as workspace:
            return await act(workspace)

    return lambda act: asyncio.run(scenario(act))


@pytest.fixture
def unharmed(kind: str, sandbox: Sandbox, quiet: dict[int, Census]) -> Iterator[None]:
    """Around a test: afterwards nothing is left on the machine and another episode runs well."""
    if len(OPEN) not in quiet:
        quiet[len(OPEN)] = steady(kind)
    yield
    before = quiet.pop(len(OPEN))
    assert_gone(kind, before)
    quiet[len(OPEN)] = before
    asyncio.run(alive(sandbox))


@pytest.fixture(scope="session")
def quiet(kind: str) -> dict[int, Census]:
    """What there is while nothing runs, by the number of sandboxes that are open."""
    return {}
