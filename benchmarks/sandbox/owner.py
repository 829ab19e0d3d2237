"""Owns a sandbox of the kind named on the command line, in which code runs, until it is killed.

Says "ready" on standard output, or in one line why there is no such sandbox.
"""

from __future__ import annotations

import asyncio
import sys

from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.sandbox import open_sandbox

NUM_WORKSPACES = 4
_DAEMONS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
print("running", flush=True)
while True:
    pass
"""


async def main(kind: str) -> None:
    """Run daemons in half of the workspaces; the others have run something and are idle."""
    async with open_sandbox(kind) as sandbox:
        workspaces = [await sandbox.open() for _ in range(NUM_WORKSPACES)]
        for workspace in workspaces[::2]:
            await workspace.run("print(1)")
        running = [asyncio.create_task(workspace.run(_DAEMONS)) for workspace in workspaces[1::2]]
        await asyncio.sleep(1)
        print("ready", flush=True)
        await asyncio.gather(*running)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except (ConfigError, SandboxUnavailable) as error:
        print(error, flush=True)
