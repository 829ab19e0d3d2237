"""What the three roles are told, in two styles.

"full" is for models of a billion parameters and more: duty, contracts and advice, then the conversation.
"starter" is for a very small model with little context: the task, then a worked example as an answer already
given: a script for exactly this task that does the job, plainly, if copied. A role of another name has no
example: it is told its duty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mappa_envs.actions import handover_text
from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.metrics import Family
from mappa_envs.types import Message, Turn
from mappa_envs.view import View, file_name, head_and_tail, one_line, own_messages, tail, tool_text

PromptStyle = Literal["full", "starter"]
STYLES: tuple[str, ...] = get_args(PromptStyle)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a prompt may say about the task's own tables."""

    shapes: Mapping[str, tuple[int, int]]
    """Rows and columns by file name."""
    has_text: bool
    """Some feature column is not numeric."""


DUTIES = {
    "data_engineer": (
        "Turn train.csv and test.csv into numeric tables that a scikit-learn model takes as they are.\n"
        "- Leave the id and every target column out of the features.\n"
        "- X_train.pkl and X_test.pkl: pandas DataFrames with the same columns in the same order, one row "
        "for each row of train.csv and of test.csv, in their order, without missing values.\n"
        "- y_train.pkl: the target of train.csv, a Series (a DataFrame if there are several targets).\n"
        "- Learn every encoding and filling on train.csv alone and apply it unchanged to test.csv."
    ),
    "modeler": (
        "Fit a model on X_train.pkl and y_train.pkl that does well by the task's metric.\n"
        "- model.pkl: one fitted scikit-learn estimator or Pipeline with predict(), and with predict_proba() "
        "where the metric needs probabilities, saved with pickle. It must accept X_test.pkl as it is.\n"
        "- Use classes of scikit-learn only: a class or function of your own cannot be loaded by others.\n"
        "- Compare candidates by cross-validation on the training data, then fit the best on all rows."
    ),
    "analyst": (
        "Predict the rows of test.csv with model.pkl and X_test.pkl and write submission.csv.\n"
        "- Columns: the id column, then every target column by its exact name; one row for each id of "
        "test.csv, ids unchanged, no index column.\n"
        "- The values must be what the metric takes: labels as in train.csv, probabilities in [0, 1], or "
        "finite numbers.\n"
        "- If an artifact of your teammates is missing or unusable, say so, and build what you can from the "
        "tables."
    ),
}

_ADVICE = (
    "Write Python in a ```python block; it is run at once and you see its output. Each message runs in a "
    "fresh interpreter: import and load again what you need; files stay. numpy, pandas, scipy and "
    "scikit-learn are there, the network is not. Use fixed random seeds. Think briefly, then write the code. "
    "Print short facts that help your teammates. A message without code hands over."
)
_LAST = {
    "data_engineer": "Write the code that saves X_train.pkl, y_train.pkl and X_test.pkl.",
    "modeler": "Write the code that saves model.pkl.",
    "analyst": "Write the code that saves submission.csv.",
}
_MOST_FILES = 40
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def build(view: View, spec: TaskSpec, facts: Facts, style: PromptStyle) -> list[Message]:
    """The prompt of the role. Pure."""
    return _starter(view, spec, facts) if style == "starter" else _full(view, facts)


def _full(view: View, facts: Facts) -> list[Message]:
    role = view.role
    chain = " → ".join(member.title for member in view.team)
    system = (
        f"You are the {role.title} of a data science team: {chain}. The team works in one folder and "
        f"succeeds only if the final submission is good.\n\nYour duty: {role.duty}\n\n{_ADVICE}"
    )
    parts = [f"# Task\n{view.task.prompt.strip()}", "# Files\n" + "\n".join(_files(view, facts))]
    for turn in view.handovers:
        text = head_and_tail(handover_text(turn.action), 8000) or "(an empty message)"
        parts.append(f"# Message of the {view.title(turn.agent)}\n{text}{_output(turn, 2000)}")
    files = f" Leave behind: {', '.join(role.required)}." if role.required else ""
    parts.append(f"# Now\nYou can send up to {_times(role.max_actions)}.{files}")
    first = [Message(role="system", content=system), Message(role="user", content="\n\n".join(parts))]
    return first + own_messages(view)


