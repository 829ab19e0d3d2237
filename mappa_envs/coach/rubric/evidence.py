"""What the record of one action proves: exit codes, the file trail, inspections and the code's syntax tree.

Nothing that the agent says or prints is read here. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mappa_envs.actions import extract_code, leaves_block_open
from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.checks import GRAVE, SERIOUS, SUSPECTED, Finding
from mappa_envs.coach.rubric.faults import facts_of, intended, mistakes, remarks_on
from mappa_envs.coach.rubric.measured import measured
from mappa_envs.coach.rubric.outcomes import disappoints, is_good
from mappa_envs.coach.rubric.reader import parse
from mappa_envs.dsbench.inspector import CONSTANT
from mappa_envs.types import Artifact, Role, Turn

UNPARSED = frozenset({"SyntaxError", "IndentationError", "TabError"})
OWN_BUGS = UNPARSED | {"NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}
"""Exceptions that no input file can cause."""

NOT_TRIED = "predict() was not tried"
"""The inspector's remark on a model without a table to try it on."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about one action that the rubric scores.

    `files` are the role's required files as they are now, `own` those that this role wrote. `progress`,
    `named` and `clean` are shares in [0, 1] of the required files: made (part credit for a flawed one),
    named in the code, valid without a remark. `inputs` are the upstream roles' files before the action,
    `faulty` those of them that are not valid and that the code asks for, `excused` own files that can only be
    invalid because X_test.pkl is. `mistakes` are what the record of the action shows beside all that,
    `intended` the serious ones that stand in the code of an action that was blocked before it came to them.
    """

    has_code: bool
    closed: bool
    parsed: bool
    ok: bool
    failure: str
    files: tuple[Artifact, ...]
    own: tuple[Artifact, ...]
    progress: float
    named: float
    clean: float
    inputs: tuple[Artifact, ...]
    faulty: tuple[Artifact, ...]
    excused: tuple[str, ...] = ()
    mistakes: tuple[Finding, ...] = ()
    intended: tuple[Finding, ...] = ()

    @property
    def done(self) -> bool:
        """Every required file is there, this role's work, and valid as far as that was up to this role."""
        good = [a for a in self.own if a.status == "valid" or a.path in self.excused]
        return bool(self.files) and len(good) == len(self.files)

    @property
    def worst(self) -> float:
        """The severity of the worst mistake; 0 without any."""
        return max((one.severity for one in self.mistakes), default=0.0)

    @property
    def blocked(self) -> bool:
        """Not done, in code that is sound as far as one can see, which needs a file that upstream owed."""
        return bool(self.faulty) and not self.done and self.has_code and self.failure not in OWN_BUGS


def gather(request: CoachRequest) -> Evidence:
    """Read the request."""
    turn, role, tool = request.turn, request.role, request.turn.tool
    code = code_of(turn.action) if tool else ""
    files = tuple(state(request, path) for path in role.required)
    own = tuple(a for a in files if a.status != "missing" and _wrote(request, a))
    inputs = tuple(state(request, p, before=True) for r in upstream(request.team, role) for p in r.required)
    excused = tuple(a.path for a in own if a.status == "invalid" and for_want_of_input(a, inputs))
    valid = {a.path for a in own if a.status == "valid"} | set(excused)
    share = 1 / len(files) if files else 0.0
    found = Evidence(
        has_code=tool is not None,
        closed=not leaves_block_open(turn.action),
        parsed=tool is not None and tool.exception not in UNPARSED,
        ok=tool is not None and tool.ok,
        failure=_failure(turn),
        files=files,
        own=own,
        progress=share * sum(1.0 if a.path in excused else _credit(a) for a in own),
        named=share * sum(a.path in valid or names(code, a.path) for a in files),
        clean=share * sum(a.path in valid and (not a.problem or NOT_TRIED in a.problem) for a in own),
        inputs=inputs,
        faulty=tuple(a for a in inputs if a.status != "valid" and (names(code, a.path) or bool(excused))),
        excused=excused,
        mistakes=(*_broken(request, inputs), *_own_mistakes(request, inputs)),
    )
    if not found.blocked:
        return found
    intents = intended(turn, request.team, request.task)
    return replace(found, intended=tuple(one for one in intents if one.certain and one.severity >= SERIOUS))


def model_kind(request: CoachRequest) -> str:
    """The class of model.pkl before the action, "" where there is none."""
    found = request.before.get("model.pkl")
    return found.kind if found else ""


def code_of(action: str) -> str:
    """All code of an action that is run, an unclosed last block included."""
    return "\n".join(extract_code(action))


