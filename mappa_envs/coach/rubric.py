"""The offline coach: deterministic, from evidence alone. What an agent says about its work earns nothing.

Score of a role with required files (the paper's bands, §2.2 of its rubric, made gradual so that a model that
can do nothing yet finds a way up):

| evidence                                                        | points | paper's band |
|-----------------------------------------------------------------|--------|--------------|
| no code, nothing made                                           | 0      | 0–1          |
| code was there / fence closed / parses / names the files        | 1 / ½ / ½ / ½ |       |
| the code raised or hit a limit                                  | ≤ 2.5  | 2–3          |
| it ran to its end, no file                                      | ≤ 3    |              |
| share of required files, ran / raised (flawed file: 0.2 or 0.4) | +5 / +4 | 4–7         |
| all files valid, ran                                            | 8      | 8–9          |
| the same without a remark of the inspector (gaps, id kept, …)   | 9      | 8–9          |
| needs a file that upstream owed: raised / ran                   | at least 3.5 / 4 | 3–5 |
| broke an upstream file / overwrote train or test                | −2 / −1 |             |
| no code, but all its files valid already: a proper hand-over    | 8–9    | (D-9c: 0–2)  |

Where the outcome is known, a valid submission of the final role scores by quality instead, linear between:
relative score 0+ → 6, .25 → 7, .5 → 8, .75 → 9, .9 → 10, not above 0 → 5; else ROC-AUC or accuracy
≤ .55 → 5, .65 → 6, .75 → 8, .85 → 9, .95 → 10; else RMSE in % of the range > 50 → 5, 50 → 6, 25 → 8, 10 → 9,
5 → 10 (the paper's hard caps; its 3 and 4 for poor models are 5 here, since a valid submission must beat
none). −½ for an open fence, −1 if the code raised, never under 4.5. One that cannot be graded: at most 5.

Roles without required files: text 5, code that ran 7 with output and 6 without, code that raised 3; with a
known outcome 10 if right, else at most 4.

Blame goes to whoever owed the file that the code asked for and could not use; if that agent was itself
stopped in the same way, to the one before it. Otherwise to the agent itself. Revisions only lower: a model
behind a submission no better than a dummy ≤ 5, an upstream file found unusable ≤ 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.blame import assign, is_poor, revisions
from mappa_envs.coach.evidence import Evidence, gather
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
POOR, FLOOR = 5.0, 4.5


class RubricCoach:
    """Scores by the table above. No options, no network, no state."""

    async def score(self, request: CoachRequest) -> CoachScore:
        evidence = gather(request)
        if request.role.required:
            points, reason = _with_files(request, evidence)
        else:
            points, reason = _without_files(request, evidence)
        points = round(min(10.0, max(0.0, points)), 4)
        outcome = request.outcome
        return CoachScore(
            score=points,
            reason=reason,
            blame=assign(request, evidence),
            correct=None if outcome is None else outcome.success,
            revisions=revisions(request, evidence),
            model="rubric",
        )


def _with_files(request: CoachRequest, e: Evidence) -> tuple[float, str]:
    notes = [_what_ran(e), _what_is_there(e)]
    points = _process(e)
    if e.blocked:
        points = max(points, (4.0 if e.ok else 3.5) - (0.0 if e.closed else 0.5))
        notes.append(
            "it needs what upstream did not deliver: " + _list(a.problem or a.path for a in e.faulty)
        )
    outcome = request.outcome
    if outcome is not None and e.own:
        if outcome.success:
            points = max(FLOOR, _quality(outcome) - 0.5 * (not e.closed) - 1.0 * (e.has_code and not e.ok))
            notes.append(f"the submission is valid: {_figures(outcome.metrics)}")
        else:
            points = min(points, POOR)
            notes.append(f"the submission could not be graded ({outcome.code}): {outcome.message}")
    if e.damaged:
        points -= 2.0
        notes.append(f"it broke {_list(e.damaged)}")
    if e.altered:
        points -= 1.0
        notes.append(f"it overwrote {_list(e.altered)}")
    return points, "; ".join(note for note in notes if note) + "."


def _process(e: Evidence) -> float:
    if not e.has_code:
        return 8.0 + e.clean if e.done else e.progress
    points = 1.0 + 0.5 * e.closed + 0.5 * e.parsed + 0.5 * e.named + 0.5 * e.ok
    points += (5.0 if e.ok else 4.0) * e.progress
    return points + (e.clean if e.ok and e.done else 0.0)


def _without_files(request: CoachRequest, e: Evidence) -> tuple[float, str]:
    if e.has_code:
        shown = request.turn.tool is not None and bool(request.turn.tool.stdout.strip())
        points = (7.0 if shown else 6.0) if e.ok else 3.0
    else:
        points = 5.0 if request.turn.action.strip() else 0.0
    points -= 0.5 * (e.has_code and not e.closed)
    reason = _what_ran(e) if e.has_code or not points else "a message without code"
    if request.outcome is not None:
        points = 10.0 if request.outcome.success else min(points, 4.0)
        reason += f"; the final answer is {'right' if request.outcome.success else 'wrong'}"
    return points, reason + "."


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
    fence = "" if e.closed else " from a fence that was never closed"
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
