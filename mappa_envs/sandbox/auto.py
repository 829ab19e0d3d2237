"""The strongest sandbox that this machine has: namespaces, else Docker, else a refusal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_envs.errors import SandboxUnavailable
from mappa_envs.sandbox import open_sandbox
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.sandbox.engine import check_limits

ORDER = ("namespace", "docker")
_log = logging.getLogger(__name__)


class AutoSandbox(Sandbox):
    """Chooses when the first workspace is opened. `chosen`: the kind, once it is known."""

    def __init__(
        self,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        *,
        shared: Sequence[Path] = (),
    ) -> None:
        self.limits = limits or Limits()
        check_limits(self.limits)
        self.chosen: str | None = None
        self._packages = tuple(packages)
        self._shared = tuple(shared)
        self._sandbox: Sandbox | None = None

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        if self._sandbox is not None:
            return await self._sandbox.open(files)
        reasons = []
        for kind in ORDER:
            try:
                sandbox = open_sandbox(kind, self.limits, self._packages, shared=self._shared)
                workspace = await sandbox.open(files)
            except SandboxUnavailable as error:
                reasons.append(f"{kind}: {error}")
                continue
            self._sandbox, self.chosen = sandbox, kind
            if reasons:
                _log.warning("using %s, as there is no other sandbox (%s)", kind, "; ".join(reasons))
            return workspace
        raise SandboxUnavailable("no sandbox works here.\n  " + "\n  ".join(reasons))

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
