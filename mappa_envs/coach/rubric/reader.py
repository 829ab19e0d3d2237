"""Reads what a program does to rows, columns and models from its syntax tree. Nothing is run.

>>> read(('pd.read_pickle("X_train.pkl").sample(frac=1).to_pickle("X_train.pkl")',)).saves[0].value.rows
('train', 'sample(frac=1)')

Straight-line code, loops over literal tuples, branches and the program's own functions are followed; what is
not understood gives a value of which nothing is claimed. Never raises; the work is bounded by `MAX_STEPS`,
which counts what is looked at or copied, not statements alone.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mappa_envs.coach.rubric.expressions import evaluate
from mappa_envs.coach.rubric.values import (
    NOTHING,
    OWN_CLASS,
    Facts,
    Fit,
    Rows,
    Save,
    Tag,
    Value,
    merged,
    of_const,
)

MAX_STEPS = 20_000
MAX_DEPTH = 40
MAX_CHARS = 40_000
MAX_UNROLLED = 12
MAX_SIZE = 2000
"""The most parts of one value."""
MAX_INT_BITS = 10_000
"""Python refuses to write out a longer number."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the program does, in order. `parsed` is False where nothing could be read."""

    parsed: bool = True
    saves: tuple[Save, ...] = ()
    fits: tuple[Fit, ...] = ()
    encoded: tuple[tuple[str, Rows], ...] = ()
    """(what, rows) of each encoding that was learned on these rows."""
    swallowed: bool = False
    """An exception is caught and passed over."""


class _Stop(Exception):
    """The program is too long or too deep to be read on."""


@dataclass
class State:
    """Names → references → values; two names of one table share a reference."""

    names: dict[str, int] = field(default_factory=dict)
    heap: dict[int, Value] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.names), dict(self.heap), dict(self.versions))


def read(blocks: Sequence[str], facts: Facts | None = None) -> Reading:
    """Read the blocks of one message, which share their names."""
    try:
        return _read(blocks, facts or Facts())
    except Exception:  # noqa: BLE001
        # Blind on purpose: the code is hostile and the reader does its best. Whatever form of code it trips
        # over must not end a training run; no claim is made about it.
        _log.debug("a program could not be read", exc_info=True)
        return Reading(parsed=False)


