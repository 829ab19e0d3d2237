"""Inspection finds flaws, never runs what a pickle asks for, and loses one file at a time."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inspection_bench import Bench, TinyTask, tiny_task

from mappa_envs.dsbench import worker_script
from mappa_envs.dsbench.artifacts import inspect, stale
from mappa_envs.dsbench.pickle_checks import Fault
from mappa_envs.dsbench.safe_pickle import load
from mappa_envs.testing import FakeSandbox
from mappa_envs.testing.expert import expert_code
from mappa_envs.types import Artifact

LOAD = """
import os, pickle
import numpy as np, pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
X, T, y = train[["x", "y"]].fillna(0.5), test[["x", "y"]].fillna(0.5), train["kind"]
"""
SAVE = """
for name, value in {"X_train": X, "X_test": T, "y_train": y}.items():
    pd.to_pickle(value, name + ".pkl")
"""
FLAWS = {
    "X_train.pkl": [
        ("X = X.assign(kind=y)", "contains the target 'kind'"),
        ("X = train[['x', 'city']]", "columns that are no numbers: 'city'"),
        ("X = X[:20]", "has 20 rows, train.csv has 80"),
        ("X = X / 0", "infinite"),
        ("X = X.assign(z=y.astype('category').cat.codes)", "contains the target, as its column 'z'"),
        ("X = X.assign(z=pd.factorize(y)[0])", "contains the target, as its column 'z'"),
        ("X = X['x']", "holds a Series"),
        ("X = {'X': 1}", "holds a dict"),
    ],
    "X_test.pkl": [
        ("T = T[['x']]", "X_test.pkl has 1 columns, X_train.pkl has 2"),
        ("T = T[['y', 'x']]", "another order"),
        ("T = T.rename(columns={'x': 'z'})", "X_train.pkl lacks 'z'"),
        ("T = T[:-1]", "has 19 rows, test.csv has 20"),
    ],
    "y_train.pkl": [
        ("y = y[:-5]", "has 75 rows, X_train.pkl has 80"),
        ("y = y.where(y == 'red')", "missing values"),
        ("y = train['x']", "holds the column 'x', not the target 'kind'"),
        ("y = np.zeros(80)", "the same value in every row"),
        ("y = np.arange(80)", "has 80 different values, the target 'kind' of train.csv has 2"),
        ("y = y.replace('red', 'green')", "the values 'green', which the target 'kind' never has"),
    ],
}


@pytest.mark.parametrize(("path", "code", "problem"), [(p, *f) for p, fs in FLAWS.items() for f in fs])
def test_a_flawed_table_is_invalid(path: str, code: str, problem: str, task: TinyTask, bench: Bench) -> None:
    result, found = bench.look(task, LOAD + code + SAVE, [path])
    assert result.ok, result.stderr
    assert found[path].status == "invalid"
    assert problem in found[path].problem


def test_remarks_leave_a_table_valid(task: TinyTask, bench: Bench) -> None:
    code = LOAD + "X, T = train[['id', 'y']], test[['id', 'y']]; y = (y == 'red').astype(int)" + SAVE
    _, found = bench.look(task, code, ["X_train.pkl", "X_test.pkl", "y_train.pkl"])
    assert {a.status for a in found.values()} == {"valid"}
    assert found["X_train.pkl"].nan_share == pytest.approx(8 / 160)
    assert "keeps the id column 'id'" in found["X_train.pkl"].problem
    assert found["X_train.pkl"].shape == (80, 2)
    assert found["y_train.pkl"].problem == ""


@pytest.mark.parametrize(
    "code",
    [
        "X, T = X * 0, T * 0",
        "X, T = np.ones((80, 3)), np.ones((20, 3))",
        "import scipy.sparse as s; X, T = s.csr_matrix((80, 3)), s.csr_array((20, 3))",
    ],
)
def test_features_that_never_vary_are_remarked(code: str, task: TinyTask, bench: Bench) -> None:
    _, found = bench.look(task, f"{LOAD}{code}\n{SAVE}", ["X_train.pkl", "X_test.pkl"])
    for artifact in found.values():
        assert (artifact.status, artifact.problem[:28]) == ("valid", "none of its columns varies: ")


SIZES = LOAD.replace('"kind"', '"size"')


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("X = X.assign(z=y)", "invalid"),
        ("X = np.c_[X, y]", "invalid"),
        ("import scipy.sparse as s; X = s.csr_matrix(np.c_[X, y])", "invalid"),
        ("X = X.assign(z=y[::-1].to_numpy())", "valid"),
        ("X = X.assign(z=y)[1:]; y = y[1:]", "valid"),
    ],
)
def test_a_copy_of_the_target_under_another_name(
    code: str, status: str, tmp_path: Path, bench: Bench
) -> None:
    found = bench.look(tiny_task("rmsle", tmp_path), f"{SIZES}{code}\n{SAVE}", ["X_train.pkl"])[1]
    assert found["X_train.pkl"].status == status
    assert ("contains the target" in found["X_train.pkl"].problem) is (status == "invalid")


def test_a_given_column_that_equals_the_target_may_be_used(tmp_path: Path, bench: Bench) -> None:
    task = tiny_task("rmsle", tmp_path)
    train = task.files["train.csv"]
    head, *rows = train.read_text().splitlines()
    copied = [f"{row},{row.split(',')[-1]}" for row in rows]
    train.write_text("\n".join([f"{head},length", *copied]) + "\n")
    found = bench.look(task, f"{SIZES}X = X.assign(z=train['length'])\n{SAVE}", ["X_train.pkl"])[1]
    assert (found["X_train.pkl"].status, found["X_train.pkl"].shape) == ("valid", (80, 3))


@pytest.mark.parametrize("code", ["y = np.log1p(y)", "y = (y - y.mean()) / y.std()", "y = y.round()"])
def test_a_transformed_target_is_valid(code: str, tmp_path: Path, bench: Bench) -> None:
    found = bench.look(tiny_task("rmsle", tmp_path), f"{SIZES}{code}\n{SAVE}", ["y_train.pkl"])[1]
    assert (found["y_train.pkl"].status, found["y_train.pkl"].problem) == ("valid", "")


def test_models(task: TinyTask, bench: Bench) -> None:
    fits = {
        "DummyClassifier().fit(X, y)": ("valid", "the same value for every row"),
        "LogisticRegression()": ("invalid", "NotFittedError"),
        "LogisticRegression().fit(X[['x']], y)": ("invalid", "raises ValueError"),
        "{'model': LogisticRegression().fit(X, y)}": ("invalid", "holds a dict, which has no predict()"),
        "Mine()": ("unverifiable", "__main__.Mine"),
    }
    head = (
        LOAD
        + SAVE
        + "from sklearn.dummy import *\nfrom sklearn.linear_model import *\nclass Mine:\n    pass\n"
    )
    for fit, (status, problem) in fits.items():
        result, found = bench.look(task, f"{head}pd.to_pickle({fit}, 'model.pkl')", ["model.pkl"])
        assert result.ok, result.stderr
        assert (found["model.pkl"].status, problem in found["model.pkl"].problem) == (status, True), fit


def test_submissions(task: TinyTask, bench: Bench) -> None:
    changes = {
        "s['kind'] = 'red'": ("valid", ""),
        "s = s.iloc[::-1]; s['kind'] = 'red'": ("valid", ""),
        "s['guess'] = 'red'": ("invalid", "no column 'kind'"),
        "s['kind'] = ['red'] * 19 + [None]": ("invalid", "1 of 20 cells"),
        "s['kind'] = 0": ("invalid", "must be one of blue, red; got 0"),
        "s['id'] = range(20); s['kind'] = 'red'": ("invalid", "20 of 20 ids of test.csv are missing"),
        "s = s[:5]; s['kind'] = 'red'": ("invalid", "15 of 20 ids of test.csv are missing"),
        "s = s[:5]; s['kind'] = 'red'; os.remove('test.csv')": ("invalid", "has 5 rows, test.csv has 20"),
        "s['id'] += 1; s['kind'] = 'red'; os.remove('test.csv')": ("invalid", "are not those of test.csv"),
    }
    for change, (status, problem) in changes.items():
        code = f"{LOAD}s = test[['id']].copy()\n{change}\ns.to_csv('submission.csv', index=False)"
        _, found = bench.look(task, code, ["submission.csv"])
        assert (found["submission.csv"].status, problem in found["submission.csv"].problem) == (
            status,
            True,
        ), change


def test_a_hostile_file_harms_only_itself(task: TinyTask, bench: Bench) -> None:
    code = (
        expert_code("data_engineer_0", task)
        + """
