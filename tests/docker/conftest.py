"""The daemon and the image that these tests need. With MAPPA_REQUIRE_DOCKER=1 their lack is a failure."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, connect


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("MAPPA_REQUIRE_DOCKER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def docker_client() -> Any:
    """A client of the `docker` package whose daemon answers."""
    try:
        return connect()
    except SandboxUnavailable as error:
        _give_up(str(error))


@pytest.fixture(scope="session")
def docker_image(docker_client: Any) -> str:
    """The name of the sandbox's image, which is there."""
    if not docker_client.images.list(DEFAULT_IMAGE):
        _give_up(f"no image {DEFAULT_IMAGE}: python -m mappa_envs build-image [--offline]")
    return DEFAULT_IMAGE
