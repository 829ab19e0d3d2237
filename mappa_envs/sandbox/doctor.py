"""Whether this machine can isolate, found out by doing it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from mappa_envs.errors import MappaError
from mappa_envs.sandbox import Limits, Workspace, open_sandbox
from mappa_envs.sandbox.auto import ORDER

_CHECKS = {
    "host files": """
import os
def opens(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True
report(not any(map(opens, ('/etc/shadow', '/root', '/var/run/docker.sock', '/proc/1/environ'))))
""",
    "network": """
import socket
try:
    socket.socket()
except OSError:
    report(True)
""",
    "libraries": "import sqlite3, scipy.signal, sympy; report(True)",
    "example data": """
from sklearn.datasets import load_iris
try:
    load_iris()
except OSError:
    report(True)
""",
    "identity": """
import os
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
report(os.getuid() >= 1000 and int(status['CapEff'], 16) == 0 and status['Seccomp'].strip() == '2')
""",
    "writing": """
import os
report(not any(os.access(path, os.W_OK) for path in ('/', '/etc', '/opt', '/usr', '/proc/sys')))
""",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was tried. `ok` is None where it failed and nobody needs it; `message` says what to
    do, or what was seen."""

    name: str
    ok: bool | None
    message: str


def probe() -> list[Finding]:
    """Start each real sandbox and try to break out of it a little; the first that isolates is what "auto"
    takes, and only if none does is something amiss. Takes seconds; no event loop may run."""
    findings = [asyncio.run(_probe(kind)) for kind in ORDER]
    chosen = next((finding.name for finding in findings if finding.ok), None)
    if chosen is None:
        return findings
    marked = [finding if finding.ok else replace(finding, ok=None) for finding in findings]
    return [*marked, Finding(name="auto", ok=True, message=f"takes {chosen}")]


async def _probe(kind: str) -> Finding:
    try:
        async with open_sandbox(kind, Limits(time_s=20)) as sandbox, await sandbox.open() as workspace:
            result = await workspace.run("print(6 * 7)")
            if not (result.ok and result.stdout == "42\n"):
                return Finding(name=kind, ok=False, message=f"runs no code: {result.stderr.strip()}")
            failed = [name for name, script in _CHECKS.items() if not await _holds(workspace, script)]
    except MappaError as error:
        return Finding(name=kind, ok=False, message=str(error))
    if failed:
        message = f"does not hold: {', '.join(failed)}; please report this machine's set-up"
        return Finding(name=kind, ok=False, message=message)
    message = f"isolates ({', '.join(_CHECKS)}); print() in {result.duration_s * 1000:.1f} ms"
    return Finding(name=kind, ok=True, message=message)


async def _holds(workspace: Workspace, script: str) -> bool:
    answer: Any = await workspace.inspect(script)
    return answer is True
