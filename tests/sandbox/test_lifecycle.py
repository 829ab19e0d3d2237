"""A sandbox that dies, falls silent, is copied by a fork or loses its owner."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from census import (
    children_of,
    command_container,
    container_pids,
    descendants,
    is_alive,
    our_containers,
    wait_until,
    zygotes,
)
from sandbox_kit import only_docker, only_namespace, until_there

from mappa_envs.errors import SandboxError
from mappa_envs.sandbox import Limits, Sandbox, Workspace, open_sandbox

pytestmark = pytest.mark.usefixtures("unharmed")


async def _die(sandbox: Sandbox, kill: Callable[[], Any]) -> None:
    """Those who wait and those who come later are told; a new workspace starts a new process."""
    workspace = await sandbox.open({"secret": b"x"})
    code = "for name in ('/tmp/secret', '/dev/shm/secret', 'began'): open(name, 'w')\nwhile True: pass"
    running = asyncio.create_task(workspace.run(code))
    await until_there(workspace, "began")
    await asyncio.to_thread(kill)
    with pytest.raises(SandboxError, match="gone"):
        await asyncio.wait_for(running, 60)
    with pytest.raises(SandboxError, match="died"):
        await workspace.run("print(1)")
    with pytest.raises(SandboxError, match="died"):
        await workspace.read("x", 1)
    await workspace.close()
    look = (
        "import os\n"
        "def owner(pid):\n"
        "  try: return os.stat(f'/proc/{pid}').st_uid\n"
        "  except OSError: return None\n"
        # In a namespace the first process is the run's own.
        "pids = {p for p in os.listdir('/proc') if p.isdigit()} - {str(os.getpid()), '1'}\n"
        "mine = [p for p in pids if owner(p) == os.getuid()]\n"
        "print(os.listdir('.') + os.listdir('/tmp') + os.listdir('/dev/shm') + mine)"
    )
    async with await sandbox.open() as one, await sandbox.open() as two:
        assert [(await other.run(look)).stdout for other in (one, two)] == ["[]\n"] * 2


@pytest.mark.slow
@only_namespace
def test_a_dead_zygote_is_replaced(kind: str) -> None:
    async def scenario() -> None:
        there = set(zygotes(descendants()))
        async with open_sandbox("namespace", Limits(time_s=10)) as sandbox:
            await (await sandbox.open()).close()
            (zygote,) = set(zygotes(descendants())) - there
            await _die(sandbox, lambda: os.kill(zygote, signal.SIGKILL))

    asyncio.run(scenario())


@only_docker
def test_a_dead_container_is_replaced(kind: str) -> None:
    def kill(victim: str, there: set[str]) -> None:
        (container,) = [one for one in our_containers() if one.id not in there]
        if victim == "container":
            command_container(container, "kill")
            return
        init = int(container.attrs["State"]["Pid"])
        (relay,) = children_of(init)
        os.kill(relay if victim == "relay" else children_of(relay)[0], signal.SIGKILL)

    async def scenario() -> None:
        there = {one.id for one in our_containers()}
        async with open_sandbox("docker", Limits(time_s=10)) as sandbox:
            for victim in ("container", "zygote", "relay"):
                await _die(sandbox, functools.partial(kill, victim, there))

    asyncio.run(scenario())


@only_docker
def test_a_silent_container_does_not_hold_us_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK has no time-out for a stream that stays open."""
    from mappa_envs.sandbox import container as module

    async def scenario() -> None:
        there = {one.id for one in our_containers()}
        async with open_sandbox("docker", Limits(time_s=60)) as sandbox:
            workspace = await sandbox.open()
            (container,) = [one for one in our_containers() if one.id not in there]
            running = asyncio.create_task(workspace.run("open('began', 'w')\nwhile True: pass"))
            await until_there(workspace, "began")
            await asyncio.to_thread(command_container, container, "pause")
            monkeypatch.setattr(module, "SILENCE_TIMEOUT_S", 2.0)
            with pytest.raises(SandboxError, match="no sign of life"):
                await asyncio.wait_for(running, 40)
            monkeypatch.undo()
            async with await sandbox.open() as other:
                assert (await other.run("print(1)")).stdout == "1\n"

    asyncio.run(scenario())


def test_a_forked_copy_refuses(sandbox: Sandbox) -> None:
    async def scenario() -> Workspace:
        return await sandbox.open()

    workspace = asyncio.run(scenario())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(workspace.run("print(1)"))
        except SandboxError:
            os._exit(3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    asyncio.run(workspace.close())


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
    ids=["kill", "interrupt"],
)
def test_an_owner_that_dies_leaves_nothing(kind: str, number: signal.Signals) -> None:
    code = (
        "import asyncio\n"
        "from mappa_envs.sandbox import open_sandbox\n"
        "async def main():\n"
        f"  sandbox = open_sandbox({kind!r})\n"
        "  workspace = await sandbox.open()\n"
        "  print('open', flush=True)\n"
        "  await workspace.run('import os\\nos.fork()\\nwhile True: pass')\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"open\n"

    def family() -> list[int]:
        if kind == "docker":
            return [pid for one in our_containers(owner.pid) for pid in container_pids(one)]
        return descendants(owner.pid)

    assert wait_until(lambda: len(family()) >= 5, 60)  # boot or relay, zygote, init, worker, its child
    pids = family()
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    assert wait_until(lambda: not any(map(is_alive, pids)), 60), [pid for pid in pids if is_alive(pid)]
    assert wait_until(lambda: kind != "docker" or not our_containers(owner.pid), 60)


def test_from_many_threads_and_loops(sandbox: Sandbox) -> None:
    """Neither the sandbox nor a workspace belongs to the loop that made it."""

    async def opened() -> Workspace:
        return await sandbox.open()

    workspace = asyncio.run(opened())

    async def scenario() -> list[str]:
        def elsewhere(number: int) -> str:
            return asyncio.run(workspace.run(f"print({number})")).stdout

        return await asyncio.gather(*(asyncio.to_thread(elsewhere, number) for number in range(8)))

    assert asyncio.run(scenario()) == [f"{number}\n" for number in range(8)]
    asyncio.run(workspace.close())
