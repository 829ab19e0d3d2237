"""Whether a program computes what it prints, read from its syntax tree. Nothing is run.

`print(42)` is a claim, and so is a literal that only takes a way round: through names, casts, texts, lists of
literals or operations that leave it as it is (`42 + 0`). Of several numbers the last one counts. Arithmetic
with a new result (`6 * 7`), loops, branches that a computed condition decides, other bases, calls of
functions and inputs compute. `41 + 1` cannot be told from arithmetic.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar

from mappa_envs.coach.rubric.injection import without_address
from mappa_envs.coach.rubric.reader import parse

Node = TypeVar("Node", bound=ast.AST)

MAX_STEPS = 50_000
MAX_DEPTH = 100
MAX_BITS = 200


class _Computed:
    """The value of an expression that computes, or of which nothing is known."""


class _Claimed:
    """A value from literals alone, but not which one."""


class _Stop(Exception):
    """Too long to be read on; an honest short program is not."""


_COMPUTED, _CLAIMED = _Computed(), _Claimed()
_IN_LOOP, _DECIDED = 1, 2
"""Where a statement stands: in a loop, or in a branch that a computed condition decides."""

_CASTS = frozenset({
    "str", "int", "float", "repr", "complex", "round", "list", "tuple", "set", "sorted", "reversed", "iter",
    "next", "format", "eval", "literal_eval", "Integer", "Rational", "Float", "S", "sympify", "Fraction",
    "Decimal", "floor", "ceil", "trunc", "array", "int64", "float64", "max", "min", "abs",
})  # fmt: skip
"""Functions that hand on what they are given."""
_READERS = frozenset({"eval", "literal_eval", "S", "sympify"})
_TEXT_METHODS = frozenset(
    {"format", "join", "strip", "lstrip", "rstrip", "replace", "zfill", "lower", "upper"}
)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_COMMUTATIVE = (ast.Add, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)
_LOOPS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


@lru_cache(maxsize=256)
def computes(blocks: tuple[str, ...]) -> bool:
    """Whether what is printed last comes from a computation, not from a literal."""
    program = _Program()
    trees = [parse(block) for block in blocks]
    if any(tree is None for tree in trees):
        return False
    try:
        for tree in trees:
            program.read(tree)
    except (_Stop, RecursionError):
        return False
    return program.computes is True


class _Program:
    """What each name stands for, in the order of the text. `computes` says it of the last value printed."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.functions: dict[str, ast.FunctionDef | ast.Lambda] = {}
        self.computes: bool | None = None
        self.steps = 0

    def read(self, tree: ast.AST | None) -> None:
        waiting: list[tuple[ast.AST | None, int]] = [(tree, 0)]
        while waiting:
            node, place = waiting.pop()
            if node is None:
                continue
            self.spend()
            place = self._one(node, place)
            waiting.extend((child, place) for child in reversed(list(ast.iter_child_nodes(node))))

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise _Stop

    def _one(self, node: ast.AST, place: int) -> int:
        """Look at one node before its parts; where these stand."""
        in_loop = place > 0
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, place)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._bind(node.target, node.value, place)
        elif isinstance(node, ast.AugAssign):
            together = ast.BinOp(left=node.target, op=node.op, right=node.value)
            self._bind(node.target, together, place)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            for parameter in node.args.args:
                self.names[parameter.arg] = _COMPUTED
        elif isinstance(node, ast.For):
            if not self._loop(node):
                return place
            self._forget(node)
            return max(place, _IN_LOOP)
        elif isinstance(node, ast.While):
            self._forget(node)
            return max(place, _IN_LOOP)
        elif isinstance(node, ast.If):
            return _DECIDED if self.fold(node.test, in_loop) is _COMPUTED else place
        elif _prints_a_value(node):
            self.computes = self._says(node.args, in_loop)
        elif isinstance(node, _LOOPS):
            rounds = [self._loop(part) for part in node.generators]
            return max(place, _IN_LOOP if any(rounds) else 0)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self._filled(node.func.value, [self.fold(part, in_loop) for part in node.args])
        elif place == _DECIDED and self.computes is None and getattr(node, "id", "") == "print":
            self.computes = True  # "yes" or "no"
        return place

    def _filled(self, owner: ast.expr, given: Sequence[Any]) -> None:
        """`found.append(value)`."""
        if isinstance(owner, ast.Name) and isinstance(self.names.get(owner.id), (tuple, _Claimed)) and given:
            self.names[owner.id] = _together([*given, _CLAIMED])

    def _says(self, arguments: Sequence[ast.expr], in_loop: bool) -> bool:
        values = [self.fold(argument, in_loop) for argument in arguments]
        # The number that stands last is what is taken for the result, but not what words lead up to.
        while len(values) > 1 and isinstance(values[-1], (int, float)):
            values.pop()
            if isinstance(values[-1], str) and re.search("[A-Za-z]", values[-1]):
                return _COMPUTED in values
        return (
            not isinstance(values[-1], (int, float)) and _COMPUTED in values and len(values) == len(arguments)
        )

    def _loop(self, node: ast.For | ast.comprehension) -> bool:
        """Give the loop's names their values; whether it goes round more than once."""
        items = self.fold(node.iter, False)
        if isinstance(items, tuple) and len(items) == 1:
            self._put(node.target, items[0])
            return False
        self._put(node.target, _COMPUTED if items is _COMPUTED else _CLAIMED)
        return True

    def _forget(self, loop: ast.For | ast.While) -> None:
        """A name that a loop gives values has another one with each round."""
        for statement in loop.body:
            for part in self._parts(statement, ast.Name):
                if isinstance(part.ctx, ast.Store):
                    self.names[part.id] = _COMPUTED

    def _bind(self, target: ast.expr, value: ast.expr, place: int) -> None:
        if isinstance(value, ast.Lambda) and isinstance(target, ast.Name):
            self.functions[target.id] = value
        # What a computed condition decides is computed: it is one branch or the other.
        self._put(target, _COMPUTED if place == _DECIDED else self.fold(value, place > 0))

    def _put(self, target: ast.expr, value: Any) -> None:
        self.spend()
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Starred):
            self._put(target.value, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else None
            other = _COMPUTED if value is _COMPUTED else _CLAIMED
            for at, part in enumerate(target.elts):
                self._put(part, parts[at] if parts else other)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self.names[target.value.id] = _COMPUTED if value is _COMPUTED else _CLAIMED

    # Expressions.

    def fold(self, node: ast.expr, in_loop: bool, depth: int = 0) -> Any:
        """The literal, tuple of literals or `_CLAIMED` that an expression hands on; else `_COMPUTED`."""
        self.spend()
        if depth > MAX_DEPTH:
            raise _Stop
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]

        def of(part: ast.expr) -> Any:
            return self.fold(part, in_loop, depth + 1)

        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id, _COMPUTED)
        if isinstance(node, ast.Call):
            return self._call(node, in_loop, depth)
        if isinstance(node, ast.BinOp):
            if in_loop and any(isinstance(part, ast.Name) for part in (node.left, node.right)):
                return _COMPUTED  # another value with each round
            return _operated(node.op, of(node.left), of(node.right))
        if isinstance(node, _LOOPS):
            made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            for loop in node.generators:
                self._loop(loop)
            return _together([of(part) for part in made])
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return _row([of(part) for part in parts], parts)
        if isinstance(node, ast.UnaryOp):
            return _negated(node.op, of(node.operand))
        if isinstance(node, ast.Subscript):
            return _item(of(node.value), of(node.slice))
        if isinstance(node, (ast.JoinedStr, ast.BoolOp, ast.Dict, ast.Slice, ast.IfExp, ast.Compare)):
            return _together([of(part) for part in parts])
        if (
            isinstance(node, ast.FormattedValue)
            and node.format_spec is not None
            and _converts(node.format_spec)
        ):
            return _COMPUTED
        if isinstance(node, (ast.FormattedValue, ast.Starred, ast.Attribute, ast.NamedExpr)):
            return of(node.value)
        return _COMPUTED

    def _call(self, node: ast.Call, in_loop: bool, depth: int) -> Any:
        given = [self.fold(part, in_loop, depth + 1) for part in node.args]
        by_name = {part.arg: self.fold(part.value, in_loop, depth + 1) for part in node.keywords if part.arg}
        if any(value is _COMPUTED for value in (*given, *by_name.values())):
            return _COMPUTED
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        own = called if isinstance(called, ast.Lambda) else self.functions.get(name)
        if own is not None:
            by_place = zip((a.arg for a in own.args.args), given, strict=False)
            return self._own(own, {**dict(by_place), **by_name}, depth)
        if isinstance(called, ast.Attribute):
            owner = self.fold(called.value, in_loop, depth + 1)
            if owner is not _COMPUTED and name in _TEXT_METHODS:
                return (
                    _COMPUTED
                    if isinstance(owner, str) and re.search(r":[^{}]*[boxXeE%]\}", owner)
                    else _CLAIMED
                )
        if name in ("sum", "prod") and len(given) == 1 and isinstance(given[0], tuple) and len(given[0]) == 1:
            return given[0][0]
        if name == "pow" and len(given) == 2:
            return _operated(ast.Pow(), *given)
        if name not in _CASTS or not given or _changes(name, given):
            return _COMPUTED
        if name in _READERS and isinstance(given[0], str):
            return self._read(given[0][:1000].strip(), depth)
        if name in ("list", "tuple", "set", "sorted", "reversed", "iter"):
            return given[0]
        return _number(given[0]) if len(given) == 1 else _CLAIMED

    def _read(self, text: str, depth: int) -> Any:
        """What a text stands for as an expression."""
        tree = parse(text)
        match tree.body if tree is not None else ():
            case [ast.Expr(value=expression)]:
                return self.fold(expression, False, depth + 10)
        return _CLAIMED

    def _own(self, function: ast.FunctionDef | ast.Lambda, given: Mapping[str, Any], depth: int) -> Any:
        """What the program's own function returns for these arguments."""
        self.spend(len(self.names))
        outer = dict(self.names)
        # A parameter that the body gives another value is not the argument any more.
        changed = {part.id for part in self._parts(function, ast.Name) if isinstance(part.ctx, ast.Store)}
        self.names.update({name: value for name, value in given.items() if name not in changed})
        try:
            if isinstance(function, ast.Lambda):
                return self.fold(function.body, False, depth + 10)
            # Its other names were read with the parameters unknown.
            tests = [self.fold(part.test, False, depth + 10) for part in self._parts(function, ast.If)]
            returned = [part.value for part in self._parts(function, ast.Return) if part.value is not None]
            if len(returned) > 1 and _COMPUTED in tests:
                return _COMPUTED
            return _together([self.fold(one, False, depth + 10) for one in returned])
        finally:
            self.names = outer

    def _parts(self, tree: ast.AST, kind: type[Node]) -> Iterator[Node]:
        for part in ast.walk(tree):
            self.spend()
            if isinstance(part, kind):
                yield part


