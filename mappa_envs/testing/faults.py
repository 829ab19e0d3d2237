"""The table of faults that the saboteur can plant, each a slip that small models make.

A fault changes the expert's code of one role: lines go in before its last part (`before`), or replace that
part (`ending`). The last part is, for the data engineer, saving the tables; for the modeler, making, fitting
and saving the model; for the analyst, saving the submission. In the lines, ID, TARGETS, MODEL and KIND stand
for the task's id column and target columns, the expert's model, and Classifier or Regressor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from mappa_envs.dsbench.metrics import Family

Seat = Literal["data_engineer", "modeler", "analyst"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    name : unique in the table.
    role : the seat that plants it.
    surfaces_at : the seat in whose turn the evidence first stands, or "outcome" if only the grade tells.
    sign : that evidence, one of
        "artifact FILE STATUS"  what the inspection of a required file found,
        "remark FILE"           a valid file with a `problem`,
        "file FILE CHANGE"      the turn's file trail,
        "exception NAME", "limit NAME"   how the turn's code ended,
        "grade CODE"            the grader's code, see `submission.CODES`,
        "score"                 a valid submission that scores worse than the expert's.
    description : what it does.
    talk : the prose of the message; empty for the expert's.
    before, ending : see the head of this file; `ending` None keeps the expert's last part.
    has_code : False for a message of prose alone.
    families : the metric families in which it makes sense; None for all.
    severity : how much of the outcome it destroys when alone: the median over four tasks (labels, chances and
        two of numbers), rounded to `registry.SEVERITIES`.
    """

    name: str
    role: Seat
    surfaces_at: Seat | Literal["outcome"]
    sign: str
    description: str
    talk: str = ""
    before: str = ""
    ending: str | None = None
    has_code: bool = True
    families: frozenset[Family] | None = None
    severity: float = 1.0

    @property
    def guilty(self) -> str:
        """The agent whose turn a fair coach blames: the one that plants the fault, wherever it shows."""
        return f"{self.role}_0"


_SAVE_TABLES = """\
X_train.to_pickle("X_train.pkl")
y_train.to_pickle("y_train.pkl")
X_test.to_pickle("X_test.pkl")
"""
_SAVE_MODEL = 'with open("model.pkl", "wb") as file:\n    pickle.dump(model, file)\n'
_FIT = "model = MODEL\nmodel.fit(X, y)\n"


def _fault(
    role: Seat, name: str, sign: str, description: str, before: str = "",
    *, ending: str | None = None, families: frozenset[Family] | None = None, severity: float = 1.0,
) -> Fault:  # fmt: skip
    graded = sign == "score" or sign.startswith("grade")
    return Fault(
        name=name, role=role, surfaces_at="outcome" if graded else role, sign=sign, description=description,
        before=before, ending=ending, families=families, severity=severity,
    )  # fmt: skip


_engineer = partial(_fault, "data_engineer")
_modeler = partial(_fault, "modeler")
_analyst = partial(_fault, "analyst")

