"""Who is to blame for a failed action, and which earlier scores the evidence refutes."""

from __future__ import annotations

from collections import defaultdict

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.evidence import (
    OWN_BUGS,
    Evidence,
    code_of,
    culprit,
    last_turn,
    names,
    state,
    upstream,
)
from mappa_envs.dsbench.inspector import CONSTANT
from mappa_envs.types import Artifact, Outcome, Role, ScoreRevision

POOR_MODEL, HARMFUL_DATA = 5.0, 6.0
"""The paper's caps for upstream roles once the outcome is known to be poor."""


def is_poor(outcome: Outcome) -> bool:
    """A valid submission that is no better than a guess."""
    figures = outcome.metrics
    if not outcome.success:
        return False
    if (relative := figures.get("relative")) is not None:
        return relative <= 0
    if (area := figures.get("roc_auc")) is not None:
        return area < 0.55
    if (error := figures.get("rmse_pct")) is not None:
        return error > 50
    return (r2 := figures.get("r2")) is not None and r2 <= 0


def assign(request: CoachRequest, evidence: Evidence) -> dict[str, float]:
    """Shares by agent that sum to 1; {} if the action did its job."""
    me, role, outcome = request.role.name, request.role, request.outcome
    if not role.required:
        failed = (evidence.has_code and not evidence.ok) or (outcome is not None and not outcome.success)
        return {me: 1.0} if failed or not request.turn.action.strip() else {}
    if outcome is not None and is_poor(outcome) and evidence.own:
        suspect = _suspect(request)
        return {suspect.name if suspect else me: 1.0}
    if evidence.done and not (outcome is not None and not outcome.success):
        return {}
    if evidence.faulty and evidence.has_code:
        shares = _roots(request, evidence.faulty)
        own = 0.5 if evidence.failure in OWN_BUGS else 0.0
        return _merge({me: own}, {agent: (1 - own) * share for agent, share in shares.items()})
    if evidence.failure == "ValueError" and (gaps := _gaps(request, evidence)):
        return _merge({me: 0.4}, {agent: 0.6 * share for agent, share in _roots(request, gaps).items()})
    return {me: 1.0}


def revisions(request: CoachRequest, evidence: Evidence) -> tuple[ScoreRevision, ...]:
    """Lower scores for earlier turns that this action proves guilty; only turns with a known score."""
    caps: dict[int, tuple[float, str]] = {}
    if evidence.blocked:
        for artifact in evidence.faulty:
            turn = last_turn(request, culprit(request, artifact))
            if turn is not None:
                caps[turn.index] = (HARMFUL_DATA, f"the next role could not use it: {artifact.problem}")
    outcome = request.outcome
    if outcome is not None and is_poor(outcome) and evidence.own and (suspect := _suspect(request)):
        turn = last_turn(request, suspect.name)
        if turn is not None:
            caps[turn.index] = (POOR_MODEL, "the submission made with it is no better than a guess")
    found = []
    for turn in request.episode.turns:
        given = turn.score.score if turn.score else None
        known = given if turn.final_score is None else turn.final_score
        if turn.index in caps and known is not None and known > caps[turn.index][0]:
            cap, reason = caps[turn.index]
            found.append(ScoreRevision(turn=turn.index, score=cap, reason=reason))
    return tuple(found)


def _roots(request: CoachRequest, artifacts: tuple[Artifact, ...]) -> dict[str, float]:
    """Equal shares over the files, each followed up to where its trouble began."""
    shares: dict[str, float] = defaultdict(float)
    for artifact in artifacts:
        shares[_root(request, culprit(request, artifact))] += 1 / len(artifacts)
    return dict(shares)


def _root(request: CoachRequest, agent: str) -> str:
    """The agent, or the one that it was itself stopped by."""
    role = next((r for r in request.team if r.name == agent), None)
    turn = last_turn(request, agent)
    if role is None or turn is None or turn.tool is None or turn.tool.exception in OWN_BUGS:
        return agent
    code = code_of(turn.action)
    for above in upstream(request.team, role):
        for path in above.required:
            owed = state(request, path, before=True)
            if owed.status != "valid" and names(code, path) and culprit(request, owed) != agent:
                return _root(request, culprit(request, owed))
    return agent


def _gaps(request: CoachRequest, evidence: Evidence) -> tuple[Artifact, ...]:
    """Inputs with missing values that the code uses: the likely reason of a ValueError."""
    code = code_of(request.turn.action)
    return tuple(a for a in evidence.inputs if a.nan_share and names(code, a.path))


def _suspect(request: CoachRequest) -> Role | None:
    """Whose work made a poor submission: a constant model's maker, else the nearest one that was used."""
    above = upstream(request.team, request.role)
    code = "\n".join(
        code_of(turn.action)
        for turn in (*request.episode.turns, request.turn)
        if turn.agent == request.role.name
    )
    for role in reversed(above):
        files = [state(request, path) for path in role.required]
        if any(CONSTANT in a.problem or names(code, a.path) for a in files):
            return role if last_turn(request, role.name) else None
    return None


def _merge(*parts: dict[str, float]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for agent, share in part.items():
            total[agent] += share
    return {agent: share for agent, share in total.items() if share > 0}
