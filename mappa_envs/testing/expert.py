"""A scripted expert: for any role of the DSBench team, a whole message that does the role's job.

    >>> expert_action("modeler_0", task)
    'I fit a small forest.\n\n```python\nimport pickle\n...'

It reads only what an agent may read (files of the workspace, names of columns and metric), never an answer.
It is quick and decent, not tuned. `lay_artifacts` uses it to start an episode in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.csv_files import read_columns
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.metrics import Family
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.sandbox.base import Workspace


class TabularTask(Protocol):
    """What the expert needs of a task."""

    @property
    def task_id(self) -> str: ...

    @property
    def spec(self) -> TaskSpec: ...

    @property
    def files(self) -> Mapping[str, Path]: ...


DATA_ENGINEER = """\
import numpy as np
import pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
{without_gaps}columns = [c for c in test.columns if c != {id!r} and c not in {hidden!r}]
X_train, X_test, y_train = train[columns].copy(), test[columns].copy(), {target}
for c in columns:
    if not pd.api.types.is_numeric_dtype(X_train[c]):
        X_train[c], X_test[c] = (X[c].astype(object).fillna("").astype(str) for X in (X_train, X_test))
        known = np.sort(X_train[c].unique().astype(object))
        for X in (X_train, X_test):
            X[c] = np.searchsorted(known, X[c].to_numpy(object))
    middle = X_train[c].median() if X_train[c].notna().any() else 0
    for X in (X_train, X_test):
        X[c] = X[c].fillna(middle).astype(float)
X_train.to_pickle("X_train.pkl")
y_train.to_pickle("y_train.pkl")
X_test.to_pickle("X_test.pkl")
print("X_train.pkl, y_train.pkl and X_test.pkl are saved:", X_train.shape[1], "numeric features")
"""

MODELER = """\
import pickle
import numpy as np
import pandas as pd
{imports}
X, y = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
model = {model}
model.fit(X, y)
with open("model.pkl", "wb") as file:
    pickle.dump(model, file)
print("model.pkl is saved")
"""

ANALYST = """\
import pickle
import numpy as np
import pandas as pd
with open("model.pkl", "rb") as file:
    model = pickle.load(file)
X = pd.read_pickle("X_test.pkl")
submission = pd.DataFrame({{{id!r}: pd.read_csv("test.csv")[{id!r}]}})
{predict}
submission.to_csv("submission.csv", index=False)
print("submission.csv is saved:", submission.shape)
"""

TALK = {
    "data_engineer": "I encode text by its order in the training rows, fill gaps and save the tables.",
    "modeler": "I fit a small forest on the prepared table.",
    "analyst": "I predict the test rows and write the submission.",
}
_LABELS = "submission[{targets!r}[0]] = model.predict(X)"
_PREDICT = {
    Family.LABEL: _LABELS,
    Family.TEXT: _LABELS,
    Family.SCORE: "submission[{targets!r}[0]] = model.predict_proba(X)[:, {which}]",
    Family.CLASS_PROBABILITY: "classes = model.classes_.astype(str)\n"
    "chances = pd.DataFrame(model.predict_proba(X), columns=classes)\n"
    "for c in {targets!r}:\n    submission[c] = chances[c] if c in chances else 0.0",
    Family.RANKING: "best = np.argsort(-model.predict_proba(X), axis=1)[:, :3]\n"
    "submission[{targets!r}[0]] = [' '.join(str(model.classes_[i]) for i in row) for row in best]",
    Family.NUMBER: "guess = np.asarray(model.predict(X)).reshape(len(X), -1)\n"
    "for i, c in enumerate({targets!r}):\n    submission[c] = guess[:, i]",
}


class ExpertPolicy:
    """`policy(agent, task)` is the expert's message for that agent."""

    def __call__(self, agent: str, task: TabularTask) -> str:
        return expert_action(agent, task)


def expert_action(role_name: str, task: TabularTask) -> str:
    """The message of one role (`data_engineer_0`, `modeler_0`, `analyst_0`). Raises `ConfigError`."""
    return f"{TALK[seat_of(role_name)]}\n\n```python\n{expert_code(role_name, task)}```\n"


