"""Places that run hostile Python: open one with `open_sandbox`, share it between episodes.

>>> async with open_sandbox("namespace") as sandbox:
...     async with await sandbox.open({"train.csv": b"a,b\\n1,2\\n"}) as workspace:
...         result = await workspace.run("print(open('train.csv').read())")
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace

__all__ = ["KINDS", "Limits", "Sandbox", "Workspace", "check_kind", "open_sandbox"]

KINDS = ("auto", "namespace", "docker", "unsafe-local")
MACHINES = ("x86_64", "aarch64")


def check_kind(kind: str) -> tuple[str, str]:
    """The backend's name, and the image ("" for the default). Raises `ConfigError` for an unknown one."""
    name, colon, image = kind.partition(":")
    if name not in KINDS or (colon and not (name == "docker" and image)):
        raise ConfigError(f"sandbox: unknown kind {kind!r}; known: {', '.join(KINDS)}, docker:IMAGE")
    if image:
        from mappa_envs.sandbox.image_build import check_name

        check_name(image)
    return name, image


def open_sandbox(
    kind: str = "auto",
    limits: Limits | None = None,
    packages: Sequence[str] = (),
    *,
    shared: Sequence[Path] = (),
) -> Sandbox:
    """A sandbox of this kind. It starts its processes when the first workspace is opened.

    Parameters
    ----------
    kind : "namespace"; "docker", or "docker:IMAGE" for an image of one's own; "auto" for the first of
        these two that this machine has; "unsafe-local", which isolates nothing.
    limits : what one run may use.
    packages : distributions that agents' code may import beyond numpy, pandas, scipy, scikit-learn,
        sympy and joblib. They must be installed here, or be in the image.
    shared : large host files. A workspace that is opened with one of them shows it read-only and takes no
        copy of it, so it does not count against `Limits.workspace_mb`.

    Raises `ConfigError` for an unknown kind and `SandboxUnavailable`, with what to do, where this
    machine offers no isolation (some of that shows only when the first workspace is opened).
    """
    name, image = check_kind(kind)
    if name == "auto":
        from mappa_envs.sandbox.auto import AutoSandbox

        return AutoSandbox(limits, packages, shared=shared)
    if name == "docker":
        from mappa_envs.sandbox.docker import DockerSandbox
        from mappa_envs.sandbox.image_build import DEFAULT_IMAGE

        return DockerSandbox(limits, packages, shared=shared, image=image or DEFAULT_IMAGE)
    if name == "unsafe-local":
        from mappa_envs.sandbox.unsafe_local import UnsafeLocalSandbox

        return UnsafeLocalSandbox(limits, packages)
    _check_machine()
    from mappa_envs.sandbox.namespace import NamespaceSandbox

    return NamespaceSandbox(limits, packages, shared=shared)


def _check_machine() -> None:
    """Raises `SandboxUnavailable` where there can be no namespaces, or no filter."""
    if sys.platform != "linux":
        raise SandboxUnavailable(
            f"sandbox: {platform.system()} has no namespaces; use --sandbox docker, or Linux"
        )
    if platform.machine() not in MACHINES:
        raise SandboxUnavailable(
            f"sandbox: no system-call filter for {platform.machine()}; use one of {', '.join(MACHINES)}"
        )
