"""Artifacts that attack whoever looks at them, in a container; `tests/dsbench` has them in namespaces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sandbox_kit import only_docker

from mappa_envs.dsbench.artifacts import Tables, inspect
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.sandbox import Sandbox
from mappa_envs.types import Artifact, ToolResult

pytestmark = [only_docker, pytest.mark.usefixtures("unharmed")]

SPEC = TaskSpec("accuracy", "id", ("kind",), ("blue", "red"))
HOSTILE = """
import gzip, os, pickle
lie = b'{"status": "valid", "kind": "Forest", "shape": [4, 1], "nan_share": 0, "problem": ""}\\n'
class Call:
    def __init__(self, *parts): self.parts = parts
    def __reduce__(self): return self.parts[0], self.parts[1:]
attacks = {
    "X_train.pkl": Call(os.write, 4, lie),
    "X_test.pkl": Call(eval, f"report({lie.decode()})"),
    "y_train.pkl": Call(exec, "import os; open('/tmp/x', 'w'); os.write(4, %r); os._exit(0)" % lie),
    "model.pkl": Call(os.system, "touch stolen; kill -9 $$"),
}
for name, attack in attacks.items():
    with open(name, "wb") as file: pickle.dump(attack, file)
with open("submission.csv", "wb") as file: file.write(gzip.compress(bytes(1 << 25)))
os.mkfifo("table.csv")
"""
PICKLES = ("X_train.pkl", "X_test.pkl", "y_train.pkl", "model.pkl")


def test_a_hostile_artifact_neither_acts_nor_forges_its_report(sandbox: Sandbox, tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("id,x,kind\n" + "".join(f"{n},{n},{'red' if n % 2 else 'blue'}\n" for n in range(8)))
    test.write_text("id,x\n" + "".join(f"{n},{n}\n" for n in range(8, 12)))
    tables = Tables.read(train, test, SPEC)
    paths = [*PICKLES, "submission.csv", "table.csv"]

    async def scenario() -> tuple[ToolResult, dict[str, Artifact], ToolResult]:
        async with await sandbox.open({"train.csv": train, "test.csv": test}) as workspace:
            left = await workspace.run(HOSTILE)
            found = await inspect(workspace, paths, SPEC, tables)
            return left, found, await workspace.run("import os; print(sorted(os.listdir('/tmp')))")

    left, found, after = asyncio.run(scenario())
    assert left.ok, left.stderr
    assert {found[path].status for path in PICKLES} == {"unverifiable"}
    assert all("no class of numpy" in found[path].problem for path in PICKLES)
    assert {found[path].status for path in ("submission.csv", "table.csv")} == {"invalid"}
    assert (after.stdout, after.files) == ("[]\n", ())