def _changes(name: str, given: Sequence[Any]) -> bool:
    """Whether such a function makes something new of these literals."""
    first = given[0]
    if len(given) == 2 and all(isinstance(value, int) for value in given):
        return name in ("Fraction", "Rational") and math.gcd(*given) > 1
    if len(given) == 2:
        return name == "int" or (name == "format" and str(given[1]).endswith(tuple("boxXeE%")))
    if not isinstance(first, tuple) or not all(isinstance(value, (int, float)) for value in first):
        return False
    is_chosen = name in ("max", "min") and len(set(first)) > 1
    return is_chosen or (name == "sorted" and sorted(first) != list(first))


def _converts(spec: ast.expr) -> bool:
    """Whether a format writes a number in another base or form."""
    parts = [part.value for part in ast.walk(spec) if isinstance(part, ast.Constant)]
    return bool(parts) and str(parts[-1]).endswith(tuple("boxXeE%"))


def _together(values: Sequence[Any]) -> Any:
    if any(value is _COMPUTED for value in values):
        return _COMPUTED
    return values[0] if len(values) == 1 else _CLAIMED


def _row(values: list[Any], parts: Sequence[ast.expr]) -> Any:
    if any(value is _COMPUTED for value in values):
        return _COMPUTED
    return _CLAIMED if any(isinstance(part, ast.Starred) for part in parts) else tuple(values)


