"""The offline coach: deterministic, from evidence alone. What an agent says about its work earns nothing.

Score of a role with required files (the paper's bands, §2.2 of its rubric, made gradual so that a model that
can do nothing yet finds a way up):

| evidence                                                        | points | paper's band |
|-----------------------------------------------------------------|--------|--------------|
| no code, nothing made                                           | 0      | 0–1          |
| code was there / fence closed / parses / works with the files   | 1 / ½ / ½ / ½ |       |
| the code raised or hit a limit                                  | ≤ 2.5  | 2–3          |
| it ran to its end, no file                                      | ≤ 3    |              |
| share of required files, ran / raised (flawed file: 0.2 or 0.4) | +5 / +4 | 4–7         |
| all files valid, ran                                            | 8      | 8–9          |
| the same without a remark of the inspector                      | 9      | 8–9          |
| a mistake of severity s in the files (`checks`)          | ≤ 9 − 6 s | 2–7       |
| one that is uncertain, before the outcome                       | ≤ 7.5  | 2–7          |
| needs a file that upstream owed: raised / ran                   | at least 3.5 / 4 | 3–5 |
| the same, and nothing in it is its own fault                    | 4.4    | 3–5          |
| its model fails only because X_test.pkl is not valid            | as if valid | own work |
| broke or deleted an upstream file / overwrote one, or a table   | ≤ 3.6 / ≤ 6.6 |      |
| no code, but all its files valid already: a proper hand-over    | 8–9    | (D-9c: 0–2)  |

Where the outcome is known, a valid submission of the final role scores by quality instead, linear between:
relative score 0+ → 6, .25 → 7, .5 → 8, .75 → 9, .9 → 10, not above 0 → 5; else ROC-AUC or accuracy
≤ .55 → 5, .65 → 6, .75 → 8, .85 → 9, .95 → 10; else RMSE in % of the range > 50 → 5, 50 → 6, 25 → 8, 10 → 9,
5 → 10 (the paper's hard caps; its 3 and 4 for poor models are 5 here, since a valid submission must beat
none). −½ for an open fence, −1 if the code raised, never under 4.5. One that cannot be graded: at most 5.
Where upstream spoilt it and the role's own work is sound: at least 7, or 6 where it cannot be graded (the
paper's exception to its caps). The submission of a role with a mistake of its own is capped as above.

Roles without required files: see `maths`. Blame and revisions: see `blame`. Hindsight: see
`hindsight`. All of it in words: docs/rubric.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from mappa_envs.coach.base import CoachRequest, EpisodeRequest
from mappa_envs.coach.rubric import maths
from mappa_envs.coach.rubric.blame import assign, revisions, upstream_fault
from mappa_envs.coach.rubric.checks import SERIOUS
from mappa_envs.coach.rubric.corrections import correction
from mappa_envs.coach.rubric.evidence import Evidence, gather
from mappa_envs.coach.rubric.faults import BLAMED
from mappa_envs.coach.rubric.hindsight import look_back
from mappa_envs.coach.rubric.injection import ADDRESSED, addresses_the_coach
from mappa_envs.coach.rubric.outcomes import disappoints, is_poor
from mappa_envs.types import CoachScore, Outcome

RELATIVE = ((0.0, 6.0), (0.25, 7.0), (0.5, 8.0), (0.75, 9.0), (0.9, 10.0))
HIT_RATE = ((0.55, 5.0), (0.65, 6.0), (0.75, 8.0), (0.85, 9.0), (0.95, 10.0))
ERROR_PCT = ((5.0, 10.0), (10.0, 9.0), (25.0, 8.0), (50.0, 6.0))
BANDS = (
    ("relative", RELATIVE),
    ("roc_auc", HIT_RATE),
    ("accuracy", HIT_RATE),
    ("rmse_pct", ERROR_PCT),
    ("r2", RELATIVE),
)
"""The figures by preference; the outcome's value, taken as a relative score, comes last."""
POOR, FLOOR, INNOCENT = 5.0, 4.5, 4.4
SPOILT, SPOILT_INVALID = 7.0, 6.0


class RubricCoach:
    """Scores by the table above. No options, no network, no state."""

    async def score(self, request: CoachRequest) -> CoachScore:
        """Score one action."""
        return judge(request)

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        """Score every action of an episode with what came of it."""
        return look_back(request, judge)