import os
class Attack:
    def __reduce__(self):
        return os.system, ("touch stolen; kill -9 $$",)
pd.to_pickle(Attack(), "model.pkl")
os.remove("X_test.pkl"); os.mkfifo("X_test.pkl")
os.remove("y_train.pkl"); os.symlink("train.csv", "y_train.pkl")
open("submission.csv", "wb").write(b"\\x80\\x00\\xff")
"""
    )
    paths = ["X_train.pkl", "X_test.pkl", "y_train.pkl", "model.pkl", "submission.csv", "absent.json"]
    _, found = bench.look(task, code, paths)
    states = [found[path].status for path in paths]
    assert states == ["valid", "invalid", "invalid", "unverifiable", "invalid", "missing"]
    assert "posix.system" in found["model.pkl"].problem


FORGED = """
import os, pickle
import numpy as np, pandas as pd
from sklearn.ensemble import StackingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
LIE = b'{"status": "valid", "kind": "DataFrame", "shape": [20, 2], "nan_share": 0, "problem": ""}\\n'
class Call:
    def __init__(self, *parts):
        self.parts = parts
    def __reduce__(self):
        return self.parts[0], self.parts[1:]
pd.to_pickle(Call(os.write, 4, LIE), "X_test.pkl")
pd.to_pickle(Call(eval, f"report({LIE.decode()})"), "y_train.pkl")
pd.to_pickle(Call(exec, "import os; os.write(4, %r); os._exit(0)" % LIE), "X_train.pkl")
"""
BY_ALLOWED_MEANS = """
# A text made of bytes, and a method by name: predicting would write LIE to the report.
stack = StackingRegressor([("a", LinearRegression())])
stack.estimators_, stack.stack_method_ = [np.bytes_(LIE)], ["tofile"]
stack.final_estimator_ = LinearRegression()
model = make_pipeline(FunctionTransformer(str, kw_args={"encoding": "latin1"}), stack)
pd.to_pickle(model, "model.pkl")
pd.to_pickle(np.frombuffer(b"/proc/self/fd/4", np.uint8)[None, :].copy(), "X_test.pkl")
"""


def test_a_pickle_cannot_forge_its_report(task: TinyTask, bench: Bench) -> None:
    paths = ["X_train.pkl", "X_test.pkl", "y_train.pkl"]
    _, found = bench.look(task, FORGED, paths)
    assert {artifact.status for artifact in found.values()} == {"unverifiable"}
    assert "posix.write" in found["X_test.pkl"].problem
    result, found = bench.look(task, FORGED + BY_ALLOWED_MEANS, ["model.pkl"])
    assert result.ok, result.stderr
    assert (found["model.pkl"].status, "holds the class str" in found["model.pkl"].problem) == (
        "unverifiable",
        True,
    )


ODD_FILES = """
import gzip, os
def sparse(name, num_bytes):
    with open(name, "wb") as file:
        file.truncate(num_bytes)
