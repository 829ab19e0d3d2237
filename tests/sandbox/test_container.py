"""The container itself: what it may do, and that none is left over."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from census import container_pids, our_containers, zygotes
from sandbox_kit import alive, only_docker

from mappa_envs.sandbox import Sandbox
from mappa_envs.sandbox.container import OWNER_LABEL, _owner, sweep
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, connect

pytestmark = [only_docker, pytest.mark.usefixtures("kind")]

CAPABILITIES = sum(1 << number for number in (0, 1, 3, 5, 6, 7))
"""chown, dac_override, fowner, kill, setgid, setuid."""


def test_a_container_has_what_it_needs_and_no_more(sandbox: Sandbox) -> None:
    asyncio.run(alive(sandbox))
    for one in our_containers():
        host = one.attrs["HostConfig"]
        assert (host["NetworkMode"], host["IpcMode"], host["ReadonlyRootfs"]) == ("none", "none", True)
        assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges"])
        assert (host["LogConfig"]["Type"], host["AutoRemove"], host["Init"]) == ("none", True, True)
        assert not any((host["Privileged"], host["Binds"], host["Devices"]))
        assert 0 < host["Memory"] == host["MemorySwap"]
        assert host["PidsLimit"] > 0
        assert one.labels[OWNER_LABEL] == _owner()
        (zygote,) = zygotes(container_pids(one))
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{zygote}/status").read_text().splitlines())
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == CAPABILITIES
        assert fields["NoNewPrivs"].strip() == "1"


@pytest.fixture
def client() -> Iterator[Any]:
    with contextlib.closing(connect()) as client:
        yield client


def test_containers_of_dead_owners_are_removed(client: Any) -> None:
    """Those of the living, and of other machines, stay."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    place = _owner().rpartition("/")[0].rpartition("/")[0]
    owners = {"dead": f"{place}/{dead.pid}/1", "other": "elsewhere/1/1", "mine": _owner()}
    made = {
        name: client.containers.create(DEFAULT_IMAGE, labels={OWNER_LABEL: owner}, network_mode="none")
        for name, owner in owners.items()
    }
    try:
        sweep(client)
        there = {one.id for one in client.containers.list(all=True, ignore_removed=True)}
        assert {name for name, one in made.items() if one.id in there} == {"other", "mine"}
    finally:
        for name, one in made.items():
            if name != "dead":
                one.remove(force=True)
