"""Who is to blame for a failed action, and which earlier scores the evidence refutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.checks import GRAVE, HARMFUL, OTHER_SCALE, SERIOUS, SLIGHT, Finding
from mappa_envs.coach.rubric.evidence import (
    OWN_BUGS,
    Evidence,
    code_of,
    culprit,
    for_want_of_input,
    last_turn,
    model_kind,
    names,
    state,
    upstream,
)
from mappa_envs.coach.rubric.faults import (
    BLAMED,
    NO_CHANCES,
    facts_of,
    mistakes,
    remarks_on,
    was_followed,
)
from mappa_envs.coach.rubric.measured import losses, measured, undone
from mappa_envs.coach.rubric.outcomes import disappoints, is_poor
from mappa_envs.dsbench.inspector import CONSTANT
from mappa_envs.types import Artifact, Outcome, Role, ScoreRevision, Turn

POOR_MODEL = 5.0
"""The paper's cap for a modeler once the outcome is known to be poor."""
KEPT_OF_A_BLOCKER = 0.4
"""The share of its score that is left to an action whose file stopped a teammate."""
NEARLY_POOR = 0.1
SMALL_LOSS, LARGE_LOSS = 0.1, 0.25
"""Of the signal: enough to be blamed for a poor outcome that nothing explains, for a disappointing one."""
CELLS = frozenset({"not_a_label", "not_numeric", "not_finite", "not_probability", "blank_prediction"})
"""The grader's codes for what stands in a cell, which may be what the model said."""
DATA_ERRORS = frozenset({"ValueError", "TypeError", "KeyError", "IndexError", "LinAlgError"})


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """An earlier turn whose mistake is in the files as they are now."""

    turn: Turn
    finding: Finding


def assign(request: CoachRequest, e: Evidence) -> dict[str, float]:
    """Shares by agent that sum to 1; {} if the action did its job, or what failed was nobody's.

    Only of agents that have acted: what another owed was laid there by the scripted expert, or by nobody.
    """
    shares, outcome = _nearest(request, e), request.outcome
    if shares and outcome is not None and not outcome.success:
        shares = _merge(shares, _hidden(request, e, shares))
    acted = {request.role.name, *(turn.agent for turn in request.episode.turns)}
    return _normed({agent: share for agent, share in shares.items() if agent in acted})


def _hidden(request: CoachRequest, e: Evidence, found: Mapping[str, float]) -> dict[str, float]:
    """Weights of mistakes that a failure covers: in files that could be used, by agents not yet blamed.

    Nobody got to see what they would have done to the outcome: they count as they would for a poor one.
    """
    usable = {a.path for a in request.before.values() if a.status == "valid"}
    known = [one for one in suspects(request) if one.finding.path in usable]
    weights = _weights(one for one in known if one.finding.severity >= SLIGHT)
    if e.worst >= SLIGHT:
        weights[request.role.name] = e.worst**2
    return {agent: weight for agent, weight in weights.items() if agent not in found}


def _nearest(request: CoachRequest, e: Evidence) -> dict[str, float]:
    """Who is to blame for what can be seen of the failure."""
    me, outcome = request.role.name, request.outcome
    if outcome is not None and e.own and disappoints(outcome):
        return _for_outcome(request, e, outcome)
    if e.excused:
        own = 0.5 if e.worst >= BLAMED else 0.0
        return _merge({me: own}, _scaled(_roots(request, e.faulty), 1 - own))
    if e.done:
        return {me: 1.0} if e.worst >= BLAMED or (e.has_code and not e.ok) else {}
    if e.faulty and e.has_code:
        shares, own = _roots(request, e.faulty), _own_part(e)
        return _merge({me: own}, _scaled(shares, 1 - own))
    if e.has_code and (causes := _causes(request, e)):
        return _merge({me: 0.3}, _scaled(_by_severity(causes), 0.7))
    return {me: 1.0}


def _own_part(e: Evidence) -> float:
    """The share of a blocked agent whose code would not have done its job anyway."""
    asks_for_another = e.failure == "FileNotFoundError" and all(a.status != "missing" for a in e.faulty)
    # What is missing raises FileNotFoundError; whoever trips over a key did so before, or elsewhere.
    trips_elsewhere = e.failure == "KeyError" and all(a.status == "missing" for a in e.faulty)
    if e.failure in OWN_BUGS or asks_for_another or trips_elsewhere:
        return 0.5
    return 0.4 if e.named < 1 or e.intended else 0.0


