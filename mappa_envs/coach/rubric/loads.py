"""Calls that fail even if the team delivers all that it should, read from a program's syntax tree.

An agent that is stopped by a missing file never comes to its own mistakes further down. They count against it
all the same: else it would learn them while a teammate takes the blame. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from mappa_envs.coach.rubric.checks import SERIOUS, Finding
from mappa_envs.coach.rubric.reader import parse

WRONG_SUFFIX = {"read_pickle": ".csv", "read_csv": ".pkl", "read_table": ".pkl"}
"""Readers of pandas, and what the names of files end with that they cannot read."""
NO_FUNCTIONS = frozenset({"to_csv"})
"""Methods of tables that are no functions of pandas itself."""
MAX_NODES = 20_000


def doomed(blocks: Sequence[str], files: Collection[str]) -> tuple[Finding, ...]:
    """The calls of a message's blocks that cannot work. Never raises on hostile code.

    `files` are the task's files and those that roles owe: what they hold is known. Nothing is said of calls
    within `try`, whose failure the program may expect.
    """
    return tuple(dict.fromkeys(found for block in blocks for found in _in_block(block, files)))


def _in_block(block: str, files: Collection[str]) -> Iterator[Finding]:
    tree = parse(block)
    for node in _outside_try(tree) if tree else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        if not isinstance(owner, ast.Name) or owner.id not in ("pd", "pandas"):
            continue
        path = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if isinstance(path, str) and path in files and name in WRONG_SUFFIX:
            if path.endswith(WRONG_SUFFIX[name]):
                yield Finding(severity=SERIOUS, words=f"the code reads {path} with {name}")
        elif name in NO_FUNCTIONS:
            yield Finding(severity=SERIOUS, words=f"pandas has no function {name}")


def _outside_try(tree: ast.AST) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if not isinstance(node, (ast.Try, ast.TryStar)):
            yield node
            waiting.extend(ast.iter_child_nodes(node))
