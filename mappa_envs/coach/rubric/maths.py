r"""The rubric for roles without required files: a solver, a code executor, a verifier, or any team of such.

What a role is asked follows from the team: the last role gives the answer in \boxed{}, a role whose duty
speaks of programs computes, any other one writes text. The paper has no bands here (§2.3): these are ours.

| role     | evidence                                                              | points |
|----------|-----------------------------------------------------------------------|--------|
| any      | an empty message / long, and the same again and again                 | 0 / 1.5 |
| computes | no program / a program outside a block                                | 1.5 / 2 |
|          | it raised or hit a limit                                              | 3      |
|          | it prints a literal / it prints nothing                               | 3.5 / 4.5 |
|          | it prints again what was computed before                              | 7      |
|          | it computes and prints / and refutes a stated value                   | 8 / 8.5 |
|          | hand-over: names a printed value / none / another                     | 8.5 / 7 / 3 |
| text     | repeats the problem / a bare guess (the first role only)              | 2.5 / 4 |
|          | has neither numbers nor words of the problem (the first role only)    | 4.5    |
|          | has none / some / most of its numbers (the first role only)           | 7 / 7.5 / 8 |
|          | says that it cannot be done, and states nothing                       | 4      |
| last     | no box, though a computed value was shown / though nothing was        | 2.5 / 4 |
|          | several answers / another value than was computed                     | 3.5 / 3.5 |
|          | another value beside the computed one, which it names                 | 7      |
|          | an answer that nobody computed                                        | 5.5    |
|          | the computed value / not in a box, or a formula that may be it        | 8.5 / 7.5 |
| last, outcome known | right / wrong, by its own doing / wrong, handed down       | 10 / ≤ 2.5 / ≤ 5 |

−½ for an open fence. What upstream handed down wrongly costs no innocent more than a point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa_envs.actions import extract_code, leaves_block_open
from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.rubric.blame import lowered
from mappa_envs.coach.rubric.maths_corrections import correction
from mappa_envs.coach.rubric.maths_deviations import departs, is_contradicted, replaces_a_number
from mappa_envs.coach.rubric.maths_facts import (
    Facts,
    asks_for_code,
    declines,
    echoes,
    facts_of,
    looks_like_code,
    numbers_of,
    shares_words,
)
from mappa_envs.coach.rubric.maths_team import Team, misreports
from mappa_envs.coach.rubric.maths_truth import (
    claims_wrongly,
    computes_wrongly,
    mended_caps,
    mends_itself,
    self_mended_caps,
    shows_the_answer,
)
from mappa_envs.coach.rubric.maths_values import agree, hedges, number_of
from mappa_envs.types import CoachScore

REFUTED = 4.0
GUILTY = 3.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Points, the reason, who is to blame ({} for nobody) and caps on the scores of earlier turns."""

    points: float
    reason: str
    blame: Mapping[str, float]
    caps: Mapping[int, tuple[float, str]]


def verdict(
    points: float, reason: str, *guilty: str, caps: Mapping[int, tuple[float, str]] | None = None
) -> Verdict:
    """A verdict that blames these agents in equal parts."""
    agents = dict.fromkeys(guilty)
    return Verdict(points=points, reason=reason, blame={a: 1 / len(agents) for a in agents}, caps=caps or {})


def judge(request: CoachRequest) -> CoachScore:
    """The verdict on an action of a role without required files."""
    problem = request.task.prompt
    team = Team(
        request=request,
        own=facts_of(request.turn, problem),
        past=tuple(facts_of(turn, problem) for turn in request.episode.turns),
    )
    found = _with_outcome(team, _judge(team))
    closed = not leaves_block_open(request.turn.action)
    points = found.points - (0.5 if request.turn.tool is not None and not closed else 0.0)
    outcome = request.outcome
    return CoachScore(
        score=round(min(10.0, max(0.0, points)), 4),
        reason=found.reason + ".",
        blame=found.blame,
        correct=None if outcome is None else outcome.success,
        correction=correction(request, team.own, _best_value(team), found.blame, closed),
        revisions=lowered(request, found.caps),
        model="rubric",
    )


def _best_value(team: Team) -> str | None:
    return team.computed.printed if team.computed else None


def _judge(team: Team) -> Verdict:
    own = team.own
    if not own.turn.action.strip() or (not own.prose and own.turn.tool is None):
        return verdict(0.0, "an empty message", team.me)
    if own.rambles and own.boxed is None and own.turn.tool is None:
        return verdict(1.5, "a long message that says the same again and again", team.me)
    if team.is_last and own.turn.tool is None:
        return _answer(team)
    if own.turn.tool is not None:
        return _program(team)
    return _handed_over(team) if asks_for_code(team.request.role) else _text(team)


