"""What calls of pandas, numpy and scikit-learn do to rows and columns, for the reader of programs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mappa_envs.coach.rubric.row_by_row import keep
from mappa_envs.coach.rubric.values import (
    NOTHING,
    OWN_CLASS,
    TEST,
    TRAIN,
    Fit,
    Save,
    Tag,
    Value,
    all_tags,
    elementwise,
    loaded,
)
from mappa_envs.coach.rubric.vocabulary import (
    CONSTANTS,
    ESTIMATOR,
    EXPS,
    FITS,
    LOGS,
    MADE,
    ORDERS,
    OUTPUTS,
    RANDOM,
    READERS,
    REDUCED,
    ROW_STEPS,
    SAME_ROWS,
    TRANSFORMER,
)

if TYPE_CHECKING:
    from mappa_envs.coach.rubric.reader import Reader


SMALL_PART = 0.2
"""Of the rows: who fits on such a part of a split may as well have taken the other one."""
MAX_NAME = 100
"""No function of a library has a longer name; each is held against many patterns."""


def call(reader: Reader, node: ast.Call) -> Value:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if len(name) > MAX_NAME:
        return NOTHING
    if isinstance(node.func, ast.Name) and name in reader.functions:
        return _own(reader, node, name)
    if isinstance(node.func, ast.Name) and reader.value(node.func).source == OWN_CLASS:
        return Value(source=OWN_CLASS)
    receiver = reader.value(node.func.value) if isinstance(node.func, ast.Attribute) else NOTHING
    is_module = isinstance(node.func, ast.Attribute) and _is_module(reader, node.func.value)
    arguments = [reader.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
    keywords = {k.arg: reader.value(k.value) for k in node.keywords if k.arg}
    first = arguments[0] if arguments else next(iter(keywords.values()), NOTHING)
    is_function = is_module or not isinstance(node.func, ast.Attribute)
    # rng.permutation(y) works on y, y.sample() on y.
    on_argument = (
        receiver.rows is None and not receiver.estimator and name in ("permutation", "shuffle", "permuted")
    )
    subject = first if is_function or on_argument else receiver
    found = Call(reader, node, name, subject, first, tuple(arguments), keywords, is_module)
    result = found.result()
    inplace = keywords.get("inplace", NOTHING).const is True
    if inplace and isinstance(node.func, ast.Attribute):
        reader.update(node.func.value, result)
    elif name in ("sort", "reverse") and receiver.items is not None and isinstance(node.func, ast.Attribute):
        reader.update(node.func.value, NOTHING)
    elif name == "shuffle" and node.args and not isinstance(node.func, ast.Name):
        _shuffled(reader, node.args[0], result)
    return result


def _shuffled(reader: Reader, target: ast.expr, result: Value) -> None:
    """`rng.shuffle(y)` and `rng.shuffle(y.values)` change y."""
    owner = target.value if isinstance(target, ast.Attribute) else target
    reader.update(owner, result)


def _is_module(reader: Reader, node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in reader.state.names


def _own(reader: Reader, node: ast.Call, name: str) -> Value:
    parameters = dict.fromkeys(a.arg for a in reader.functions[name].args.args)
    reader.spend(len(parameters))
    given: dict[str, tuple[Value, int | None]] = {}
    for parameter, part in zip(parameters, node.args, strict=False):
        given[parameter] = (reader.value(part), reader.ref(part))
    for keyword in node.keywords:
        if keyword.arg in parameters:
            given[keyword.arg] = (reader.value(keyword.value), reader.ref(keyword.value))
    return reader.call_own(name, given)


class Call:
    """One call. `subject` is what is worked on: a method's receiver, a function's first argument."""

    def __init__(
        self, reader: Reader, node: ast.Call, name: str, subject: Value, first: Value,
        arguments: tuple[Value, ...], keywords: Mapping[str, Value], is_module: bool,
    ) -> None:  # fmt: skip
        self.reader, self.node, self.name, self.subject, self.first = reader, node, name, subject, first
        self.arguments, self.keywords, self.is_module = arguments, keywords, is_module

    def result(self) -> Value:
        for matches, does in _KINDS:
            if matches(self):
                return does(self)
        return NOTHING

    def words(self) -> str:
        """The call with its arguments, without what it works on."""
        parts = self.node.args if not self.is_module else self.node.args[1:]
        shown = [self.reader.words(a) for a in parts]
        shown += [f"{k.arg}={self.reader.words(k.value)}" for k in self.node.keywords]
        return f"{self.name}({', '.join(shown)})"

    def first_source(self) -> str:
        return self.reader.source(self.node.args[0]) if self.node.args else ""

    def path(self) -> str:
        const = self.first.const
        if isinstance(const, str):
            return PurePosixPath(const).name
        return self.first.path

    def axis_is_columns(self) -> bool:
        return self.keywords.get("axis", NOTHING).const in (1, "columns")

    # Files.

    def load(self) -> Value:
        path = self.path()
        if not path:
            return NOTHING
        if self.name in ("open", "Path"):
            return Value(path=path)
        return loaded(path)

    def save(self) -> Value:
        if self.name in OUTPUTS and not self.is_module:
            sep, header = self.keywords.get("sep", NOTHING), self.keywords.get("header", NOTHING)
            plain = (not sep.is_const or sep.const == ",") and header.const is not False
            self._saved(self.path(), self.subject, plain)
        elif self.name in ("dump", "save", "savez", "to_pickle"):
            values = [*self.arguments, *self.keywords.values()][:2]
            if len(values) == 2:
                where = 0 if self.name in ("save", "savez") else 1
                target = values[where]
                path = target.path or (
                    PurePosixPath(target.const).name if isinstance(target.const, str) else ""
                )
                self._saved(path, values[1 - where])
        return NOTHING

    def _saved(self, path: str, value: Value, plain: bool = True) -> None:
        if path:
            self.reader.saves.append(Save(path=path, value=value, plain=plain))

    # Models.

    def make(self) -> Value:
        inner = [v for v in (*self.arguments, *self.keywords.values()) if v.estimator]
        settings = {k: v.const for k, v in self.keywords.items() if v.is_const}
        if self.name in ("GridSearchCV", "RandomizedSearchCV") and inner:
            return Value(estimator=inner[0].estimator)
        if self.name == "TransformedTargetRegressor":
            return Value(estimator=self.name)
        return Value(estimator=self.name, settings=settings)

    def set_params(self) -> Value:
        given = {k: v.const for k, v in self.keywords.items() if v.is_const}
        changed = replace(self.subject, settings={**self.subject.settings, **given})
        if isinstance(self.node.func, ast.Attribute):
            self.reader.update(self.node.func.value, changed)
        return changed

    def pipeline(self) -> Value:
        steps = self.arguments
        if self.name == "Pipeline":
            steps = tuple(step.items[-1] for step in (self.first.items or ()) if step.items)
        last = next((step for step in reversed(steps) if step.estimator), NOTHING)
        return Value(estimator=last.estimator, settings=last.settings)

    def fit(self) -> Value:
        X = self.keywords.get("X", self.arguments[0] if self.arguments else NOTHING)
        y = self.keywords.get("y", self.arguments[1] if len(self.arguments) > 1 else None)
        fitted = replace(self.subject, fitted=X.rows or ("?",))
        if isinstance(self.node.func, ast.Attribute):
            self.reader.update(self.node.func.value, fitted)
        if TRANSFORMER.match(self.subject.estimator):
            if X.rows and Tag.TARGET not in X.tags:
                self.reader.encoded.append((self.subject.estimator, X.rows))
            if self.name == "fit":
                return fitted
            return _transformed(self.subject.estimator, X)
        self.reader.fits.append(Fit(estimator=self.subject, X=X, y=y))
        return fitted

    def transform(self) -> Value:
        return _transformed(self.subject.estimator, self.first)

    def undo(self) -> Value:
        return self.first.without(Tag.LOG, Tag.CODES, Tag.SCALED)

    def predict(self) -> Value:
        X = self.keywords.get("X", self.first)
        tag = Tag.PREDICTION if self.name == "predict" else Tag.PROBABILITY
        moved = X.tags & {Tag.RANDOM, Tag.CONSTANT, Tag.COLUMNS_MOVED}
        return Value(rows=X.rows, tags=frozenset({tag}) | moved)

    # Rows.

    def step(self) -> Value:
        if self.axis_is_columns():
            if self.name in ("sample", "flip", "roll", "permutation"):
                return self.subject.tagged(Tag.COLUMNS_MOVED)
            return self.subject
        if self.name in ("permutation", "argsort"):
            order = self.subject.rows is None
            return Value(tags=frozenset({Tag.ORDER})) if order else self.subject.step(self.words())
        if self.name in ("shuffle", "resample") and len(self.arguments) > 1:
            return Value(items=tuple(v.step(self.words_alone()) for v in self.arguments))
        if self.subject.source == "columns":
            return self.subject.tagged(Tag.COLUMNS_MOVED)
        if self.picks_columns():
            moved = self.subject.without(Tag.COLUMNS_MOVED)
            return moved.tagged(*self.keywords.get("columns", NOTHING).tags & {Tag.COLUMNS_MOVED})
        if self.name == "sorted" and self.subject.rows is None:
            return NOTHING
        return self.subject.step(self.words())

    def picks_columns(self) -> bool:
        """`reindex(columns=…)`, and `filter` of a table, which picks columns unless told otherwise."""
        if self.name == "reindex":
            return "columns" in self.keywords and "index" not in self.keywords and not self.arguments
        by_rows = self.keywords.get("axis", NOTHING).const in (0, "index", "rows")
        return self.name == "filter" and not by_rows and Tag.GROUPED not in self.subject.tags

    def words_alone(self) -> str:
        """The call with its keywords alone: the same step for all that is shuffled together."""
        return f"{self.name}({', '.join(sorted(k for k in self.keywords))})#{self.node.lineno}"

    def split(self) -> Value:
        kept, left = (self.keywords.get(name, NOTHING).const for name in ("train_size", "test_size"))
        is_small = (isinstance(kept, float) and kept <= SMALL_PART) or (
            isinstance(left, float) and left >= 1 - SMALL_PART
        )
        first, second = ("1 small", 0) if is_small else (0, 1)
        parts = []
        for value in self.arguments:
            steps = (f"split {part}#{self.node.lineno}" for part in (first, second))
            parts += [value.step(words) for words in steps]
        return Value(items=tuple(parts))

    def concat(self) -> Value:
        items = self.first.items or ()
        if self.axis_is_columns() or self.name in ("hstack", "column_stack"):
            return elementwise(items)
        rows = tuple(item.rows for item in items)
        same = all_tags(items) - {Tag.EVERY_COLUMN, Tag.TARGET}
        if rows == (TRAIN, TEST):
            return Value(rows=("both", "train|test"), tags=same)
        if len({item.root for item in items}) == 1 and items[0].root:
            self.reader.spend(sum(len(item.rows or ()) for item in items) // 16)
            # A digest, since the rows of a table that is joined to itself would double with each time.
            return items[0].step(f"concat#{sha256(repr(rows).encode()).hexdigest()[:16]}")
        return Value(tags=same)

    def reduce(self) -> Value:
        tags = self.subject.tags
        if self.axis_is_columns():
            return Value(rows=self.subject.rows, tags=tags - {Tag.EVERY_COLUMN})
        if self.subject.items is not None:
            # The mean or sum of several models' predictions, row by row.
            return elementwise(self.subject.items).tagged(Tag.BLENDED)
        if tags & MADE and (self.keywords.get("axis", NOTHING).const == 0 or self.name == "sum"):
            return Value(tags=tags | {Tag.BLENDED})
        about = {Tag.TARGET, Tag.TARGET_STATISTIC, Tag.EVERY_COLUMN} & tags
        mixed = frozenset({Tag.TARGET_STATISTIC}) if about - {Tag.EVERY_COLUMN} else frozenset()
        return Value(tags=mixed | {Tag.CONSTANT} | (tags & MADE))

    def group(self) -> Value:
        return self.subject.tagged(Tag.GROUPED)

    def codes(self) -> Value:
        """factorize, Categorical, searchsorted, unique with inverse: codes of the values."""
        value = self.subject
        if value.rows and Tag.TARGET not in value.tags:
            self.reader.encoded.append(("factorize", value.rows))
        coded = replace(value.tagged(Tag.CODES), columns=NOTHING.columns)
        return coded if self.name in ("Categorical", "Codes") else Value(items=(coded, NOTHING))

    def look_up(self) -> Value:
        """searchsorted(known, values) and digitize(values, edges)."""
        return self.arguments[-1] if self.arguments else NOTHING

    def logarithm(self) -> Value:
        return self.first.tagged(Tag.LOG) if self.first.rows else self.first

    def exponential(self) -> Value:
        return self.first.without(Tag.LOG)

    def random(self) -> Value:
        return Value(tags=frozenset({Tag.RANDOM}))

    def constant(self) -> Value:
        return Value(tags=frozenset({Tag.CONSTANT}))

    def numbers(self) -> Value:
        """range and arange."""
        return Value(tags=frozenset({Tag.ORDER}))

    def count(self) -> Value:
        return Value(length_of=self.first.rows)


def _transformed(estimator: str, X: Value) -> Value:
    tag = Tag.CODES if "Encoder" in estimator or "Binarizer" in estimator else Tag.SCALED
    return X.tagged(tag) if Tag.TARGET in X.tags else replace(X, columns={}, const=NOTHING.const)


def _named(*names: str) -> Callable[[Call], bool]:
    wanted = frozenset(names)
    return lambda found: found.name in wanted


def _is_random(found: Call) -> bool:
    if found.name not in RANDOM or isinstance(found.node.func, ast.Name):
        return False
    called = found.reader.source(found.node.func).lower()
    return "random" in called or "rng" in called


def _loads(found: Call) -> bool:
    return found.name in READERS and (bool(found.path()))


def _saves(found: Call) -> bool:
    return found.name in (*OUTPUTS, "dump", "save", "savez")


def _makes(found: Call) -> bool:
    return bool(ESTIMATOR.match(found.name) or TRANSFORMER.match(found.name))


def _is_transform(found: Call) -> bool:
    return found.name == "transform" and bool(found.subject.estimator)


_KINDS: tuple[tuple[Callable[[Call], bool], Callable[[Call], Value]], ...] = (
    (_loads, Call.load),
    (_saves, Call.save),
    (_named("make_pipeline", "Pipeline", "make_column_transformer"), Call.pipeline),
    (_makes, Call.make),
    (_named("set_params"), Call.set_params),
    (_named(*FITS), Call.fit),
    (_is_transform, Call.transform),
    (_named("inverse_transform"), Call.undo),
    (_named("predict", "predict_proba", "decision_function"), Call.predict),
    (_is_random, Call.random),
    (_named("train_test_split"), Call.split),
    (_named("concat", "hstack", "vstack", "column_stack", "concatenate"), Call.concat),
    (_named("len"), Call.count),
    (_named("range", "arange"), Call.numbers),
    (_named("groupby"), Call.group),
    (_named("factorize", "Categorical"), Call.codes),
    (_named("searchsorted", "digitize"), Call.look_up),
    (_named(*LOGS), Call.logarithm),
    (_named(*EXPS), Call.exponential),
    (_named(*CONSTANTS), Call.constant),
    (_named(*ROW_STEPS, *ORDERS), Call.step),
    (_named(*REDUCED), Call.reduce),
    (_named(*SAME_ROWS, "shift", "argmax", "argmin", "idxmax", "idxmin"), keep),
)
