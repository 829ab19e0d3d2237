"""The text that a throw-away worker in the sandbox executes: modules of this project, and one call.

The host never runs these modules on a workspace. The sandbox has no copy of this project, so their source
goes along with every call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

_FILES = (
    "errors",
    "dsbench.pickle_checks",
    "dsbench.safe_pickle",
    "dsbench.given_tables",
    "dsbench.submission",
)
_MODULES = {
    "examine": (*_FILES, "dsbench.metrics", "dsbench.predictions", "dsbench.inspector"),
    "measure": (*_FILES, "dsbench.target_scale", "dsbench.signal"),
}
"""By function: what the worker executes, in this order. The last one has the function."""
_BOOT = """
import json, sys, types
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
for name, source in sources.items():
    module = types.ModuleType("mappa_envs." + name)
    sys.modules[module.__name__] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
"""


def script(function: Literal["examine", "measure"], job: Mapping[str, Any]) -> str:
    """A script that reports what `inspector.examine` or `signal.measure` says of the job, of JSON values."""
    return f"job = {json.dumps(job)!r}\n{_constant_part(function)}"


@lru_cache(maxsize=len(_MODULES))
def _constant_part(function: str) -> str:
    folder = resources.files("mappa_envs")
    sources = {
        name: (folder / f"{name.replace('.', '/')}.py").read_text("utf-8") for name in _MODULES[function]
    }
    return f"sources = {sources!r}\n{_BOOT}report(module.{function}(json.loads(job)))\n"