def names(code: str, path: str) -> bool:
    """Whether the code works with the file: its name, or its two parts, stand in a text that is not printed.

    Where the code cannot be parsed, anywhere but in a comment.
    """
    texts = _texts(code)
    word = re.compile(rf"(?<![\w.-]){re.escape(path)}(?![\w-])")
    stem, dot, suffix = path.rpartition(".")
    return any(map(word.search, texts)) or (
        stem in texts and any(text.endswith(dot + suffix) for text in texts)
    )


@lru_cache(maxsize=256)
def _texts(code: str) -> frozenset[str]:
    tree = parse(code)
    if tree is None:
        return frozenset({re.sub(r"#.*", "", code)})
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        is_remark = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_print or is_remark:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def upstream(team: Sequence[Role], role: Role) -> tuple[Role, ...]:
    """The roles that act before this one."""
    return tuple(team[: [r.name for r in team].index(role.name)])


def state(request: CoachRequest, path: str, *, before: bool = False) -> Artifact:
    """A required file; one that nobody looked at counts as missing."""
    found = (request.before if before else request.after).get(path)
    return found or Artifact(path=path, status="missing", problem=f"there is no {path}")


def culprit(request: CoachRequest, artifact: Artifact) -> str:
    """Who left a file in this state: its last writer, else who deleted it, else who owed it."""
    turns = request.episode.turns
    for turn in turns:
        if turn.index == artifact.written_by and artifact.status != "missing":
            return turn.agent
    for turn in reversed(turns):
        if turn.tool and any(f.path == artifact.path and f.change == "deleted" for f in turn.tool.files):
            return turn.agent
    return next(role.name for role in request.team if artifact.path in role.required)


def last_turn(request: CoachRequest, agent: str) -> Turn | None:
    """The agent's last action before this one."""
    return next((turn for turn in reversed(request.episode.turns) if turn.agent == agent), None)


def _failure(turn: Turn) -> str:
    tool = turn.tool
    if tool is None or tool.ok:
        return ""
    return f"{tool.limit} limit" if tool.limit else tool.exception or f"exit code {tool.exit_code}"


def _credit(artifact: Artifact) -> float:
    if artifact.status == "valid":
        return 1.0
    # A file that could be read but does not fit is nearer to a good one than bytes that cannot be read.
    return 0.4 if artifact.status == "invalid" and artifact.kind else 0.2


def for_want_of_input(artifact: Artifact, inputs: Sequence[Artifact]) -> bool:
    """The inspector tries a model on X_test.pkl, and that is not valid."""
    return "predict(X_test)" in artifact.problem and any(
        a.path == "X_test.pkl" and a.status != "valid" for a in inputs
    )


def _wrote(request: CoachRequest, artifact: Artifact) -> bool:
    """Whether the acting role made the file; without a writer on record: if it was not there before."""
    if artifact.written_by is None:
        return state(request, artifact.path, before=True) != artifact
    writers = {turn.index: turn.agent for turn in request.episode.turns}
    return {**writers, request.turn.index: request.turn.agent}.get(artifact.written_by) == request.role.name


def _for_now(finding: Finding) -> Finding:
    """A mistake while nobody knows the outcome: it may not matter."""
    return finding if finding.certain else replace(finding, severity=min(SUSPECTED, finding.severity))


def _broken(request: CoachRequest, inputs: Sequence[Artifact]) -> tuple[Finding, ...]:
    """Upstream files that were valid before the action, and are not any more."""
    touched = {file.path for file in request.turn.tool.files} if request.turn.tool else set()
    return tuple(
        Finding(severity=GRAVE, words=f"it broke {a.path}", path=a.path)
        for a in inputs
        if a.status == "valid" and a.path in touched and state(request, a.path).status != "valid"
    )


def _own_mistakes(request: CoachRequest, inputs: Sequence[Artifact]) -> tuple[Finding, ...]:
    task, outcome = request.task, request.outcome
    read = mistakes(request.turn, request.role, request.team, task, request.after, model_kind(request))
    own = [a for path in request.role.required if _wrote(request, a := state(request, path))]
    paths = {a.path for a in own}
    remarks = [r for a in own for r in remarks_on(a, task, request.after)]
    useless = any(r.severity >= GRAVE for a in inputs for r in remarks_on(a, task, request.before))
    if useless or any(a.status == "invalid" for a in inputs):
        # No model can tell rows apart by features, or for a target, that do not vary.
        remarks = [r for r in remarks if CONSTANT not in r.words]
    found = dict.fromkeys((*read, *remarks))
    seen = [one for one in measured(request.after, facts_of(task).family) if one.path in paths]
    if outcome is None:
        return tuple(dict.fromkeys(map(_for_now, (*found, *seen))))
    if disappoints(outcome):
        return tuple(dict.fromkeys((*found, *seen)))
    # A good result proves that what was lost on the way did not matter, and that the code was misread.
    misread = {one for one in read if one.path in paths} if is_good(outcome) else set()
    return tuple(one for one in found if one.certain and one not in misread)