def _read(blocks: Sequence[str], facts: Facts) -> Reading:
    if sum(map(len, blocks)) > MAX_CHARS:
        return Reading(parsed=False)
    reader = Reader(facts)
    parsed = True
    for block in blocks:
        tree = parse(block)
        if tree is None:
            parsed = False
            break
        try:
            reader.block(tree.body)
        except (_Stop, RecursionError):
            break
    return Reading(
        parsed=parsed and bool(blocks),
        saves=tuple(reader.saves),
        fits=tuple(reader.fits),
        encoded=tuple(reader.encoded),
        swallowed=reader.swallowed,
    )


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for what is no Python, or too long to look at."""
    if len(code) > MAX_CHARS:
        return None
    try:
        return ast.parse(code)
    except Exception:  # noqa: BLE001  (hostile text: whatever the parser says to it, it is no program)
        return None


class Reader:
    """Walks statements; `calls` knows what library functions do."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.state = State()
        self.saves: list[Save] = []
        self.fits: list[Fit] = []
        self.encoded: list[tuple[str, Rows]] = []
        self.swallowed = False
        self.functions: dict[str, ast.FunctionDef] = {}
        self.steps, self.depth, self._next = 0, 0, 0

    # Names and values.

    def new(self, value: Value) -> int:
        self._next += 1
        self.state.heap[self._next] = value
        return self._next

    def ref(self, node: ast.expr) -> int | None:
        return self.state.names.get(node.id) if isinstance(node, ast.Name) else None

    def update(self, node: ast.expr, value: Value) -> None:
        """A change in place of what a name stands for."""
        ref = self.ref(node)
        if ref is not None:
            self.state.heap[ref] = value
            self.state.versions[ref] = self.state.versions.get(ref, 0) + 1

    def bind(self, target: ast.expr, value: Value, ref: int | None = None) -> None:
        self.spend(1)
        if isinstance(target, ast.Name):
            self.state.names[target.id] = self.new(value) if ref is None else ref
        elif isinstance(target, ast.Starred):
            self.bind(target.value, NOTHING)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = value.items
            fits = items is not None and len(items) == len(target.elts)
            for at, part in enumerate(target.elts):
                self.bind(part, items[at] if items is not None and fits else NOTHING)
        elif isinstance(target, ast.Subscript):
            self._put(target, value)

    def _put(self, target: ast.Subscript, value: Value) -> None:
        """`X["c"] = value`, `X.loc[:, "c"] = value`, `X[:] = value`."""
        owner = target.value
        if isinstance(owner, ast.Attribute) and owner.attr in ("loc", "iloc"):
            owner = owner.value
        table = self.value(owner)
        key: ast.expr = target.slice
        if isinstance(key, ast.Tuple) and len(key.elts) == 2:
            whole = isinstance(key.elts[0], ast.Slice) and key.elts[0].lower is None
            if not whole:
                return
            key = key.elts[1]
        if isinstance(key, ast.Slice):
            if Tag.CONSTANT in value.tags or value.is_const:
                self.update(owner, table.tagged(Tag.CONSTANT))
            return
        name = self.value(key)
        # A column has no columns: a table that is put into itself would double with each time.
        value = replace(value, columns=NOTHING.columns) if value.columns else value
        if isinstance(name.const, str):
            self.update(
                owner, replace(table, columns={**table.columns, name.const: value}, const=table.const)
            )
        elif name.items and all(isinstance(item.const, str) for item in name.items):
            put = {str(item.const): value for item in name.items}
            self.update(owner, replace(table, columns={**table.columns, **put}))
        elif value.tags & {Tag.TARGET, Tag.RANDOM}:
            self.update(owner, replace(table, columns={**table.columns, "?": value}))

    def words(self, node: ast.AST) -> str:
        """The source of an argument, with each name's version: equal words, equal rows."""
        names: dict[str, str] = {}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.state.names:
                ref = self.state.names[part.id]
                names[part.id] = f"{part.id}@{ref}.{self.state.versions.get(ref, 0)}"
        return self.source(node)[:200] + "".join(sorted(names.values()))

    def source(self, node: ast.AST) -> str:
        """The source of a node; each part of it is a step."""
        for part in ast.walk(node):
            self.spend(1)
            number = part.value if isinstance(part, ast.Constant) else None
            if isinstance(number, int) and number.bit_length() > MAX_INT_BITS:
                raise _Stop
        text = ast.unparse(node)
        self.spend(len(text) // 64)
        return text

    # Statements.

    def block(self, body: Iterable[ast.stmt]) -> Value | None:
        """Run through the statements; the value of the first `return`, None without one."""
        for statement in body:
            if (given := self._statement(statement)) is not None:
                return given
        return None

    def spend(self, steps: int) -> None:
        """Count work against `MAX_STEPS`."""
        self.steps += steps
        if self.steps > MAX_STEPS or self.depth > MAX_DEPTH:
            raise _Stop

    def _statement(self, node: ast.stmt) -> Value | None:
        self.spend(1)
        self.depth += 1
        try:
            handler: Callable[[Any], Value | None] | None = getattr(self, f"_do_{type(node).__name__}", None)
            return handler(node) if handler is not None else None
        finally:
            self.depth -= 1

    def _do_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _do_Return(self, node: ast.Return) -> Value:
        return self.value(node.value) if node.value is not None else NOTHING

    def _do_Assign(self, node: ast.Assign) -> None:
        value, ref = self.value(node.value), self.ref(node.value)
        for target in node.targets:
            self.bind(target, value, ref)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        together = ast.BinOp(left=node.target, op=node.op, right=node.value)
        self.bind(node.target, self.value(together))

    def _do_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.functions[node.name] = node

    def _do_ClassDef(self, node: ast.ClassDef) -> None:
        self.state.names[node.name] = self.new(Value(source=OWN_CLASS))

    def _do_With(self, node: ast.With) -> Value | None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        return self.block(node.body)

    def _do_If(self, node: ast.If) -> Value | None:
        if _is_main(node.test):
            return self.block(node.body)
        self.value(node.test)
        before = self.state
        # Both ways get a copy of all names and values, which are then compared.
        self.spend((len(before.names) + len(before.heap)) // 8)
        self.state = before.copy()
        first = self.block(node.body)
        after_body, self.state = self.state, before.copy()
        second = self.block(node.orelse)
        self.state = _joined(after_body, self.state)
        return None if first is None or second is None else merged(first, second)

    def _do_For(self, node: ast.For) -> Value | None:
        items = self.parts(node.iter)
        if items is None:
            source = self.value(node.iter)
            self.bind(node.target, Value(tags=source.tags, rows=None))
            return self.block(node.body)
        for value, ref in items:
            self.bind(node.target, value, ref)
            if (given := self.block(node.body)) is not None:
                return given
        return None

    def _do_While(self, node: ast.While) -> Value | None:
        self.value(node.test)
        return self.block(node.body)

    def _do_Try(self, node: ast.Try) -> Value | None:
        given = self.block([*node.body, *node.orelse, *node.finalbody])
        for handler in node.handlers:
            self.swallowed |= _passes_over(handler)
        return given

    def parts(self, node: ast.expr) -> list[tuple[Value, int | None]] | None:
        """The parts of a literal tuple or list, also in `enumerate` and `zip`; None for anything else."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return [(self.value(part), self.ref(part)) for part in node.elts[:MAX_UNROLLED]]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "enumerate":
            inner = self.parts(node.args[0]) if node.args else None
            if inner is None:
                return None
            return [(Value(items=(of_const(i), value)), None) for i, (value, _) in enumerate(inner)]
        value = self.value(node)
        if isinstance(value.const, (list, tuple)):
            return [(of_const(part), None) for part in value.const[:MAX_UNROLLED]]
        if value.items is not None and value.rows is None:
            return [(part, None) for part in value.items[:MAX_UNROLLED]]
        return None

    # Expressions.

    def value(self, node: ast.expr) -> Value:
        self.spend(1)
        self.depth += 1
        try:
            value = evaluate(self, node)
        finally:
            self.depth -= 1
        if value.size > MAX_SIZE:
            raise _Stop
        # To copy, step or compare a value takes time by its parts.
        self.spend(value.size // 4)
        return value

    def call_own(self, name: str, given: Mapping[str, tuple[Value, int | None]]) -> Value:
        """The value of a call of the program's own function."""
        function = self.functions[name]
        outer = dict(self.state.names)
        for argument, (value, ref) in given.items():
            self.state.names[argument] = self.new(value) if ref is None else ref
        del self.functions[name]  # no recursion
        try:
            return self.block(function.body) or NOTHING
        finally:
            self.functions[name] = function
            self.state.names = outer


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _joined(left: State, right: State) -> State:
    state = right.copy()
    state.heap = {**left.heap, **right.heap}
    for ref in left.heap.keys() & right.heap.keys():
        state.heap[ref] = merged(left.heap[ref], right.heap[ref])
    for name, ref in left.names.items():
        other = right.names.get(name)
        if other is None:
            state.names[name] = ref
        elif other != ref:
            # Both ways gave the name a value of its own.
            state.heap[ref] = merged(left.heap[ref], right.heap[other])
            state.names[name] = ref
    return state


def _passes_over(handler: ast.ExceptHandler) -> bool:
    """The handler does nothing, or only prints."""

    def idle(statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Pass, ast.Continue)):
            return True
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        called = statement.value.func
        if isinstance(called, ast.Attribute):
            return isinstance(called.value, ast.Name) and called.value.id in ("warnings", "traceback")
        return isinstance(called, ast.Name) and called.id == "print"

    return all(map(idle, handler.body))
