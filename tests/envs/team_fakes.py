"""A make-believe language for `FakeSandbox`: code is a list of file names to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.errors import SandboxError
from mappa_envs.types import FileRecord, ToolResult

MakeEnv = Callable[..., DSBenchEnv]
GOOD = "id,y\n10,1\n11,2\n12,3\n"


def write(*paths: str) -> str:
    """A message whose code writes these files; "-x" deletes x, "!" raises, "crash" breaks the sandbox."""
    return "I work.\n```python\n" + "\n".join(paths) + "\n```"


DATA = write("X_train.pkl", "y_train.pkl", "X_test.pkl")
MODEL = write("model.pkl")
SUBMIT = write("submission.csv")


def run_list(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
    records = []
    for name in "\n".join(blocks).split("\n"):
        if name == "crash":
            raise SandboxError("the worker is gone")
        if name == "!":
            return ToolResult(exit_code=1, exception="ValueError", stderr="boom\ud800", files=tuple(records))
        gone = name.startswith("-")
        path = name.removeprefix("-")
        change = "deleted" if gone else "changed" if path in files else "created"
        content = GOOD.encode() if path == "submission.csv" else b"data"
        files.pop(path, None) if gone else files.update({path: content})
        size = 0 if gone else len(content)
        records.append(FileRecord(path=path, change=change, size=size, sha256="0" * 64, kind="other"))
    return ToolResult(stdout="done\n", files=tuple(records))


def inspect_list(script: str, files: dict[str, bytes]) -> Any:
    """Valid if it exists; the inspection script names its file in its job."""
    path = script.split('"path": "')[1].split('"')[0]
    status = "valid" if path in files else "missing"
    shape = [3] if path == "y_train.pkl" else [3, 2]
    return {"status": status, "kind": "x", "shape": shape, "nan_share": 0.0}
