"""A Docker daemon that answers late or never: no container is left over, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import docker
import pytest
import requests

from mappa_envs.errors import SandboxError, SandboxUnavailable
from mappa_envs.sandbox import Limits, container, image_build


class Daemon:
    """Stands for a client of the `docker` package: its containers read nothing and say nothing."""

    def __init__(self) -> None:
        self.answers = True
        self.removed: list[str] = []
        self.made: dict[str, socket.socket] = {}
        self.closed = False
        self.containers = SimpleNamespace(list=lambda **about: [], create=self.create)
        self.api = SimpleNamespace(timeout=0.0, remove_container=self.remove)

    def info(self) -> dict[str, int]:
        return {"MemTotal": 1 << 33, "NCPU": 2}

    def create(self, image: str, *, name: str, **options: Any) -> Any:
        ours, self.made[name] = socket.socketpair()
        if not self.answers:
            raise requests.ReadTimeout("Read timed out.")
        return SimpleNamespace(attach_socket=lambda params: ours, start=lambda: None)

    def remove(self, name: str, *, force: bool) -> NoReturn:
        self.removed.append(name)
        raise docker.errors.NotFound("no such container")

    def ping(self) -> None:
        if not self.answers:
            raise requests.ReadTimeout("Read timed out.")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    daemon = Daemon()
    monkeypatch.setattr(container, "connect", lambda: daemon)
    yield daemon
    for end in daemon.made.values():
        end.close()


def _start(config: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(60):
            await container.Container().start("image", Limits(), {}, config)

    asyncio.run(scenario())


def test_a_container_is_removed_that_was_made_without_an_answer(daemon: Daemon) -> None:
    daemon.answers = False
    with pytest.raises(SandboxError, match="Read timed out"):
        _start({})
    assert daemon.removed == list(daemon.made)
    assert daemon.closed


def test_a_container_that_reads_nothing_is_given_up(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent more than the stream holds."""
    monkeypatch.setattr(container, "START_TIMEOUT_S", 0.5)
    with pytest.raises(SandboxError, match="did not start within"):
        _start({"long": "x" * (16 << 20)})
    assert daemon.removed == list(daemon.made)
    assert daemon.closed


def test_a_container_that_cannot_be_removed_is_named(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str, *, force: bool) -> NoReturn:
        raise docker.errors.APIError("still busy")

    monkeypatch.setattr(container, "REMOVE_TIMEOUT_S", 0.2)
    daemon.api.remove_container = refuse
    container.remove(daemon, "some-container")
    (record,) = caplog.records
    assert "still busy" in record.getMessage()
    assert record.getMessage().endswith("docker rm -f some-container")


def test_only_the_first_answer_has_to_come_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_env(timeout: float) -> Daemon:
        daemon.api.timeout = timeout
        return daemon

    monkeypatch.setattr(docker, "from_env", from_env)
    monkeypatch.setattr(image_build, "CONNECT_TIMEOUT_S", 1.0)
    assert image_build.connect() is daemon
    assert daemon.api.timeout == image_build.ANSWER_TIMEOUT_S > 1.0
    daemon.answers = False
    with pytest.raises(SandboxUnavailable, match="no Docker daemon answers"):
        image_build.connect()
    assert daemon.closed
