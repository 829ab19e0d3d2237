"""What calls that keep the rows of their subject do to its values, for the reader of programs."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from mappa_envs.coach.rubric.values import NOTHING, Tag, Value, elementwise, where
from mappa_envs.coach.rubric.vocabulary import MADE

if TYPE_CHECKING:
    from mappa_envs.coach.rubric.calls import Call


def keep(found: Call) -> Value:
    """The value of a call that gives the same rows in the same order."""
    return _marked(found, _columns(found, _subject(found)))


def _subject(found: Call) -> Value:
    """What is worked on, also where it is handed to a constructor."""
    const = found.subject.const if found.name in ("list", "copy") else NOTHING.const
    value = replace(found.subject, const=const)
    if found.name in ("DataFrame", "Series", "where", "join") and not found.is_module and not value.rows:
        value = elementwise(found.arguments)
    if found.name in ("DataFrame", "Series") and value.rows is not None:
        index = found.keywords.get("index", NOTHING)
        value = value if index.rows is None or index.rows == value.rows else value.on(None)
    if found.name == "where" and found.is_module:
        value = where(found.arguments)
    return value


def _columns(found: Call, value: Value) -> Value:
    if found.name == "drop":
        return _dropped(found, value)
    if found.name == "rename":
        new = found.keywords.get("columns", NOTHING).columns
        put = {str(new[k].const) if k in new else k: v for k, v in value.columns.items()}
        return replace(value, columns=put)
    if found.name == "assign":
        put = {k: replace(v, columns=NOTHING.columns) for k, v in found.keywords.items()}
        return replace(value, columns={**value.columns, **put})
    return value


def _marked(found: Call, value: Value) -> Value:
    """With the tags of what was done to each value."""
    name, is_number = found.name, found.reader.facts.family == "number"
    if found.node.args and isinstance(found.node.args[0], ast.Lambda):
        value = _each(found, found.node.args[0], value)
    if name in ("argmin", "idxmin") and value.tags & MADE:
        value = value.tagged(Tag.NEGATED)
    if name == "clip" and is_number and value.tags & MADE:
        bounds = [v.const for v in (*found.arguments, *found.keywords.values()) if v.is_const]
        if any(isinstance(bound, (int, float)) and 0 < bound <= 1 for bound in bounds):
            value = value.tagged(Tag.CHANGED)
    if name == "shift":
        value = value.tagged(Tag.SHIFTED)
    if name in ("round", "rint") or (name == "astype" and "int" in found.first_source()):
        value = value.tagged(Tag.ROUNDED)
    if name == "map" and Tag.TARGET_STATISTIC in found.first.tags:
        value = value.tagged(Tag.TARGET_STATISTIC)
    if name in ("map", "replace") and Tag.TARGET in value.tags and not is_number:
        value = value.tagged(Tag.CODES)
    return value


def _each(found: Call, function: ast.Lambda, value: Value) -> Value:
    """`X.apply(lambda column: …)`."""
    reader = found.reader
    outer = dict(reader.state.names)
    for parameter in function.args.args[:1]:
        reader.state.names[parameter.arg] = reader.new(value)
    made = reader.value(function.body)
    reader.state.names = outer
    # A function of single cells says nothing of rows.
    return value if made.rows is None else replace(value.on(made.rows), tags=value.tags | made.tags)


def _dropped(found: Call, value: Value) -> Value:
    names = found.keywords.get("columns", found.first).const
    dropped = {names} if isinstance(names, str) else set(names) if isinstance(names, list) else None
    by_columns = "columns" in found.keywords or found.axis_is_columns() or found.first.const == "columns"
    if not by_columns:
        return value.step(found.words())
    if dropped is None or set(found.reader.facts.targets) <= dropped:
        return value.without(Tag.EVERY_COLUMN)
    return value
