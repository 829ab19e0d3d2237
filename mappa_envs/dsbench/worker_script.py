"""The text that a throw-away worker in the sandbox executes: modules of this project, and one call.

The host never runs these modules on a workspace. The sandbox has no copy of this project, so their source
goes along with every call.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import marshal
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
import base64, importlib.util, json, marshal, sys, types
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
compiled = marshal.loads(base64.b64decode(code)) if importlib.util.MAGIC_NUMBER == magic else {}
for name, source in sources.items():
    module = types.ModuleType("mappa_envs." + name)
    sys.modules[module.__name__] = module
    exec(compiled.get(name) or compile(source, f"<{name}>", "exec"), module.__dict__)
"""
"""Compiling takes longer than most of what the worker does, so the code goes along with its source. Only an
interpreter of the same version can use it: that of a container may be another one."""


def script(function: Literal["examine", "measure"], job: Mapping[str, Any]) -> str:
    """A script that reports what `inspector.examine` or `signal.measure` says of the job, of JSON values."""
    return f"job = {json.dumps(job)!r}\n{_constant_part(function)}"


@lru_cache(maxsize=len(_MODULES))
def _constant_part(function: str) -> str:
    folder = resources.files("mappa_envs")
    sources = {
        name: (folder / f"{name.replace('.', '/')}.py").read_text("utf-8") for name in _MODULES[function]
    }
    compiled = {name: compile(source, f"<{name}>", "exec") for name, source in sources.items()}
    code = base64.b64encode(marshal.dumps(compiled))
    known = f"sources = {sources!r}\ncode = {code!r}\nmagic = {importlib.util.MAGIC_NUMBER!r}\n"
    return f"{known}{_BOOT}report(module.{function}(json.loads(job)))\n"
