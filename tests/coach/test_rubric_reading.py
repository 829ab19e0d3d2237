"""The reader of programs: what it finds in code that mishandles data, and nothing in sound code."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_envs.actions import extract_code
from mappa_envs.coach.rubric.checks import check
from mappa_envs.coach.rubric.faults import facts_of
from mappa_envs.coach.rubric.reader import MAX_STEPS, read
from mappa_envs.coach.rubric.values import Facts
from mappa_envs.dsbench.prompts import starter_code
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.testing import expert_action

PRICE = Facts(id_column="id", targets=("price",), family="number")
CHANCE = Facts(id_column="id", targets=("y",), family="score")

TABLES = """\
import numpy as np, pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
y_train = train["price"]
X_train, X_test = train.drop(columns=["id", "price"]), test.drop(columns=["id"])
{}
X_train.to_pickle("X_train.pkl"); y_train.to_pickle("y_train.pkl"); X_test.to_pickle("X_test.pkl")
"""
MODEL = """\
import pickle, numpy as np, pandas as pd
from sklearn.ensemble import *
from sklearn.model_selection import *
from sklearn.utils import shuffle
X, y = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
{}
pickle.dump(model, open("model.pkl", "wb"))
"""
SUBMIT = """\
import pickle, numpy as np, pandas as pd
with open("model.pkl", "rb") as f:
    model = pickle.load(f)
