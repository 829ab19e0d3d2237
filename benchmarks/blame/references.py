"""Coaches that know nothing of blame: what the figures are worth is seen beside theirs."""

from __future__ import annotations

from mappa_envs.coach import Coach, CoachRequest, FakeCoach
from mappa_envs.types import CoachScore


def _met_the_failure(request: CoachRequest) -> CoachScore:
    """Blames whoever acted when something was seen to fail: the messenger, often."""
    turn = request.turn
    failed = (
        (turn.tool is not None and not turn.tool.ok)
        or any(artifact.status != "valid" for artifact in turn.artifacts)
        or (request.outcome is not None and not request.outcome.success)
    )
    if failed:
        return CoachScore(score=1.0, reason="something failed in this turn", blame={turn.agent: 1.0})
    return CoachScore(score=8.0, reason="nothing failed in this turn")


def reference_coaches() -> dict[str, Coach]:
    """By name: `messenger` blames who met the failure, `constant` gives 5 to all and blames nobody."""
    return {"messenger": FakeCoach(_met_the_failure), "constant": FakeCoach(5.0)}
