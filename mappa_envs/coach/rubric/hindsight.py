"""The rubric's look back at a whole episode: final scores, and the outcome split over the actions.

Every action is judged in turn with the scores before it at hand, so that revisions apply; then the outcome,
where it is known, is walked backwards:

- *reached* (`raised`, sums to the outcome): shared by the actions whose work is in the result, in proportion
  to their final scores. In the result are the turns that wrote the files which were valid at the end, and
  every turn with which a role without files handed over; the last one in any case.
- *missing* (`lowered`, sums to 1 − outcome): by blame. An agent's weight is the sum over all actions of its
  blame share times (10 − final score of the blaming action); what is an agent's is split over its actions by
  10 − their final scores. Where nobody is blamed, what is missing has no known cause: each action, from the
  last one upstream, takes the part (10 − final score) / 10 of it, and the first action takes the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from mappa_envs.coach.base import CoachRequest, EpisodeRequest
from mappa_envs.types import CoachScore, Turn

Judge = Callable[[CoachRequest], CoachScore]


def look_back(request: EpisodeRequest, judge: Judge) -> tuple[CoachScore, ...]:
    """One verdict an action with its final score; `raised` and `lowered` where the outcome is known."""
    verdicts = _finally(request, judge)
    if request.outcome is None or not verdicts:
        return verdicts
    value = request.outcome.value
    raised = [value * part for part in _shares(_used(request, verdicts))]
    lowered = [(1 - value) * part for part in _shares(_guilt(request, verdicts))]
    return tuple(
        replace(verdict, raised=up, lowered=down)
        for verdict, up, down in zip(verdicts, raised, lowered, strict=True)
    )


def _finally(request: EpisodeRequest, judge: Judge) -> tuple[CoachScore, ...]:
    turns: list[Turn] = []
    verdicts: list[CoachScore] = []
    for turn in request.episode.turns:
        asked = request.action(turn.index)
        verdict = judge(replace(asked, episode=replace(asked.episode, turns=tuple(turns))))
        for revision in verdict.revisions:
            old = verdicts[revision.turn]
            words = f"{old.reason} In hindsight: {revision.reason}."
            verdicts[revision.turn] = replace(old, score=revision.score, reason=words)
            turns[revision.turn] = replace(turns[revision.turn], final_score=revision.score)
        verdicts.append(verdict)
        turns.append(replace(turn, score=verdict, final_score=verdict.score))
    return tuple(replace(verdict, revisions=()) for verdict in verdicts)


def _used(request: EpisodeRequest, verdicts: Sequence[CoachScore]) -> list[float]:
    """Weights: the final score of an action whose work is in the result, 0 of any other."""
    turns = request.episode.turns
    final = request.states[-1].values()
    writers = {a.written_by for a in final if a.status == "valid"}
    owes_files = {role.name for role in request.team if role.required}
    used = [turn.index in writers or (turn.handed_over and turn.agent not in owes_files) for turn in turns]
    used[-1] = True
    weights = [verdict.score * take for verdict, take in zip(verdicts, used, strict=True)]
    return weights if any(weights) else [0.0] * (len(turns) - 1) + [1.0]


def _guilt(request: EpisodeRequest, verdicts: Sequence[CoachScore]) -> list[float]:
    """Weights of what is missing."""
    turns = request.episode.turns
    by_agent: dict[str, float] = defaultdict(float)
    for verdict in verdicts:
        for agent, share in verdict.blame.items():
            by_agent[agent] += share * (10 - verdict.score)
    weights = [0.0] * len(turns)
    for agent, weight in by_agent.items():
        own = [turn.index for turn in turns if turn.agent == agent]
        gaps = [10 - verdicts[index].score for index in own]
        for index, part in zip(own, _shares(gaps), strict=True):
            weights[index] = weight * part
    return weights if any(weights) else _upstream(verdicts)


def _upstream(verdicts: Sequence[CoachScore]) -> list[float]:
    left, weights = 1.0, [0.0] * len(verdicts)
    for index in range(len(verdicts) - 1, 0, -1):
        weights[index] = left * (10 - verdicts[index].score) / 10
        left -= weights[index]
    weights[0] = left
    return weights


def _shares(weights: Sequence[float]) -> list[float]:
    """Parts that sum to 1; equal ones where all weights are 0."""
    total = sum(weights)
    return [w / total for w in weights] if total else [1 / len(weights)] * len(weights)
