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
from mappa_envs.coach.rubric.maths_values import NUMBER, Output, numbers_in, output_of
from mappa_envs.coach.rubric.reader import parse
from mappa_envs.mathchat.latex import find_answer
from mappa_envs.types import Role, Turn

MAX_CHARS = 100_000

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_NAMED = re.compile(
    r"\b(?:gets?|got|obtains?|gives?|equals|(?:result|total|sum|value|count|number|area) (?:is|are)|result:"
    r"|comes to|prints?|printed|output(?: is)?|therefore|hence|so)(?![\w(])[^\n\d]{0,25}?"
    rf"({NUMBER})(?![\w^])",
    re.IGNORECASE,
)
_CLAIMED = re.compile(
    r"(?:\b(?:one|we|i|you) (?:get|obtain|have|find)s?"
    r"|\b(?:answer|result|output|final value|(?:so|thus|hence|therefore),? the (?:total|value|number|sum)))"
    rf"(?: is| are|:| =| equals)? \$?({NUMBER})\$?\W*\Z",
    re.IGNORECASE,
)
"""At the end of a message: what comes after an intermediate value says what to do with it."""
_REQUEST = re.compile(
    r"\s*(?:please )?(?:(?:compute|check|confirm|verify|run)\b.{0,15}\b(?:it|this|that|answer|result)"
    r"|no need|nothing)\b[^.!\n\d]*[.!]?\s*\Z",
    re.IGNORECASE,
)  # fmt: skip
_CODE_LINE = re.compile(
    r"^[ \t]*(?:def \w+\(|import \w+|from \w+ import|print\(|for \w+ in |return )", re.MULTILINE
)
_DECLINES = re.compile(
    r"\b(?:(?:problem|this) has no (?:solution|answer)"
    r"|(?:can(?:not|'t)|unable to|impossible to|don't know how to"
    r"|do not know how to) (?:be )?(?:solved?|answer(?:ed)?|determined?|help|plan)"
    r"|not enough information|(?:need|give me) more information)\b",
    re.IGNORECASE,
)
_ANY = frozenset({"value", "numbe", "probl", "integ", "there", "their", "which", "first"})
"""How words of any problem begin."""
_FENCED = re.compile(r"`{3,}.*?(?:`{3,}|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One turn.

    `prose` is the message without reasoning and code. `boxed` is the answer as the grader reads it, `stated`
    that or another value that the message ends with as its result, `named` any value that it mentions last as
    the outcome of something. `output` is what its program printed, `computed` whether the program computed
    the last of that.
    """

    turn: Turn
    prose: str
    boxed: str | None
    stated: str | None
    named: str | None
    output: Output | None
    computed: bool
    rambles: bool

    @property
    def printed(self) -> str | None:
        """The likely result of its program."""
        return self.output.result if self.output else None

    def shows(self, answer: str | None) -> bool:
        """Whether its program printed this value, among others maybe."""
        return self.output is not None and self.output.shows(answer)

    def refutes(self, answer: str | None) -> bool:
        """Whether its program printed another value, for certain."""
        return self.output is not None and self.output.refutes(answer)

    def mentions(self, run: Facts) -> bool:
        """Whether the message has a value of that program's output in it."""
        if run.output is None:
            return False
        is_line = any(re.search(r"[A-Za-z,(]", one) and one in self.prose for one in run.output.values[:40])
        return is_line or any(map(run.output.shows, numbers_in(self.prose)))


def facts_of(turn: Turn, problem: str) -> Facts:
    """Read the turn."""
    text = handover_text(turn.action)[:MAX_CHARS]
    blocks, prose = extract_code(turn.action), without_address(_FENCED.sub(" ", text)).strip()
    boxed, is_code = find_answer(turn.action), looks_like_code(prose)
    output = output_of(turn.tool.stdout) if turn.tool is not None and turn.tool.ok else None
    return Facts(
        turn=turn,
        prose=prose,
        boxed=boxed,
        stated=boxed or (None if is_code else _claimed(prose)),
        named=boxed or (None if is_code else _named(prose)),
        output=output,
        computed=output is not None and computes(blocks) and not _holds_all(blocks, output, problem),
        rambles=rambles(text),
    )


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


def rambles(text: str) -> bool:
    """Long, and the same again and again."""
    body = text.encode()
    return len(body) > 1500 and len(zlib.compress(body, 1)) < 0.1 * len(body)


def echoes(prose: str, problem: str) -> bool:
    """Whether the message is the problem and hardly more."""
    words, given = _words(prose), set(_words(problem))
    fresh = [word for word in words if word not in given]
    return len(words) >= 5 and len(fresh) <= 3 and len(given & set(words)) >= len(given) / 2


def shares_words(prose: str, problem: str) -> bool:
    """Whether the message speaks of the problem's things: "thrown" of throws."""
    told, said = ({word[:5] for word in _words(text) if len(word) > 4} - _ANY for text in (problem, prose))
    return not told.isdisjoint(said)


def declines(prose: str) -> bool:
    """Whether the message says that the problem cannot be solved, or not by its author."""
    return _DECLINES.search(prose) is not None


def looks_like_code(prose: str) -> bool:
    """Whether lines of a program stand in the message outside a block."""
    return len(_CODE_LINE.findall(prose)) >= 2


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,}", text.lower())


def _claimed(prose: str) -> str | None:
    found = _CLAIMED.search(_REQUEST.sub("", _last_sentences(prose)))
    return found[1] if found else None


def _named(prose: str) -> str | None:
    last = prose.rstrip(" .$\n").rsplit("\n", 1)[-1]
    if ending := re.search(rf"(?:[=:]|\bis|\bare)\s*\$?({NUMBER})\$?\Z", last):
        return ending[1]
    found = _NAMED.findall(prose)
    return str(found[-1]) if found else None


def _last_sentences(prose: str) -> str:
    """The last two."""
    return " ".join(re.split(r"(?<=[.!?;])\s+|\n", prose[-1000:].rstrip())[-2:])


def _holds_all(blocks: Sequence[str], output: Output, problem: str) -> bool:
    return all(_holds(blocks, one, problem) for one in output.results)


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
