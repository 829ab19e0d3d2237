"""Calls that fail whatever the team delivers, read from a program's syntax tree. Nothing is run.

An agent that is stopped by a missing file never comes to its own mistakes further down. They count against it
all the same: else it would learn them while a teammate takes the blame.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from mappa_envs.coach.rubric.checks import SERIOUS, Finding
from mappa_envs.coach.rubric.reader import parse

WRONG_SUFFIX = {"read_pickle": (".csv",), "read_csv": (".pkl", ".pickle"), "read_table": (".pkl", ".pickle")}
"""Readers of pandas, and the names of files that they cannot read."""
NO_FUNCTIONS = frozenset({"to_csv"})
"""Methods of tables that are no functions of pandas itself."""
MAX_NODES = 20_000


def doomed(blocks: Sequence[str]) -> tuple[Finding, ...]:
    """The calls of a message's blocks that cannot work. Never raises on hostile code."""
    return tuple(dict.fromkeys(found for block in blocks for found in _in_block(block)))


def _in_block(block: str) -> Iterator[Finding]:
    tree = parse(block)
    for number, node in enumerate(ast.walk(tree) if tree else ()):
        if number > MAX_NODES:
            return
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        if not isinstance(owner, ast.Name) or owner.id not in ("pd", "pandas"):
            continue
        path = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if isinstance(path, str) and path.endswith(WRONG_SUFFIX.get(name, ())):
            yield Finding(severity=SERIOUS, words=f"the code reads {path[-60:]!r} with {name}")
        elif name in NO_FUNCTIONS:
            yield Finding(severity=SERIOUS, words=f"pandas has no function {name}")
