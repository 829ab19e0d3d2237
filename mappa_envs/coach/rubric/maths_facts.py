"""What the record of a turn without required files shows: the values and the numbers in it.

A value that a program prints counts as computed only if the program computes it: `print(42)` is a claim. The
program is read, never run.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_envs.actions import extract_code, handover_text
from mappa_envs.coach.rubric.computing import computes
from mappa_envs.coach.rubric.injection import without_address
from mappa_envs.coach.rubric.reader import parse
from mappa_envs.mathchat.equivalence import same
from mappa_envs.mathchat.latex import find_answer
from mappa_envs.types import Role, Turn

NEAR = 3
"""A number that is off by at most this from a given one is taken for a slip."""
MAX_CHARS = 100_000

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_BARE = re.compile(r"\s*(?:[A-Za-z][\w ]{0,30}[:=]\s*)?(-?\d[\d,]{0,400}(?:\.\d+)?(?:/\d+)?)\.?\s*")
_STATED = re.compile(
    r"\b(?:gets?|got|obtains?|gives?|equals|(?:result|total|sum|value|count|number|area) (?:is|are)|result:"
    r"|comes to|prints?|printed|output(?: is)?|therefore|hence|so)(?![\w(])[^\n\d]{0,25}?"
    r"(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?)(?![\w^])",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?<![\w.])[A-Za-z]\w{0,12}\s*=\s*(-?\d+)(?![\d.\w])")
_CODE_LINE = re.compile(
    r"^[ \t]*(?:def \w+\(|import \w+|from \w+ import|print\(|for \w+ in |return )", re.MULTILINE
)
_DECLINES = re.compile(
    r"\b(?:has no (?:solution|answer)|(?:can(?:not|'t)|unable to|impossible to|don't know how to"
    r"|do not know how to) (?:be )?(?:solved?|answer(?:ed)?|determined?|help|plan)"
    r"|not enough information|(?:need|give me) more information)\b",
    re.IGNORECASE,
)
_FENCED = re.compile(r"`{3,}.*?(?:`{3,}|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One turn.

    `prose` is the message without reasoning and code. `boxed` is the answer as the grader reads it, `stated`
    that or another value that the message names as a result. `printed` is the value that its program printed,
    `computed` whether the program computed it. `slips` are the numbers that it takes for others of the
    problem.
    """

    turn: Turn
    prose: str
    boxed: str | None
    stated: str | None
    printed: str | None
    computed: bool
    slips: tuple[tuple[int, int], ...]
    rambles: bool


def facts_of(turn: Turn, problem: str) -> Facts:
    """Read the turn."""
    text = handover_text(turn.action)[:MAX_CHARS]
    blocks, prose = extract_code(turn.action), without_address(_FENCED.sub(" ", text)).strip()
    boxed = find_answer(turn.action)
    printed = _printed(turn)
    return Facts(
        turn=turn,
        prose=prose,
        boxed=boxed,
        stated=boxed or (None if looks_like_code(prose) else _stated(prose)),
        printed=printed,
        computed=printed is not None and computes(blocks) and not _holds(blocks, printed, problem),
        slips=_slips(text, blocks, problem),
        rambles=rambles(text),
    )


def agree(first: str | None, second: str | None) -> bool:
    """Whether both are there and the same, by the exact rules alone."""
    return first is not None and second is not None and same(first[:2000], second[:2000], lambda *_: False)


def asks_for_code(role: Role) -> bool:
    """Whether the role is told to write programs."""
    return (
        re.search(r"```|\bpython\b|\bprogram|\bcode\b", f"{role.title} {role.duty}", re.IGNORECASE)
        is not None
    )


def numbers_of(text: str) -> frozenset[int]:
    """The whole numbers in a text."""
    found = (one.replace(",", "") for one in _NUMBER.findall(text[:MAX_CHARS]))
    extra = re.findall(r"\d+", text[:MAX_CHARS])
    return frozenset(abs(int(one)) for one in (*found, *extra) if re.fullmatch(r"-?\d{1,18}", one))


def has_many_answers(boxed: str) -> bool:
    """Whether the box hedges between several numbers."""
    return len(_NUMBER.findall(boxed)) > 1 and re.search(r"\bor\b|,|;|\\quad", boxed) is not None