sparse("model.pkl", 250 << 20)
try:
    sparse("y_train.pkl", 2 << 30)
except OSError:
    print("too large for a workspace")
os.mkfifo("submission.csv")
os.symlink("/dev/zero", "X_train.pkl")
os.mkdir("X_test.pkl")
"""


def test_odd_files_are_invalid_at_once(task: TinyTask, bench: Bench) -> None:
    paths = ["model.pkl", "y_train.pkl", "submission.csv", "X_train.pkl", "X_test.pkl"]
    result, found = bench.look(task, ODD_FILES, paths)
    assert result.stdout == "too large for a workspace\n"
    assert {path: artifact.status for path, artifact in found.items()} == dict.fromkeys(paths, "invalid")


def test_a_huge_sparse_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "model.pkl", "wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(Fault, match="has 2147483648 bytes, more than"):
        load(str(tmp_path / "model.pkl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("gzip.compress(bytes(1 << 26))", "not UTF-8 text"),
        ("b'id,kind\\n' + b'1' * (30 << 20)", "a cell of more than 131072 characters"),
        ("b'id,kind\\n' * (3 << 20)", "rows repeat an id of column 'id'"),
        ("bytes(33 << 20)", "the limit is 32 MB"),
        ("b'\\0' * 1000", "zero bytes"),
    ],
    ids=["zip bomb", "one line", "many rows", "many bytes", "zeros"],
)
def test_csv_bombs_are_invalid(content: str, problem: str, task: TinyTask, bench: Bench) -> None:
    code = f"import gzip\nopen('submission.csv', 'wb').write({content})"
    result, found = bench.look(task, code, ["submission.csv"])
    assert result.ok, result.stderr
    assert found["submission.csv"].status == "invalid"
    assert problem in found["submission.csv"].problem


ENDLESS = """
import collections, os
import pandas as pd
from sklearn.tree import DecisionTreeRegressor
class Wait:
    def __reduce__(self):
        return collections.deque, (range(10**15), 0)