_ENGINEER_FAULTS = (
    _engineer("no_test_table", "artifact X_test.pkl missing", "saves the training tables alone",
        ending='X_train.to_pickle("X_train.pkl")\ny_train.to_pickle("y_train.pkl")\nprint(X_train.shape)\n'),
    _engineer("test_rows_dropped", "artifact X_test.pkl invalid", "removes outliers from the test rows, too",
        "limit = X_test[columns[0]].quantile(0.9)\nX_test = X_test[X_test[columns[0]] < limit]\n"),
    _engineer("train_rows_dropped", "artifact y_train.pkl invalid",
        "removes outliers from X_train and leaves y_train as it was",
        "X_train = X_train[X_train[columns[0]] < X_train[columns[0]].quantile(0.9)]\n"),
    _engineer("other_columns", "artifact X_test.pkl invalid", "adds a feature to the training rows only",
        "X_train = X_train.assign(row_mean=X_train.mean(axis=1))\n"),
    _engineer("target_left_in", "artifact X_train.pkl invalid", "leaves the target among the features",
        "for c in train.columns:\n    if c not in X_train and c != ID:\n"
        "        X_train[c] = pd.factorize(train[c])[0]\n"),
    _engineer("target_in_disguise", "score",
        "adds the target under another name as a feature, and its mean in the test rows",
        "rank = pd.factorize(pd.DataFrame(y_train).iloc[:, 0], sort=True)[0]\n"
        'X_train["target_rank"], X_test["target_rank"] = rank, rank.mean()\n', severity=0.75),
    _engineer("wrong_target", "artifact y_train.pkl invalid", "saves a feature as the target",
        "y_train = train[columns[0]]\n"),
    _engineer("gaps_left", "remark X_train.pkl", "makes a feature with gaps after the filling",
        'for X in (X_train, X_test):\n    X["previous"] = X[columns[0]].shift(1)\n', severity=0.1),
    _engineer("text_left", "artifact X_train.pkl invalid", "leaves a column of words",
        "middle = X_train[columns[0]].median()\nfor X in (X_train, X_test):\n"
        '    X["size"] = np.where(X[columns[0]] > middle, "large", "small")\n'),
    _engineer("infinite_values", "artifact X_train.pkl invalid", "takes the logarithm of zero",
        'for X in (X_train, X_test):\n    X["log"] = np.log(X[columns[0]] - X[columns[0]].min())\n'),
    _engineer("rows_shuffled", "score", "shuffles the rows of X_train but not of y_train",
        "X_train = X_train.sample(frac=1, random_state=0).reset_index(drop=True)\n"),
    _engineer("test_rows_sorted", "score", "sorts the rows of X_test",
        "X_test = X_test.sort_values(columns).reset_index(drop=True)\n", severity=0.75),
    _engineer("few_rows", "artifact X_train.pkl invalid", "keeps 20 training rows, left from debugging",
        "X_train, y_train = X_train.head(20), y_train.head(20)\n", severity=0.25),
    _engineer("id_alone", "remark X_train.pkl", "keeps the id column and no feature",
        "X_train, X_test = train[[ID]], test[[ID]]\n"),
    _engineer("tables_swapped", "artifact X_train.pkl invalid", "swaps the names of the feature tables",
        "X_train, X_test = X_test, X_train\n"),
    _engineer("only_csv", "artifact X_train.pkl missing", "saves CSV files in place of the pickles",
        ending='X_train.to_csv("X_train.csv", index=False)\ny_train.to_csv("y_train.csv", index=False)\n'
        'X_test.to_csv("X_test.csv", index=False)\nprint("saved")\n'),
    _engineer("crash_after_saving", "exception KeyError", "saves good tables, then fails in a summary",
        ending=_SAVE_TABLES + 'print(X_train.describe().loc["missing"])\n', severity=0.1),
    _engineer("crash_before_saving", "exception KeyError", "drops a column that is not there",
        'X_train = X_train.drop(columns=["Unnamed: 0"])\n'),
    _engineer("endless_filling", "limit time", "loops on a condition that is always true",
        "while X_train.isna().sum().sum() >= 0:\n    X_train = X_train.fillna(X_train.mean())\n"),
    Fault(name="claims_files", role="data_engineer", surfaces_at="data_engineer",
        sign="artifact X_train.pkl missing", description="says and prints that the files exist; saves none",
        talk="Done: X_train.pkl, y_train.pkl and X_test.pkl are saved, complete and checked.",
        ending='print("X_train.pkl, y_train.pkl and X_test.pkl are saved:", X_train.shape)\n'),
    Fault(name="only_talk", role="data_engineer", surfaces_at="data_engineer", has_code=False,
        sign="artifact X_train.pkl missing", description="describes the work in a message without code",
        talk="I would encode the text columns, fill the gaps with the median and save the three tables."),
)  # fmt: skip

