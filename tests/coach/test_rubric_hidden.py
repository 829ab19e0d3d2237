"""What a second failure covers: everybody who would have spoilt the outcome is blamed, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_rubric_maths as maths
from test_rubric import ANALYST, ENGINEER, MODELER
from test_rubric_maths import EXECUTOR, LOOP, SOLVER, VERIFIER, WRONG
from test_rubric_measured import Change, judge

from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.types import CoachScore, Outcome, Role, ToolResult

APART: Change = {"X_test.pkl": {"same_scale": 0.2}}
STUMP: Change = {"model.pkl": {"fitted_near": 0.3}}
RIGHT = Outcome(value=1, success=True, code="right")
TASK = MathTask(
    task_id="t", task_type="count", split="train", prompt=maths.TASK.prompt, golds=("74",), level=1
)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem of the other maths tests, with its answer."""
    monkeypatch.setattr(maths, "TASK", TASK)


def printed(value: int) -> ToolResult:
    return ToolResult(stdout=f"{value}\n")


def of_answer(program: ToolResult, said: str, outcome: Outcome = WRONG, plan: str = maths.PLAN) -> CoachScore:
    return maths.judge(
        (SOLVER, plan, None), (EXECUTOR, LOOP, program), (VERIFIER, said, None), outcome=outcome
    )


def test_rows_that_are_made_apart_are_a_mistake_whatever_it_costs() -> None:
    verdict = judge(ENGINEER, APART)
    assert verdict.blame == {"data_engineer_0": 1}
    assert "scaled or encoded apart" in verdict.reason
    assert judge(ENGINEER, {"X_test.pkl": {"same_scale": 1}}).blame == {}


@pytest.mark.parametrize("role", [MODELER, ANALYST])
def test_a_weak_model_costs_points_at_once_and_blame_only_with_the_outcome(role: Role) -> None:
    at_once = judge(MODELER, STUMP)
    assert (at_once.blame, at_once.score) == ({}, 7.5)
    last = judge(ANALYST, STUMP, relative=0.9 if role is MODELER else 0.2)
    assert last.blame == ({} if role is MODELER else {"modeler_0": 1})


def test_a_lost_signal_and_a_weak_model_share_the_blame() -> None:
    assert set(judge(ANALYST, APART, STUMP, relative=0.1).blame) == {"data_engineer_0", "modeler_0"}


@pytest.mark.usefixtures("answered")
def test_a_wrong_program_is_blamed_though_the_last_role_boxed_nothing() -> None:
    for said in ("I am done.", "", r"\boxed{12}"):
        assert set(of_answer(printed(75), said).blame) == {"code_executor_0", "verifier_0"}, said
        assert set(of_answer(printed(74), said).blame) == {"verifier_0"}, said
    assert set(of_answer(printed(75), r"\boxed{75}").blame) == {"code_executor_0"}


@pytest.mark.usefixtures("answered")
def test_a_right_answer_blames_nobody_and_costs_who_had_another_value_a_point() -> None:
    verdict = maths.judge(
        (SOLVER, maths.PLAN, None), (EXECUTOR, LOOP, printed(75)), (EXECUTOR, LOOP, printed(74)),
        (VERIFIER, r"\boxed{74}", None), outcome=RIGHT,
    )  # fmt: skip
    assert verdict.blame == {}
    assert {one.turn: one.score for one in verdict.revisions} == {1: 7.0}


@pytest.mark.usefixtures("answered")
def test_a_plan_with_another_number_is_blamed_though_the_program_has_the_right_one() -> None:
    plan = "Take n = 459, a = 5, b = 7 and c = 12, and count."
    crash = ToolResult(exit_code=1, exception="NameError")  # of a program with the right numbers
    assert "problem_solver_0" in of_answer(crash, "No value.", plan=plan).blame
    assert "problem_solver_0" not in of_answer(crash, "No value.", plan=plan.replace("459", "259")).blame


@pytest.mark.usefixtures("answered")
def test_without_the_outcome_the_answer_is_not_looked_at() -> None:
    verdict = maths.judge((SOLVER, maths.PLAN, None), (EXECUTOR, LOOP, printed(75)))
    assert (verdict.score, verdict.blame) == (8.0, {})
    told = of_answer(printed(75), r"\boxed{75}").reason + of_answer(printed(75), "").reason
    assert "74" not in told


@pytest.mark.parametrize(
    ("code", "points"),
    [
        ("class S:\n    v = 75\n    def run(self):\n        return self.v\nprint(S().run())", 3.5),
        ("import json\nprint(json.loads('{\"a\": 75}')['a'])", 3.5),
        ("n = sum(k % 5 == 0 for k in range(375))\nassert n == 75\nprint(n)", 8.0),
        ("print(sum(k % 5 == 0 for k in range(375)))", 8.0),
    ],
)
def test_a_result_that_stands_in_the_program_is_a_claim(code: str, points: float) -> None:
    said = maths.judge((SOLVER, maths.PLAN, None), (EXECUTOR, f"```python\n{code}\n```", printed(75)))
    assert said.score == points


def test_who_gives_up_is_told_so() -> None:
    for said in ("This has no solution for 259, 5, 7 and 12.", "I cannot solve it, sorry."):
        verdict = maths.judge((SOLVER, said, None))
        assert (verdict.score, verdict.blame) == (4.0, {"problem_solver_0": 1})
    assert maths.judge((SOLVER, maths.PLAN + " k = 3 is impossible.", None)).blame == {}


def test_a_missing_modulus_explains_no_value_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = (
        "Take the sum of the products of $7$ and $40$ with $12$. Find the remainder when divided by $1000$."
    )
    monkeypatch.setattr(maths, "TASK", replace(TASK, prompt=prompt, golds=("564",)))
    code = "```python\nprint(sum([7, 40, 12]))\n```"
    said = [(SOLVER, "With 7, 40 and 12, enumerate.", None), (EXECUTOR, code, printed(59))]
    assert set(maths.judge(*said, (VERIFIER, r"\boxed{59}", None), outcome=WRONG).blame) == {
        "code_executor_0"
    }
