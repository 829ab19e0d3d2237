"""Genuine pickles load, other names do not, and what a pickle can do with the allowed names is limited."""

from __future__ import annotations

import copyreg
import gzip
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from joblib.numpy_pickle import NumpyArrayWrapper
from pandas.core.indexes.base import _new_Index
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, StackingRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.metrics._scorer import _Scorer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import Bunch

from mappa_envs.dsbench import safe_pickle
from mappa_envs.dsbench.inspector import examine
from mappa_envs.dsbench.pickle_checks import Fault, Refused
from mappa_envs.dsbench.safe_pickle import load

# As in the sandbox, where agents have no pyarrow to keep words in.
pd.set_option("mode.string_storage", "python")

MEMORY = {"data": (4096, False), "shape": (8,), "typestr": "|u1", "version": 3}
"""What numpy takes for its own memory when an object offers it as `__array_interface__`."""

REBUILD = copyreg._reconstructor  # type: ignore[attr-defined]


class Call:
    """Pickles as a call, and as what follows a call in a pickle: a state."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


def made(kind: type, state: Any) -> Call:
    """An object of the class with exactly this state."""
    return Call(REBUILD, kind, object, None, state=state)


def dtype(*state: Any, text: str = "V8") -> Call:
    return Call(np.dtype, text, False, True, state=(3, "|", None, *state))


def fields(offset: int, kind: str, size: int) -> tuple[Any, ...]:
    return ("a",), {"a": (np.dtype(kind), offset)}, size, 1


GENERATOR = np.random._pickle.__generator_ctor  # type: ignore[attr-defined]
FRAME = {"_typ": "dataframe", "_metadata": [], "attrs": {}}
ATTACKS = {
    "memory by attribute": (made(LogisticRegression, {"__array_interface__": MEMORY}), "__array_interface__"),
    "memory by slot": (made(LogisticRegression, (None, {"__array_struct__": 1})), "__array_struct__"),
    "memory by item": (Bunch(__array_interface__=MEMORY), "__array_interface__"),
    "memory by base": (Call(REBUILD, Bunch, dict, {"__array_interface__": MEMORY}), "base class"),
    "pointers from a buffer": (Call(np.ndarray, (1,), object, b"12345678"), "a call of ndarray"),
    "pointers from a hidden field": (dtype(*fields(0, "O", 8), 0), "broken dtype"),
    "pointers from flags": (dtype(None, None, -1, -1, 0, text="O8"), "broken dtype"),
    "objects that are none": (dtype(None, None, -1, -1, 63, text="f8"), "broken dtype"),
    "a call of an object": (Call(RBF(), [[1.0]]), "a call of RBF"),
    "a call of an object by a maker": (Call(GENERATOR, 1, RBF()), "with a function"),
    "a call of a scorer": (Call(roc_auc_score, [0, 1], [0, 1]), "a call of roc_auc_score"),
    "a call with keywords": (Call(_new_Index, LogisticRegression, {}), "for another class"),
    "a method replaced": (made(LogisticRegression, {"predict": np.log1p}), "method replaced"),
    "__setstate__ replaced": (made(LogisticRegression, {"__setstate__": np.log1p}), "__setstate__"),
    "a constructor as a step": (FunctionTransformer(np.ndarray), "the class ndarray"),
    "a decoder as a step": (FunctionTransformer(str, kw_args={"encoding": "latin1"}), "the class str"),
    "a method by name": (made(StackingRegressor, {"stack_method_": ["tofile"]}), "stack_method_"),
    "another method by name": (made(_Scorer, {"_response_method": "__getattribute__"}), "odd"),
    "a table without data": (made(pd.DataFrame, {**FRAME, "_mgr": Bunch(shape=(9, 9))}), "without data"),
    "joblib's dtype in two minds": (
        made(NumpyArrayWrapper, {"dtype": Bunch(hasobject=False), "shape": (1,)}),
        "a broken array",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("protocol", [2, 5])
def test_state_that_would_act_is_refused(name: str, protocol: int, tmp_path: Path) -> None:
    value, problem = ATTACKS[name]
    (tmp_path / "value.pkl").write_bytes(pickle.dumps([value], protocol, fix_imports=False))
    with pytest.raises(Refused, match=problem):
        load(str(tmp_path / "value.pkl"))


def raw(value: Any, *rest: bytes) -> bytes:
    """A pickle of the value, continued."""
    return pickle.dumps(value, 2)[:-1] + b"".join(rest) + b"."


def part(value: Any) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


ARRAY_STATE = (1, (1,), np.dtype("f8"), False, bytes(8))
CONTINUED = {
    "an item of an array": (raw(np.zeros(3), b"K\0K\1s"), "filled like a dict"),
    "items of a table": (raw(pd.DataFrame({"a": [1]}), b"(K\0K\1u"), "filled like a dict"),
    "an append to a model": (raw(LogisticRegression(), b"K\1a"), "filled like a list"),
    "appends to an array": (raw(np.zeros(3), b"(K\1e"), "filled like a list"),
    "additions to an array": (raw(np.zeros(3), b"(K\1\x90"), "filled like a set"),
    "an array set anew": (raw(np.zeros(3), part(ARRAY_STATE), b"b"), "an array"),
    "a new object of an object": (raw(LogisticRegression(), b")\x81"), "a call of LogisticRegression"),
    "the same with keywords": (raw(LogisticRegression(), b")}\x92"), "a call of LogisticRegression"),
    "a function by OBJ": (b"(csklearn.metrics._ranking\nroc_auc_score\nK\1o.", "a call of roc_auc_score"),
    "a function by INST": (b"(K\1isklearn.metrics._ranking\nroc_auc_score\n.", "a call of roc_auc_score"),
    "a name that comes later": (
        raw(LogisticRegression(), b"}S'stack_method_'\n]q\x63sbh\x63S'fit'\na0"),
        "stack_method_",
    ),
    "a module of tests": (b"csklearn.ensemble.tests.test_bagging\nDummyZeroEstimator\n.", "no class of"),
    "a module that runs": (b"cnumpy.f2py.__main__\nmain\n.", "no class of"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUED)
def test_opcodes_on_the_wrong_objects_are_refused(name: str, tmp_path: Path) -> None:
    data, problem = CONTINUED[name]
    (tmp_path / "value.pkl").write_bytes(data)
    with pytest.raises(Refused, match=problem):
        load(str(tmp_path / "value.pkl"))


@pytest.mark.parametrize(
    "data",
    [b"\x80\2\x82\1.", b"\x80\2\x83\1\0.", b"Pname\n.", b"N\x51.", b"\x80\5\x97.", raw(1, b"(" * 100_000)],
    ids=["extension", "long extension", "persistent id", "binary persistent id", "buffer", "marks"],
)
def test_codes_without_a_meaning_here_are_faults(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "value.pkl").write_bytes(data)
    with pytest.raises(Fault):
        load(str(tmp_path / "value.pkl"))


def test_a_dtype_that_arrays_use_does_not_change(tmp_path: Path) -> None:
    """The second state would make each element longer than the memory behind it."""
    plain = np.dtype("V8")
    grow = part((3, "|", None, *fields(0, "f8", 800), 16))
    start = part(plain)
    array = part(np.zeros(2, plain))
    (tmp_path / "value.pkl").write_bytes(b"\x80\2(" + start + b"q\x63" + array + b"h\x63" + grow + b"bl.")
    _, found, grown = load(str(tmp_path / "value.pkl"))
    assert (found.dtype, found.nbytes, grown.itemsize) == (plain, 16, 800)


def test_joblib_arrays_are_read_by_nobody_else(tmp_path: Path) -> None:
    state = part({"dtype": np.dtype("f8"), "shape": (1,), "order": "C", "read": np.log1p})
    start = b"\x80\2cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81" + state + b"b"
    (tmp_path / "value.pkl").write_bytes(start + np.ones(1).tobytes() + b".")
    assert load(str(tmp_path / "value.pkl")).tolist() == [1.0]


@pytest.mark.parametrize("opener", ["gzip", "zlib", "xz", "bz2"])
def test_what_unpacks_to_too_much_is_a_fault(
    opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.pkl"
    joblib.dump(bytes(1 << 20), path, compress=(opener, 3))
    assert load(str(path)) == bytes(1 << 20)
    monkeypatch.setattr(safe_pickle, "MAX_BYTES", 100_000)
    with pytest.raises(Fault, match="more than 100000 bytes"):
        load(str(path))
    path.write_bytes(gzip.compress(b"x")[:-9])
    with pytest.raises(Fault, match="cannot be unpickled"):
        load(str(path))


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


@pytest.mark.parametrize(
    "value",
    [
        Call(eval, "1"), Call(getattr, 1, "real"), Call(open, "x"), Call(__import__, "os"),
        Call(np.load, "x"), Call(np.memmap, "x"), Call(np.apply_along_axis, print, 0, [1]),
        Call(pd.read_pickle, "x"), Call(pd.eval, "1"), Call(joblib.load, "x"),
        Call(type, "x", (), {}), Call(np.vectorize, print),
    ],
    ids=lambda value: value.parts[0].__name__,
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


def test_a_librarys_words_about_an_agents_names_steer_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"x": [0.0, 1.0, 2.0]})
    table.rename(columns={"x": "\x1b[2J\ud800x"}).to_pickle("X_test.pkl")
    pd.to_pickle(LogisticRegression().fit(table, [0, 1, 1]), "model.pkl")
    found = examine({"path": "model.pkl", "family": "label", "targets": ["y"]})
    assert found["status"] == "invalid"
    assert "unseen at fit time: - \ufffd[2J\ufffdx" in found["problem"]