def rambles(text: str) -> bool:
    """Long, and the same again and again."""
    body = text.encode()
    return len(body) > 1500 and len(zlib.compress(body, 1)) < 0.1 * len(body)


def echoes(prose: str, problem: str) -> bool:
    """Whether the message is the problem and hardly more."""
    words, given = _words(prose), set(_words(problem))
    fresh = [word for word in words if word not in given]
    return len(words) >= 5 and len(fresh) <= 3 and len(words) >= len(given) / 2


def declines(prose: str) -> bool:
    """Whether the message says that the problem cannot be solved, or not by its author."""
    return _DECLINES.search(prose) is not None


def looks_like_code(prose: str) -> bool:
    """Whether lines of a program stand in the message outside a block."""
    return len(_CODE_LINE.findall(prose)) >= 2


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,}|\d+", text.lower())


def _stated(prose: str) -> str | None:
    found = _STATED.findall(prose)
    if found:
        return str(found[-1]).rstrip(",.")
    last = prose.rstrip(" .$\n").rsplit("\n", 1)[-1]
    ending = re.search(r"=\s*\$?(-?\d[\d,]*(?:\.\d+)?)\$?\Z", last)
    return ending[1] if ending else None


def _printed(turn: Turn) -> str | None:
    if turn.tool is None or not turn.tool.ok:
        return None
    output = turn.tool.stdout[-4000:]
    # A number with a label before it is a result, whatever the label says.
    bare = [found[1] for line in output.splitlines() if (found := _BARE.fullmatch(line[:500]))]
    if bare:
        return str(bare[-1])
    lines = [line for line in without_address(output).splitlines() if line.strip()]
    numbers = _NUMBER.findall(lines[-1][-500:]) if lines else []
    return numbers[-1] if numbers else (lines[-1].strip()[:200] if lines else None)


def _holds(blocks: Sequence[str], printed: str, problem: str) -> bool:
    """Whether a program has its result in it, as a number or in a text, and not from the problem.

    What it only compares with is no such number, nor is one that any program may have.
    """
    if (
        not re.fullmatch(r"\d{2,18}", printed)
        or re.fullmatch(r"10+", printed)
        or int(printed) in numbers_of(problem)
    ):
        return False
    waiting: list[ast.AST] = [tree for block in blocks if (tree := parse(block)) is not None]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Assert, ast.Compare)):
            continue
        if isinstance(node, ast.Constant) and printed in re.findall(r"\d+", str(node.value)[:MAX_CHARS]):
            return True
        waiting.extend(ast.iter_child_nodes(node))
    return False


# Which numbers does it take from the problem?


def _slips(text: str, blocks: Sequence[str], problem: str) -> tuple[tuple[int, int], ...]:
    """(taken, given): a number that the problem does not have, near one that it has and the turn has not."""
    given = numbers_of(problem)
    prose = _FENCED.sub(" ", text)
    if not blocks:
        taken = [abs(int(one)) for one in _ASSIGNED.findall(prose) if len(one) < 18]
        present = numbers_of(prose)
    else:
        taken, literals = _inputs(blocks)
        present = frozenset(literals)
    foreign = [one for one in dict.fromkeys(taken) if one not in given]
    if not foreign or len(foreign) > 1 or (len(taken) > 1 and len(foreign) > len(set(taken)) / 2):
        return ()
    slips = []
    for one in foreign:
        missing = [other for other in given if other not in present and 0 < abs(one - other) <= NEAR]
        if missing:
            slips.append((one, min(missing, key=lambda other: abs(one - other))))
    return tuple(slips)


def _inputs(blocks: Sequence[str]) -> tuple[list[int], list[int]]:
    """The numbers that a program assigns, or gives to its own functions; and all numbers in it."""
    taken: list[int] = []
    literals: list[int] = []
    for block in blocks:
        tree = parse(block)
        if tree is None:
            return [], []
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                literals.append(abs(node.value))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in own:
                taken += map(_whole, [*node.args, *(k.value for k in node.keywords)])
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                taken.append(_whole(statement.value))
    return [one for one in taken if one >= 2], literals


def _whole(node: ast.expr) -> int:
    """The whole number, -1 for anything else."""
    is_int = isinstance(node, ast.Constant) and type(node.value) is int
    return abs(node.value) if is_int else -1  # type: ignore[attr-defined]
