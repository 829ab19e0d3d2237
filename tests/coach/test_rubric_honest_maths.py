"""The rubric on honest maths: nobody is blamed or scores low, with and without the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from honest_maths import HONEST, Honest

from mappa_envs.coach import CoachRequest, RubricCoach
from mappa_envs.mathchat.env import mathchat_team
from mappa_envs.mathchat.equivalence import same
from mappa_envs.mathchat.latex import find_answer
from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.types import Episode, Outcome, Role, ToolResult, Turn

SOLVER, EXECUTOR, VERIFIER = TEAM = tuple(mathchat_team())
RIGHT = Outcome(value=1, success=True, code="right")
WRONG = Outcome(value=0, success=False, code="wrong")


def messages(one: Honest) -> Iterator[tuple[Role, str, ToolResult | None]]:
    yield SOLVER, one.plan, None
    for code, printed in one.runs:
        yield EXECUTOR, f"I compute it.\n\n```python\n{code}\n```\n", ToolResult(stdout=f"{printed}\n")
    if one.report:
        yield EXECUTOR, one.report, None
    yield VERIFIER, one.answer, None


def judged(one: Honest, outcome: Outcome | None) -> list[Turn]:
    """The turns with their verdicts, and final scores after all revisions."""
    task = MathTask(
        task_id="t", task_type="honest", split="train", prompt=one.problem, golds=(one.gold,), level=1
    )
    episode = Episode(env_id="e", task_id="t", task_type="honest", split="train", seed=0)
    turns: list[Turn] = []
    for index, (role, action, tool) in enumerate(messages(one)):
        turn = Turn(index=index, agent=role.name, messages=(), action=action, tool=tool)
        request = CoachRequest(
            task=task, team=TEAM, role=role, turn=turn, outcome=outcome if role == VERIFIER else None,
            episode=replace(episode, turns=tuple(turns)),
        )  # fmt: skip
        verdict = asyncio.run(RubricCoach().score(request))
        for revision in verdict.revisions:
            turns[revision.turn] = replace(turns[revision.turn], final_score=revision.score)
        turns.append(replace(turn, score=verdict, final_score=verdict.score))
    return turns


@pytest.mark.parametrize("outcome", [RIGHT, None], ids=["final", "off"])
@pytest.mark.parametrize("one", HONEST, ids=lambda one: one.name)
def test_nobody_of_an_honest_team_is_blamed(one: Honest, outcome: Outcome | None) -> None:
    said = [
        f"{turn.agent} {turn.final_score} {dict(turn.score.blame)} {turn.score.reason}"
        for turn in judged(one, outcome)
        if turn.score and (turn.score.blame or (turn.final_score or 0) < 7)
    ]
    assert said == []


@pytest.mark.parametrize("one", HONEST, ids=lambda one: one.name)
def test_who_boxes_a_wrong_value_is_blamed_alone(one: Honest) -> None:
    turns = judged(replace(one, answer=r"I get another: \boxed{98765}"), WRONG)
    blamed = [dict(turn.score.blame) for turn in turns if turn.score and turn.score.blame]
    assert blamed == [{VERIFIER.name: 1.0}]
    assert (turns[-1].final_score or 0) <= 2.5
    assert min(turn.final_score or 0 for turn in turns[:-1]) >= 7


@pytest.mark.parametrize("one", HONEST, ids=lambda one: one.name)
def test_who_computes_a_wrong_value_is_blamed_alone(one: Honest) -> None:
    runs = [(code, "98765") for code, _ in one.runs]
    turns = judged(replace(one, runs=runs, report="It printed 98765.", answer=r"\boxed{98765}"), WRONG)
    assert turns[-1].score is not None
    assert turns[-1].score.blame == {EXECUTOR.name: 1.0}
    assert [turn.agent for turn in turns if (turn.final_score or 0) <= 3.0] == [EXECUTOR.name] * (
        len(runs) + 1
    )


def test_the_episodes_are_right_and_differ() -> None:
    wrong = [
        one.name for one in HONEST if not same(one.gold, find_answer(one.answer) or "", lambda *_: False)
    ]
    assert wrong == []
    assert len({one.name for one in HONEST}) == len(HONEST) >= 40
