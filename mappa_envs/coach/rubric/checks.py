"""Common mistakes with data, as findings on what a program was read to do.

Each check is general: it names no fault kind and no task. A finding needs positive evidence; what the reader
did not follow is no finding. What is measured of the files, and a good outcome, overrule what was read here
(`faults`, `evidence`).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mappa_envs.coach.rubric.reader import Reading
from mappa_envs.coach.rubric.values import OWN_CLASS, TEST, TRAIN, Facts, Fit, Tag, Value

GRAVE, SERIOUS, HARMFUL, SLIGHT = 0.9, 0.6, 0.4, 0.2
"""Severities: makes the result worthless; costs much of it; costs some; costs little, never blamed alone."""
SUSPECTED = 0.25
"""What an uncertain finding counts before the outcome is known, at the most: points, but no blame."""
OTHER_SCALE = "the target on another scale"
NO_MODEL, NOT_FITTED = "model.pkl holds", "the model is saved before it is fitted"
"""The beginnings of what the inspector's look at a valid model.pkl refutes."""

_log = logging.getLogger(__name__)

FEW_ROWS = 100
_FIRST_ROWS = re.compile(r"(?:head|tail|sample|\[)\(?(?:n=)?:?-?(\d+)[,\])]|sample\(.*frac=(0?\.[0-3]\d*)\b")
_MANY = float("inf")
_EXTREME: tuple[tuple[str, float, float], ...] = (
    ("max_iter", 0, 2),
    ("n_estimators", 0, 2),
    ("max_leaf_nodes", 0, 3),
    ("learning_rate", 0, 1e-4),
    ("C", 0, 1e-5),
    ("alpha", 1e4, _MANY),
    ("max_samples", 0, 0.02),
    ("min_samples_leaf", 200, _MANY),
    ("min_samples_split", 400, _MANY),
    ("min_impurity_decrease", 0.5, _MANY),
    ("n_neighbors", 200, _MANY),
    ("reg_lambda", 1e5, _MANY),
    ("l2_regularization", 1e5, _MANY),
    ("tol", 10, _MANY),
)
"""Settings with which a model hardly learns: the name, and the open range of values that do that."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake. `path` is the file that carries it, "" for the action as a whole.

    `cells`: who predicts with that file gets cells of a wrong kind, so that the submission is invalid.
    `certain` is False for what may do no harm, or be undone by a teammate: the outcome decides.
    """

    severity: float
    words: str
    path: str = ""
    cells: bool = False
    certain: bool = True


def check(reading: Reading, facts: Facts, model_kind: str = "") -> tuple[Finding, ...]:
    """All findings on a program. `model_kind` is the class of model.pkl, where that is known.

    Never raises.
    """
    try:
        return _check(reading, facts, model_kind)
    except Exception:  # noqa: BLE001
        # Blind on purpose, as in `reader.read`: values of hostile code, of which nothing need be claimed.
        _log.debug("a reading could not be checked", exc_info=True)
        return ()


def _check(reading: Reading, facts: Facts, model_kind: str) -> tuple[Finding, ...]:
    saved = {save.path: save.value for save in reading.saves}
    found: list[Finding] = []
    for path in ("X_train.pkl", "X_test.pkl"):
        if path in saved:
            found += _features(path, saved[path])
    found += _tables_together(saved)
    if "y_train.pkl" in saved:
        found += _target(saved["y_train.pkl"], facts)
    if "model.pkl" in saved:
        found += _model(saved["model.pkl"], reading, facts)
    if "submission.csv" in saved:
        found += _submission(saved["submission.csv"], facts, model_kind)
    if "X_test.pkl" in saved:
        found += _encodings(reading)
    if any(save.path == "submission.csv" and not save.plain for save in reading.saves):
        words = "submission.csv has no header, or other separators than commas"
        found.append(Finding(severity=GRAVE, words=words, path="submission.csv"))
    if reading.swallowed:
        found.append(Finding(severity=SLIGHT, words="an exception is caught and passed over"))
    return tuple(dict.fromkeys(found))


def _features(path: str, table: Value) -> Iterator[Finding]:
    def finding(severity: float, words: str) -> Finding:
        return Finding(severity=severity, words=f"{path} {words}", path=path)

    wanted = TRAIN if path == "X_train.pkl" else TEST
    if table.root and table.root not in (*wanted, "both"):
        yield finding(GRAVE, f"is made of the rows of {table.root}.csv")
    elif path == "X_test.pkl" and table.root == "test" and table.rows != TEST:
        yield finding(GRAVE, "has not the rows of test.csv in their order")
    columns = list(table.columns.values())
    if Tag.TARGET in table.tags or any(Tag.TARGET in c.tags and c.root != "test" for c in columns):
        yield finding(GRAVE, "has a feature that is computed from the target of the same row")
    elif any(Tag.TARGET_STATISTIC in c.tags for c in columns):
        yield finding(SLIGHT, "has a feature that is computed from the target")
    if Tag.RANDOM in table.tags:
        yield finding(GRAVE, "has random numbers in its features")
    elif any(Tag.RANDOM in c.tags for c in columns):
        yield finding(HARMFUL, "has a feature with random numbers")
    if Tag.CONSTANT in table.tags:
        yield finding(GRAVE, "has its features overwritten by one value")
    if Tag.SHIFTED in table.tags or any(Tag.SHIFTED in c.tags for c in columns):
        # Of rows in the order of time that is a usual feature.
        yield replace(finding(HARMFUL, "has values that belong to other rows"), certain=False)
    if any(c.rows and table.rows and c.rows != table.rows and c.root == table.root for c in columns):
        yield finding(HARMFUL, "has a column in another order of the rows")