def expert_code(role_name: str, task: TabularTask) -> str:
    """The code of that message alone."""
    spec, seat = task.spec, seat_of(role_name)
    family = metrics.metric(spec.metric).family
    targets = list(spec.target_columns)
    if seat == "data_engineer":
        hidden = [*targets, *([spec.label_column] if spec.label_column else [])]
        truth = [spec.label_column] if spec.label_column else targets
        drop = f"train = train.dropna(subset={truth!r})\n"
        return DATA_ENGINEER.format(
            id=spec.id_column,
            hidden=hidden,
            target=_target(family, spec),
            without_gaps=drop if _has_gaps(task.files.get("train.csv"), tuple(truth)) else "",
        )
    if seat == "modeler":
        return MODELER.format(**model_fields(spec))
    predict = _PREDICT[Family.NUMBER if _predicts_numbers(spec) else family]
    return ANALYST.format(id=spec.id_column, predict=predict.format(targets=targets, which=_which(spec)))


async def lay_artifacts(workspace: Workspace, task: TabularTask, upstream_roles: Sequence[str]) -> None:
    """Put the artifacts of these roles, made by the expert, into the workspace; no text, no code.

    Raises `DataError` when the expert cannot solve the task, `SandboxError` when the sandbox failed.
    """
    if not upstream_roles:
        return
    result = await workspace.run([expert_code(role, task) for role in upstream_roles])
    if not result.ok:
        why = result.limit or result.exception or f"exit code {result.exit_code}"
        said = (result.stderr.strip().splitlines() or [""])[-1][:300]
        raise DataError(
            f"task {task.task_id}: the scripted expert failed ({why}) to make the files for a start in the "
            f"middle: {said!r}. Begin with the first role; in training: --exploring-starts 0"
        )


def seat_of(role_name: str) -> str:
    """`modeler` of `modeler_0`. Raises `ConfigError` for a role that is not the expert's."""
    seat = role_name.rsplit("_", 1)[0] if role_name.rsplit("_", 1)[-1].isdigit() else role_name
    if seat not in TALK:
        raise ConfigError(f"the scripted expert knows no role {role_name!r}; it plays {', '.join(TALK)}")
    return seat


def _predicts_numbers(spec: TaskSpec) -> bool:
    """Numbers, or scores of several columns: a forest that averages 0 and 1 gives them all at once."""
    family = metrics.metric(spec.metric).family
    return family is Family.NUMBER or (family is Family.SCORE and len(spec.target_columns) > 1)


def _which(spec: TaskSpec) -> str:
    """The column of the positive class; the last of the sorted labels unless the task names it."""
    return "-1" if spec.positive is None else f"[str(c) for c in model.classes_].index({spec.positive!r})"


@lru_cache(maxsize=512)
def _has_gaps(train: Path | None, truth: Sequence[str]) -> bool:
    """Whether the first rows of the table have some without a target."""
    if train is None or not train.is_file():
        return False
    return any(column.has_gaps for column in read_columns(train) if column.name in truth)


def _target(family: Family, spec: TaskSpec) -> str:
    targets = list(spec.target_columns)
    if family is Family.CLASS_PROBABILITY and spec.label_column is None:
        return f"train[{targets!r}].idxmax(axis=1)"
    return f"train[{spec.label_column or (targets[0] if len(targets) == 1 else targets)!r}]"


def model_fields(spec: TaskSpec) -> dict[str, str]:
    """The expert's model: `imports`, the expression `model`, and `kind`, "Classifier" or "Regressor"."""
    kind = "Regressor" if _predicts_numbers(spec) else "Classifier"
    imports = f"from sklearn.ensemble import ExtraTrees{kind}"
    leaf, share = (3, 1.0) if kind == "Regressor" else (2, 0.5)
    weight = ", class_weight='balanced'" if spec.metric in ("f1", "f1_macro") else ""
    model = f"ExtraTrees{kind}(40, min_samples_leaf={leaf}, max_features={share}, random_state=0{weight})"
    if spec.metric == "rmsle":
        imports += "\nfrom sklearn.compose import TransformedTargetRegressor"
        model = f"TransformedTargetRegressor({model}, func=np.log1p, inverse_func=np.expm1)"
    return {"imports": imports, "model": model, "kind": kind}