# A program.


def _program(team: Team) -> Verdict:
    own, me, tool = team.own, team.me, team.own.turn.tool
    assert tool is not None
    if not tool.ok:
        ending = f"the {tool.limit} limit" if tool.limit else tool.exception or f"exit code {tool.exit_code}"
        return verdict(3.0, f"the program ended with {ending}", me)
    if own.printed is None:
        return verdict(4.5, "the program ran to its end and printed nothing", me)
    if not own.computed:
        before = team.computed
        if before is not None and not before.shows(own.printed):
            return verdict(3.0, "the program prints a literal in place of the value that was computed", me)
        if before is not None:
            return verdict(7.0, "the program prints again what was computed before")
        return verdict(3.5, "the program prints a literal: that is a claim, nothing is computed", me)
    claims = [
        one for one in team.past if one.turn.agent != me and one.turn.tool is None and own.refutes(one.stated)
    ]
    if claims:
        first = claims[0]
        caps = {
            one.turn.index: (REFUTED, "the value that it states is not what a program computed")
            for one in claims
        }
        words = f"the program computes and prints a value, which refutes that of {first.turn.agent}"
        return verdict(8.5, words, first.turn.agent, caps=caps)
    return verdict(8.0, "the program computes and prints a value")


# A message without a program.


def _handed_over(team: Team) -> Verdict:
    own, me = team.own, team.me
    mine = [one for one in team.past if one.turn.agent == me and one.turn.tool is not None]
    if not mine:
        if looks_like_code(own.prose):
            return verdict(2.0, "a program outside a python block, which nothing runs", me)
        return verdict(1.5, "no program, though this role is to compute", me)
    last, run = mine[-1], next((one for one in reversed(mine) if one.computed), None)
    if run is None or not (last is run or run.shows(last.printed)):
        return verdict(2.5, "a hand-over without a computed value", me)
    if misreports(own, run):
        return verdict(3.0, "it hands over another value than its program printed", me)
    if own.mentions(run) and not run.refutes(own.stated):
        return verdict(8.5, "it hands over the value that its program printed")
    return verdict(7.0, "a hand-over after a program that computed a value")


def _text(team: Team) -> Verdict:
    own, me, problem = team.own, team.me, team.request.task.prompt
    is_first = not team.past and len(team.request.team) > 1
    if is_first and echoes(own.prose, problem):
        return verdict(2.5, "it repeats the problem and adds nothing", me)
    if own.stated is None and declines(own.prose):
        return verdict(4.0, "it says that it cannot be done, and gives no step", me)
    if is_first:
        is_answer = own.boxed is not None and ("boxed" in own.turn.action or number_of(own.boxed) is not None)
        if is_answer and len(own.prose) < 120 and "=" not in own.prose:
            return verdict(4.0, "a guess without a step towards it", me)
        if given := {one for one in numbers_of(problem) if one > 1}:
            return _use_of_numbers(own, given, team)
    return verdict(7.0 if len(own.prose) >= 15 else 5.0, "a message without code")


def _use_of_numbers(own: Facts, given: set[int], team: Team) -> Verdict:
    share = len(given & numbers_of(own.prose)) / len(given)
    if not share and own.named is None and not shares_words(own.prose, team.request.task.prompt):
        return verdict(4.5, "it speaks neither of the given numbers nor of what is asked", team.me)
    points = 7.0 + 0.5 * (share > 0) + 0.5 * (share >= 0.5)
    return verdict(points, f"it works with {share:.0%} of the given numbers")


# The answer.


def _answer(team: Team) -> Verdict:
    own, me, shown = team.own, team.me, team.shown
    is_sound = _is_sound(team) and not team.misreports
    upstream = team.coder if team.coder not in (None, me) and not is_sound else None
    if own.boxed is None:
        if shown is None and upstream is not None:
            tried = (me,) if "\\boxed" in own.turn.action else ()
            return verdict(4.0, "no answer, since nothing was computed upstream", upstream, *tried)
        return verdict(2.5, r"it gives no answer in \boxed{}", me)
    run = team.computed
    if hedges(own.boxed, run.output if run else None):
        return verdict(3.5, "it boxes several answers", me)
    if team.contradicts(own.boxed):
        if run is not None and run.shows(own.boxed):
            return verdict(
                9.0, "it boxes what was computed, against the message handed over", *_some(upstream)
            )
        if run is not None and own.mentions(run):
            return verdict(7.0, "it boxes a value of its own, and names the computed one")
        return verdict(3.5, "it boxes another value than the one that was computed and handed over", me)
    if upstream is not None:
        words = "it boxes what was handed over, which nobody computed"
        return verdict(7.5 if shown is not None else 5.5, words, upstream)
    if shown is None:
        return verdict(5.5, "it boxes a value that nobody computed")
    if "boxed" not in own.turn.action and "fbox" not in own.turn.action:
        return verdict(7.5, "it gives the computed value, but in no box")
    is_it = agree(own.boxed, shown) or (run is not None and run.shows(own.boxed))
    return (
        verdict(8.5, "it boxes the computed value")
        if is_it
        else verdict(7.5, "it boxes what may be the computed value")
    )


