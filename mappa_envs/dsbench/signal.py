"""Runs inside the sandbox, beside `inspector`: how much of the task's signal each file still carries.

A quick forest on a plain encoding of train.csv, the *yardstick*, predicts test.csv. The answers are not known
here, but what good work makes of good files predicts much the same. So each file is measured by how near the
predictions that it leads to come to the yardstick's, and to those of the files that it was made from. All is
seeded and rounded; what cannot be measured is left out. The facts: `facts.FACTS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from scipy.stats import rankdata
from sklearn.ensemble import ExtraTreesRegressor

from mappa_envs.dsbench.given_tables import read_table
from mappa_envs.dsbench.pickle_checks import Fault, Refused
from mappa_envs.dsbench.safe_pickle import load, read_bytes
from mappa_envs.dsbench.submission import canonical, content, decode, parse
from mappa_envs.dsbench.target_scale import Target, by_rank, correlation, near, numbers

MAX_ROWS, MAX_TEST_ROWS, MAX_COLUMNS = 1000, 400, 200
MATCHED = 0.95
"""Rank correlation from which on a feature is taken for a column of the CSV file."""
TABLES = ("X_train.pkl", "X_test.pkl", "y_train.pkl")


def sample(num_rows: int, most: int) -> Any:
    """Row numbers, seeded, in a random order."""
    return np.random.default_rng(0).permutation(num_rows)[:most]


def feature_names(train: Any, test: Any, job: dict[str, Any]) -> list[Any]:
    """The first columns that both files have, but for the id and the target."""
    both = [c for c in test.columns if c in train.columns and c != job["id"] and c not in job["hidden"]]
    return both[:MAX_COLUMNS]


def _foreign(train: Any, test: Any) -> Any:
    """By test row: a word that no training row has, so that no encoding says what becomes of it."""
    if pd.api.types.is_numeric_dtype(train.dtype):
        return np.zeros(len(test), dtype=bool)
    known = set(train.astype(object).fillna("").astype(str))
    return np.array([word not in known for word in test.astype(object).fillna("").astype(str)])


def plain(train: Any, test: Any, job: dict[str, Any]) -> tuple[Any, Any]:
    """The columns of both files as numbers: words by their order, gaps as the median."""
    names = feature_names(train, test, job)
    made: tuple[list[Any], list[Any]] = ([], [])
    for name in names:
        parts = [train[name], test[name]]
        if not pd.api.types.is_numeric_dtype(train[name].dtype):
            parts = [part.astype(object).fillna("").astype(str) for part in parts]
            known = np.sort(parts[0].unique().astype(object))
            parts = [pd.Series(np.searchsorted(known, part.to_numpy(object))) for part in parts]
        middle = np.nan_to_num(parts[0].median())
        for table, part in zip(made, parts, strict=True):
            table.append(pd.to_numeric(part, errors="coerce").fillna(middle).to_numpy(float))
    if not names:
        raise Fault("no features")
    return np.array(made[0]).T, np.array(made[1]).T


def halves(X: Any, y: Any, T: Any) -> tuple[float, Any]:
    """Forests on either half of the rows: how near each comes to the other half, and their mean for `T`."""
    half = len(X) // 2
    parts = [(slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))]
    seen, guess, forecast = [], [], np.zeros((len(T), y.shape[1]))
    for mine, other in parts:
        made = forest(16).fit(X[mine], y[mine])
        seen.append(y[other])
        guess.append(made.predict(X[other]).reshape(-1, y.shape[1]))
        forecast += made.predict(T).reshape(-1, y.shape[1]) / 2
    return near(np.concatenate(guess), np.concatenate(seen)), forecast


def forest(num_trees: int) -> Any:
    return ExtraTreesRegressor(num_trees, min_samples_leaf=3, max_features=0.6, random_state=0)


class Files:
    """train.csv and test.csv as the task gave them; of their rows a sample."""

    def __init__(self, job: dict[str, Any]) -> None:
        train, test = (read_table(name, job) for name in ("train.csv", "test.csv"))
        if train is None or test is None:
            raise Fault("train.csv or test.csv is not as the task gave it, or too large")
        self.target = Target(job, train)
        self.ids = [canonical(str(cell)) for cell in test[job["id"]].tolist()]
        self.num_rows = len(train)
        self.at, self.test_at = sample(len(train), MAX_ROWS), sample(len(test), MAX_TEST_ROWS)
        train, test = train.iloc[self.at], test.iloc[self.test_at]
        self.X, self.T = plain(train, test, job)
        self.foreign = np.array(
            [_foreign(train[name], test[name]) for name in feature_names(train, test, job)]
        ).T
        self.forecast: Any = np.array(job["yardstick"]["forecast"]) if "yardstick" in job else None

    def nearness(self, found: Any, *, hard: bool = False) -> float:
        """To the yardstick; `hard`: as labels, for who gives nothing else."""
        wanted = np.eye(self.forecast.shape[1])[self.forecast.argmax(axis=1)] if hard else self.forecast
        return near(found, wanted)


def yardstick(job: dict[str, Any]) -> dict[str, Any]:
    """What the other measurements need that depends on the task alone."""
    files = Files(job)
    y = files.target.truth[files.at]
    best = forest(40).fit(files.X, y).predict(files.T).reshape(-1, y.shape[1])
    skill, rough = halves(files.X, y, files.T)
    return {
        "plain": round(skill, 3),
        "attainable": round(near(rough, best), 3),
        "forecast": best.round(4).tolist(),
    }


def rows_of(table: Any, at: Any) -> Any:
    """These rows of a table as an agent saves it."""
    if hasattr(table, "iloc"):
        return table.iloc[at]
    return (table.tocsr() if scipy.sparse.issparse(table) else np.asarray(table))[at]


def dense(table: Any, fill: Any = None) -> tuple[Any, Any]:
    """Features as numbers with the gaps filled, and with what: the medians unless given."""
    if scipy.sparse.issparse(table):
        table = table.toarray()
    X = np.asarray(table, dtype=float)
    X = X[:, :: max(1, math.ceil(X.shape[1] / MAX_COLUMNS))]
    fill = np.nan_to_num(np.nanmedian(X, axis=0)) if fill is None else fill
    return np.where(np.isnan(X), fill, X), fill


def tables(job: dict[str, Any], files: Files) -> dict[str, dict[str, float]]:
    train, y, target, known = load("X_train.pkl"), load("y_train.pkl"), files.target, job["yardstick"]
    num_rows = train.shape[0] if hasattr(train, "shape") else len(train)
    whole = num_rows == files.num_rows
    at = files.at if whole else sample(num_rows, MAX_ROWS)
    X, fill = dense(rows_of(train, at))
    T, _ = dense(rows_of(load("X_test.pkl"), files.test_at), fill)
    mine = target.of(y)
    signal, forecast = halves(X, mine[at], T)
    features = {"signal": signal, "plain": known["plain"]}
    test = {"kept": files.nearness(forecast), "attainable": known["attainable"]}
    test["rows_follow"] = float((correlations(files.T, T).max(axis=0) > MATCHED).mean())
    if not whole:
        return {"X_train.pkl": features, "X_test.pkl": test}
    matches = correlations(files.X, X)
    features["rows_follow"] = float((matches.max(axis=0) > MATCHED).mean())
    if (share := same_scale(files, X, T, matches)) is not None:
        test["same_scale"] = share
    return {"X_train.pkl": features, "X_test.pkl": test, "y_train.pkl": _target_facts(target, y, mine)}


def _target_facts(target: Target, y: Any, mine: Any) -> dict[str, float]:
    kept = near(mine, target.truth)
    same = np.allclose(np.sort(mine, axis=0), np.sort(target.truth, axis=0), atol=1e-6)
    order = kept if target.classes else by_rank(numbers(y), target.raw)
    return {"kept": kept, "order": order, "same_values": float(same), "known": target.known(y)}


def correlations(raw: Any, X: Any) -> Any:
    """Absolute rank correlations, raw columns x features; 0 where a column is constant."""
    parts = []
    for table in (raw, X):
        ranks = rankdata(table, axis=0) - (len(table) + 1) / 2
        length = np.sqrt((ranks**2).sum(axis=0))
        parts.append(ranks / np.where(length > 0, length, 1.0))
    return np.abs(parts[0].T @ parts[1])


def same_scale(files: Files, X: Any, T: Any, matches: Any) -> float | None:
    """Of the features made of one column of train.csv, value by value: are those of the test rows, too?

    Whatever is done to a value, rows with the values around it say where the result must lie.
    """
    marks = []
    for feature in np.flatnonzero(matches.max(axis=0) > MATCHED):
        source = matches[:, feature].argmax()
        raw, test = files.X[:, source], files.T[:, source]
        values, place = np.unique(raw, return_inverse=True)
        slack = 1e-6 * (np.ptp(X[:, feature]) or 1.0)
        low, high = np.full(len(values), np.inf), np.full(len(values), -np.inf)
        np.minimum.at(low, place, X[:, feature])
        np.maximum.at(high, place, X[:, feature])
        inside = (test >= values[0]) & (test <= values[-1]) & ~files.foreign[:, source]
        if not _in_step(low, high, slack) or not inside.any():
            continue
        left = np.searchsorted(values, test[inside], "right") - 1
        right = np.searchsorted(values, test[inside], "left")
        found = T[inside, feature]
        fits = found >= np.minimum(low[left], low[right]) - slack
        fits &= found <= np.maximum(high[left], high[right]) + slack
        marks.append(float(fits.mean() >= 0.9))
    return float(np.mean(marks)) if marks else None


def _in_step(low: Any, high: Any, slack: float) -> bool:
    """Whether a feature rises, or falls, with a column's values: not only nearly, as a related one does."""
    middle = np.diff((low + high) / 2)
    return bool(max((middle >= -slack).mean(), (middle <= slack).mean()) > 0.9) if len(middle) else False