def _tables_together(saved: dict[str, Value]) -> Iterator[Finding]:
    X, y, test = (saved.get(name) for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"))
    if X and y and X.rows and y.rows and X.rows != y.rows and X.root == y.root:
        path = "X_train.pkl" if y.rows == TRAIN else "y_train.pkl"
        words = "X_train.pkl and y_train.pkl have different rows, or another order of them"
        yield Finding(severity=GRAVE, words=words, path=path)
    if X and test and (Tag.COLUMNS_MOVED in X.tags) != (Tag.COLUMNS_MOVED in test.tags):
        words = "X_train.pkl and X_test.pkl have their columns in different orders"
        yield Finding(severity=GRAVE, words=words, path="X_test.pkl")


def _target(y: Value, facts: Facts) -> Iterator[Finding]:
    for flaw in _target_flaws(y, facts, "y_train.pkl"):
        yield replace(flaw, path="y_train.pkl", cells=Tag.CODES in y.tags)
    if y.source.startswith("column ") and facts.targets and Tag.TARGET not in y.tags:
        yield Finding(
            severity=GRAVE, words="y_train.pkl is another column than the target", path="y_train.pkl"
        )


def _target_flaws(y: Value, facts: Facts, whose: str) -> Iterator[Finding]:
    def flaw(severity: float, words: str, certain: bool = True) -> Finding:
        return Finding(severity=severity, words=f"{whose} holds {words}", certain=certain)

    if Tag.RANDOM in y.tags:
        yield flaw(GRAVE, "random values")
    if Tag.CONSTANT in y.tags:
        yield flaw(GRAVE, "one value in every row")
    if Tag.NEGATED in y.tags:
        yield flaw(GRAVE, "the target turned around")
    if Tag.SHIFTED in y.tags:
        yield flaw(GRAVE, "the target of other rows")
    if y.tags & {Tag.LOG, Tag.SCALED}:
        yield flaw(SERIOUS, OTHER_SCALE, certain=False)
    if Tag.CODES in y.tags and facts.family != "score":
        # Whether scores are of 0 and 1 or of words makes no difference to them.
        yield flaw(SERIOUS, "codes in place of the target's own values", certain=False)
    if facts.family == "number" and y.tags & {Tag.THRESHOLD, Tag.ROUNDED}:
        yield flaw(SERIOUS, "the target coarsened")


def _model(model: Value, reading: Reading, facts: Facts) -> Iterator[Finding]:
    def finding(severity: float, words: str) -> Finding:
        return Finding(severity=severity, words=words, path="model.pkl")

    if model.source in (OWN_CLASS, "dict") or model.items is not None:
        what = "an object of its own class" if model.source == OWN_CLASS else "a container, not a model"
        yield finding(GRAVE, f"{NO_MODEL} {what}")
    if model.estimator and model.fitted is None:
        yield finding(GRAVE, NOT_FITTED)
    if model.estimator.startswith("Dummy"):
        yield finding(GRAVE, "the model ignores the features")
    if model.estimator in ("KMeans", "IsolationForest"):
        yield finding(GRAVE, "the model is not fitted to the target")
    if facts.family == "label" and re.search(
        r"Regressor|LinearRegression|Ridge\Z|Lasso|SVR", model.estimator
    ):
        yield replace(finding(SERIOUS, "the model predicts numbers where labels are asked"), cells=True)
    if facts.family == "number" and re.search(r"Classifier|LogisticRegression|SVC|NB\Z", model.estimator):
        yield finding(SERIOUS, "the model predicts classes where numbers are asked")
    yield from (finding(SERIOUS, words) for words in _settings(model))
    fits = [fit for fit in reading.fits if fit.estimator.estimator == model.estimator]
    if fits and model.estimator:
        y = fits[-1].y
        coded = y is not None and Tag.CODES in y.tags
        yield from (replace(one, path="model.pkl", cells=coded) for one in _fit(fits[-1], facts))


def _settings(model: Value) -> Iterator[str]:
    for name, low, high in _EXTREME:
        value = model.settings.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high:
            # A whole number can be too large to be written as a float.
            yield f"the model hardly learns with {name}={min(value, sys.float_info.max):g}"
    if model.settings.get("max_depth") == 1 and not model.estimator.startswith(("GradientBoost", "HistGrad")):
        yield "the model hardly learns with max_depth=1"


def _fit(fit: Fit, facts: Facts) -> Iterator[Finding]:
    X, y = fit.X, fit.y

    def grave(words: str) -> Finding:
        return Finding(severity=GRAVE, words=f"the model is fitted {words}")

    if X.root == "test":
        yield grave("on the rows of X_test.pkl")
    if y is None:
        return
    if X.rows and y.rows and X.rows != y.rows:
        yield grave("to targets of other rows")
    if Tag.TARGET in X.tags or any(Tag.TARGET in c.tags for c in X.columns.values()):
        yield grave("with the target among the features")
    if X.tags & {Tag.RANDOM, Tag.CONSTANT}:
        yield grave("on features without content")
    if y.source == "X_train.pkl" and Tag.TARGET not in y.tags:
        yield grave("to a feature in place of the target")
    if fit.estimator.estimator != "TransformedTargetRegressor":
        yield from _target_flaws(y, facts, "the model's target")
    if X.rows and any(map(_leaves_few, X.rows)):
        yield Finding(severity=SERIOUS, words="the model is fitted on a small part of the rows")


def _leaves_few(step: str) -> bool:
    if step.startswith("split 1"):
        return True
    found = _FIRST_ROWS.match(step)
    return found is not None and (found[2] is not None or int(found[1][:9]) <= FEW_ROWS)


def _submission(table: Value, facts: Facts, model_kind: str) -> Iterator[Finding]:
    def finding(severity: float, words: str) -> Finding:
        return Finding(severity=severity, words=words, path="submission.csv")

    if table.root == "test" and any(
        re.match(r"(head|tail|concat|dropna|drop_dup|query|\[)", s) for s in table.rows or ()
    ):
        yield finding(GRAVE, "it submits other rows than those of test.csv")
    wanted = {facts.id_column, *facts.targets[: facts.num_targets]}
    if table.source == "dict" and facts.id_column and not wanted <= set(table.columns):
        yield finding(GRAVE, "it submits columns of other names")
    ids = table.columns.get(facts.id_column)
    if ids is not None and Tag.ORDER in ids.tags:
        yield finding(GRAVE, "it submits row numbers in place of the ids")
    id_rows = ids.rows if ids else table.rows
    for name in facts.targets:
        guess = table.columns.get(name)
        if guess is None:
            continue
        if id_rows and guess.rows and guess.root == "test" and guess.rows != id_rows:
            yield finding(GRAVE, "ids and predictions stand in different orders")
        if guess.root == "train":
            yield finding(GRAVE, "it submits predictions for the training rows")
        yield from (finding(severity, words) for severity, words in _guess(guess, facts, model_kind))
    if table.tags & {Tag.CONSTANT}:
        yield finding(GRAVE, "it submits one value in every row")


def _guess(guess: Value, facts: Facts, model_kind: str) -> Iterator[tuple[float, str]]:
    tags = guess.tags
    if guess.is_const or Tag.CONSTANT in tags:
        yield GRAVE, "it submits one value in every row"
    if Tag.RANDOM in tags:
        yield GRAVE, "it submits random values"
    if Tag.SHIFTED in tags:
        yield GRAVE, "it submits predictions of other rows"
    if Tag.COLUMNS_MOVED in tags:
        yield GRAVE, "it predicts or submits with columns in another order"
    if Tag.LOG in tags:
        yield SERIOUS, "it submits predictions on another scale"
    if Tag.CHANGED in tags and facts.family != "score":
        yield SERIOUS, "it changes the predictions by a constant"
    if Tag.ROUNDED in tags and facts.family == "number":
        yield SLIGHT, "it rounds the predictions"
    if facts.family == "score" and len(facts.targets) == 1:
        yield from _score(guess, facts, model_kind)
    elif Tag.NEGATED in tags:
        yield GRAVE, "it submits the predictions turned around"


def _score(guess: Value, facts: Facts, model_kind: str) -> Iterator[tuple[float, str]]:
    if guess.chosen is not None and Tag.PROBABILITY in guess.tags:
        wanted = (0, -2) if facts.positive_first else (1, -1)
        if (guess.chosen not in wanted) != (Tag.NEGATED in guess.tags):
            yield GRAVE, "it submits the probability of the other class"
    elif Tag.NEGATED in guess.tags:
        yield GRAVE, "it submits the predictions turned around"
    is_label = Tag.PREDICTION in guess.tags and re.search("Classif|Logistic|SVC|NB$", model_kind)
    if is_label or guess.tags & {Tag.THRESHOLD, Tag.ROUNDED}:
        yield SERIOUS, "it submits labels where probabilities are asked"


def _encodings(reading: Reading) -> Iterator[Finding]:
    roots: dict[str, set[str]] = {}
    for what, rows in reading.encoded:
        roots.setdefault(what, set()).add(rows[0])
    for found in roots.values():
        if "test" not in found:
            continue
        words = (
            "the test rows are encoded or scaled apart from the training rows"
            if "train" in found
            else "an encoding is learned on the test rows"
        )
        yield Finding(severity=SERIOUS if "train" in found else HARMFUL, words=words, path="X_test.pkl")