def _is_sound(team: Team) -> bool:
    """The role that was to compute did so, and handed that on."""
    handed, computed = team.handed, team.computed
    if handed is None:
        return True
    if handed.turn.tool is not None:
        return handed.computed or (computed is not None and computed.shows(handed.printed))
    return computed is not None and computed.turn.agent == handed.turn.agent


def _some(agent: str | None) -> tuple[str, ...]:
    return () if agent is None else (agent,)


def _with_outcome(team: Team, found: Verdict) -> Verdict:
    outcome, me = team.request.outcome, team.me
    answer = team.own.boxed if team.own.turn.tool is None else team.own.printed
    if outcome is None:
        return found
    if outcome.success:
        caps = {**mended_caps(team.request, team.past), **found.caps}
        return Verdict(points=10.0, reason=f"{found.reason}; the answer is right", blame={}, caps=caps)
    reason = f"{found.reason}; the answer is wrong"
    hidden, mended = _hidden(team), self_mended_caps(team.request, team.past)
    if me in found.blame:
        caps = {**mended, **found.caps}
        return verdict(min(found.points, 2.5), reason, *found.blame, *hidden, caps=caps)
    guilty = (*_guilty(team, found, answer), *hidden)
    if not guilty or me in guilty:
        return verdict(2.5, reason, *(guilty or (me,)))
    caps = {
        one.turn.index: (GUILTY, "the final answer goes back to it, and is wrong")
        for one in team.past
        if one.turn.agent in guilty and (one.printed or one.turn.tool is None)
    }
    return verdict(min(found.points, 5.0), reason, *guilty, caps={**mended, **found.caps, **caps})


def _guilty(team: Team, found: Verdict, answer: str | None) -> Sequence[str]:
    """Whom a wrong answer goes back to: who was found already, else who first had the value."""
    if found.blame:
        # Where nothing was computed, a value of its own is its own guess.
        is_guess = answer is not None and team.shown is None and team.origin(answer) is None
        return (*found.blame, *([team.me] if is_guess and team.is_last else []))
    first = team.origin(answer)
    if first is None or shows_the_answer(team.request, first):
        return ()  # it is the acting role's own
    return (first.turn.agent if (planner := _misleader(team, first)) is None else planner.turn.agent,)


def _hidden(team: Team) -> Sequence[str]:
    """Who would have spoilt the answer, whatever became of it afterwards.

    A program with a wrong value, unless a plan misled it; a wrong value that a message states; a plan that
    departs from the problem where no program shows what came of it.
    """
    guilty = []
    for one in team.past:
        if mends_itself(team.request, one, team.past):
            continue
        if computes_wrongly(team.request, one):
            planner = _misleader(team, one)
            guilty.append((planner or one).turn.agent)
            continue
        is_new = claims_wrongly(team.request, one) and team.origin(one.stated) is one
        if is_new or (one.turn.tool is None and _plans_otherwise(team, one)):
            guilty.append(one.turn.agent)
    return guilty


def _plans_otherwise(team: Team, plan: Facts) -> bool:
    """Whether a plan has another number than the problem, as far as it or a program shows."""
    problem = team.request.task.prompt
    runs = [one for one in team.past if extract_code(one.turn.action)]
    if not runs:
        return bool(replaces_a_number(plan, None, problem))
    return any(replaces_a_number(plan, run, problem) or is_contradicted(plan, run, problem) for run in runs)


def _misleader(team: Team, first: Facts) -> Facts | None:
    """Whose plan departs from the problem as does the program that the answer comes from."""
    if not first.computed:
        return None
    before = (one for one in team.past if one.turn.index < first.turn.index and one.turn.tool is None)
    others = [one for one in before if one.turn.agent != first.turn.agent]
    return next((one for one in others if departs(one, first, team.request.task.prompt)), None)
