r"""Corrected messages for roles without required files: the agent's own message with its one slip mended.

Where there is nothing to mend, the scripted expert's message for the problem, if it has a method.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from mappa_envs.actions import extract_code
from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.corrections import closed_fence
from mappa_envs.coach.rubric.maths_facts import Facts, asks_for_code, looks_like_code
from mappa_envs.coach.rubric.maths_values import agree
from mappa_envs.coach.rubric.reader import parse
from mappa_envs.errors import ConfigError
from mappa_envs.mathchat.latex import find_answer

_CODE_LINE = re.compile(r"^(?:def |import |from \w+ import|print\(|for |while |\w+ = )", re.MULTILINE)


def correction(
    request: CoachRequest, own: Facts, computed: str | None, blame: Mapping[str, float], closed: bool
) -> str | None:
    """A message that would have worked; None where nothing is to be mended, or nobody knows how.

    `computed` is the value that the team's programs printed, `blame` that of the verdict.
    """
    me, action = request.role.name, request.turn.action
    if me not in blame:
        is_open = request.turn.tool is not None and not closed
        return closed_fence(action) if is_open else None
    if request.role == request.team[-1] and request.turn.tool is None:
        return _boxed(own, computed)
    if asks_for_code(request.role):
        return _as_block(own) or _printing(action) or _expert(request)
    return _expert(request)


def _boxed(own: Facts, computed: str | None) -> str | None:
    """The message with the computed value as its last box."""
    if computed is None:
        return None
    box = f"\\boxed{{{computed}}}"
    kept = f"{own.turn.action.rstrip()}\n\n{box}"
    if own.boxed is None and agree(find_answer(kept), computed):
        return kept
    return f"The computed result stands. {box}"


def _as_block(own: Facts) -> str | None:
    """The program that stood outside a block, in one."""
    if own.turn.tool is not None or not looks_like_code(own.prose):
        return None
    start = _CODE_LINE.search(own.prose)
    if start is None or parse(own.prose[start.start() :]) is None:
        return None
    talk, code = own.prose[: start.start()].rstrip(), own.prose[start.start() :].rstrip()
    return f"{talk}\n\n```python\n{code}\n```\n".lstrip()


def _printing(action: str) -> str | None:
    """The message with a program that prints what it assigned last."""
    blocks = extract_code(action)
    tree = parse(blocks[-1]) if blocks else None
    if tree is None or not tree.body or "print(" in blocks[-1]:
        return None
    last = tree.body[-1]
    if not isinstance(last, ast.Assign) or not isinstance(last.targets[0], ast.Name):
        return None
    code = blocks[-1].rstrip()
    if action.count(code) != 1:
        return None
    return action.replace(code, f"{code}\nprint({last.targets[0].id})")


def _expert(request: CoachRequest) -> str | None:
    from mappa_envs.mathchat.expert import NO_METHOD, expert_action

    try:
        message = expert_action(request.role.name, request.task.prompt)
    except ConfigError:
        return None  # a team of other roles
    return None if message == NO_METHOD else message