def judge(request: CoachRequest) -> CoachScore:
    """The verdict on one action."""
    if not request.role.required:
        verdict = maths.judge(request)
    else:
        evidence = gather(request)
        blame = assign(request, evidence)
        points, reason = _with_files(request, evidence, blame)
        outcome = request.outcome
        verdict = CoachScore(
            score=round(min(10.0, max(0.0, points)), 4),
            reason=reason,
            blame=blame,
            correct=None if outcome is None else outcome.success,
            correction=correction(request, evidence),
            revisions=revisions(request, evidence),
            model="rubric",
        )
    if addresses_the_coach(request.turn):
        verdict = replace(verdict, reason=f"{verdict.reason} {ADDRESSED}")
    return verdict


def _with_files(request: CoachRequest, e: Evidence, blame: Mapping[str, float]) -> tuple[float, str]:
    notes = [_what_ran(e), _what_is_there(e)]
    points = _process(e)
    if e.blocked:
        # What shows no fault should not teach its author to do something else; but less than a submission.
        innocent = request.role.name not in blame
        least = INNOCENT if innocent else 4.0 if e.ok else 3.5
        points = max(points, least - (0.0 if e.closed else 0.5))
        notes += [one.words for one in e.intended]
    if e.blocked or e.excused:
        owed = _list(a.problem or a.path for a in e.faulty)
        notes.append(f"it needs what upstream did not deliver: {owed}")
    if (outcome := request.outcome) is not None and e.own:
        points, note = _with_outcome(request, e, blame, points)
        notes.append(note)
    if e.mistakes:
        points = min(points, max(9.0 - 6.0 * e.worst, FLOOR if outcome and outcome.success else 0.0))
        notes.append(_list(one.words for one in e.mistakes))
    return points, "; ".join(note for note in notes if note) + "."


def _with_outcome(
    request: CoachRequest, e: Evidence, blame: Mapping[str, float], points: float
) -> tuple[float, str]:
    outcome = request.outcome
    assert outcome is not None
    sound = e.ok and e.worst < BLAMED
    spoilt = sound and disappoints(outcome) and upstream_fault(request) >= SERIOUS
    why = ", spoilt by upstream" if spoilt else ""
    if outcome.success:
        points = max(FLOOR, _quality(outcome) - 0.5 * (not e.closed) - 1.0 * (e.has_code and not e.ok))
        points = max(points, SPOILT) if spoilt else points
        return points, f"the submission is valid{why}: {_figures(outcome.metrics)}"
    spoilt = spoilt and request.role.name not in blame
    points = max(points, SPOILT_INVALID) if spoilt else min(points, POOR)
    return points, f"the submission could not be graded ({outcome.code}){why}: {outcome.message}"


def _process(e: Evidence) -> float:
    if not e.has_code:
        return 8.0 + e.clean if e.done else e.progress
    points = 1.0 + 0.5 * e.closed + 0.5 * e.parsed + 0.5 * e.named + 0.5 * e.ok
    points += (5.0 if e.ok else 4.0) * e.progress
    return points + (e.clean if e.ok and e.done else 0.0)


def _quality(outcome: Outcome) -> float:
    """5–10 from the best figure that there is."""
    figures = outcome.metrics
    if is_poor(outcome):
        return POOR
    for name, knots in BANDS:
        if (figure := figures.get(name)) is not None:
            return _between(knots, figure)
    return _between(RELATIVE, outcome.value)


def _between(knots: Sequence[tuple[float, float]], value: float) -> float:
    """Linear between the knots, flat outside."""
    for (x0, y0), (x1, y1) in pairwise(knots):
        if value < x1:
            return y0 + (y1 - y0) * max(0.0, value - x0) / (x1 - x0)
    return knots[-1][1]


def _what_ran(e: Evidence) -> str:
    if not e.has_code:
        return "a hand-over without code" if e.done else "no code to run"
    fence = "" if e.closed else " of a message that leaves a block open"
    return f"the code{fence} ran to its end" if e.ok else f"the code{fence} ended with {e.failure}"


def _what_is_there(e: Evidence) -> str:
    good = [a for a in e.own if a.status == "valid"]
    note = f"{len(good)} of {len(e.files)} required files are valid"
    bad = [a for a in e.files if a not in good]
    if bad:
        return note + ": " + _list(_flaw(e, a.path) for a in bad)
    remarks = [f"{a.path}: {a.problem}" for a in good if a.problem]
    return note + (f" ({_list(remarks)})" if remarks else "")


def _flaw(e: Evidence, path: str) -> str:
    found = next(a for a in e.files if a.path == path)
    if found.status == "valid":
        return f"{path} is not this agent's work"
    return found.problem or f"{path} is {found.status}"


def _figures(metrics: Mapping[str, float | None]) -> str:
    return _list(f"{name} {value:.4g}" for name, value in metrics.items() if value is not None)


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)
