"""Runs inside the sandbox: looks at one artifact and says what is wrong with it.

The host never runs this on a workspace. `artifacts` sends the source text of this file, of `safe_pickle` and
of `pickle_checks` to a throw-away worker, which calls `examine(job)`. So it may import only what the sandbox
has, and nothing else of this project.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import math
import os
import re
import warnings
from typing import Any

from mappa_envs.dsbench.pickle_checks import Fault, Refused
from mappa_envs.dsbench.safe_pickle import load, read_bytes


def some(names: Any, limit: int = 4) -> str:
    """A short list of names that an agent chose."""
    names = [repr(str(name)[:30]) for name in names]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


class Features:
    """A table of features: `width`, `rows`, `columns` (None for an array), `numbers` and missing share."""

    def __init__(self, path: str) -> None:
        import numpy as np
        import pandas as pd
        import scipy.sparse

        value = load(path)
        self.kind, self.value = type(value).__name__, value
        self.columns: list[str] | None = None
        if isinstance(value, pd.DataFrame):
            self.columns = [str(column) for column in value.columns]
            self.text = [c for c, kind in zip(self.columns, value.dtypes, strict=True) if not _number(kind)]
            self.shape: tuple[int, ...] = value.shape
            self.nan = float(value.isna().to_numpy().mean()) if value.size else 0.0
            wanted = [i for i, kind in enumerate(value.dtypes) if _number(kind)]
            numbers = [value.iloc[:, i].to_numpy(float, na_value=np.nan) for i in wanted]
            self.infinite = any(bool(np.isinf(column).any()) for column in numbers)
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
    if table.nan:
        remarks.append(f"{table.nan:.1%} of its cells are missing")
    if job["id"] in (table.columns or []):
        remarks.append(f"it keeps the id column {job['id']!r} as a feature")
    if train and rows != job["train_rows"]:
        remarks.append(f"it has {rows} rows, train.csv has {job['train_rows']}")
    out["problem"] = "; ".join(remarks)


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
    _not_a_feature(path, frame, job)
    if rows != job["train_rows"]:
        out["problem"] = f"it has {rows} rows, train.csv has {job['train_rows']}"


def _target_rows(path: str, rows: int, job: dict[str, Any]) -> None:
    wanted, where = job["train_rows"], "train.csv"
    if os.path.lexists("X_train.pkl"):
        with contextlib.suppress(Fault, Refused, IndexError):
            wanted, where = Features("X_train.pkl").shape[0], "X_train.pkl"
    if rows != wanted:
        raise Fault(f"{path} has {rows} rows, {where} has {wanted}")


def _not_a_feature(path: str, frame: Any, job: dict[str, Any]) -> None:
    """Is it, value for value, another column of train.csv (as the task gave it)?"""
    import pandas as pd

    if len(frame) != job["train_rows"] or frame.shape[1] > 1 or not os.path.lexists("train.csv"):
        return
    if os.stat("train.csv").st_size > job["max_compared_bytes"]:
        return
    data = read_bytes("train.csv")
    if hashlib.sha256(data).hexdigest() != job["train_sha256"]:
        return
    train = pd.read_csv(io.BytesIO(data))
    mine = frame.iloc[:, 0].astype(str).tolist()
    same = [str(c) for c in train.columns if train[c].astype(str).tolist() == mine]
    if same and not set(same) & set(job["hidden"]):
        raise Fault(f"{path} holds the column {some(same, 1)}, not the target {some(job['hidden'])}")


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
    path = job["path"]
    # More are wrong in any case, and lists of millions of rows would exhaust the memory.
    most = 10 * job["test_rows"] + 1000
    try:
        text = read_bytes(path, 64 * 2**20).decode("utf-8-sig")
        rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)
        table = list(itertools.islice(rows, most + 1))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Fault(f"{path} is not CSV text") from error
    if len(table) > most:
        raise Fault(f"{path} has {most} rows or more, test.csv has {job['test_rows']}")
    header = [name.strip() for name in table[0]] if table else []
    out.update(kind="csv", shape=[max(0, len(table) - 1), len(header)])
    lowered = [name.lower() for name in header]
    absent = [name for name in (job["id"], *job["targets"]) if name.lower() not in lowered]
    if absent:
        raise Fault(f"{path} lacks the column {some(absent)}; it has {some(header, 6)}")
    body = table[1:]
    if any(len(row) != len(header) for row in body):
        raise Fault(f"{path} has rows of different length")
    ids = sorted(canonical(row[lowered.index(job["id"].lower())]) for row in body)
    if len(ids) != job["test_rows"]:
        raise Fault(f"{path} has {len(ids)} rows, test.csv has {job['test_rows']}")
    if hashlib.sha256("\n".join(ids).encode()).hexdigest() != job["ids_sha256"]:
        raise Fault(f"the ids of {path} are not those of test.csv; copy its column {job['id']!r}")
    for name in job["targets"]:
        _check_cells(path, name, [row[lowered.index(name.lower())].strip() for row in body], job)


def _check_cells(path: str, name: str, cells: list[str], job: dict[str, Any]) -> None:
    labels = set(job["labels"] or ())
    blank = sum(cell.lower() in BLANKS and cell not in labels for cell in cells)
    if blank:
        raise Fault(f"{blank} cells of {path} in column {name!r} are empty")
    if job["family"] == "label" and labels:
        if labels <= {"0", "1"}:
            labels |= {"true", "false", "True", "False"}
        odd = sorted({cell for cell in cells if canonical(cell) not in labels})
        if odd:
            raise Fault(
                f"{path} has {some(odd, 3)} in column {name!r}; the labels are {some(sorted(labels), 6)}"
            )
    if job["family"] in ("number", "score", "class probability"):
        odd = [cell for cell in cells if not _finite(cell)]
        if odd:
            raise Fault(f"{path} has {some(odd, 3)} in column {name!r}, which must be numbers")


BLANKS = frozenset({"", "nan", "-nan", "na", "n/a", "null", "none", "<na>", "nat"})


def canonical(cell: str) -> str:
    """Ids and labels compare as text, with 1.0 read as 1."""
    match = re.fullmatch(r"(-?\d+)\.0*", cell.strip())
    return match[1] if match else cell.strip()


def _finite(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


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


def examine(job: dict[str, Any]) -> dict[str, Any]:
    """The finding on `job["path"]`, as JSON: status, kind, shape, nan_share, problem."""
    out: dict[str, Any] = {"status": "valid", "kind": "", "shape": None, "nan_share": None, "problem": ""}
    warnings.simplefilter("ignore")
    if not os.path.lexists(job["path"]):
        return {**out, "status": "missing", "problem": f"there is no {job['path']}"}
    try:
        CHECKS.get(job["path"], any_file)(job, out)
    except Refused as error:
        out.update(status="unverifiable", problem=str(error)[:300])
    except Fault as error:
        out.update(status="invalid", problem=str(error)[:300])
    return out
