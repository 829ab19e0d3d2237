"""The whole message that would have worked, where the evidence makes that obvious.

A slip in one line is mended in the agent's own message; else the scripted expert's message for the role takes
its place, with the work of upstream roles before it where their files cannot be used. The expert reads only
what the agent may read.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.blame import suspects
from mappa_envs.coach.rubric.evidence import Evidence, code_of, names, upstream
from mappa_envs.coach.rubric.faults import BLAMED
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.errors import ConfigError
from mappa_envs.types import Role


def correction(request: CoachRequest, e: Evidence) -> str | None:
    """A corrected message for a role with required files; None if none is known or needed."""
    outcome = request.outcome
    failed = not e.done or e.worst >= BLAMED or (outcome is not None and not outcome.success)
    if not failed and e.ok:
        return None if e.closed else closed_fence(request.turn.action)
    if not isinstance(getattr(request.task, "spec", None), TaskSpec):
        return None
    if e.done and not e.excused and e.worst < BLAMED and e.ok:
        return _expert(request, e)
    return _renamed(request, e) or _expert(request, e)


def closed_fence(action: str) -> str:
    """The message with its last block closed."""
    return action.rstrip() + "\n```\n"


def _renamed(request: CoachRequest, e: Evidence) -> str | None:
    """The agent's message with the file's right name, where it saved one file under a wrong name."""
    missing = [a.path for a in e.files if a.status == "missing"]
    tool = request.turn.tool
    if len(missing) != 1 or tool is None or not tool.ok or e.faulty or e.mistakes:
        return None
    path = missing[0]
    suffix = PurePosixPath(path).suffix
    required = {other for role in request.team for other in role.required}
    made = [f.path for f in tool.files if f.change == "created" and f.path not in required]
    close = [name for name in made if PurePosixPath(name).suffix == suffix]
    if len(close) != 1 or not names(code_of(request.turn.action), close[0]):
        return None
    word = rf"(?<![\w.-]){re.escape(close[0])}(?![\w-])"
    text = re.sub(word, lambda _: path, request.turn.action)
    return text if e.closed else closed_fence(text)


def _expert(request: CoachRequest, e: Evidence) -> str | None:
    from mappa_envs.testing.expert import expert_action, expert_code

    spec = getattr(request.task, "spec", None)
    if not isinstance(spec, TaskSpec):
        return None
    parts = []
    try:
        for role in _to_redo(request, e):
            parts.append(f"```python\n{expert_code(role.name, request.task)}```\n")  # type: ignore[arg-type]
        own: str = expert_action(request.role.name, request.task)  # type: ignore[arg-type]
    except ConfigError:
        return None  # a team of other roles
    if not parts:
        return own
    return "The files that I need cannot be used, so I make them first.\n\n" + "\n".join(parts) + "\n" + own


def _to_redo(request: CoachRequest, e: Evidence) -> tuple[Role, ...]:
    """The upstream roles from the first on whose files cannot be used."""
    above = upstream(request.team, request.role)
    bad = {a.path for a in e.inputs if a.status != "valid"}
    bad |= {one.finding.path for one in suspects(request) if one.finding.severity >= BLAMED}
    first = next((at for at, role in enumerate(above) if bad & set(role.required)), None)
    return () if first is None else above[first:]
