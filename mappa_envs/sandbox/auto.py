"""The strongest sandbox that this machine has: namespaces, else Docker, else a refusal."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from mappa_envs.errors import SandboxError, SandboxUnavailable
from mappa_envs.sandbox import open_sandbox
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace

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
        self.chosen: str | None = None
        self._packages = tuple(packages)
        self._shared = tuple(shared)
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()
        self._choosing: Future[SandboxUnavailable | None] | None = None
        self._closings = 0

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        # Many open their first workspace at the same time, in loops of their own: one chooses for all.
        while self._sandbox is None:
            with self._lock:
                others = self._choosing
                mine: Future[SandboxUnavailable | None] = Future()
                self._choosing = others or mine
            if others is None:
                return await self._choose_for_all(files, mine)
            if (error := await asyncio.shield(asyncio.wrap_future(others))) is not None:
                raise SandboxUnavailable(str(error))
        return await self._sandbox.open(files)

    async def _choose_for_all(
        self, files: Mapping[str, Path | bytes] | None, told: Future[SandboxUnavailable | None]
    ) -> Workspace:
        """The others wait for `told`: if this fails, so do they; if it is cancelled, one of them chooses."""
        error = None
        try:
            if self._sandbox is not None:  # chosen a moment ago
                return await self._sandbox.open(files)
            return await self._choose(files)
        except SandboxUnavailable as caught:
            error = caught
            raise
        finally:
            with self._lock:
                self._choosing = None
            told.set_result(error)

    async def _choose(self, files: Mapping[str, Path | bytes] | None) -> Workspace:
        reasons, closings = [], self._closings
        for kind in ORDER:
            try:
                sandbox = open_sandbox(kind, self.limits, self._packages, shared=self._shared)
            except SandboxUnavailable as error:
                reasons.append(f"{kind}: {error}")
                continue
            try:
                workspace = await sandbox.open(files)
            except SandboxUnavailable as error:
                await sandbox.close()
                reasons.append(f"{kind}: {error}")
                continue
            except BaseException:
                await sandbox.close()
                raise
            with self._lock:
                if closings == self._closings:
                    self._sandbox, self.chosen = sandbox, kind
            if self._sandbox is None:  # nobody else would close it
                await sandbox.close()
                raise SandboxError("the sandbox was closed while its first workspace was being opened")
            if reasons:
                _log.warning("using %s, as there is no other sandbox (%s)", kind, "; ".join(reasons))
            return workspace
        raise SandboxUnavailable("no sandbox works here.\n  " + "\n  ".join(reasons))

    async def close(self) -> None:
        with self._lock:
            self._closings += 1
        if self._sandbox is not None:
            await self._sandbox.close()