def _output(turn: Turn, max_chars: int) -> str:
    return "" if turn.tool is None else f"\n\nOutput of its code:\n{tail(tool_text(turn.tool), max_chars)}"


def _times(number: int) -> str:
    return "one message" if number == 1 else f"{number} messages"


def _files(view: View, facts: Facts) -> list[str]:
    lines = []
    known = {*view.task.files, *view.artifacts}
    # However many files an agent makes, those that matter come first.
    for path in sorted(view.files, key=lambda path: (path not in known, path)):
        found, size = view.artifacts.get(path), view.files[path]
        words = [] if size is None else [f"{size} bytes"]
        shape = found.shape if found and found.shape else facts.shapes.get(path)
        if shape and len(shape) == 2:
            words.insert(0, f"{shape[0]} rows × {shape[1]} columns")
        if found and found.problem:
            status = "" if found.status == "valid" else f"{found.status}: "
            words.append(status + one_line(found.problem))
        lines.append(f"- {file_name(path)}" + (f" ({', '.join(words)})" if words else ""))
    if len(lines) > _MOST_FILES:
        lines = [*lines[:_MOST_FILES], f"- … {len(lines) - _MOST_FILES} more"]
    for path in view.role.required:
        found = view.artifacts.get(path)
        if path in view.files:
            continue
        if found is None or found.status == "missing":
            lines.append(f"- {path} is missing")
        else:  # a folder
            lines.append(f"- {path} ({found.status}: {one_line(found.problem)})")
    return lines


def _starter(view: View, spec: TaskSpec, facts: Facts) -> list[Message]:
    seat = view.role.name.rsplit("_", 1)[0]
    ask = [view.task.prompt.strip(), _short_files(view, facts)]
    for turn in view.handovers:
        if said := _said(turn):
            ask.append(f"{view.title(turn.agent)}: {said}")
    output = ""
    if view.own and (last := view.own[-1]).tool is not None:
        output = f"Your last output: {tail(tool_text(last.tool), 200)}\n"
    system = Message(
        role="system", content=f"You are the {view.role.title}. Answer with one Python code block."
    )
    if seat not in _LAST:
        # There is no script for a seat of somebody's own: its duty says what to write.
        asked = "\n".join([*ask, f"{output}{view.role.duty}"])
        return [system, Message(role="user", content=asked)]
    return [
        system,
        Message(role="user", content="\n".join([*ask, _LAST[seat]])),
        # As an answer already given, with nothing new after it, the example is copied far more often than
        # as part of the question.
        Message(role="assistant", content=f"```python\n{starter_code(seat, spec, facts.has_text)}\n```"),
        Message(role="user", content=f"{output}Good. Write it again, the same or better."),
    ]


def _said(turn: Turn) -> str:
    """The prose of a hand-over and the end of its output. Its code would fill the small context."""
    prose = _FENCED.sub(" ", handover_text(turn.action))
    output = tail(turn.tool.stdout.strip(), 100) if turn.tool else ""
    return " ".join(f"{prose} {output}".replace("`", "").split())[:150]


def _short_files(view: View, facts: Facts) -> str:
    words = []
    for path in (*facts.shapes, *view.artifacts):
        found = view.artifacts.get(path)
        if found is None or found.status == "valid":
            shape = found.shape if found else facts.shapes[path]
            words.append(f"{path} {'x'.join(map(str, shape))}" if shape else path)
        elif found.status != "missing":
            words.append(f"{path} (bad: {one_line(found.problem[:80])})")
    return f"Files: {', '.join(words)}."


