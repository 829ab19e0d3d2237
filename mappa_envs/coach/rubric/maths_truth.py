"""Which values in the record of a finished episode are not the accepted answer.

The rubric is local code, and reads the answer of a task only where the environment shows the outcome
(`ground_truth="final"`), which says as much of the value in the box. No message of the coach repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.maths_deviations import replaces_a_number, turns_around
from mappa_envs.coach.rubric.maths_facts import Facts, agree, numbers_of

SELF_MENDED = 7.0
"""What is left to a turn whose mistake did not reach the answer."""


def is_wrong(request: CoachRequest, value: str | None) -> bool:
    """Whether it is known to be another value than the accepted ones."""
    golds: Sequence[str] = getattr(request.task, "golds", ())
    if request.outcome is None or not golds or value is None:
        return False
    return not any(agree(gold, value) for gold in golds)


def claims_wrongly(request: CoachRequest, one: Facts) -> bool:
    """A message that states a wrong result: not merely a number of the problem."""
    if one.turn.tool is not None or not is_wrong(request, one.stated):
        return False
    given = numbers_of(request.task.prompt)
    return one.boxed is not None or not numbers_of(one.stated or "") <= given


def computes_wrongly(request: CoachRequest, one: Facts) -> bool:
    """A program that prints a wrong result."""
    return one.turn.tool is not None and is_wrong(request, one.printed)


def mends_itself(request: CoachRequest, one: Facts, past: Sequence[Facts]) -> bool:
    """A program with a wrong result whose agent computes the right one later on."""
    later = [
        other for other in past if other.turn.index > one.turn.index and other.turn.agent == one.turn.agent
    ]
    right = any(other.computed and not is_wrong(request, other.printed) for other in later)
    return right and computes_wrongly(request, one)


def self_mended_caps(request: CoachRequest, past: Sequence[Facts]) -> dict[int, tuple[float, str]]:
    """Caps for wrong results that their own agents mended, in an episode whose answer is wrong."""
    return {
        one.turn.index: (SELF_MENDED, "its agent computed another result later on")
        for one in past
        if mends_itself(request, one, past)
    }


def mended_caps(request: CoachRequest, past: Sequence[Facts]) -> dict[int, tuple[float, str]]:
    """Caps for what was wrong in an episode whose answer is right."""
    problem, caps = request.task.prompt, {}
    for one in past:
        if computes_wrongly(request, one) or claims_wrongly(request, one):
            caps[one.turn.index] = SELF_MENDED, "the value in it is not the answer that was right in the end"
        elif one.turn.tool is None and (
            words := replaces_a_number(one, None, problem) or turns_around(one, problem)
        ):
            caps[one.turn.index] = SELF_MENDED, f"{words}; teammates mended that"
    return caps