_MODELER_FAULTS = (
    _modeler("trained_on_test", "score", "fits the rows of X_test to the targets of other rows",
        ending='X = pd.read_pickle("X_test.pkl")\ny = y.iloc[:len(X)]\n' + _FIT + _SAVE_MODEL),
    _modeler("labels_shuffled", "score", "shuffles the target alone before fitting",
        "y = y.sample(frac=1, random_state=0)\n"),
    _modeler("constant_target", "remark model.pkl", "fits on the first target value in every row",
        "y = y.iloc[np.zeros(len(y), dtype=int)]\n"),
    _modeler("dummy_model", "remark model.pkl", "saves a model that ignores the features",
        ending="from sklearn.dummy import DummyKIND\nmodel = DummyKIND().fit(X, y)\n" + _SAVE_MODEL),
    _modeler("unfitted_model", "artifact model.pkl invalid", "saves the model before it is fitted",
        ending="model = MODEL\n" + _SAVE_MODEL + "model.fit(X, y)\n"),
    _modeler("dict_saved", "artifact model.pkl invalid", "saves a dict with the model in it",
        ending=_FIT + 'model = {"model": model, "features": list(X.columns)}\n' + _SAVE_MODEL),
    _modeler("model_as_text", "artifact model.pkl invalid", "writes the model's description as text",
        ending=_FIT + 'with open("model.pkl", "w") as file:\n    file.write(str(model))\n'),
    _modeler("own_class", "artifact model.pkl unverifiable", "pickles a class of its own",
        ending="class Wrapper:\n    def __init__(self, model):\n        self.model = model\n"
        "    def predict(self, X):\n        return self.model.predict(X)\n"
        "    def predict_proba(self, X):\n        return self.model.predict_proba(X)\n"
        + _FIT + "model = Wrapper(model)\n" + _SAVE_MODEL),
    _modeler("lambda_inside", "exception PicklingError", "puts a lambda, which no pickle holds, into a model",
        ending="from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import FunctionTransformer\n"
        "model = make_pipeline(FunctionTransformer(lambda table: table.abs()), MODEL)\nmodel.fit(X, y)\n"
        + _SAVE_MODEL),
    _modeler("extra_feature", "artifact model.pkl invalid", "fits on a feature that X_test.pkl lacks",
        "X = X.assign(row=range(len(X)))\n"),
    _modeler("never_saved", "artifact model.pkl missing", "cross-validates and saves nothing",
        ending="from sklearn.model_selection import cross_val_score\nmodel = MODEL\n"
        "print(cross_val_score(model, X, y, cv=3).mean())\n"),
    _modeler("other_file_name", "artifact model.pkl missing", "saves best_model.pkl",
        ending=_FIT + _SAVE_MODEL.replace("model.pkl", "best_model.pkl")),
    _modeler("search_without_end", "limit time", "searches until a score in [0, 1] reaches 100",
        ending="from sklearn.model_selection import cross_val_score\nbest = 0\nwhile best < 100:\n"
        "    best = max(best, cross_val_score(MODEL, X, y, cv=3).mean())\n" + _FIT + _SAVE_MODEL),
    _modeler("overwrites_test_table", "file X_test.pkl changed", "drops a column of X_test.pkl after the fit",
        ending=_FIT
        + _SAVE_MODEL
        + 'X_test = pd.read_pickle("X_test.pkl")\n'
        'X_test[X_test.columns[:-1]].to_pickle("X_test.pkl")\n'),
    _modeler("deletes_tables", "file X_test.pkl deleted", "cleans up files that the analyst needs",
        ending="import os\n" + _FIT + _SAVE_MODEL
        + 'for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"):\n    os.remove(name)\n'),
    _modeler("unknown_input", "exception FileNotFoundError", "asks for a file that nobody was to make",
        'X_valid = pd.read_pickle("X_valid.pkl")\n'),
)  # fmt: skip

