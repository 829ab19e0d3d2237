"""What an expression gives, for the reader of programs: columns, rows, operators, comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mappa_envs.coach.rubric.calls import call
from mappa_envs.coach.rubric.values import (
    NOTHING,
    TRANSFORMS,
    Tag,
    Value,
    all_tags,
    elementwise,
    merged,
    of_const,
)
from mappa_envs.coach.rubric.vocabulary import MADE

if TYPE_CHECKING:
    from mappa_envs.coach.rubric.reader import Reader

TINY = 1e-3
"""A summand, or what a factor differs from 1, that changes no prediction to speak of."""


def evaluate(reader: Reader, node: ast.expr) -> Value:
    handler: Callable[[Reader, Any], Value] | None = _HANDLERS.get(type(node))
    return handler(reader, node) if handler is not None else NOTHING


def _name(reader: Reader, node: ast.Name) -> Value:
    ref = reader.state.names.get(node.id)
    return NOTHING if ref is None else reader.state.heap[ref]


def _list(reader: Reader, node: ast.Tuple | ast.List) -> Value:
    items = tuple(reader.value(part) for part in node.elts)
    const = [item.const for item in items] if items and all(map(_is_scalar, items)) else None
    return of_const(const) if const is not None else Value(items=items, tags=all_tags(items))


def _is_scalar(value: Value) -> bool:
    # A list of lists has items, each with what is known of it.
    return value.is_const and not isinstance(value.const, (list, tuple))


def _dict(reader: Reader, node: ast.Dict) -> Value:
    columns = {}
    for key, part in zip(node.keys, node.values, strict=True):
        name = reader.value(key).const if key is not None else None
        value = reader.value(part)
        if isinstance(name, str):
            columns[name] = value
    rows = next((value.rows for value in columns.values() if value.rows is not None), None)
    return Value(columns=columns, rows=rows, source="dict")


def _attribute(reader: Reader, node: ast.Attribute) -> Value:
    base = reader.value(node.value)
    if node.attr in ("values", "array", "str", "dt", "cat", "T", "iloc", "loc", "at", "iat"):
        return base
    if node.attr == "codes":
        return base.tagged(Tag.CODES)
    if node.attr == "columns":
        return Value(source="columns", tags=base.tags & {Tag.COLUMNS_MOVED})
    if node.attr == "index":
        return Value(rows=base.rows, tags=frozenset({Tag.INDEX}))
    if node.attr == "shape":
        return Value(items=(Value(length_of=base.rows), NOTHING))
    if node.attr == "size":
        return Value(length_of=base.rows)
    if node.attr.endswith("_"):
        return NOTHING  # what an estimator learned
    return column(reader, base, node.attr) if base.rows is not None else NOTHING


def column(reader: Reader, base: Value, name: str) -> Value:
    """A column of a table by its name."""
    if name in base.columns:
        return base.columns[name]
    if base.source == "dict":
        return NOTHING
    tags = base.tags - {Tag.EVERY_COLUMN, Tag.GROUPED}
    if name in reader.facts.targets and Tag.EVERY_COLUMN in base.tags:
        tags |= {Tag.TARGET_STATISTIC if Tag.GROUPED in base.tags else Tag.TARGET}
    elif name == reader.facts.id_column:
        tags |= {Tag.ID}
    return Value(rows=base.rows, tags=tags, source=f"column {name}" if base.root == "train" else base.source)


def _subscript(reader: Reader, node: ast.Subscript) -> Value:
    by_place = isinstance(node.value, ast.Attribute) and node.value.attr in ("iloc", "loc", "at", "iat")
    base, key = reader.value(node.value), node.slice
    if isinstance(key, ast.Tuple) and len(key.elts) == 2 and base.items is None:
        rows, which = key.elts
        return _columns(reader, _rows(reader, base, rows), which)
    if isinstance(key, ast.Slice):
        moved = base.source == "columns" and key.step is not None
        return base.tagged(Tag.COLUMNS_MOVED) if moved else _rows(reader, base, key)
    value = reader.value(key)
    if base.items is not None and isinstance(value.const, int):
        at = value.const
        return base.items[at] if -len(base.items) <= at < len(base.items) else NOTHING
    if isinstance(base.const, (list, tuple)) and isinstance(value.const, int):
        at = value.const
        return of_const(base.const[at]) if -len(base.const) <= at < len(base.const) else NOTHING
    if isinstance(value.const, int) and not isinstance(value.const, bool):
        is_element = base.rows is not None or Tag.CONSTANT in base.tags
        return Value(tags=base.tags | {Tag.CONSTANT}) if is_element else NOTHING
    if by_place or _picks_rows(value):
        return _rows(reader, base, key)
    is_container = base.items is not None or isinstance(base.const, (list, tuple)) or base.source == "dict"
    if is_container and not value.is_const:
        return NOTHING
    if value.tags & {Tag.INDEX, Tag.THRESHOLD, Tag.CONSTANT}:
        return base.on(None)  # of a statistic: names of columns, or of rows
    return _columns(reader, base, key)


def _picks_rows(value: Value) -> bool:
    return value.rows is not None or bool(value.tags & {Tag.ORDER, Tag.RANDOM})


def _rows(reader: Reader, base: Value, key: ast.expr) -> Value:
    """Some rows of a table or array."""
    if isinstance(key, ast.Slice):
        if key.lower is None and key.upper is None and key.step is None:
            return base
        upper = reader.value(key.upper).length_of if key.upper is not None else None
        lower = reader.value(key.lower).length_of if key.lower is not None else None
        for part in (upper, lower):
            # concat([train, test])[:len(train)] is train again.
            if part is not None and base.rows and base.rows[0] == "both":
                return base.on(part if part is upper else _rest(base.rows, part))
        if upper is not None and upper == base.rows and key.lower is None and key.step is None:
            return base
        return base.step(f"[{reader.words(key)}]")
    index = reader.value(key)
    if Tag.INDEX in index.tags and index.rows is not None:
        return base.on(index.rows) if base.root in ("", index.root) else base.on(None)
    if isinstance(index.const, int):
        return Value(tags=base.tags | {Tag.CONSTANT})
    if index.rows is None and not _picks_rows(index):
        return base.on(None)
    return base.step(f"[{reader.words(key)}]")


def _rest(rows: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, ...] | None:
    return ("test",) if rows[1:] == ("train|test",) and first == ("train",) else None


def _columns(reader: Reader, base: Value, key: ast.expr) -> Value:
    """Some columns of a table or array."""
    value = reader.value(key)
    names = value.const
    if isinstance(names, str):
        return column(reader, base, names)
    if isinstance(names, int):
        if base.tags & MADE:
            return replace(base, chosen=names, const=base.const)
        return Value(rows=base.rows, tags=base.tags - {Tag.EVERY_COLUMN}, source=base.source)
    kept = base.without(Tag.EVERY_COLUMN)
    if isinstance(key, ast.Slice):
        if key.lower is None and key.upper is None and key.step is not None:
            return kept.tagged(Tag.COLUMNS_MOVED)
        return kept
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        targets = [name for name in names if name in reader.facts.targets]
        if targets and Tag.EVERY_COLUMN in base.tags:
            kept = kept.tagged(Tag.TARGET)
        put = {k: base.columns[k] for k in names if k in base.columns}
        return replace(kept, columns=put)
    if value.source == "columns":
        return kept.without(Tag.COLUMNS_MOVED).tagged(*value.tags & {Tag.COLUMNS_MOVED})
    return kept


def _binary(reader: Reader, node: ast.BinOp) -> Value:
    left, right = reader.value(node.left), reader.value(node.right)
    if isinstance(left.const, (int, float)) and isinstance(right.const, (int, float)):
        return NOTHING  # a number; which one does not matter
    if isinstance(node.op, ast.Mult) and (left.items or isinstance(left.const, list)):
        return Value(tags=all_tags([left]) | {Tag.CONSTANT})  # [value] * count
    turned = isinstance(node.op, (ast.Sub, ast.Div)) and left.is_const
    is_product = isinstance(node.op, (ast.Mult, ast.Div))
    if isinstance(node.op, ast.Div) and not left.is_const:
        right = right.without(Tag.NEGATED)  # p / (1 - p) grows with p
    value = elementwise([left, right])
    if turned != (is_product and min(_number(left, 1), _number(right, 1)) < 0):
        value = _turned(value)
    if isinstance(node.op, ast.Mult) and 0 in (_number(left, 1), _number(right, 1)):
        return value.tagged(Tag.CONSTANT)
    if not value.tags & MADE:
        return value
    if not left.is_const and not right.is_const:
        # Sums of parts: which constants fit is not known.
        return value.without(Tag.CHANGED).tagged(Tag.BLENDED) if isinstance(node.op, ast.Add) else value
    tiny = abs(_number(left, _number(right, 1)) - is_product) < TINY
    if not tiny and not turned and not value.tags & {Tag.NEGATED, Tag.BLENDED}:
        value = value.tagged(Tag.CHANGED)
    return value


def _number(value: Value, other: float) -> Any:
    return value.const if isinstance(value.const, (int, float)) else other


def _turned(value: Value) -> Value:
    """Turned around; twice is as before."""
    return value.without(Tag.NEGATED) if Tag.NEGATED in value.tags else value.tagged(Tag.NEGATED)


def _unary(reader: Reader, node: ast.UnaryOp) -> Value:
    value = reader.value(node.operand)
    if isinstance(value.const, (int, float)) and isinstance(node.op, ast.USub):
        return of_const(-value.const)
    return _turned(value) if isinstance(node.op, (ast.USub, ast.Invert)) else value


def _compare(reader: Reader, node: ast.Compare) -> Value:
    value = elementwise([reader.value(node.left), *map(reader.value, node.comparators)])
    value = value.without(Tag.TARGET) if value.rows is None else value
    return value.tagged(Tag.THRESHOLD)


def _boolean(reader: Reader, node: ast.BoolOp) -> Value:
    return elementwise([reader.value(part) for part in node.values])


def _choice(reader: Reader, node: ast.IfExp) -> Value:
    reader.value(node.test)
    return merged(reader.value(node.body), reader.value(node.orelse))


def _comprehension(reader: Reader, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    """One part for each part of a literal tuple; else the element, with the rows that are gone through."""
    outer = dict(reader.state.names)
    loop = node.generators[0]
    parts = reader.parts(loop.iter)
    try:
        if parts is not None and len(node.generators) == 1:
            items = []
            for value, ref in parts:
                reader.bind(loop.target, value, ref)
                items.append(reader.value(node.elt))
            if all(map(_is_scalar, items)) and not loop.ifs and items:
                return of_const([item.const for item in items])
            return Value(items=None if loop.ifs else tuple(items), tags=all_tags(items))
        source = reader.value(loop.iter)
        reader.bind(loop.target, replace(source, rows=None, items=None))
        made = reader.value(node.elt)
        if source.length_of is not None:
            return Value(rows=None, tags=made.tags)
        tags = made.tags - TRANSFORMS | (source.tags & MADE)
        if made.is_const or Tag.CONSTANT in made.tags:
            tags |= {Tag.CONSTANT}
        return Value(rows=source.rows, tags=tags)
    finally:
        reader.state.names = outer


def _const(reader: Reader, node: ast.Constant) -> Value:
    return of_const(node.value)


def _walrus(reader: Reader, node: ast.NamedExpr) -> Value:
    value = reader.value(node.value)
    reader.bind(node.target, value)
    return value


_HANDLERS: dict[type[ast.expr], Callable[[Reader, Any], Value]] = {
    ast.Name: _name,
    ast.Constant: _const,
    ast.Tuple: _list,
    ast.List: _list,
    ast.Dict: _dict,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _choice,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.SetComp: _comprehension,
    ast.Call: call,
    ast.NamedExpr: _walrus,
}
