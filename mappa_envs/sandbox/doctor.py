"""Whether this machine can isolate, found out by doing it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from mappa_envs.errors import MappaError
from mappa_envs.sandbox import Limits, Workspace, open_sandbox

_CHECKS = {
    "host files are hidden": (
        "import os; report(not any(map(os.path.exists, ('/root', '/home', '/etc/shadow', '/var/run'))))"
    ),
    "network is denied": """
import socket
try:
    socket.socket()
except OSError:
    report(True)
""",
    "libraries load on demand": "import sqlite3, scipy.signal, sympy; report(True)",
    "example data is hidden": """
from sklearn.datasets import load_iris
try:
    load_iris()
except OSError:
    report(True)
""",
    "identity is an ordinary user's": """
import os
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
report(os.getuid() == 1000 and int(status['CapEff'], 16) == 0 and status['Seccomp'].strip() == '2')
""",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was tried. `message` says what to do where it failed."""

    name: str
    ok: bool
    message: str


def probe() -> list[Finding]:
    """Start a namespace sandbox and try to break out of it a little. Takes seconds; no event loop may run."""
    return asyncio.run(_probe())


async def _probe() -> list[Finding]:
    findings = []
    try:
        async with (
            open_sandbox("namespace", Limits(time_s=20)) as sandbox,
            await sandbox.open() as workspace,
        ):
            findings.append(Finding(name="namespaces", ok=True, message="a sandbox starts"))
            result = await workspace.run("print(6 * 7)")
            ok = result.ok and result.stdout == "42\n"
            findings.append(Finding(name="code runs", ok=ok, message=f"{result.duration_s * 1000:.1f} ms"))
            for name, script in _CHECKS.items():
                findings.append(await _check(workspace, name, script))
    except MappaError as error:
        findings.append(Finding(name="namespaces", ok=False, message=str(error)))
    return findings


async def _check(workspace: Workspace, name: str, script: str) -> Finding:
    answer: Any = await workspace.inspect(script)
    message = "as it should be" if answer is True else "not so: please report this machine's set-up"
    return Finding(name=name, ok=answer is True, message=message)