def suspects(request: CoachRequest) -> tuple[Suspect, ...]:
    """The mistakes of earlier turns that are in the team's files, in the order of the turns."""
    found: dict[tuple[int, Finding], Suspect] = {}
    for role in upstream(request.team, request.role):
        for path in role.required:
            artifact = state(request, path, before=True)
            turn = _maker(request, artifact)
            if turn is None or turn.agent == request.role.name:
                continue
            for finding in _findings(request, turn, artifact):
                found[turn.index, finding] = Suspect(turn=turn, finding=finding)
    known = sorted(found.values(), key=lambda one: (one.turn.index, -one.finding.severity))
    if any(one.finding.severity >= GRAVE and one.finding.path != "model.pkl" for one in known):
        known = [one for one in known if CONSTANT not in one.finding.words]
    return tuple(known)


def upstream_fault(request: CoachRequest) -> float:
    """The severity of the worst mistake that came from upstream."""
    return max((one.finding.severity for one in suspects(request)), default=0.0)


def revisions(request: CoachRequest, e: Evidence) -> tuple[ScoreRevision, ...]:
    """Lower scores for earlier turns that this action proves guilty; only turns with a known score."""
    caps: dict[int, tuple[float, str]] = {}
    if e.blocked or e.excused:
        for artifact in e.faulty:
            if for_want_of_input(artifact, e.inputs):
                continue
            turn = _maker(request, artifact)
            given = None if turn is None else turn.score.score if turn.score else turn.final_score
            if turn is not None and given is not None:
                left = KEPT_OF_A_BLOCKER * given
                caps[turn.index] = (left, f"the next role could not use it: {artifact.problem}")
    outcome = request.outcome
    if outcome is not None and is_poor(outcome) and e.own:
        guilty = [one for one in suspects(request) if one.finding.severity >= BLAMED]
        for one in guilty:
            cap = 6.0 - 4.0 * one.finding.severity
            if cap < caps.get(one.turn.index, (10.0, ""))[0]:
                caps[one.turn.index] = (cap, f"the outcome is poor, and {one.finding.words}")
        if not guilty and e.worst < BLAMED and (suspect := _most_likely(request)):
            turn = last_turn(request, suspect.name)
            if turn is not None:
                caps[turn.index] = (POOR_MODEL, "the submission made with it is no better than a guess")
    return lowered(request, caps)


def lowered(request: CoachRequest, caps: Mapping[int, tuple[float, str]]) -> tuple[ScoreRevision, ...]:
    """The caps that lower a score which is known."""
    found = []
    for turn in request.episode.turns:
        given = turn.score.score if turn.score else None
        known = given if turn.final_score is None else turn.final_score
        if turn.index in caps and known is not None and known > caps[turn.index][0]:
            cap, reason = caps[turn.index]
            found.append(ScoreRevision(turn=turn.index, score=round(cap, 4), reason=reason))
    return tuple(found)


def _for_outcome(request: CoachRequest, e: Evidence, outcome: Outcome) -> dict[str, float]:
    """Blame for a submission that disappoints: by the severity of the mistakes that are in it."""
    me = request.role.name
    known = [one for one in suspects(request) if one.finding.severity >= SLIGHT]
    if not outcome.success:
        caused = [one for one in known if one.finding.cells and outcome.code in CELLS]
        return _by_severity(caused) or {me: 1.0}
    own = {me: e.worst**2} if e.worst >= SLIGHT else {}
    weights = _merge(own, _weights(known))
    if max(weights.values(), default=0.0) >= BLAMED**2:
        return _normed(weights)
    loser, loss = _largest_loss(request)
    relative = outcome.metrics.get("relative")
    if not is_poor(outcome) and (relative is None or relative > NEARLY_POOR):
        return {loser: 1.0} if loss > LARGE_LOSS else {}
    suspect = _most_likely(request)
    return {suspect.name if suspect else me: 1.0}


def _largest_loss(request: CoachRequest) -> tuple[str, float]:
    """Who lost most of the task's signal, and the share; ("", 0) where that was not measured."""
    lost = losses(request.after)
    if not lost:
        return "", 0.0
    path = max(lost, key=lambda path: lost[path])
    me = request.role.name
    agent = me if path in request.role.required else culprit(request, state(request, path, before=True))
    return agent, lost[path]


