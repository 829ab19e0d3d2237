"""What the record of one action proves. Reads exit codes, the file trail and inspections; never stdout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_envs.coach.base import CoachRequest
from mappa_envs.types import Artifact, Role, Turn

UNPARSED = frozenset({"SyntaxError", "IndentationError", "TabError"})
OWN_BUGS = UNPARSED | {"NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"}
"""Exceptions that no input file can cause."""

_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about one action that the rubric scores.

    `files` are the role's required files as they are now, `own` those that this role wrote. `progress`,
    `named` and `clean` are shares in [0, 1] of the required files: made (part credit for a flawed one),
    named in the code, valid without a remark. `inputs` are the upstream roles' files before the action,
    `faulty` those of them that are not valid and that the code asks for.
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
    damaged: tuple[str, ...]
    altered: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Every required file is there, valid and this role's work."""
        return (
            bool(self.files)
            and all(a.status == "valid" for a in self.own)
            and len(self.own) == len(self.files)
        )

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
    valid = {a.path for a in own if a.status == "valid"}
    inputs = tuple(state(request, p, before=True) for r in upstream(request.team, role) for p in r.required)
    share = 1 / len(files) if files else 0.0
    return Evidence(
        has_code=tool is not None,
        closed=len(_FENCE.findall(visible(turn.action))) % 2 == 0,
        parsed=tool is not None and tool.exception not in UNPARSED,
        ok=tool is not None and tool.ok,
        failure=_failure(turn),
        files=files,
        own=own,
        progress=share * sum(_credit(a) for a in own),
        named=share * sum(a.path in valid or names(code, a.path) for a in files),
        clean=share * sum(a.path in valid and not a.problem for a in own),
        inputs=inputs,
        faulty=tuple(a for a in inputs if a.status != "valid" and names(code, a.path)),
        damaged=tuple(a.path for a in inputs if a.status == "valid" and _broken(request, a.path)),
        altered=_altered(request),
    )


def visible(action: str) -> str:
    """The action without its reasoning."""
    return action.rsplit("</think>", 1)[-1]


def code_of(action: str) -> str:
    """All fenced code of an action, an unclosed last block included."""
    return "\n".join(_FENCED.findall(visible(action)))


def names(code: str, path: str) -> bool:
    """Whether the code has the file's name as a word."""
    return re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-])", code) is not None


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


def _wrote(request: CoachRequest, artifact: Artifact) -> bool:
    """Whether the acting role made the file; without a writer on record: if it was not there before."""
    if artifact.written_by is None:
        return state(request, artifact.path, before=True) != artifact
    writers = {turn.index: turn.agent for turn in request.episode.turns}
    return {**writers, request.turn.index: request.turn.agent}.get(artifact.written_by) == request.role.name


def _broken(request: CoachRequest, path: str) -> bool:
    touched = request.turn.tool is not None and any(f.path == path for f in request.turn.tool.files)
    return touched and state(request, path).status != "valid"


def _altered(request: CoachRequest) -> tuple[str, ...]:
    files = request.turn.tool.files if request.turn.tool else ()
    return tuple(f.path for f in files if f.path in request.task.files and f.change != "created")