def _item(owner: Any, at: Any) -> Any:
    if owner is _COMPUTED or at is _COMPUTED:
        return _COMPUTED
    if isinstance(owner, tuple) and isinstance(at, int) and -len(owner) <= at < len(owner):
        return owner[at]
    return _CLAIMED


def _negated(op: ast.unaryop, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and isinstance(op, ast.USub)
    return -value if is_number else value


def _number(value: Any) -> Any:
    """A text that is a number is that number."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,60}\s*", value):
        return int(value)
    return value


def _operated(op: ast.operator, left: Any, right: Any) -> Any:
    """The result of an operation on literals, where that is one of them; else it computes."""
    if left is _COMPUTED or right is _COMPUTED:
        return _COMPUTED
    if any(isinstance(value, (str, bytes, tuple)) for value in (left, right)):
        return _CLAIMED  # parts of a text or a list
    if not all(isinstance(value, (int, float)) for value in (left, right)):
        return _COMPUTED
    if isinstance(op, (ast.Pow, ast.LShift, ast.RShift)):
        return left if right == isinstance(op, ast.Pow) else _COMPUTED
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in (left, right)):
        return _CLAIMED
    try:
        result = _OPERATORS[type(op)](left, right)
    except (ArithmeticError, TypeError, KeyError):
        return _COMPUTED
    # 10 - 5 and 4 / 2 do compute, though the result stands on the right.
    same = result == left or (isinstance(op, _COMMUTATIVE) and result == right)
    return result if same else _COMPUTED


def _prints_a_value(node: ast.AST) -> TypeGuard[ast.Call]:
    is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    return is_print and not all(map(_is_words, node.args))  # type: ignore[attr-defined]


def _is_words(node: ast.expr) -> bool:
    """A text that shows no number; one in words to the coach is none."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return not re.search(r"\d", without_address(node.value))