def starter_code(seat: str, spec: TaskSpec, has_text: bool = False) -> str:
    """A short script that does the job of `data_engineer`, `modeler` or `analyst` for this task."""
    family = metrics.metric(spec.metric).family
    if seat == "data_engineer" and has_text:
        # Ranks: text becomes its place in the alphabet, alike in both tables, and the table no wider. Of many
        # ways to write it, this is the one that a small model copies as often as the script for numbers.
        lines = [
            "import pandas as pd",
            'test = pd.read_csv("test.csv")',
            'train = pd.read_csv("train.csv")',
            "X = pd.concat([test, train])[test.columns]"
            f".drop(columns={_quote(spec.id_column)}).rank().fillna(0)",
            'X.head(len(test)).to_pickle("X_test.pkl")',
            'X.tail(len(train)).to_pickle("X_train.pkl")',
            f'{_target(family, spec)}.to_pickle("y_train.pkl")',
        ]
    elif seat == "data_engineer":
        lines = [
            "import pandas as pd",
            'test = pd.read_csv("test.csv")',
            'train = pd.read_csv("train.csv")',
            f'X = test.drop(columns={_quote(spec.id_column)}).select_dtypes("number").fillna(0)',
            'X.to_pickle("X_test.pkl")',
            'train[X.columns].fillna(0).to_pickle("X_train.pkl")',
            f'{_target(family, spec)}.to_pickle("y_train.pkl")',
        ]
    elif seat == "modeler":
        forest = f"RandomForest{'Regressor' if _predicts_numbers(family, spec) else 'Classifier'}"
        lines = [
            "import pandas as pd",
            f"from sklearn.ensemble import {forest}",
            'X = pd.read_pickle("X_train.pkl")',
            'y = pd.read_pickle("y_train.pkl")',
            f"model = {forest}(max_depth=8, random_state=0)",
            'pd.to_pickle(model.fit(X, y), "model.pkl")',
        ]
    else:
        lines = [
            "import pandas as pd",
            # First: after two lines with read_pickle a small model writes it a third time.
            f'out = pd.read_csv("test.csv", usecols=[{_quote(spec.id_column)}])',
            'model = pd.read_pickle("model.pkl")',
            'X = pd.read_pickle("X_test.pkl")',
            *_predict(family, spec),
            'out.to_csv("submission.csv", index=False)',
        ]
    return "\n".join(lines)


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _columns(names: Sequence[str]) -> str:
    """One name, or a list of names, as it stands between brackets."""
    return _quote(names[0]) if len(names) == 1 else "[" + ", ".join(map(_quote, names)) + "]"


def _target(family: Family, spec: TaskSpec) -> str:
    if family is Family.CLASS_PROBABILITY and spec.label_column is None:
        return f"train[{_columns(spec.target_columns)}].idxmax(axis=1)"
    return f"train[{_columns([spec.label_column] if spec.label_column else spec.target_columns)}]"


def _predicts_numbers(family: Family, spec: TaskSpec) -> bool:
    # A forest that averages 0 and 1 gives probabilities, for several targets at once.
    return family is Family.NUMBER or (family is Family.SCORE and len(spec.target_columns) > 1)


def _predict(family: Family, spec: TaskSpec) -> list[str]:
    goal = f"out[{_columns(spec.target_columns)}]"
    if family is Family.CLASS_PROBABILITY:
        return ["out[list(model.classes_.astype(str))] = model.predict_proba(X)"]
    if family is Family.SCORE and not _predicts_numbers(family, spec):
        return [f"{goal} = model.predict_proba(X)[:, {_positive_index(spec)}]"]
    if family is Family.RANKING:
        return [
            "best = model.predict_proba(X).argsort(axis=1)[:, :-4:-1]",
            f'{goal} = [" ".join(row) for row in model.classes_.astype(str)[best]]',
        ]
    return [f"{goal} = model.predict(X)"]


def _positive_index(spec: TaskSpec) -> int:
    if spec.labels is None or spec.positive is None:
        return -1
    return metrics.label_order(spec.labels).index(spec.positive)
