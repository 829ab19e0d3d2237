"""Runs inside the sandbox: looks at one artifact and says what is wrong with it.

The host never runs this on a workspace. `artifacts` sends the source text of this file, and of the modules of
this project that it imports, to a throw-away worker, which calls `examine(job)`. So none of them may import
anything but what the sandbox has and each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mappa_envs.dsbench.given_tables import read_table
from mappa_envs.dsbench.metrics import metric, score
from mappa_envs.dsbench.pickle_checks import Fault, Refused
from mappa_envs.dsbench.predictions import Expected, check_cells, spelling
from mappa_envs.dsbench.safe_pickle import is_plain, load, read_bytes
from mappa_envs.dsbench.submission import Invalid, canonical, content, decode, match, parse


def some(names: Any, limit: int = 4) -> str:
    """A short list of names that an agent chose."""
    names = [repr(str(name)[:30]) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


class Features:
    """A table of features: `shape`, `columns` (None for an array), `numbers` by column and missing share."""

    def __init__(self, path: str) -> None:
        import numpy as np
        import pandas as pd
        import scipy.sparse

        value = load(path)
        self.kind, self.value = type(value).__name__, value
        self.numbers: Iterable[Any] = ()
        self.columns: list[str] | None = None
        if isinstance(value, pd.DataFrame):
            self.columns = [str(column) for column in value.columns]
            self.text = [c for c, kind in zip(self.columns, value.dtypes, strict=True) if not _number(kind)]
            self.shape: tuple[int, ...] = value.shape
            self.nan = float(value.isna().to_numpy().mean()) if value.size else 0.0
            wanted = [i for i, kind in enumerate(value.dtypes) if _number(kind)]
            self.numbers = [value.iloc[:, i].to_numpy(float, na_value=np.nan) for i in wanted]
            self.infinite = any(bool(np.isinf(column).any()) for column in self.numbers)
            return
        if scipy.sparse.issparse(value):
            array, shape = value.data, value.shape
        else:
            if not isinstance(value, (np.ndarray, list, tuple)):
                raise Fault(f"{path} holds a {self.kind}; save a DataFrame or a two-dimensional array")
            array = np.asarray(value)
            shape = array.shape
        self.shape, self.text = tuple(int(n) for n in shape), []
        if array.dtype.kind not in "biuf":
            self.text = [f"dtype {array.dtype}"]
        elif len(self.shape) == 2:
            self.numbers = value.tocsc().T if scipy.sparse.issparse(value) else array.T
        self.nan = float(pd.isna(array).sum() / max(1, math.prod(self.shape)))
        self.infinite = array.dtype.kind == "f" and bool(np.isinf(array).any())


def _number(kind: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    return bool((is_numeric_dtype(kind) or is_bool_dtype(kind)) and not is_complex_dtype(kind))


def features(job: dict[str, Any], out: dict[str, Any]) -> None:
    path, train = job["path"], job["path"] == "X_train.pkl"
    table = Features(path)
    out.update(kind=table.kind, shape=list(table.shape), nan_share=table.nan)
    if len(table.shape) != 2:
        raise Fault(f"{path} has {len(table.shape)} dimension(s), it must be rows x columns")
    rows, width = table.shape
    if not width or not rows:
        raise Fault(f"{path} has no {'columns' if rows else 'rows'}")
    _check_rows(path, rows, job, train)
    leaked = [name for name in table.columns or [] if name in job["hidden"]]
    if leaked:
        raise Fault(f"{path} contains the target {some(leaked)}; drop it from the features")
    if table.text:
        raise Fault(f"{path} has columns that are no numbers: {some(table.text)}; encode or drop them")
    if table.infinite:
        raise Fault(f"{path} contains infinite values")
    if not train and os.path.lexists("X_train.pkl"):
        _same_columns(table)
    remarks = []
    if train:
        _not_the_target(path, table, job)
    if rows > 1 and not any(_varies(column) for column in _dense(table)):
        remarks.append("none of its columns varies: nothing can be learned from it")
    if table.nan:
        remarks.append(f"{table.nan:.1%} of its cells are missing")
    if job["id"] in (table.columns or []):
        remarks.append(f"it keeps the id column {job['id']!r} as a feature")
    if train and rows != job["train_rows"]:
        remarks.append(f"it has {rows} rows, train.csv has {job['train_rows']}")
    out["problem"] = "; ".join(remarks)


def _dense(table: Features) -> Iterator[Any]:
    """Its columns, one after the other, as arrays."""
    import numpy as np

    for column in table.numbers:
        yield np.asarray(column.toarray() if hasattr(column, "toarray") else column, dtype=float).ravel()


def _varies(column: Any) -> bool:
    import numpy as np

    return not np.array_equal(column, np.full_like(column, column[0]), equal_nan=True)


def _not_the_target(path: str, table: Features, job: dict[str, Any]) -> None:
    """Is a feature, value for value, the target of train.csv or its usual codes, and no other column?"""
    import numpy as np
    import pandas as pd

    train = read_table("train.csv", job)
    if train is None or table.shape[0] != len(train):
        return
    given: list[Any] = []
    secret: list[Any] = []
    for name, column in train.items():
        words = not _number(column.dtype)
        kinds = (pd.Categorical(column).codes, pd.factorize(column)[0]) if words else (column,)
        (secret if name in job["hidden"] else given).extend(np.asarray(kind, dtype=float) for kind in kinds)
    secret = [values for values in secret if not any(np.array_equal(values, other) for other in given)]
    for at, column in enumerate(_dense(table)):
        if any(np.array_equal(column, values) for values in secret):
            name = table.columns[at] if table.columns else str(at)
            raise Fault(f"{path} contains the target, as its column {some([name])}; drop it")


def _check_rows(path: str, rows: int, job: dict[str, Any], train: bool) -> None:
    wanted = job["train_rows"] if train else job["test_rows"]
    if (2 * rows < wanted) if train else (rows != wanted):
        raise Fault(f"{path} has {rows} rows, {'train' if train else 'test'}.csv has {wanted}")


def _same_columns(test: Features) -> None:
    try:
        train = Features("X_train.pkl")
    except (Fault, Refused):
        return
    if len(train.shape) == 2 and train.shape[1] != test.shape[1]:
        raise Fault(f"X_test.pkl has {test.shape[1]} columns, X_train.pkl has {train.shape[1]}")
    if train.columns and test.columns and train.columns != test.columns:
        odd = [c for c in test.columns if c not in train.columns]
        hint = f": X_train.pkl lacks {some(odd)}" if odd else " (another order)"
        raise Fault(f"X_test.pkl and X_train.pkl have different columns{hint}")


def target(job: dict[str, Any], out: dict[str, Any]) -> None:
    import numpy as np
    import pandas as pd

    path = job["path"]
    value = load(path)
    out["kind"] = type(value).__name__
    if not isinstance(value, (pd.DataFrame, pd.Series, pd.Index, np.ndarray, list, tuple)):
        raise Fault(f"{path} holds a {out['kind']}; save the target column as a Series")
    if isinstance(value, (pd.DataFrame, pd.Series)):
        frame = pd.DataFrame(value)
    else:
        array = np.asarray(value)
        if array.ndim not in (1, 2):
            raise Fault(f"{path} has {array.ndim} dimensions")
        frame = pd.DataFrame(array)
    rows, width = frame.shape
    missing = frame.isna().to_numpy()
    out.update(
        shape=list(getattr(value, "shape", (rows,))), nan_share=float(missing.mean()) if missing.size else 0.0
    )
    if width not in (1, len(job["targets"])) or (width == 1 and not rows):
        raise Fault(f"{path} has {width} columns and {rows} rows; it must hold the target and nothing else")
    if missing.any():
        raise Fault(f"{path} has {int(missing.sum())} missing values")
    _target_rows(path, rows, job)
    if rows > 1 and (frame.nunique(dropna=False) < 2).all():
        raise Fault(f"{path} has the same value in every row: it is not the target")
    _check_values(path, frame, job)
    if rows != job["train_rows"]:
        out["problem"] = f"it has {rows} rows, train.csv has {job['train_rows']}"


def _target_rows(path: str, rows: int, job: dict[str, Any]) -> None:
    wanted, where = job["train_rows"], "train.csv"
    if os.path.lexists("X_train.pkl"):
        with contextlib.suppress(Fault, Refused, IndexError):
            wanted, where = Features("X_train.pkl").shape[0], "X_train.pkl"
    if rows != wanted:
        raise Fault(f"{path} has {rows} rows, {where} has {wanted}")


def _check_values(path: str, frame: Any, job: dict[str, Any]) -> None:
    """Can these be values of the target, as they are, encoded or transformed?"""
    train = read_table("train.csv", job)
    if train is None or frame.shape[1] > 1:
        return
    if len(frame) == len(train):
        mine = frame.iloc[:, 0].astype(str).tolist()
        same = [str(c) for c in train.columns if train[c].astype(str).tolist() == mine]
        if same and not set(same) & set(job["hidden"]):
            raise Fault(f"{path} holds the column {some(same, 1)}, not the target {some(job['hidden'])}")
    names = [name for name in train.columns if name in job["hidden"]]
    if len(names) != 1:
        return
    true, values = train[names[0]], frame.iloc[:, 0]
    if true.isna().any():
        return  # who fills gaps makes new values
    if values.nunique() > true.nunique():
        raise Fault(
            f"{path} has {values.nunique()} different values, the target {names[0]!r} of train.csv has "
            f"{true.nunique()}"
        )
    # Numbers may be codes or a transform of the target; words are its own or wrong.
    if not _number(values.dtype):
        odd = sorted(set(map(canonical, values.astype(str))) - set(map(canonical, true.astype(str))))
        if odd:
            raise Fault(f"{path} has the values {some(odd)}, which the target {names[0]!r} never has")


def model(job: dict[str, Any], out: dict[str, Any]) -> None:
    import numpy as np

    path = job["path"]
    value = load(path)
    out["kind"] = type(value).__name__
    if not hasattr(type(value), "predict"):
        raise Fault(f"{path} holds a {out['kind']}, which has no predict(); save the fitted model itself")
    try:
        table: Features | None = Features("X_test.pkl")
    except (Fault, Refused):
        table = None
    if table is None:
        _check_fitted(path, value)
        out["problem"] = "X_test.pkl cannot be read, so predict() was not tried"
        return
    try:
        found = np.asarray(value.predict(table.value))
    except Exception as error:  # an estimator raises anything
        text = " ".join(str(error).split())[:160]
        raise Fault(f"predict(X_test) of {path} raises {type(error).__name__}: {text}") from error
    out["problem"] = "; ".join(_judge_predictions(path, found, table.shape[0], job, value))


def _is_constant(table: Any) -> bool:
    """Every column has one value, but for rounding."""
    import numpy as np

    for _, column in table.items():
        if column.dtype.kind not in "biuf":
            if column.nunique() > 1:
                return False
        elif not np.allclose(column, column.iloc[0], rtol=1e-9, atol=0):
            return False
    return True


def _check_fitted(path: str, value: Any) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(value)
    except (NotFittedError, TypeError) as error:
        raise Fault(f"the model in {path} is not fitted") from error


def _judge_predictions(path: str, found: Any, rows: int, job: dict[str, Any], value: Any) -> list[str]:
    import pandas as pd

    if not found.ndim or len(found) != rows:
        raise Fault(f"predict(X_test) of {path} gives {found.size} values for {rows} rows")
    if pd.isna(found).any():
        raise Fault(f"predict(X_test) of {path} gives missing values")
    remarks = []
    if rows > 1 and _is_constant(pd.DataFrame(found)):
        remarks.append(CONSTANT)
    wanted = 1 if job["family"] != "number" else len(job["targets"])
    if found.ndim == 2 and found.shape[1] != wanted:
        remarks.append(f"predict(X_test) gives {found.shape[1]} columns, the task has {wanted}")
    if job["family"] in ("score", "class probability") and not hasattr(value, "predict_proba"):
        remarks.append("it has no predict_proba(), but the metric judges probabilities or scores")
    return remarks


CONSTANT = "predict(X_test) gives the same value for every row"


def submission(job: dict[str, Any], out: dict[str, Any]) -> None:
    """What the grader would say, as far as that does not depend on the answers."""
    path = job["path"]
    try:
        text = decode(content(Path(path), job["max_submission_bytes"]))
        table = parse(text, job["id"], job["targets"], warnings=[], keep=job["test_rows"])
        out.update(kind="csv", shape=[len(table.ids), table.width])
        _check_ids(path, table.ids, job)
        labels = tuple(job["labels"] or ())
        unify = spelling(labels)
        expected = Expected(
            metric=metric(job["metric"]),
            names=job["targets"],
            labels=tuple(map(unify, labels)),
            shown=labels,
        )
        guess = check_cells(table.columns, table.ids, expected, [], None)
    except Invalid as fault:
        raise Fault(f"{path}: {fault}") from None
    if expected.metric.family == "number" and abs(guess).max() > HUGE:
        # Such values overflow or do not, whatever the answers are.
        truth = guess * 0
        truth[::2] = 1
        if len(guess) > 1 and not math.isfinite(score(job["metric"], truth, guess)):
            raise Fault(f"{path}: {job['metric']} cannot be computed from predictions as large as these")


HUGE = 1e100


def _check_ids(path: str, ids: list[str], job: dict[str, Any]) -> None:
    right = len(ids) == job["test_rows"] and _digest(ids) == job["ids_sha256"]
    if right:
        return
    try:
        data = read_bytes("test.csv", job["max_compared_bytes"])
        wanted = parse(decode(data), job["id"], (), warnings=[], keep=0).ids
    except (Fault, Invalid):
        wanted = []
    if _digest(wanted) == job["ids_sha256"]:
        match(ids, wanted, job["id"])
    if len(ids) != job["test_rows"]:
        raise Fault(f"{path} has {len(ids)} rows, test.csv has {job['test_rows']}")
    raise Fault(f"the ids of {path} are not those of test.csv; copy its column {job['id']!r}")


def _digest(ids: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def any_file(job: dict[str, Any], out: dict[str, Any]) -> None:
    read_bytes(job["path"])
    out["kind"] = os.path.splitext(job["path"])[1].lstrip(".") or "file"


CHECKS = {
    "X_train.pkl": features,
    "X_test.pkl": features,
    "y_train.pkl": target,
    "model.pkl": model,
    "submission.csv": submission,
}


NEEDS_JOBLIB = "pickle cannot read it, but joblib.load can"


def examine(job: dict[str, Any]) -> dict[str, Any]:
    """The finding on `job["path"]`, as JSON: status, kind, shape, nan_share, problem."""
    out: dict[str, Any] = {"status": "valid", "kind": "", "shape": None, "nan_share": None, "problem": ""}
    warnings.simplefilter("ignore")
    if not os.path.lexists(job["path"]):
        return {**out, "status": "missing", "problem": f"there is no {job['path']}"}
    try:
        CHECKS.get(job["path"], any_file)(job, out)
        if job["path"] in CHECKS and job["path"].endswith(".pkl") and not is_plain(job["path"]):
            out["problem"] = "; ".join(filter(None, [out["problem"], NEEDS_JOBLIB]))
    except Refused as error:
        out.update(status="unverifiable", problem=_printable(error))
    except Fault as error:
        out.update(status="invalid", problem=_printable(error))
    return out


def _printable(error: Exception) -> str:
    """Its words, which may be those of a library about names that an agent chose."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(error)[:300])