def _causes(request: CoachRequest, e: Evidence) -> list[Suspect]:
    """Mistakes from upstream that explain how the action failed."""
    code, known = code_of(request.turn.action), suspects(request)
    if e.failure in DATA_ERRORS:
        at_least = HARMFUL if e.failure == "ValueError" else SERIOUS
        # What ruins a table ruins the model that is fitted on it.
        return [
            one
            for one in known
            if one.finding.severity >= (at_least if names(code, one.finding.path) else GRAVE)
        ]
    if e.failure == "AttributeError":
        return [one for one in known if NO_CHANCES in one.finding.words]
    wrong_cells = e.ok and any(a.status == "invalid" for a in e.own)
    return [one for one in known if wrong_cells and one.finding.cells]


def _findings(request: CoachRequest, turn: Turn, artifact: Artifact) -> Iterable[Finding]:
    role = next(role for role in request.team if role.name == turn.agent)
    if artifact.status != "valid" and not for_want_of_input(artifact, tuple(request.before.values())):
        yield Finding(severity=GRAVE, words=artifact.problem, path=artifact.path)
    yield from remarks_on(artifact, request.task, request.before)
    found = mistakes(turn, role, request.team, request.task, request.before, model_kind(request))
    for finding in (*found, *measured(request.before, facts_of(request.task).family)):
        if finding.path == artifact.path and not (OTHER_SCALE in finding.words and undone(request.after)):
            yield finding


def _maker(request: CoachRequest, artifact: Artifact) -> Turn | None:
    """The turn that left the file as it is; where it is missing, the last one of who should have."""
    if artifact.status != "missing":
        for turn in request.episode.turns:
            if turn.index == artifact.written_by:
                return turn
    return last_turn(request, culprit(request, artifact))


def _roots(request: CoachRequest, artifacts: tuple[Artifact, ...]) -> dict[str, float]:
    """Equal shares over the files, each followed up to where its trouble began."""
    artifacts = tuple(a for a in artifacts if not for_want_of_input(a, artifacts)) or artifacts
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


def _most_likely(request: CoachRequest) -> Role | None:
    """Whose work made a poor submission, where no mistake is known.

    None: the acting role. Who lost most of the signal, if measured; else a constant model's maker; else, of
    those whose work was used, the only one whose code could not be followed, or the nearest one.
    """
    above = upstream(request.team, request.role)
    loser, loss = _largest_loss(request)
    if loss > SMALL_LOSS:
        return next((role for role in above if role.name == loser), None)
    code = "\n".join(
        code_of(turn.action)
        for turn in (*request.episode.turns, request.turn)
        if turn.agent == request.role.name
    )
    used: list[Role] = []
    for role in reversed(above):
        files = [state(request, path) for path in role.required]
        if any(CONSTANT in a.problem for a in files):
            return role if last_turn(request, role.name) else None
        if any(names(code, a.path) for a in files):
            used.append(role)
    last = {role.name: last_turn(request, role.name) for role in used}
    unclear = [r for r in used if (turn := last[r.name]) and not was_followed(turn, request.task)]
    nearest = unclear[0] if len(unclear) == 1 else used[0] if used else None
    return nearest if nearest is not None and last[nearest.name] else None


def _weights(found: Iterable[Suspect]) -> dict[str, float]:
    """The square of each agent's worst mistake."""
    worst: dict[str, float] = defaultdict(float)
    for one in found:
        worst[one.turn.agent] = max(worst[one.turn.agent], one.finding.severity**2)
    return dict(worst)


def _by_severity(found: Iterable[Suspect]) -> dict[str, float]:
    return _normed(_weights(found))


def _normed(weights: Mapping[str, float]) -> dict[str, float]:
    """Shares that sum to 1; {} of nothing."""
    return _scaled(weights, 1 / sum(weights.values())) if weights else {}


def _scaled(shares: Mapping[str, float], factor: float) -> dict[str, float]:
    return {agent: factor * share for agent, share in shares.items()}


def _merge(*parts: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for agent, share in part.items():
            total[agent] += share
    return {agent: share for agent, share in total.items() if share > 0}
