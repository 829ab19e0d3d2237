"""Builds the Docker sandbox's image, in the daemon, through the `docker` package.

With a registry and a package index the image comes from `python:3.12-slim` and pinned wheels. Offline its
base is made of this machine's interpreter and packages (`image_base`). `image/Dockerfile` does the rest.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from mappa_envs.errors import ConfigError, SandboxUnavailable, UnavailableError, install_hint
from mappa_envs.sandbox.image.prepare import BAD_PACKAGE
from mappa_envs.sandbox.image_base import ENV_CHANGES, stream_base
from mappa_envs.sandbox.rootfs import IMPORTS, MASKS, REFUSED, Rootfs, canonical, plan_rootfs

DEFAULT_IMAGE = "mappa-sandbox:1"
CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 120
"""For any other answer of a daemon that is there: a loaded machine may take long to make a container."""
SILENCE_TIMEOUT_S = 900
"""The longest wait for the daemon's next word while it builds: pip says nothing for minutes."""
LABEL = "mappa.sandbox"
"""On all that the Dockerfile makes, so that what a build leaves over can be found."""
BASE_NAME = "mappa-sandbox-base"
OFFLINE_ADVICE = (
    "Without a registry or a package index build from this machine's own packages:"
    " python -m mappa_envs build-image --offline"
)
_TAG = re.compile(r"([a-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:\w[\w.-]*)?", re.ASCII)

Log = Callable[[str], None]


def connect() -> Any:
    """A client of the `docker` package whose daemon answers.

    Raises `SandboxUnavailable`, with what to do, without the package or without a daemon.
    """
    try:
        import docker
        import requests
    except ImportError:
        raise SandboxUnavailable(f"the docker package is missing; {install_hint('docker')}") from None
    host = os.environ.get("DOCKER_HOST")
    where = f"DOCKER_HOST={host}" if host else "/var/run/docker.sock (DOCKER_HOST is not set)"
    client = None
    try:
        client = docker.from_env(timeout=CONNECT_TIMEOUT_S)
        client.ping()
    except (docker.errors.DockerException, requests.RequestException, ValueError) as error:
        if client is not None:
            client.close()
        raise SandboxUnavailable(
            f"no Docker daemon answers at {where}: start one, set DOCKER_HOST to its address"
            f" (`docker context ls` shows it), or join the group that may use its socket ({error})"
        ) from error
    client.api.timeout = ANSWER_TIMEOUT_S
    return client


def print_log(text: str) -> None:
    print(text, end="", flush=True)


def build_image(
    tag: str = DEFAULT_IMAGE,
    packages: Sequence[str] = (),
    *,
    offline: bool = False,
    log: Log = print_log,
) -> None:
    """Build the image and name it `tag`. An older image of that name is deleted unless a container uses it.

    Parameters
    ----------
    packages : distributions that agents' code may import beyond the sandbox's own. Offline they must be
        installed here.
    offline : take the interpreter and all packages from this machine, and need no network.
    log : gets the daemon's output as it comes, in pieces of lines.

    Raises `ConfigError` for a senseless tag and for a package that cannot or must not be in the image,
    `UnavailableError`, with what to do, where daemon, registry or package index are missing.
    """
    _check(tag, packages)
    plan = plan_rootfs(packages) if offline else None
    client = connect()
    client.api.timeout = SILENCE_TIMEOUT_S
    with _translated_errors(), closing(client):
        if plan is None:
            _build(client, tag, {"PACKAGES": " ".join(packages)}, log, offline=False)
            return
        _build_offline(client, tag, plan, log)


def check_name(image: str) -> None:
    """Raises `ConfigError` for what Docker takes for no image's name."""
    if not _TAG.fullmatch(image):
        raise ConfigError(f"tag: {image!r} is no image name; write it like {DEFAULT_IMAGE}")


def _check(tag: str, packages: Sequence[str]) -> None:
    check_name(tag)
    for name in packages:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
            raise ConfigError(
                f"packages: {name!r} is no distribution's name; give bare names, as in lightgbm"
            )
        canonical(name)


def _build_offline(client: Any, tag: str, plan: Rootfs, log: Log) -> None:
    """The base's name is only for FROM: afterwards it is a nameless part of the image, or gone."""
    import docker

    version = uuid.uuid4().hex[:12]
    base = f"{BASE_NAME}:{version}"
    log(f"Sending this machine's interpreter and packages as {base}\n")
    try:
        answer = client.api.import_image_from_data(
            stream_base(plan), repository=BASE_NAME, tag=version, changes=ENV_CHANGES
        )
        if "errorDetail" in answer:
            raise UnavailableError(f"the Docker daemon did not take the base: {answer.strip()}")
        _build(client, tag, {"BASE": base, "INSTALL": "0"}, log, offline=True)
    finally:
        # Whatever failed, the daemon may have it. By force: after Ctrl-C a step's container may still use it.
        with suppress(docker.errors.ImageNotFound):
            client.images.remove(base, force=True)


def _build(client: Any, tag: str, arguments: Mapping[str, str], log: Log, *, offline: bool) -> None:
    rules = {"REFUSED": " ".join(sorted(REFUSED)), "MASKS": " ".join(MASKS), "IMPORTS": " ".join(IMPORTS)}
    try:
        for entry in client.api.build(
            fileobj=_context(),
            custom_context=True,
            tag=tag,
            buildargs=rules | dict(arguments),
            rm=True,
            forcerm=True,
            network_mode="none" if offline else None,
            decode=True,
        ):
            log(_text(entry))
            if "error" in entry:
                raise _failure(entry, offline)
    finally:
        # Steps of failed builds, and the image whose name this one took. What a container uses stays.
        client.images.prune({"dangling": True, "label": LABEL})


def _context() -> io.BytesIO:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("Dockerfile", "requirements.txt", "prepare.py"):
            tar.add(Path(__file__).parent / "image" / name, name)
    data.seek(0)
    return data


def _text(entry: Mapping[str, Any]) -> str:
    if "stream" in entry:
        return str(entry["stream"])
    if "status" in entry and not entry.get("progressDetail"):
        return f"{entry.get('id', '')} {entry['status']}\n".lstrip()
    return ""


def _failure(entry: Mapping[str, Any], offline: bool) -> ConfigError | UnavailableError:
    message = str(entry["error"]).strip()
    if entry.get("errorDetail", {}).get("code") == BAD_PACKAGE:
        return ConfigError(f"packages: one cannot or must not be installed, see the lines above ({message})")
    advice = "" if offline else f". {OFFLINE_ADVICE}"
    return UnavailableError(f"the image was not built: {message}{advice}")


@contextmanager
def _translated_errors() -> Iterator[None]:
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise UnavailableError(f"the Docker daemon did not build the image: {error}") from error
