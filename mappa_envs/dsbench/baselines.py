"""Scores of the embedded tasks: what knows nothing, a plain model, and the scripted expert's team.

The dummy predicts the class shares, the commonest class, the mean or the median of the training targets. The
reference is the better of a random forest and histogram gradient boosting on generic features, untuned, so
that a task's outcome of 1 means: as good as a simple, sound model. The expert (`mappa_envs.testing.expert`)
runs in a sandbox, as a team's code does.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.grading import grade, perfect_submission
from mappa_envs.dsbench.metrics import Array, Family
from mappa_envs.dsbench.suite import ensure_built, write_suite
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_MEDIAN_METRICS = ("mae", "medae", "smape")
_LOG_METRICS = ("rmsle", "smape")
_MAX_CODES, _MAX_WORDS = 60, 25


def write() -> None:
    """Measure all tasks on a fresh build (minutes) and write `baselines.json` beside this file.

    Raises `UnavailableError` on a machine without a sandbox.
    """
    from mappa_envs.dsbench.layout import load_folder

    path = Path(__file__).with_name("baselines.json")
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        write_suite(Path(folder))
        tasks = load_folder(Path(folder))
        experts = asyncio.run(expert_scores(tasks))
        for task in tasks:
            scores[task.task_id] = {
                "dummy": _dummy_score(task),
                "reference": _reference_score(task),
                "expert": experts[task.task_id],
            }
            print(task.task_id, task.spec.metric, scores[task.task_id], flush=True)
    path.write_text(json.dumps(scores, indent=1) + "\n")


def validate() -> list[str]:
    """One line for each embedded task whose perfect, sample or dummy submission is scored wrongly.

    The dummy must score what `baselines.json` says, and the reference must beat it.
    """
    from mappa_envs.dsbench.layout import load_folder

    problems = []
    for task in load_folder(ensure_built()):
        best = grade(perfect_submission(task.answers, task.spec), task.answers, task.spec)
        if best.score is None or abs(best.score - metrics.perfect(task.spec.metric)) > 1e-9:
            problems.append(f"{task.task_id}: a perfect submission gets {best}")
        sample = grade(task.files["sample_submission.csv"], task.answers, task.spec)
        if not sample.valid:
            problems.append(f"{task.task_id}: the sample submission gets {sample}")
        if task.dummy is None or task.reference is None:
            problems.append(f"{task.task_id}: no baseline; run --baselines")
            continue
        if abs(_dummy_score(task) - task.dummy) > 1e-9:
            problems.append(f"{task.task_id}: the dummy scores {_dummy_score(task)}, not {task.dummy}")
        if (task.reference > task.dummy) is not metrics.higher_is_better(task.spec.metric):
            problems.append(f"{task.task_id}: the reference does not beat the dummy")
    return problems


async def expert_scores(tasks: Sequence[DSBenchTask]) -> dict[str, float]:
    """By task, the score of the scripted expert in all three roles, run in a sandbox.

    Raises `DataError` where it fails, `UnavailableError` without a sandbox.
    """
    from mappa_envs.sandbox import open_sandbox
    from mappa_envs.testing.expert import lay_artifacts

    scores = {}
    async with open_sandbox("auto") as sandbox:
        for task in tasks:
            async with await sandbox.open(task.files) as workspace:
                await lay_artifacts(workspace, task, ("data_engineer_0", "modeler_0", "analyst_0"))
                verdict = grade(await workspace.read("submission.csv", 2**25), task.answers, task.spec)
            if verdict.score is None:
                raise DataError(f"{task.task_id}: the expert's submission was refused: {verdict.message}")
            scores[task.task_id] = verdict.score
    return scores


def _tables(task: DSBenchTask) -> tuple[pd.DataFrame, pd.DataFrame]:
    import pandas as pd

    return pd.read_csv(task.files["train.csv"]), pd.read_csv(task.files["test.csv"])


def _truth(task: DSBenchTask) -> list[str]:
    return [task.spec.label_column] if task.spec.label_column else list(task.spec.target_columns)


def _score(task: DSBenchTask, prediction: Array) -> float:
    """Grade a prediction, rows × targets, in the order of test.csv."""
    _, test = _tables(task)
    frame = test[[task.spec.id_column]].copy()
    for name, column in zip(task.spec.target_columns, prediction.reshape(len(test), -1).T, strict=True):
        frame[name] = column
    content = frame.to_csv(index=False, lineterminator="\n").encode()
    verdict = grade(content, task.answers, task.spec)
    if verdict.score is None:
        raise DataError(f"{task.task_id}: a baseline submission was refused: {verdict.message}")
    return verdict.score


def _dummy_score(task: DSBenchTask) -> float:
    train, test = _tables(task)
    if task.task_type == "classification":
        truth = train[_truth(task)[0]].astype(str).to_numpy()
        classes = metrics.label_order(list(truth))
        shares = np.array([np.mean(truth == label) for label in classes])
        return _score(task, _decide(task, np.tile(shares, (len(test), 1)), classes))
    forward, back = _scale(task)
    y = forward(train[_truth(task)].to_numpy(float))
    middle = np.median(y, axis=0) if task.spec.metric in _MEDIAN_METRICS else y.mean(axis=0)
    return _score(task, back(np.tile(middle, (len(test), 1))))


def _reference_score(task: DSBenchTask) -> float:
    train, test = _tables(task)
    truth = _truth(task)
    x, x_test = _features(
        train.drop(columns=[task.spec.id_column, *truth]), test.drop(columns=task.spec.id_column)
    )
    predict = _classifiers if task.task_type == "classification" else _regressors
    scores = [_score(task, prediction) for prediction in predict(task, x, train[truth], x_test)]
    return max(scores) if metrics.higher_is_better(task.spec.metric) else min(scores)


def _scale(task: DSBenchTask) -> tuple[Any, Any]:
    """Targets of relative metrics are learnt as logarithms."""
    return (np.log1p, np.expm1) if task.spec.metric in _LOG_METRICS else (np.asarray, np.asarray)


def _decide(task: DSBenchTask, shares: Array, classes: list[str]) -> Array:
    """Class probabilities, in the order of `classes`, to what the task asks for."""
    family = metrics.metric(task.spec.metric).family
    if family is Family.CLASS_PROBABILITY:
        return shares[:, [classes.index(name) for name in task.spec.target_columns]]
    if family is Family.SCORE:
        return np.asarray(shares[:, classes.index(str(task.spec.positive))])
    if family is Family.RANKING:
        ranked = np.argsort(-shares, axis=1, kind="stable")[:, :3]
        return np.array([" ".join(classes[i] for i in row) for row in ranked], dtype=object)
    return np.array([classes[i] for i in shares.argmax(axis=1)], dtype=object)


def _classifiers(task: DSBenchTask, x: Array, truth: pd.DataFrame, x_test: Array) -> list[Array]:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    y = truth.iloc[:, 0].astype(str).to_numpy()
    result = []
    for model in (
        RandomForestClassifier(300, random_state=0, n_jobs=2),
        HistGradientBoostingClassifier(random_state=0, max_iter=150, learning_rate=0.08),
    ):
        model.fit(x, y)
        result.append(_decide(task, model.predict_proba(x_test), [str(c) for c in model.classes_]))
    return result


def _regressors(task: DSBenchTask, x: Array, truth: pd.DataFrame, x_test: Array) -> list[Array]:
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

    forward, back = _scale(task)
    y = forward(truth.to_numpy(float))
    loss = "absolute_error" if task.spec.metric in ("mae", "medae") else "squared_error"
    result = []
    for model in (
        RandomForestRegressor(200, random_state=0, n_jobs=2, min_samples_leaf=2),
        HistGradientBoostingRegressor(random_state=0, max_iter=150, learning_rate=0.08, loss=loss),
    ):
        columns = [model.fit(x, y[:, j]).predict(x_test) for j in range(y.shape[1])]
        result.append(back(np.column_stack(columns)))
    return result


def _features(train: pd.DataFrame, test: pd.DataFrame) -> tuple[Array, Array]:
    """Numbers as they are; dates as time, hour and day; text as code, frequency, length and words."""
    import pandas as pd

    both = pd.concat([train, test], ignore_index=True)
    blocks: list[Array] = []
    for name in both.columns:
        column = both[name]
        if pd.api.types.is_numeric_dtype(column):
            blocks.append(column.to_numpy(float)[:, None])
        else:
            blocks.append(_text_features(column, len(train)))
    x = np.hstack(blocks)
    return x[: len(train)], x[len(train) :]


def _text_features(column: pd.Series, num_train: int) -> Array:
    import pandas as pd

    if column.astype(str).str.contains(r"\d{4}-\d\d?-\d\d?|\d/\d", regex=True).mean() > 0.5:
        times = pd.to_datetime(column, errors="coerce", utc=True, format="mixed")
        seconds = (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
        parts = [seconds, times.dt.hour, times.dt.dayofyear]
        return np.column_stack([part.to_numpy(float) for part in parts])
    texts = ["" if pd.isna(cell) else str(cell) for cell in column]
    counts = Counter(texts)
    codes = {text: code for code, text in enumerate(sorted(t for t, _ in counts.most_common(_MAX_CODES)))}
    parts = [[codes.get(t, -1) for t in texts], [counts[t] for t in texts], [len(t) for t in texts]]
    if len(counts) > _MAX_CODES:
        words = [set(re.findall(r"\w+", text)) for text in texts]
        common = Counter(word for row in words[:num_train] for word in sorted(row)).most_common(_MAX_WORDS)
        parts += [[word in row for row in words] for word, _ in common]
    return np.array(parts, dtype=float).T