X, test = pd.read_pickle("X_test.pkl"), pd.read_csv("test.csv")
{}
pd.DataFrame({{"id": ids, "price": p, "y": p}}).to_csv("submission.csv", index=False)
"""


def words(code: str, facts: Facts = PRICE, kind: str = "") -> str:
    """The findings of some severity, as one text."""
    return "; ".join(f.words for f in check(read([code], facts), facts, kind) if f.severity > 0.2)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("X_train = X_train.sample(frac=1, random_state=0)", "different rows"),
        ("y_train = y_train.sort_values()", "different rows"),
        ("y_train = y_train[::-1]", "different rows"),
        ("X_train = X_train[X_train['a'] < 3]", "different rows"),
        ("rng = np.random.default_rng(0)\ny_train = pd.Series(rng.permutation(y_train))", "different rows"),
        ("X_test = X_test.sort_values('a').reset_index(drop=True)", "X_test.pkl has not the rows"),
        ("X_test.sort_values('a', inplace=True)", "X_test.pkl has not the rows"),
        ("X_train, X_test = X_test, X_train", "rows of test.csv"),
        ("X_train['z'] = np.sqrt(train['price']); X_test['z'] = 0", "computed from the target"),
        ("X_train['z'] = (train.price > 3).astype(int); X_test['z'] = 0", "computed from the target"),
        ("X_train = X_train + np.random.normal(0, 1, X_train.shape)", "random numbers"),
        ("X_train[:] = 0", "overwritten by one value"),
        ("y_train = np.log1p(y_train)", "another scale"),
        ("y_train = train['rooms']", "another column than the target"),
        ("y_train = -y_train", "turned around"),
        ("X_train = X_train[X_train.columns[::-1]]", "columns in different orders"),
        (
            "for X in (X_train, X_test):\n    for c in X.columns:\n        X[c] = pd.factorize(X[c])[0]",
            "apart",
        ),
        (
            "from sklearn.preprocessing import StandardScaler\n"
            "X_train[:] = StandardScaler().fit_transform(X_train)\n"
            "X_test = pd.DataFrame(StandardScaler().fit_transform(X_test))",
            "apart",
        ),
    ],
)
def test_mistakes_with_tables_are_found(lines: str, said: str) -> None:
    assert said in words(TABLES.format(lines))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("model = RandomForestRegressor().fit(X, y.sample(frac=1))", "targets of other rows"),
        ("y = shuffle(y)\nmodel = RandomForestRegressor().fit(X, y)", "targets of other rows"),
        ("a, b, c, d = train_test_split(X, y)\nmodel = RandomForestRegressor().fit(a, d)", "other rows"),
        ("X = pd.read_pickle('X_test.pkl')\nmodel = RandomForestRegressor().fit(X, y[:len(X)])", "X_test"),
        ("model = RandomForestRegressor().fit(X, X.iloc[:, 0])", "a feature in place of the target"),
        ("X, y = X.head(10), y.head(10)\nmodel = RandomForestRegressor().fit(X, y)", "small part"),
        ("model = RandomForestRegressor().fit(X, np.log1p(y))", "another scale"),
        ("model = RandomForestRegressor().fit(X, y + np.random.normal(size=len(y)))", "random"),
        ("model = RandomForestRegressor()", "before it is fitted"),
        ("model = RandomForestRegressor(n_estimators=1, max_depth=1).fit(X, y)", "hardly learns"),
        ("model = RandomForestRegressor()\nmodel.set_params(max_depth=1)\nmodel.fit(X, y)", "hardly learns"),
        (
            "a, b, c, d = train_test_split(X, y, test_size=0.95)\nmodel = RandomForestRegressor().fit(a, c)",
            "small part",
        ),
        (
            "from sklearn.dummy import DummyRegressor\nmodel = DummyRegressor().fit(X, y)",
            "ignores the features",
        ),
        ("model = RandomForestClassifier().fit(X, y)", "classes where numbers"),
    ],
)
def test_mistakes_with_models_are_found(lines: str, said: str) -> None:
    assert said in words(MODEL.format(lines))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("ids, p = sorted(test['id']), model.predict(X)", "different orders"),
        ("ids, p = test['id'], np.sort(model.predict(X))", "different orders"),
        ("X = X.sort_values('a')\nids, p = test['id'], model.predict(X)", "different orders"),
        ("ids, p = test['id'], model.predict(X)\nnp.random.shuffle(p)", "different orders"),
        ("ids, p = test['id'], model.predict(X).mean()", "one value"),
        ("ids, p = test['id'], np.zeros(len(test))", "one value"),
        ("ids, p = test['id'], pd.Series(model.predict(X)).mode()[0]", "one value"),
        ("ids, p = range(len(test)), model.predict(X)", "row numbers"),
        ("ids, p = test['id'].head(9), model.predict(X)", "different orders"),
        ("ids, p = test['id'], np.random.rand(len(test))", "random values"),
        ("ids, p = test['id'], model.predict(X) * 1000", "by a constant"),
        ("ids, p = test['id'], model.predict(X[X.columns[::-1]].values)", "columns in another order"),
    ],
)
def test_mistakes_with_submissions_are_found(lines: str, said: str) -> None:
    assert said in words(SUBMIT.format(lines))


@pytest.mark.parametrize(
    ("p", "said"),
    [
        ("model.predict_proba(X)[:, 0]", "other class"),
        ("1 - model.predict_proba(X)[:, 1]", "other class"),
        ("(model.predict_proba(X)[:, 1] > 0.5).astype(int)", "labels where probabilities"),
        ("model.predict(X)", "labels where probabilities"),
        ("model.predict_proba(X)[:, 1]", ""),
        ("1 - model.predict_proba(X)[:, 0]", ""),
    ],
)
def test_probabilities_are_told_from_labels_and_from_the_other_class(p: str, said: str) -> None:
    found = words(SUBMIT.format(f"ids, p = test['id'], {p}"), CHANCE, "RandomForestClassifier")
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    "code",
    [
        TABLES.format("X_train, X_test = X_train.fillna(0), X_test.fillna(0)"),
        TABLES.format("keep = X_train['a'] < 3\nX_train, y_train = X_train[keep], y_train[keep]"),
        TABLES.format("X_train = X_train[X_train['a'] < 3]\ny_train = y_train.loc[X_train.index]"),
        TABLES.format(
            "both = pd.get_dummies(pd.concat([X_train, test]))\nX_train, X_test = both[:9], both[9:]"
        ),
        TABLES.format(
            "n = len(train)\nboth = pd.get_dummies(pd.concat([train.drop(columns=['price']), test]))\n"
            "X_train, X_test = both.iloc[:len(train)], both.iloc[len(train):]"
        ),
        TABLES.format("means = train.groupby('a')['price'].mean()\nX_train['a'] = X_train['a'].map(means)"),
        TABLES.format(
            "from sklearn.preprocessing import StandardScaler\ns = StandardScaler()\n"
            "X_train = pd.DataFrame(s.fit_transform(X_train))\nX_test = pd.DataFrame(s.transform(X_test))"
        ),
        TABLES.format(
            "def prepare(table, middle):\n    table = table.copy()\n    for c in table.columns:\n"
            "        table[c] = table[c].fillna(middle)\n    return table\n"
            "X_train, X_test = prepare(X_train, 0), prepare(X_test, 0)"
        ),
        MODEL.format("X, y = shuffle(X, y)\nmodel = RandomForestRegressor(200, max_depth=6).fit(X, y)"),
        MODEL.format(
            "a, b, c, d = train_test_split(X, y)\nmodel = RandomForestRegressor().fit(a, c)\n"
            "print(model.score(b, d))"
        ),
        MODEL.format(
            "for m in (RandomForestRegressor(), ExtraTreesRegressor()):\n    m.fit(X, y)\nmodel = m"
        ),
        SUBMIT.format("ids, p = test['id'], np.clip(model.predict(X.values), 0, None)"),
        SUBMIT.format("ids, p = test['id'], np.expm1(model.predict(X))"),
        SUBMIT.format(
            "ids = test['id']\ntry:\n    p = model.predict(X)\nexcept ValueError as e:\n"
            "    p = np.zeros(len(X))"
        ),
    ],
)
def test_sound_code_has_no_finding(code: str) -> None:
    ast.parse(code)
    assert words(code) == ""


def test_experts_and_worked_examples_have_no_finding() -> None:
    for task in load_tasks("embedded", None):
        facts = facts_of(task)
        for seat in ("data_engineer", "modeler", "analyst"):
            code = extract_code(expert_action(f"{seat}_0", task))
            code = [*code, *(starter_code(seat, task.spec, has_text) for has_text in (False, True))]
            for block in code:
                assert check(read([block], facts), facts) == (), (task.task_id, seat)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("table.to_csv('submission.csv', sep=';')", "other separators"),
        ("table.to_csv('submission.csv', header=False)", "no header"),
        ("table.head(9).to_csv('submission.csv')", "other rows"),
        ("table.rename(columns={'price': 'guess'}).to_csv('submission.csv')", "other names"),
        ("table.sort_values('id').to_csv('submission.csv')", ""),
    ],
)
def test_a_submission_of_another_form_is_found(ending: str, said: str) -> None:
    lines = "ids, p = test['id'], model.predict(X)\ntable = pd.DataFrame({'id': ids, 'price': p})"
    found = words("\n".join([*SUBMIT.format(lines).splitlines()[:-1], ending]))
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize("made", ["{'model': m}", "[m]", "Wrapper(m)"])
def test_what_is_no_model_of_scikit_learn_is_found(made: str) -> None:
    lines = f"class Wrapper:\n    pass\nm = RandomForestRegressor().fit(X, y)\nmodel = {made}"
    assert "model.pkl holds" in words(MODEL.replace("{}", "LINES").replace("LINES", lines))


def test_an_exception_that_is_passed_over_is_slight() -> None:
    found = check(read(["try:\n    pass\nexcept Exception:\n    pass"]), PRICE)
    assert [one.severity for one in found] == [0.2]


def test_reading_is_bounded() -> None:
    loops = "for a in (1,2,3,4,5,6,7,8):\n"
    nest = "".join("    " * depth + loops for depth in range(12)) + "    " * 12 + "x = 1"
    read([nest])
    read(["x = " + "a." * 5000 + "b"])
    read(["(" * 500])
    read(["def f(n):\n    return f(n)\nf(1)", "\x00", "x" * 100_000])
    assert MAX_STEPS < 100_000


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="X_train=y[]().:,'\"\n 1-sample" + "fit", max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(check(read([text, 'X.to_pickle("X_test.pkl")']), PRICE), tuple)
