"""Which values in the record of a finished episode are not the accepted answer.

The rubric is local code, and reads the answer of a task only where the environment shows the outcome
(`ground_truth="final"`), which says as much of the value in the box. No message of the coach repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.maths_facts import Facts, numbers_of
from mappa_envs.coach.rubric.maths_values import agree, number_of

SELF_MENDED = 7.0
"""What is left to a turn whose mistake did not reach the answer."""


def is_wrong(request: CoachRequest, value: str | None) -> bool:
    """Whether it is known to be another value than the accepted ones: a number, as they are."""
    golds = _golds(request)
    if not golds or value is None or None in map(number_of, (*golds, value)):
        return False
    return not any(agree(gold, value) for gold in golds)


def shows_the_answer(request: CoachRequest, one: Facts) -> bool:
    """Whether its program printed the accepted answer, among others maybe."""
    return any(map(one.shows, _golds(request)))


def _golds(request: CoachRequest) -> Sequence[str]:
    return () if request.outcome is None else getattr(request.task, "golds", ())


def claims_wrongly(request: CoachRequest, one: Facts) -> bool:
    """A message that states a wrong result: not merely a number of the problem."""
    if one.turn.tool is not None or not is_wrong(request, one.stated):
        return False
    given = numbers_of(request.task.prompt)
    return one.boxed is not None or not numbers_of(one.stated or "") <= given


def computes_wrongly(request: CoachRequest, one: Facts) -> bool:
    """A program that prints nothing but wrong results."""
    golds = _golds(request)
    return bool(golds) and all(map(one.refutes, golds))


def mends_itself(request: CoachRequest, one: Facts, past: Sequence[Facts]) -> bool:
    """A program with a wrong result whose agent computes the right one later on, or derives it from that."""
    later = [
        other for other in past if other.turn.index > one.turn.index and other.turn.agent == one.turn.agent
    ]
    golds = _golds(request)
    right = any(
        any(agree(gold, other.named) for gold in golds)
        if other.turn.tool is None
        else other.computed and not computes_wrongly(request, other)
        for other in later
    )
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
    words = "the value in it is not the answer that was right in the end"
    return {
        one.turn.index: (SELF_MENDED, words)
        for one in past
        if computes_wrongly(request, one) or claims_wrongly(request, one)
    }
