"""The ways to run one step: a cold interpreter, plain Docker in two ways, and our sandboxes.

Each is an async context manager that yields as many steps as asked for, with a folder or workspace each.
All run the same code against the same `train.csv`, with one thread for the numeric libraries.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mappa_envs.errors import ConfigError, SandboxError, SandboxUnavailable
from mappa_envs.sandbox import Workspace, open_sandbox
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, connect

SEED = 0

TRIVIAL = "print(1)\n"
HEAVY = """\
import pickle

import pandas as pd
from sklearn.ensemble import RandomForestClassifier

table = pd.read_csv("train.csv")
features, target = table.drop(columns="target"), table["target"]
model = RandomForestClassifier(n_estimators=20, max_depth=6, random_state=0).fit(features, target)
with open("model.pkl", "wb") as file:
    pickle.dump(model, file)
print("score", model.score(features, target))
"""

_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LOKY_MAX_CPU_COUNT": "1",
}
_TAIL = 300
_DOCKER_TIMEOUT_S = 120  # a step on a busy machine; the client waits 10 s otherwise
_MOUNT = "/step"  # the image has a use of its own for /workspace

Step = Callable[[str], Awaitable[str | None]]
"""Runs code to its end; returns None, or what went wrong."""

Variant = Callable[[int], AbstractAsyncContextManager[list[Step]]]


class Unmeasurable(Exception):
    """This machine lacks what the variant needs; the message says what."""


UNAVAILABLE = (Unmeasurable, ConfigError, SandboxUnavailable)
"""What a variant raises where it cannot be had."""


def make_csv() -> bytes:
    """1000 rows, 9 features and a noisy target, so that trees grow to their full depth."""
    draw = random.Random(SEED)
    lines = [",".join([*(f"x{n}" for n in range(9)), "target"])]
    for _ in range(1000):
        x = [draw.gauss(0, 1) for _ in range(9)]
        target = int(x[0] + x[1] * x[2] + draw.gauss(0, 0.5) > 0)
        lines.append(",".join([*(f"{value:.4f}" for value in x), str(target)]))
    return "\n".join([*lines, ""]).encode()


@asynccontextmanager
async def cold(num: int) -> AsyncIterator[list[Step]]:
    """A new interpreter for each step: the one that runs this benchmark."""
    async with AsyncExitStack() as stack:
        folders = [_make_folder(stack) for _ in range(num)]
        yield [_threaded(folder, partial(_run_cold, folder)) for folder in folders]


def _run_cold(folder: Path) -> str | None:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, env=kept | _THREADS, capture_output=True, text=True
    )
    return None if done.returncode == 0 else done.stderr[-_TAIL:]


@asynccontextmanager
async def docker_run(num: int) -> AsyncIterator[list[Step]]:
    """A new container for each step, removed at its end, with the folder mounted: nothing is copied."""
    client = connect_docker()
    async with AsyncExitStack() as stack:
        stack.callback(client.close)
        folders = [_make_folder(stack) for _ in range(num)]
        yield [_threaded(folder, partial(_run_in_new, client, folder)) for folder in folders]


def _run_in_new(client: Any, folder: Path) -> str | None:
    from docker.errors import DockerException

    try:
        client.containers.run(DEFAULT_IMAGE, ["main.py"], remove=True, **_container_settings(folder))
    except DockerException as error:
        return str(error)[-_TAIL:]
    return None


@asynccontextmanager
async def docker_exec(num: int) -> AsyncIterator[list[Step]]:
    """A container that stays, and a new interpreter in it for each step, with the folder mounted."""
    client = connect_docker()
    sleep = ["-c", "import time; time.sleep(3600)"]  # ends by itself, should we be killed
    async with AsyncExitStack() as stack:
        stack.callback(client.close)
        steps = []
        for folder in [_make_folder(stack) for _ in range(num)]:
            settings = _container_settings(folder) | {"detach": True, "remove": True}
            container = client.containers.run(DEFAULT_IMAGE, sleep, **settings)
            stack.callback(container.kill)
            steps.append(_threaded(folder, partial(_run_in_old, container)))
        yield steps


def _run_in_old(container: Any) -> str | None:
    exit_code, output = container.exec_run(["python3", "main.py"], workdir=_MOUNT, environment=_THREADS)
    return None if exit_code == 0 else output.decode(errors="replace")[-_TAIL:]


def _container_settings(folder: Path) -> dict[str, Any]:
    return {
        "entrypoint": ["python3"],
        "network_mode": "none",
        "working_dir": _MOUNT,
        "volumes": {str(folder): {"bind": _MOUNT, "mode": "rw"}},
        "environment": _THREADS,
    }


def connect_docker() -> Any:
    """A client of a daemon that has the image. Raises one of `UNAVAILABLE`."""
    client = connect()
    client.api.timeout = _DOCKER_TIMEOUT_S
    if not client.images.list(DEFAULT_IMAGE):
        client.close()
        raise Unmeasurable(f"no image {DEFAULT_IMAGE}: python -m mappa_envs build-image")
    return client


@asynccontextmanager
async def sandbox(kind: str, num: int) -> AsyncIterator[list[Step]]:
    """Workspaces of one sandbox."""
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(open_sandbox(kind))
        opened = [await box.open({"train.csv": make_csv()}) for _ in range(num)]
        yield [partial(_run_in_sandbox, workspace) for workspace in opened]


async def _run_in_sandbox(workspace: Workspace, code: str) -> str | None:
    try:
        result = await workspace.run(code)
    except SandboxError as error:
        return str(error)
    return None if result.ok else f"exit {result.exit_code}, limit {result.limit}: {result.stderr[-_TAIL:]}"


def _make_folder(stack: AsyncExitStack) -> Path:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.chmod(0o777)  # the image's user is not ours
    (folder / "train.csv").write_bytes(make_csv())
    return folder


def _threaded(folder: Path, run: Callable[[], str | None]) -> Step:
    def work(code: str) -> str | None:
        (folder / "main.py").write_text(code)
        return run()

    return lambda code: asyncio.to_thread(work, code)


VARIANTS: dict[str, Variant] = {
    "cold": cold,
    "docker_run": docker_run,
    "docker_exec": docker_exec,
    "namespace": partial(sandbox, "namespace"),
    "docker": partial(sandbox, "docker"),
}
