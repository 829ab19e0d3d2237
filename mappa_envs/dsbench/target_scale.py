"""The target of a table task as numbers in [0, 1], and how near predictions come to each other.

Runs inside the sandbox, for `signal`. A class is a column with its chance; a number its rank among the
targets of train.csv, so that a wrong scale shows and a heavy tail does not rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from mappa_envs.dsbench.pickle_checks import Fault
from mappa_envs.dsbench.submission import canonical

CLASSES = ("label", "class probability", "ranking")


class Target:
    """The target of train.csv.

    `truth` is rows x classes, or rows x target columns; `raw` the numbers as they are, None for classes.
    `codes` maps the values of y_train.pkl to classes where they are not the same: see `learn_codes`.
    """

    def __init__(self, job: dict[str, Any], train: Any) -> None:
        self.names, self.family = list(job["targets"]), job["family"]
        self.classes: list[str] = []
        self.codes: dict[str, str] = {}
        self.raw: Any = None
        if self.family == "text":
            raise Fault("texts have no measure")
        if self.family in CLASSES or (self.family == "score" and len(self.names) == 1):
            named = [name for name in (*job["hidden"][len(self.names) :], self.names[0]) if name in train]
            several = len(self.names) > 1 and len(job["hidden"]) == len(self.names)
            self.cells = cells_of(train[self.names].idxmax(axis=1) if several else train[named[0]])
            self.classes = sorted(set(self.cells))
            self.truth = self._one_hot(self.cells)
            return
        self.raw = train[self.names].to_numpy(float)
        self.scales = [self._scale(column[np.isfinite(column)]) for column in self.raw.T]
        self.truth = self._ranks(self.raw)

    @staticmethod
    def _scale(known: Any) -> tuple[Any, Any]:
        values, counts = np.unique(known, return_counts=True)
        return values, (np.cumsum(counts) - counts / 2) / len(known)

    def _one_hot(self, cells: Sequence[str]) -> Any:
        at = {name: i for i, name in enumerate(self.classes)}
        table = np.zeros((len(cells), len(self.classes)))
        for row, cell in enumerate(cells):
            if (column := at.get(self.codes.get(cell, cell))) is not None:
                table[row, column] = 1.0
        return table

    def _ranks(self, table: Any) -> Any:
        columns = zip(self.scales, table.T, strict=False)
        return np.array([np.interp(column, *scale, left=0.0, right=1.0) for scale, column in columns]).T

    def _chances(self, table: Any, names: Iterable[Any]) -> Any:
        out = np.zeros((len(table), len(self.classes)))
        for column, name in zip(table.T, map(_cell, names), strict=True):
            if (known := self.codes.get(name, name)) in self.classes:
                out[:, self.classes.index(known)] = column
        return out

    def learn_codes(self, y: Any) -> None:
        """Take the values of y_train.pkl for the classes, if that is one-to-one by row, or else by order."""
        frame = pd.DataFrame(y)
        cells = cells_of(frame.iloc[:, 0])
        if not self.classes or frame.shape[1] > 1 or set(cells) <= set(self.classes):
            return
        pairs = set(zip(cells, self.cells, strict=True)) if len(cells) == len(self.cells) else set()
        if not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
            pairs = set()
        if not pairs and len(set(cells)) == len(self.classes):
            pairs = set(zip(sorted(set(cells), key=_by_number), self.classes, strict=True))
        self.codes = dict(pairs)

    def of(self, values: Any) -> Any:
        """A target as an agent saves it, or what `predict` gives."""
        if not self.classes:
            return self._ranks(numbers(values))
        frame = pd.DataFrame(values)
        if frame.shape[1] == len(self.classes) > 1:
            named = frame.columns if isinstance(values, pd.DataFrame) else self.names
            return self._chances(frame.to_numpy(float), named)
        cells = cells_of(frame.iloc[:, 0])
        known = set(self.classes) | set(self.codes)
        if not set(cells) <= known and len(self.classes) == 2 and frame.dtypes.iloc[0].kind in "fiub":
            # A regressor on 0 and 1 gives chances of the second class.
            chance = np.clip(frame.iloc[:, 0].to_numpy(float), 0, 1)
            return np.c_[1 - chance, chance]
        return self._one_hot(cells)

    def known(self, values: Any) -> float:
        """The share of the values that are the target's own: of numbers all are."""
        frame = pd.DataFrame(values)
        if not self.classes or frame.shape[1] > 1 or not len(frame):
            return 1.0
        classes = set(self.classes)
        return sum(cell in classes for cell in cells_of(frame.iloc[:, 0])) / len(frame)

    def predicted(self, model: Any, table: Any) -> Any:
        """What the model says of the rows: chances where it has them."""
        if not self.classes or not hasattr(model, "predict_proba"):
            return self.of(model.predict(table))
        found = np.asarray(model.predict_proba(table), dtype=float)
        return self._chances(found, getattr(model, "classes_", range(found.shape[1])))

    def submitted(self, columns: Sequence[Sequence[str]]) -> Any:
        """The cells of a submission; of a single score as one column of chances."""
        if self.family in ("label", "ranking"):
            first = [(cell.split() or [""])[0] if self.family == "ranking" else cell for cell in columns[0]]
            return self._one_hot([_cell(cell) for cell in first])
        table = np.array(columns, dtype=object).astype(float).T
        if self.family == "class probability":
            sums = table.sum(axis=1, keepdims=True)
            return self._chances(table / np.where(sums > 0, sums, 1), self.names)
        return table if self.classes else self._ranks(table)


def numbers(values: Any) -> Any:
    """Rows x columns of floats."""
    return np.asarray(values, dtype=float).reshape(len(values), -1)


def cells_of(column: Any) -> list[str]:
    """The values of a column as the grader compares them."""
    return [_cell(value) for value in column.tolist()]


def _cell(value: Any) -> str:
    text = canonical(str(value))
    return {"True": "1", "False": "0"}.get(text, text)


def _by_number(cell: str) -> tuple[float, str]:
    try:
        return float(cell), cell
    except ValueError:
        return float("inf"), cell


def near(a: Any, b: Any) -> float:
    """1 - sum (a - b)^2 / sum (b - mean b)^2, at least -1: 1 the same, 0 no better than a constant."""
    if a.shape == b.shape and np.allclose(a, b):
        return 1.0
    _check(a, b)
    return max(-1.0, 1.0 - float(((a - b) ** 2).sum() / ((b - b.mean(axis=0)) ** 2).sum()))


def correlation(a: Any, b: Any) -> float:
    """Pearson's, over all columns as one after each lost its mean; 0 where `a` is constant."""
    _check(a, b)
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    length = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / length if length > 1e-12 else 0.0


def by_rank(a: Any, b: Any) -> float:
    """`correlation` of the ranks in each column; 1 for the same values, if they vary or not."""
    if a.shape == b.shape and np.allclose(a, b):
        return 1.0
    return correlation(rankdata(a, axis=0), rankdata(b, axis=0))


def _check(a: Any, b: Any) -> None:
    if a.shape != b.shape or not np.isfinite(a).all() or ((b - b.mean(axis=0)) ** 2).sum() < 1e-9:
        raise Fault("nothing to compare")
