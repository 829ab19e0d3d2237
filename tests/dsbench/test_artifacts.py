"""Inspection finds flaws, never runs what a pickle asks for, and loses one file at a time."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from inspection_bench import Bench, TinyTask
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from mappa_envs.dsbench.safe_pickle import Fault, Refused, load
from mappa_envs.testing.expert import expert_code

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
        "s['guess'] = 'red'": ("invalid", "lacks the column 'kind'"),
        "s['kind'] = ['red'] * 19 + [None]": ("invalid", "1 cells"),
        "s['kind'] = 0": ("invalid", "the labels are 'blue', 'red'"),
        "s['id'] = range(20); s['kind'] = 'red'": ("invalid", "the ids of submission.csv are not those"),
        "s = s[:5]; s['kind'] = 'red'": ("invalid", "has 5 rows, test.csv has 20"),
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


def _genuine() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 3)), columns=list("abc"))
    y = pd.Series(np.where(X.a > 0, "yes", "no"))
    table = X.assign(
        s=y, c=pd.Categorical(y), t=pd.Timestamp("2020-01-01"), i=pd.array([1] * 40, dtype="Int64")
    )
    return {
        "frame": table,
        "indexed": table.set_index(["s", "t"]),
        "text": y,
        "objects": y.to_numpy(dtype=object),
        "forest": RandomForestClassifier(3, random_state=0).fit(X, y),
        "boosting": HistGradientBoostingRegressor(max_iter=3).fit(X, X.a),
        "pipeline": make_pipeline(StandardScaler(), FunctionTransformer(np.tanh), LogisticRegression()).fit(
            X, y
        ),
    }


@pytest.mark.parametrize("name", ["frame", "indexed", "text", "objects", "forest", "boosting", "pipeline"])
@pytest.mark.parametrize("writer", ["protocol 2", "protocol 5", "joblib", "joblib compressed"])
def test_genuine_pickles_load(name: str, writer: str, tmp_path: Path) -> None:
    value, path = _genuine()[name], tmp_path / "value.pkl"
    if writer.startswith("protocol"):
        path.write_bytes(pickle.dumps(value, int(writer[-1])))
    else:
        joblib.dump(value, path, compress=3 if "compressed" in writer else 0)
    found = load(str(path))
    assert type(found) is type(value)
    if isinstance(value, (pd.DataFrame, pd.Series)):
        assert found.equals(value)


class Call:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Call(eval, "1"), Call(getattr, 1, "real"), Call(open, "x"), Call(__import__, "os"),
        Call(np.load, "x"), Call(np.memmap, "x"), Call(np.apply_along_axis, print, 0, [1]),
        Call(pd.read_pickle, "x"), Call(pd.eval, "1"), Call(joblib.load, "x"),
        Call(type, "x", (), {}), Call(np.vectorize, print),
    ],
    ids=lambda value: value.call[0].__name__,
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_dangerous_names_are_refused_also_inside_joblib_arrays(
    value: Call, nested: bool, tmp_path: Path
) -> None:
    path = tmp_path / "value.pkl"
    if nested:
        joblib.dump(np.array([value, 1], dtype=object), path)
    else:
        path.write_bytes(pickle.dumps(value))
    with pytest.raises(Refused):
        load(str(path))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x04\x8c\x0csklearn.tree\x8c\x09os.system\x93.",
        b"csklearn.tree\nDecisionTreeClassifier\n(N}S'predict'\ncnumpy\nlog1p\nstb.",
        b"csklearn.ensemble._forest\nParallel\n.",
        b"cpandas.io.common\nBytesIO\n.",
        b"cnumpy\nf2py\n.",
        b"csklearn.metrics._ranking\n__builtins__\n(S'isinstance'\ncbuiltins\nslice\nu.",
        b"csklearn.metrics._ranking\n_ndcg_sample_scores\n.",
        b"csklearn.metrics._regression\nxlogy\n.",
    ],
)
def test_dotted_names_patches_and_re_exports_are_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "value.pkl").write_bytes(raw)
    with pytest.raises(Refused):
        load(str(tmp_path / "value.pkl"))


def test_broken_bytes_are_a_fault(tmp_path: Path) -> None:
    whole = io.BytesIO()
    pickle.dump(pd.DataFrame({"a": [1]}), whole)
    for data in (b"", b"hello", whole.getvalue()[:-9]):
        (tmp_path / "value.pkl").write_bytes(data)
        with pytest.raises(Fault):
            load(str(tmp_path / "value.pkl"))
