"""What the reader of programs knows about a value without running anything.

A value says only what is certain: rows that are not followed are None, and two orders of rows are called
different only where both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

Rows = tuple[str, ...]
"""Which rows in which order: ("train",) is train.csv as it is, ("train", "head(20)") its first 20."""

TRAIN: Rows = ("train",)
TEST: Rows = ("test",)
OWN_CLASS = "own class"
"""The `source` of a class that the program defines, and of its objects."""


class Tag(StrEnum):
    """What a value is made of, or what was done to it."""

    TARGET = "target"
    TARGET_STATISTIC = "statistic of the target"
    EVERY_COLUMN = "all columns of train.csv"
    ID = "id"
    GROUPED = "grouped"
    PREDICTION = "prediction"
    PROBABILITY = "probability"
    RANDOM = "random"
    CONSTANT = "constant"
    ORDER = "order"
    INDEX = "index"
    LOG = "log"
    CODES = "codes"
    SCALED = "scaled"
    NEGATED = "negated"
    THRESHOLD = "threshold"
    ROUNDED = "rounded"
    CHANGED = "changed"
    BLENDED = "blended"
    SHIFTED = "shifted"
    COLUMNS_MOVED = "columns moved"


TRANSFORMS = frozenset({Tag.LOG, Tag.CODES, Tag.SCALED, Tag.NEGATED})

Settings = Mapping[str, Any]
_NONE: Mapping[str, Any] = MappingProxyType({})


class _Unset:
    """No constant."""


UNSET = _Unset()


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of the program.

    `const` is a literal or a flat list of literals, `items` the parts of a tuple or list, `columns` what was
    put under a column name by hand. `estimator` is the class name of an estimator or transformer with its
    literal `settings`; `fitted` are the rows that it was fitted on. `path` is the file of a handle, `source`
    the file a table came from. `length_of` are the rows that a number counts, `chosen` the column of an array
    of probabilities.
    """

    rows: Rows | None = None
    tags: frozenset[Tag] = frozenset()
    const: Any = UNSET
    items: tuple[Value, ...] | None = None
    columns: Mapping[str, Value] = field(default_factory=lambda: _NONE)
    estimator: str = ""
    settings: Settings = field(default_factory=lambda: _NONE)
    fitted: Rows | None = None
    path: str = ""
    source: str = ""
    length_of: Rows | None = None
    chosen: int | None = None
    size: int = field(init=False, repr=False, compare=False)
    """How many values it is made of, shared ones counted each time."""

    def __post_init__(self) -> None:
        size = 1 + sum(part.size for part in (*(self.items or ()), *self.columns.values()))
        if isinstance(self.const, (list, tuple)):
            size += len(self.const) // 4
        elif isinstance(self.const, (str, bytes)):
            size += len(self.const) // 32
        object.__setattr__(self, "size", size)

    @property
    def is_const(self) -> bool:
        return not isinstance(self.const, _Unset)

    @property
    def root(self) -> str:
        """ "train", "test" or "" where the rows are not known."""
        return self.rows[0] if self.rows else ""

    def tagged(self, *tags: Tag) -> Value:
        return replace(self, tags=self.tags | set(tags), const=UNSET)

    def without(self, *tags: Tag) -> Value:
        return replace(self, tags=self.tags - set(tags))

    def step(self, words: str) -> Value:
        """Other rows, or the same in another order, made from these by a step."""
        moved = None if self.rows is None else (*self.rows, words)
        return replace(
            self, rows=moved, const=UNSET, columns={k: v.step(words) for k, v in self.columns.items()}
        )

    def on(self, rows: Rows | None) -> Value:
        return replace(self, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the task says of its columns; empty where it says nothing."""

    id_column: str = ""
    targets: tuple[str, ...] = ()
    """The target columns, then the label column where it is another."""
    num_targets: int | None = None
    family: str = ""
    positive_first: bool = False
    """The positive class is the first of the sorted labels."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """A file that is written. `plain` is False for a CSV without a header, or not separated by commas."""

    path: str
    value: Value
    plain: bool = True


@dataclass(frozen=True, kw_only=True)
class Fit:
    """`X` or `y` is None where it was not given. `again`: the same class was fitted before on other rows."""

    estimator: Value
    X: Value
    y: Value | None


NOTHING = Value()


def of_const(const: Any) -> Value:
    return Value(const=const)


def all_tags(values: Iterable[Value]) -> frozenset[Tag]:
    return frozenset().union(*(value.tags for value in values))


def elementwise(values: Iterable[Value]) -> Value:
    """What an operation on these, row by row, gives."""
    found = [value for value in values if value.rows is not None or value.tags]
    rows = next((value.rows for value in found if value.rows is not None), None)
    chosen = next((value.chosen for value in found if value.chosen is not None), None)
    return Value(rows=rows, tags=all_tags(found) - {Tag.CONSTANT, Tag.EVERY_COLUMN}, chosen=chosen)


def merged(left: Value, right: Value) -> Value:
    """What is certain after a branch: only what holds on both ways."""
    if left is right or left == right:
        return left
    return Value(
        rows=left.rows if left.rows == right.rows else None,
        tags=left.tags & right.tags,
        estimator=left.estimator if left.estimator == right.estimator else "",
        fitted=left.fitted if left.fitted == right.fitted else None,
        path=left.path if left.path == right.path else "",
        source=left.source if left.source == right.source else "",
        columns={k: merged(v, right.columns[k]) for k, v in left.columns.items() if k in right.columns},
    )


def loaded(path: str) -> Value:
    """A file of the workspace, as its maker should have left it."""
    if path == "train.csv":
        return Value(rows=TRAIN, tags=frozenset({Tag.EVERY_COLUMN}), source=path)
    if path == "test.csv":
        return Value(rows=TEST, source=path)
    if path == "y_train.pkl":
        return Value(rows=TRAIN, tags=frozenset({Tag.TARGET}), source=path)
    if path in ("X_train.pkl", "X_test.pkl"):
        return Value(rows=TRAIN if path == "X_train.pkl" else TEST, source=path)
    if path == "model.pkl":
        return Value(estimator="loaded", fitted=("?",), source=path)
    return Value(source=path)


def where(arguments: tuple[Value, ...]) -> Value:
    """`np.where(condition, a, b)`: a threshold if a and b are literals."""
    value = elementwise(arguments)
    consts = [a.const for a in arguments[1:] if a.is_const]
    is_binary = len(consts) == 2
    return (
        value
        if is_binary or not value.tags & {Tag.PREDICTION, Tag.PROBABILITY}
        else value.without(Tag.THRESHOLD)
    )
