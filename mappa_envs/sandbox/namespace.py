"""The `namespace` backend: Linux namespaces around workers forked from a warm interpreter.

Needs no program and no daemon, works as root and as an ordinary user. One zygote per sandbox
imports the libraries once; each run is a forked worker in namespaces of its own that sees one
workspace; between runs a workspace is a tmpfs and costs no process. The kernel is shared: good for
the code of language models on one's own machine, not for tenants with reason to attack it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox.base import Limits
from mappa_envs.sandbox.engine import Engine, number_files
from mappa_envs.sandbox.io_thread import ThreadedSandbox
from mappa_envs.sandbox.link import Zygote, ZygoteFailed
from mappa_envs.sandbox.rootfs import ENVIRONMENT, IMPORTS, Rootfs, plan_rootfs

NUM_UIDS = 65_536
_UID_BASES = (1_000_000_000, 1_000_000, 100_000)
_BOOT = "import sys; sys.path.append(sys.argv[1]); from inside.boot import main; main()"


class NamespaceSandbox(ThreadedSandbox[Engine]):
    """Starts nothing before the first workspace is opened. See `open_sandbox`.

    Parameters
    ----------
    limits : what one run may use.
    packages : distributions that agents' code may import beyond the default ones.
    shared : host files that workspaces show read-only instead of a copy.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        *,
        shared: Sequence[Path] = (),
    ) -> None:
        limits = limits or Limits()
        self._packages = tuple(packages)
        self._shared = number_files(shared)
        engine = Engine(self._launch, limits, shared=self._shared, num_workspaces=NUM_UIDS - 1)
        super().__init__(engine, limits)

    async def _launch(self) -> Zygote:
        rootfs = await asyncio.to_thread(plan_rootfs, self._packages)
        shared = [(str(path.resolve()), target) for path, target in self._shared.items()]
        rootfs = replace(rootfs, binds=(*rootfs.binds, *shared))
        zygote = Zygote(num_folders=1)
        try:
            await zygote.start(lambda control_fd: _spawn(rootfs, control_fd))
        except ZygoteFailed as error:
            raise SandboxUnavailable(f"no namespace sandbox here: {error}. {remedy(str(error))}") from None
        return zygote


def _spawn(rootfs: Rootfs, control_fd: int) -> subprocess.Popen[bytes]:
    uid_base = pick_uid_base()
    zygote = {
        "isolation": "namespaces",
        "control_fd": control_fd,
        "many_uids": uid_base is not None,
        "environment": ENVIRONMENT,
        "imports": IMPORTS,
    }
    plan = {
        "owner_pid": os.getpid(),
        "uid_base": uid_base,
        "num_uids": NUM_UIDS,
        "control_fd": control_fd,
        "binds": rootfs.binds,
        "masks": rootfs.masks,
        "command": rootfs.command,
        "environment": ENVIRONMENT,
        "zygote": zygote,
    }
    # Popen, never a bare fork: the caller may have threads, CUDA, secrets in memory.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _BOOT, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
        pass_fds=[control_fd],
        start_new_session=True,
        cwd="/",
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(plan).encode())
        process.stdin.close()
    return process


def pick_uid_base() -> int | None:
    """For root: the first of a range of host uids that belong to nobody. None: use one's own uid.

    Raises `SandboxUnavailable` where that is the host's root, to whom its kernel's settings belong.
    """
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    for base in _UID_BASES:
        if any(start <= base and base + NUM_UIDS <= start + count for start, _, count in ranges):
            return base
    if os.stat("/proc/sys/kernel").st_uid == 0:  # 65534 where the host's root is nobody here
        raise SandboxUnavailable(
            f"no namespace sandbox here: this is the host's root, in a user namespace without {NUM_UIDS} ids"
            f" from {', '.join(map(str, _UID_BASES))} on. Run as an ordinary user, or outside of it."
        )
    return None


def remedy(text: str) -> str:
    """What the user can do about a start that failed with this message."""
    if text.startswith("import:"):
        return "Reinstall the package that it names."
    if text.startswith("open files:"):
        return "Raise the limit: ulimit -n 1024"
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if apparmor.exists() and apparmor.read_text().strip() == "1":
        return "AppArmor forbids user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    clone = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if clone.exists() and clone.read_text().strip() == "0":
        return "User namespaces are off: sudo sysctl kernel.unprivileged_userns_clone=1"
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists() and limit.read_text().strip() == "0":
        return "User namespaces are off: sudo sysctl user.max_user_namespaces=15000"
    if "mount proc" in text or "unshare" in text:
        return (
            "Inside a container: start it with --security-opt seccomp=unconfined --security-opt"
            " apparmor=unconfined --security-opt systempaths=unconfined, or run on the host."
        )
    return "A Linux 5.9 or later with user namespaces is needed."
