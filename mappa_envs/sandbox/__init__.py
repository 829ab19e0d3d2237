"""Places that run hostile Python: open one with `open_sandbox`, share it between episodes.

>>> async with open_sandbox("namespace") as sandbox:
...     async with await sandbox.open({"train.csv": b"a,b\\n1,2\\n"}) as workspace:
...         result = await workspace.run("print(open('train.csv').read())")
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace

__all__ = ["KINDS", "Limits", "Sandbox", "Workspace", "open_sandbox"]

KINDS = ("auto", "namespace")
MACHINES = ("x86_64", "aarch64")


def open_sandbox(kind: str = "auto", limits: Limits | None = None, packages: Sequence[str] = ()) -> Sandbox:
    """A sandbox of this kind. It starts its processes when the first workspace is opened.

    Parameters
    ----------
    kind : "namespace", or "auto" for the strongest that this machine has.
    limits : what one run may use.
    packages : distributions that agents' code may import beyond numpy, pandas, scipy, scikit-learn,
        sympy and joblib. They must be installed here.

    Raises `ConfigError` for an unknown kind and `SandboxUnavailable`, with what to do, where this
    machine offers no isolation (some of that shows only when the first workspace is opened).
    """
    if kind not in KINDS:
        raise ConfigError(f"sandbox: unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if sys.platform != "linux":
        raise SandboxUnavailable(
            f"sandbox: {platform.system()} has no namespaces; use Linux (a virtual machine or WSL 2 will do)"
        )
    if platform.machine() not in MACHINES:
        raise SandboxUnavailable(
            f"sandbox: no system-call filter for {platform.machine()}; use one of {', '.join(MACHINES)}"
        )
    from mappa_envs.sandbox.namespace import NamespaceSandbox

    return NamespaceSandbox(limits, packages)