def model(job: dict[str, Any], files: Files) -> dict[str, dict[str, float]]:
    made, target, y = load("model.pkl"), files.target, load("y_train.pkl")
    X, T = load("X_train.pkl"), load("X_test.pkl")
    hard = bool(target.classes) and not hasattr(made, "predict_proba")
    forecast = target.predicted(made, rows_of(T, files.test_at))
    facts = {"agrees": correlation(forecast, files.forecast), "near": files.nearness(forecast, hard=hard)}
    facts["known"] = target.known(made.predict(rows_of(T, files.test_at)))
    true = target.of(y)
    at = sample(len(true), MAX_ROWS)
    with contextlib.suppress(Fault):
        fitted = target.predicted(made, rows_of(X, at))
        facts["fitted"] = correlation(fitted, true[at])
        if not hard:
            facts["fitted_near"] = near(fitted, true[at])
    if not target.classes:
        # The means of a heavy tail are far off by rank, and right.
        with contextlib.suppress(Fault):
            said = numbers(made.predict(rows_of(X, at)))
            facts["fitted_near"] = max(facts["fitted_near"], near(said, numbers(y)[at]))
    return {"model.pkl": facts}


def submission(job: dict[str, Any], files: Files) -> dict[str, dict[str, float]]:
    target, (made, T) = files.target, (load("model.pkl"), load("X_test.pkl"))
    text = decode(content(Path("submission.csv"), job["max_submission_bytes"]))
    table = parse(text, job["id"], target.names, warnings=[], keep=job["test_rows"])
    place = {id_: row for row, id_ in enumerate(table.ids)}
    rows = [place[id_] for id_ in files.ids]
    cells = [[column[row] for row in rows] for column in table.columns]
    found = target.submitted(cells)
    expected = target.of(made.predict(T)) if target.family == "label" else target.predicted(made, T)
    forecast = files.forecast
    if target.family in ("label", "ranking"):
        expected, forecast = (np.eye(a.shape[1])[a.argmax(axis=1)] for a in (expected, forecast))
    if target.family == "score" and target.classes:
        positive = target.classes.index(job["positive"]) if job["positive"] in target.classes else -1
        expected, forecast = expected[:, [positive]], forecast[:, [positive]]
    facts: dict[str, float] = {}
    with contextlib.suppress(Fault):
        facts["near"] = near(found[files.test_at], forecast)
    with contextlib.suppress(Fault):
        facts["transmitted"] = facts["order"] = near(found, expected)
        same = np.allclose(np.sort(found, axis=0), np.sort(expected, axis=0), atol=1e-4)
        facts["reordered"] = float(same and facts["transmitted"] < 0.98)
    if "transmitted" not in facts and np.allclose(expected, expected[0]):
        return {"submission.csv": facts | {"transmitted": 0.0, "order": 0.0}}  # not what the model says
    if target.family in ("score", "number"):
        facts.pop("order", None)
        said = expected if target.classes else numbers(made.predict(T))
        with contextlib.suppress(Fault):
            facts["order"] = by_rank(np.array(cells, dtype=object).astype(float).T, said)
    return {"submission.csv": facts}


STAGES = {
    "tables": (TABLES, tables),
    "model": (("model.pkl",), model),
    "submission": (("submission.csv",), submission),
}
"""By name: the files that each adds to those of the stages before it, and what measures them."""


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Of every stage in `job["stages"]` the digest of its files, and the facts by file unless it is known.

    With no stages: the yardstick.
    """
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    with contextlib.suppress(Fault, Refused):
        if not job["stages"]:
            return yardstick(job)
        files, digest = None, hashlib.sha256()
        for stage, known in job["stages"].items():
            paths, work = STAGES[stage]
            for path in paths:
                digest.update(hashlib.sha256(read_bytes(path)).digest())
            found[stage] = {"digest": digest.hexdigest()}
            if digest.hexdigest() == known:
                continue
            if files is None:
                files = Files(job)
                files.target.learn_codes(load("y_train.pkl"))
            with contextlib.suppress(Fault, Refused):
                facts = work(job, files)
                found[stage]["facts"] = {path: _rounded(part) for path, part in facts.items()}
    return found


def _rounded(facts: dict[str, float]) -> dict[str, float]:
    return {key: round(min(1.0, max(-1.0, value)), 3) for key, value in facts.items() if math.isfinite(value)}