pd.to_pickle(Wait(), "y_train.pkl")
model = DecisionTreeRegressor().fit(pd.read_pickle("X_train.pkl"), range(80))
state = model.tree_.__getstate__()
state["nodes"]["left_child"] = state["nodes"]["right_child"] = 0
model.tree_.__setstate__(state)
pd.to_pickle(model, "model.pkl")
"""


@pytest.mark.slow
def test_endless_work_ends_and_harms_no_other(task: TinyTask, bench: Bench) -> None:
    async def scenario() -> dict[str, str]:
        async with await bench.sandbox.open(task.files) as workspace:
            result = await workspace.run([expert_code("data_engineer_0", task), ENDLESS])
            assert result.ok, result.stderr
            paths = ["y_train.pkl", "model.pkl"]
            found = await inspect(workspace, paths, task.spec, task.tables, time_s=2.0)
            found |= await inspect(workspace, ["X_train.pkl"], task.spec, task.tables)
            return {path: artifact.status for path, artifact in found.items()}

    statuses = {"y_train.pkl": "unverifiable", "model.pkl": "unverifiable", "X_train.pkl": "valid"}
    assert asyncio.run(scenario()) == statuses


@pytest.mark.parametrize(
    ("path", "report", "status"),
    [
        ("X_train.pkl", {"shape": [80, 2]}, "valid"),
        ("X_train.pkl", {"shape": [40, 2]}, "valid"),
        ("X_train.pkl", {"shape": [39, 2]}, "unverifiable"),
        ("X_train.pkl", {"shape": [80]}, "unverifiable"),
        ("X_test.pkl", {"shape": [20, 1]}, "valid"),
        ("X_test.pkl", {"shape": [19, 1]}, "unverifiable"),
        ("X_test.pkl", {"shape": [20, 0]}, "unverifiable"),
        ("X_test.pkl", {"shape": [20, True]}, "unverifiable"),
        ("X_test.pkl", {}, "unverifiable"),
        ("X_test.pkl", {"shape": [19, 1], "status": "invalid"}, "invalid"),
        ("y_train.pkl", {"shape": [80]}, "valid"),
        ("y_train.pkl", {"shape": [60, 1]}, "valid"),
        ("y_train.pkl", {"shape": [80, 2]}, "unverifiable"),
        ("y_train.pkl", {"shape": [0]}, "unverifiable"),
        ("y_train.pkl", {"shape": []}, "unverifiable"),
        ("submission.csv", {"shape": [20, 2]}, "valid"),
        ("submission.csv", {"shape": [21, 2]}, "unverifiable"),
        ("submission.csv", {"shape": [20, 1]}, "unverifiable"),
        ("model.pkl", {}, "valid"),
        ("model.pkl", {"shape": "x", "nan_share": "nan", "kind": 3, "problem": [1], "more": {}}, "valid"),
        ("model.pkl", {"status": ["valid"]}, "unverifiable"),
    ],
)
def test_a_report_that_contradicts_the_tables_is_not_believed(
    path: str, report: dict[str, Any], status: str, task: TinyTask
) -> None:
    async def scenario() -> Artifact:
        sandbox = FakeSandbox(inspector=lambda script, files: {"status": "valid", **report})
        return (await inspect(await sandbox.open(), [path], task.spec, task.tables))[path]

    found = asyncio.run(scenario())
    assert found.status == status
    if status == "unverifiable" and report.get("status") is None:
        assert "contradicts" in found.problem


@pytest.mark.parametrize("report", [None, 1, "valid", ["valid"], {}, {"status": None}])
def test_what_is_no_report_is_unverifiable(report: Any, task: TinyTask) -> None:
    async def scenario() -> Artifact:
        sandbox = FakeSandbox(inspector=lambda script, files: report)
        return (await inspect(await sandbox.open(), ["model.pkl"], task.spec, task.tables))["model.pkl"]

    assert asyncio.run(scenario()).status == "unverifiable"


@pytest.mark.parametrize("shape", [[3] * 10_000, [10**4300], [-1], ["3"], "33"])
def test_a_shape_that_nothing_has_is_dropped(shape: Any, task: TinyTask) -> None:
    async def scenario() -> Artifact:
        sandbox = FakeSandbox(inspector=lambda script, files: {"status": "valid", "shape": shape})
        return (await inspect(await sandbox.open(), ["model.pkl"], task.spec, task.tables))["model.pkl"]

    assert asyncio.run(scenario()).shape is None


def test_overwriting_the_inputs_changes_no_verdict(task: TinyTask, bench: Bench) -> None:
    code = LOAD + "T = T[:3]" + SAVE + "test[:3].to_csv('test.csv', index=False)"
    _, found = bench.look(task, code, ["X_test.pkl"])
    assert found["X_test.pkl"].problem == "X_test.pkl has 3 rows, test.csv has 20"


def test_a_module_in_the_workspace_is_not_imported_by_the_inspector(task: TinyTask, bench: Bench) -> None:
    trap = "open('fractions.py', 'w').write('raise SystemExit')\n"
    save = "open('value.pkl', 'wb').write(b'cfractions\\nFraction\\n(S\"1/2\"\\ntR.')\n"
    copy = "import os; os.replace('value.pkl', 'model.pkl')"
    _, found = bench.look(task, trap + save + copy, ["model.pkl"])
    assert found["model.pkl"].problem.startswith("model.pkl holds a Fraction")


ALL = ["X_train.pkl", "X_test.pkl", "y_train.pkl", "model.pkl", "submission.csv"]


@pytest.mark.parametrize(
    ("touched", "there", "again"),
    [
        (set(), ALL, []),
        ({"notes.txt"}, ALL, []),
        ({"submission.csv"}, ALL, ALL[4:]),
        ({"model.pkl"}, ALL, ALL[3:]),
        ({"y_train.pkl"}, ALL, ALL),
        ({"test.csv"}, ALL, ALL),
        (set(ALL[:3]), [], ALL[:3]),
        ({"model.pkl/a.txt", "train.txt"}, ALL[:3], ALL[3:4]),
        ({"X_test.pkl", "model.pkl"}, ALL[:3], ALL[:4]),
    ],
)
def test_looked_at_again_is_what_may_have_changed(
    touched: set[str], there: list[str], again: list[str]
) -> None:
    known = {p: Artifact(path=p, status="valid" if p in there else "missing") for p in ALL}
    assert stale(known, touched) == again
    known["y_train.pkl"] = Artifact(path="y_train.pkl", status="unverifiable")
    assert stale(known, touched) == [p for p in ALL if p in again or p == "y_train.pkl"]


def test_facts_that_came_late_are_not_lost(task: TinyTask, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"X_train.pkl": {"signal": 0.5}, "model.pkl": {"fitted": 0.9}, "X_test.pkl": {"kept": 0.1}}

    async def measure(*_: Any) -> dict[str, dict[str, float]]:
        return measured

    monkeypatch.setattr("mappa_envs.dsbench.facts.measure", measure)

    async def scenario() -> dict[str, Artifact]:
        sandbox = FakeSandbox(inspector=lambda script, files: {"status": "valid"})
        known = {p: Artifact(path=p, status="valid", written_by=0) for p in ALL[:3]}
        known["X_test.pkl"] = replace(known["X_test.pkl"], facts={"kept": 0.8})
        workspace = await sandbox.open()
        return await inspect(workspace, ["model.pkl"], task.spec, task.tables, known=known)

    found = asyncio.run(scenario())
    assert found.keys() == {"model.pkl", "X_train.pkl"}
    assert found["model.pkl"].facts == {"fitted": 0.9}
    assert (found["X_train.pkl"].facts, found["X_train.pkl"].written_by) == ({"signal": 0.5}, 0)


@pytest.mark.parametrize("magic", [None, b"of another Python"])
def test_the_script_needs_no_interpreter_of_the_same_version(magic: bytes | None, tmp_path: Path) -> None:
    text = worker_script.script("examine", {"path": str(tmp_path / "no.pkl")})
    if magic is not None:
        text = text.replace(repr(importlib.util.MAGIC_NUMBER), repr(magic))
        assert repr(magic) in text
    code = f"report = lambda found: print(found['status'])\n{text}"
    done = subprocess.run([sys.executable], input=code, capture_output=True, text=True, check=True)
    assert done.stdout == "missing\n"