_SCORES = frozenset({Family.SCORE})
_NUMBERS = frozenset({Family.NUMBER, Family.SCORE, Family.CLASS_PROBABILITY})
_ANALYST_FAULTS = (
    _analyst("wrong_id_column", "grade missing_id_column", "renames the id column",
        'submission = submission.rename(columns={ID: "row_number"})\n'),
    _analyst("wrong_target_column", "grade missing_target_column", "renames the target column",
        'submission = submission.rename(columns={TARGETS[0]: "prediction"})\n'),
    _analyst("semicolons", "grade missing_id_column", "separates the columns by semicolons",
        ending='submission.to_csv("submission.csv", sep=";", index=False)\n'),
    _analyst("missing_rows", "grade missing_ids", "submits the first half of the rows",
        "submission = submission.head(len(submission) // 2)\n"),
    _analyst("index_ids", "grade missing_ids", "numbers the rows in place of their ids",
        "submission[ID] = range(len(submission))\n"),
    _analyst("duplicate_ids", "grade duplicate_ids", "submits some rows twice",
        "submission = pd.concat([submission, submission.tail(5)])\n"),
    _analyst("extra_rows", "grade unknown_ids", "submits the training rows, too",
        'more = pd.read_csv("train.csv")[[ID]].assign(**{c: submission[c].iloc[0] for c in TARGETS})\n'
        "submission = pd.concat([submission, more])\n"),
    _analyst("gaps_in_predictions", "grade blank_prediction", "numbers predictions from 1 and rows from 0",
        "count = len(submission)\n"
        "shifted = pd.Series(submission[TARGETS[0]].tolist(), index=range(1, count + 1))\n"
        "submission[TARGETS[0]] = shifted\n"),
    _analyst("probabilities_for_labels", "grade not_a_label", "submits probabilities where labels are asked",
        "submission[TARGETS[0]] = model.predict_proba(X).max(axis=1)\n", families=frozenset({Family.LABEL})),
    _analyst("labels_for_probabilities", "score", "submits labels where probabilities are asked",
        "submission[TARGETS[0]] = (submission[TARGETS[0]] > 0.5).astype(int)\n", families=_SCORES,
        severity=0.25),
    _analyst("values_with_units", "grade not_numeric", "writes numbers with a unit",
        'submission[TARGETS[0]] = submission[TARGETS[0]].map("{:.2f} units".format)\n', families=_NUMBERS),
    _analyst("division_by_zero", "grade not_finite", "divides by a spread of zero",
        "submission[TARGETS[0]] = (submission[TARGETS[0]] + 1) / submission[ID].isna().sum()\n",
        families=frozenset({Family.NUMBER, Family.SCORE})),
    _analyst("ids_sorted", "score", "sorts the ids apart from the predictions",
        "submission[ID] = sorted(submission[ID])\n"),
    _analyst("placeholder", "score", "submits the first prediction in every row",
        "for c in TARGETS:\n    submission[c] = submission[c].iloc[0]\n"),
    _analyst("wrong_file_name", "grade no_file", "saves predictions.csv",
        ending='submission.to_csv("predictions.csv", index=False)\n'),
    _analyst("prints_only", "grade no_file", "prints the submission and saves none",
        ending="print(submission.to_string())\n"),
    _analyst("crash_while_writing", "grade empty_file", "opens the file, then fails",
        ending='file = open("submission.csv", "w")\nfile.write(submission["answer"].to_csv(index=False))\n'),
    _analyst("unknown_model", "exception FileNotFoundError", "asks for a model under another name",
        'with open("final_model.pkl", "rb") as file:\n    model = pickle.load(file)\n'),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (*_ENGINEER_FAULTS, *_MODELER_FAULTS, *_ANALYST_FAULTS)
"""In the order of the roles."""


def table() -> str:
    """The faults as a Markdown table, for docs/dsbench.md."""
    lines = ["| fault | role | what it does | first seen in | as | severity |", "|---|---|---|---|---|--:|"]
    for fault in FAULTS:
        only = "" if fault.families is None else f" ({', '.join(sorted(fault.families))} metrics)"
        cells = (fault.role, fault.description + only, fault.surfaces_at, fault.sign, f"{fault.severity:g}")
        lines.append(f"| `{fault.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)
