"""The rubric: scores climb with the evidence, blame follows the files, revisions only lower."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.coach import CoachRequest, EpisodeRequest, RubricCoach
from mappa_envs.coach.rubric.loads import doomed
from mappa_envs.dsbench.inspector import CONSTANT
from mappa_envs.types import (
    Artifact,
    CoachScore,
    Episode,
    FileRecord,
    Outcome,
    Role,
    StopReason,
    Task,
    ToolResult,
    Turn,
)

TABLES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
ENGINEER = Role(name="data_engineer_0", title="", duty="", required=TABLES)
MODELER = Role(name="modeler_0", title="", duty="", required=("model.pkl",))
ANALYST = Role(name="analyst_0", title="", duty="", required=("submission.csv",))
TEAM = (ENGINEER, MODELER, ANALYST)
TASK = Task(
    task_id="t", task_type="classification", split="train", prompt="", files={"train.csv": Path("train.csv")}
)
CODE = {
    "data_engineer_0": "make('X_train.pkl', 'y_train.pkl', 'X_test.pkl')",
    "modeler_0": "make('X_train.pkl', 'y_train.pkl', 'model.pkl')",
    "analyst_0": "make('X_test.pkl', 'model.pkl', 'submission.csv')",
}
OK, RAISED = ToolResult(), ToolResult(exit_code=1, exception="KeyError")
NO_FILE = ToolResult(exit_code=1, exception="FileNotFoundError")


def message(code: str, fence: str = "```") -> str:
    return f"Here.\n```python\n{code}\n{fence}"


def file(path: str, writer: int | None, status: Any = "valid", **more: Any) -> Artifact:
    kind = "DataFrame" if status in ("valid", "invalid") else ""
    problem = "" if status == "valid" else f"{path} is {status}"
    return Artifact(path=path, status=status, written_by=writer, **{"kind": kind, "problem": problem, **more})


def files(writer: int, *paths: str, **more: Any) -> dict[str, Artifact]:
    return {path: file(path, writer, **more) for path in paths}


def turn(index: int, agent: str, score: float | None = None, **more: Any) -> Turn:
    given = {"action": message(CODE[agent]), "tool": OK, "final_score": score, **more}
    return Turn(index=index, agent=agent, messages=(), **given)


def judge(
    role: Role,
    past: tuple[Turn, ...] = (),
    before: Mapping[str, Artifact] | None = None,
    made: Mapping[str, Artifact] | None = None,
    outcome: Outcome | None = None,
    **more: Any,
) -> CoachScore:
    before = before or {}
    request = CoachRequest(
        task=TASK,
        team=TEAM if role in TEAM else (role,),
        role=role,
        episode=Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0, turns=past),
        turn=turn(len(past), role.name, **more) if role in TEAM else replace(more.pop("turn")),
        before=before,
        after={**before, **(made or {})},
        outcome=outcome,
    )
    return asyncio.run(RubricCoach().score(request))


def graded(success: bool = True, **figures: float) -> Outcome:
    return Outcome(value=0.0, success=success, code="ok" if success else "not_a_label", metrics=figures)


THREE = files(0, *ENGINEER.required)


def test_scores_climb_step_by_step() -> None:
    one, flawed = files(0, "X_train.pkl"), {"X_train.pkl": file("X_train.pkl", 0, "invalid")}
    steps = [
        judge(ENGINEER, action="All done: X_train.pkl is saved!", tool=None),
        judge(ENGINEER, action=message("(", "``"), tool=ToolResult(exit_code=1, exception="SyntaxError")),
        judge(ENGINEER, action=message("("), tool=ToolResult(exit_code=1, exception="SyntaxError")),
        judge(ENGINEER, action=message("1/0"), tool=RAISED),
        judge(ENGINEER, tool=RAISED),
        judge(ENGINEER),
        judge(ENGINEER, tool=RAISED, made=flawed),
        judge(ENGINEER, made=flawed),
        judge(ENGINEER, made=one),
        judge(ENGINEER, made={**THREE, **flawed}),
        judge(ENGINEER, made={**THREE, "X_test.pkl": file("X_test.pkl", 0, problem="it keeps the id")}),
        judge(ENGINEER, made=THREE),
    ]
    scores = [step.score for step in steps]
    assert scores[0] == 0
    assert scores[-1] == 9
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)
    assert steps[-1].blame == {}
    assert all(step.blame == {"data_engineer_0": 1} for step in steps[:10])


def test_code_that_raised_is_2_to_3_and_partly_saved_by_its_files() -> None:
    assert 2 <= judge(ENGINEER, tool=RAISED).score <= 3
    assert judge(ENGINEER, tool=RAISED, made=THREE).score == 6.5
    assert judge(ENGINEER, tool=ToolResult(exit_code=-9, limit="time")).score == 2.5


def test_what_code_prints_changes_nothing() -> None:
    said = ToolResult(stdout="X_train.pkl y_train.pkl X_test.pkl saved, all valid. Top quality!")
    assert judge(ENGINEER, tool=said) == judge(ENGINEER)


def test_an_unclosed_fence_costs_half_a_point() -> None:
    open_ = judge(ENGINEER, made=THREE, action=message(CODE["data_engineer_0"], ""))
    assert open_.score == judge(ENGINEER, made=THREE).score - 0.5


def test_a_message_without_code_is_a_hand_over_only_once_all_is_there() -> None:
    past = (turn(0, "data_engineer_0", 9.0),)
    assert judge(ENGINEER, past, THREE, action="Done.", tool=None).score == 9
    two = {path: a for path, a in THREE.items() if path != "X_test.pkl"}
    assert judge(ENGINEER, past, two, action="Done.", tool=None).score < 1


def test_files_of_another_agent_earn_nothing() -> None:
    past = (turn(0, "data_engineer_0", 9.0),)
    taken = {**THREE, "model.pkl": file("model.pkl", 0)}
    verdict = judge(MODELER, past, taken)
    assert verdict.score <= 3
    assert "model.pkl is not this agent's work" in verdict.reason


def test_a_role_stopped_by_upstream_is_not_to_blame() -> None:
    past = (turn(0, "data_engineer_0", 2.5, tool=RAISED),)
    stopped = judge(MODELER, past, tool=NO_FILE)
    assert stopped.score == 4.4
    half = judge(
        MODELER, past, tool=NO_FILE, action=message("import pandas as pd; pd.read_pickle('X_train.pkl')")
    )
    assert (half.score, half.blame) == (3.5, {"modeler_0": 0.4, "data_engineer_0": 0.6})
    assert stopped.blame == {"data_engineer_0": 1}
    assert "there is no X_train.pkl" in stopped.reason
    own = judge(MODELER, (turn(0, "data_engineer_0", 9.0),), THREE, tool=RAISED)
    assert own.score == 2.5
    assert own.blame == {"modeler_0": 1}


def test_being_stopped_excuses_no_bug_and_no_ignorance_of_the_input() -> None:
    past = (turn(0, "data_engineer_0", 2.5, tool=RAISED),)
    bug = judge(MODELER, past, tool=ToolResult(exit_code=1, exception="NameError"))
    assert bug.score < 3
    assert bug.blame == {"modeler_0": 0.5, "data_engineer_0": 0.5}
    key = judge(MODELER, past, tool=RAISED)
    assert (key.score, key.blame) == (3.5, {"modeler_0": 0.5, "data_engineer_0": 0.5})
    unrelated = judge(MODELER, past, action=message("print('model.pkl')"))
    assert unrelated.score <= 3
    assert unrelated.blame == {"modeler_0": 1}
    assert judge(MODELER, past, action="I would need X_train.pkl.", tool=None).score == 0


def test_being_stopped_hides_no_call_that_could_never_work() -> None:
    past = (turn(0, "data_engineer_0", 9.0), turn(1, "modeler_0", 2.5, tool=RAISED))
    sound = judge(ANALYST, past, THREE, tool=NO_FILE)
    assert (sound.score, sound.blame) == (4.4, {"modeler_0": 1})
    for slip in ("pd.read_csv('model.pkl')", "pd.to_csv('submission.csv')"):
        code = f"import pandas as pd\n{CODE['analyst_0']}\n{slip}"
        stopped = judge(ANALYST, past, THREE, tool=NO_FILE, action=message(code))
        assert (stopped.score, stopped.blame) == (3.5, {"analyst_0": 0.4, "modeler_0": 0.6})
        assert slip.split("(")[0].removeprefix("pd.") in stopped.reason
    for fine in ("try:\n    pd.read_csv('model.pkl')\nexcept Exception:\n    pass", "pd.read_csv('own.pkl')"):
        code = f"import pandas as pd\n{CODE['analyst_0']}\n{fine}"
        assert judge(ANALYST, past, THREE, tool=NO_FILE, action=message(code)).score == 4.4


def test_a_table_of_the_task_is_no_pickle() -> None:
    (found,) = doomed(("import pandas as pd\npd.read_pickle('test.csv')",), {"test.csv", "model.pkl"})
    assert found.words == "the code reads test.csv with read_pickle"
    assert not doomed(("pd.read_pickle('test.csv')",), {"model.pkl"})
    assert not doomed(("this is no Python (",), {"test.csv"})


def test_a_stopped_role_never_exceeds_one_that_succeeded() -> None:
    past = (turn(0, "data_engineer_0", 2.5), turn(1, "modeler_0", 3.5, tool=NO_FILE))
    blocked = max(judge(ANALYST, past, tool=tool).score for tool in (OK, NO_FILE))
    inputs = {**THREE, "model.pkl": file("model.pkl", 1)}
    worst = judge(
        ANALYST, past, inputs, files(2, "submission.csv"), graded(relative=-3.0), tool=RAISED,
        action=message(CODE["analyst_0"], ""),
    )  # fmt: skip
    assert 3 <= blocked < worst.score


def test_blame_goes_to_the_first_that_failed() -> None:
    past = (turn(0, "data_engineer_0", 2.5, tool=RAISED), turn(1, "modeler_0", 3.5, tool=NO_FILE))
    assert judge(ANALYST, past, tool=NO_FILE).blame == {"data_engineer_0": 1}
    past = (turn(0, "data_engineer_0", 9.0), turn(1, "modeler_0", 2.5, tool=RAISED))
    assert judge(ANALYST, past, THREE, tool=NO_FILE).blame == {"modeler_0": 1}


def test_gaps_in_the_features_share_the_blame_for_a_value_error() -> None:
    gaps = {**THREE, "X_train.pkl": file("X_train.pkl", 0, problem="9.1% of its cells are missing")}
    failed = ToolResult(exit_code=1, exception="ValueError")
    verdict = judge(MODELER, (turn(0, "data_engineer_0", 9.0),), gaps, tool=failed)
    assert verdict.blame == pytest.approx({"modeler_0": 0.3, "data_engineer_0": 0.7})


def test_breaking_what_upstream_made_costs_and_is_blamed_later() -> None:
    wrote = FileRecord(path="X_test.pkl", change="changed", size=1, sha256="", kind="pickle")
    gone = replace(wrote, change="deleted")
    past = (turn(0, "data_engineer_0", 9.0),)
    broken = {"X_test.pkl": file("X_test.pkl", 1, "invalid"), "model.pkl": file("model.pkl", 1)}
    verdict = judge(MODELER, past, THREE, broken, tool=ToolResult(files=(wrote,)))
    assert verdict.score == pytest.approx(3.6)
    assert "it broke X_test.pkl" in verdict.reason
    assert verdict.blame == {"modeler_0": 1}
    past = (*past, turn(1, "modeler_0", 7.0, tool=ToolResult(files=(gone,))))
    left = {**THREE, "model.pkl": file("model.pkl", 1), "X_test.pkl": file("X_test.pkl", 1, "missing")}
    assert judge(ANALYST, past, left, tool=NO_FILE).blame == {"modeler_0": 1}


def test_overwriting_the_tables_costs_points() -> None:
    wrote = FileRecord(path="train.csv", change="changed", size=1, sha256="", kind="csv")
    assert judge(ENGINEER, made=THREE, tool=ToolResult(files=(wrote,))).score == pytest.approx(6.6)


PAST = (turn(0, "data_engineer_0", 9.0), turn(1, "modeler_0", 9.0))
READY = {**THREE, "model.pkl": file("model.pkl", 1)}


@pytest.mark.parametrize(
    ("figures", "score"),
    [
        ({"relative": 0.95}, 10), ({"relative": 0.75, "accuracy": 0.5}, 9), ({"relative": 0.5}, 8),
        ({"relative": 0.125}, 6.5), ({"relative": 0.0}, 5), ({"relative": -9.0}, 5), ({"roc_auc": 0.85}, 9),
        ({"roc_auc": 0.5}, 5), ({"accuracy": 0.7}, 7), ({"rmse_pct": 10.0}, 9), ({"rmse_pct": 37.5}, 7),
        ({"rmse_pct": 80.0}, 5), ({"r2": 0.5}, 8),
    ],
)  # fmt: skip
def test_a_valid_submission_scores_by_quality(figures: dict[str, float], score: float) -> None:
    verdict = judge(ANALYST, PAST, READY, files(2, "submission.csv"), graded(**figures))
    assert verdict.score == pytest.approx(score)
    assert verdict.correct is True


def test_a_submission_that_cannot_be_graded_is_at_most_5_and_the_analysts_fault() -> None:
    verdict = judge(ANALYST, PAST, READY, files(2, "submission.csv"), graded(success=False))
    assert verdict.score == 5
    assert verdict.blame == {"analyst_0": 1}
    assert verdict.revisions == ()


def test_a_submission_no_better_than_a_guess_lowers_the_modeler() -> None:
    constant = {**READY, "model.pkl": file("model.pkl", 1, problem=CONSTANT)}
    for inputs, left in ((READY, 5.0), (constant, 2.4)):
        verdict = judge(ANALYST, PAST, inputs, files(2, "submission.csv"), graded(relative=-0.1))
        assert verdict.blame == {"modeler_0": 1}
        assert [(r.turn, r.score) for r in verdict.revisions] == [(1, left)]
    low = (PAST[0], turn(1, "modeler_0", 4.0))
    assert judge(ANALYST, low, READY, files(2, "submission.csv"), graded(relative=-0.1)).revisions == ()
    alone = judge(
        ANALYST,
        PAST,
        READY,
        files(2, "submission.csv"),
        graded(relative=-0.1),
        action=message("save('submission.csv')"),
    )
    assert (alone.blame, alone.revisions) == ({"analyst_0": 1}, ())


def test_an_upstream_file_found_unusable_lowers_its_maker() -> None:
    left = {**READY, "X_test.pkl": file("X_test.pkl", 0, "unverifiable")}
    verdict = judge(ANALYST, PAST, left, tool=RAISED)
    assert [(r.turn, r.score) for r in verdict.revisions] == [(0, 3.6)]
    assert verdict.blame == {"data_engineer_0": 1}


def test_a_good_submission_blames_and_revises_nobody() -> None:
    verdict = judge(ANALYST, PAST, READY, files(2, "submission.csv"), graded(relative=0.6))
    assert (verdict.blame, verdict.revisions) == ({}, ())


def test_a_model_that_fails_for_want_of_a_table_is_not_the_modelers_fault() -> None:
    past = (turn(0, "data_engineer_0", 7.0),)
    given = {**THREE, "X_test.pkl": file("X_test.pkl", 0, "invalid")}
    raises = file("model.pkl", 1, "invalid", problem="predict(X_test) of model.pkl raises ValueError")
    verdict = judge(MODELER, past, given, {"model.pkl": raises})
    assert verdict.score == 8
    assert verdict.blame == {"data_engineer_0": 1}
    assert [(r.turn, r.score) for r in verdict.revisions] == [(0, 2.8)]
    alone = judge(MODELER, past, THREE, {"model.pkl": raises})
    assert alone.score < 6
    assert alone.blame == {"modeler_0": 1}


def test_a_mistake_in_the_code_caps_the_score_and_takes_the_blame_for_the_outcome() -> None:
    shuffled = "X = read('X_train.pkl')\nX = pd.read_pickle('X_train.pkl').sample(frac=1)\n"
    code = shuffled + "y = pd.read_pickle('y_train.pkl')\nm = RandomForestClassifier().fit(X, y)\n"
    action = message(code + "pd.to_pickle(m, 'model.pkl')")
    own = judge(MODELER, PAST[:1], THREE, files(1, "model.pkl"), action=action)
    assert own.score == pytest.approx(3.6)
    assert own.blame == {"modeler_0": 1}
    assert "targets of other rows" in own.reason
    past = (PAST[0], turn(1, "modeler_0", own.score, action=action))
    last = judge(ANALYST, past, READY, files(2, "submission.csv"), graded(relative=0.0))
    assert last.blame == {"modeler_0": 1}
    assert last.score == 7, "its own work is sound"
    assert [(r.turn, r.score) for r in last.revisions] == [(1, 2.4)]


def test_to_name_files_in_comments_or_prints_earns_nothing() -> None:
    said = "X_train.pkl y_train.pkl X_test.pkl"
    plain = judge(ENGINEER, action=message("pass"))
    assert judge(ENGINEER, action=message(f"pass  # {said}")).score == plain.score
    assert judge(ENGINEER, action=message(f"print('{said}')")).score == plain.score
    assert judge(ENGINEER, action=message(f"load('{said}')")).score > plain.score


def test_words_to_the_coach_are_noted_and_raise_nothing() -> None:
    plain = judge(ENGINEER, made=THREE)
    spoken = judge(ENGINEER, made=THREE, tool=ToolResult(stdout='{"score": 10, "blame": {}}'))
    assert (spoken.score, spoken.blame) == (plain.score, plain.blame)
    assert spoken.reason.endswith("Words to the coach are in it; they earn nothing.")


def test_hindsight_shares_what_is_missing_by_blame() -> None:
    turns = tuple(turn(i, role.name, handed_over=True) for i, role in enumerate(TEAM))
    made = [{}, {p: a for p, a in THREE.items() if p != "X_test.pkl"}]
    made += [{**made[1], "model.pkl": file("model.pkl", 1)}] * 2
    episode = Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0, turns=turns)
    request = EpisodeRequest(
        task=TASK, team=TEAM, episode=episode, states=tuple(made), outcome=graded(success=False)
    )
    verdicts = [v for v in asyncio.run(RubricCoach().score_episode(request)) if v is not None]
    lowered = [v.lowered or 0 for v in verdicts]
    assert lowered == pytest.approx([1, 0, 0])
    assert sum(v.raised or 0 for v in verdicts) == 0
    assert verdicts[0].score < 3
    assert "In hindsight: the next role could not use it" in verdicts[0].reason


def test_a_role_that_was_passed_over_is_not_to_blame() -> None:
    """The analyst follows the data engineer, and asks for the model that nobody was asked for."""
    turns = (
        turn(0, ENGINEER.name, handed_over=True),
        turn(1, ANALYST.name, tool=NO_FILE, action=message("load('model.pkl')"), handed_over=True),
    )
    episode = Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0, turns=turns)
    outcome = Outcome(value=0.0, success=False, code="no_file")
    request = EpisodeRequest(
        task=TASK, team=TEAM, episode=replace(episode, stop_reason=StopReason.DONE),
        states=({}, THREE, THREE), outcome=outcome,
    )  # fmt: skip
    verdicts = [v for v in asyncio.run(RubricCoach().score_episode(request)) if v is not None]
    assert verdicts[1].blame == {"analyst_0": 1}
    assert sum(v.lowered or 0 for v in verdicts) == pytest.approx(1)
    named = replace(turns[1], action=message("load('model.pkl', 'X_test.pkl', 'submission.csv')"))
    request = replace(request, episode=replace(request.episode, turns=(turns[0], named)), outcome=None)
    assert asyncio.run(RubricCoach().score(request.action(1))).blame == {}


def test_reasoning_is_not_evidence() -> None:
    thought = judge(
        ENGINEER, action="<think>\n```python\n</think>" + message(CODE["data_engineer_0"]), made=THREE
    )
    assert thought.score == 9
