"""What the rubric makes of measurements: who lost the signal is blamed, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from test_rubric import ANALYST, ENGINEER, MODELER, OK, TASK, TEAM, message, turn

from mappa_envs.coach import CoachRequest, EpisodeRequest, RubricCoach
from mappa_envs.coach.rubric.measured import losses, measured
from mappa_envs.types import Artifact, CoachScore, Episode, Outcome, Role, StopReason

SOUND: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "X_train.pkl": {"signal": 0.6, "plain": 0.6, "rows_follow": 1},
    "X_test.pkl": {"kept": 0.9, "attainable": 0.9, "rows_follow": 1, "same_scale": 1},
    "y_train.pkl": {"kept": 1, "order": 1, "same_values": 1},
    "model.pkl": {"fitted": 0.9, "fitted_near": 0.8, "agrees": 0.9, "near": 0.8},
    "submission.csv": {"transmitted": 1, "order": 1, "reordered": 0, "near": 0.8},
})  # fmt: skip
EPISODE = Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0)
Change = Mapping[str, Mapping[str, float]]


def files(*changes: Change) -> dict[str, Artifact]:
    owners = {path: index for index, role in enumerate(TEAM) for path in role.required}
    found = {}
    for path, facts in SOUND.items():
        changed = dict(facts)
        for change in changes:
            changed.update(change.get(path, {}))
        found[path] = Artifact(path=path, status="valid", kind="file", written_by=owners[path], facts=changed)
    return found


def judge(role: Role, *changes: Change, relative: float | None = None, code: str = "") -> CoachScore:
    index = TEAM.index(role)
    past = tuple(turn(i, member.name, 9.0) for i, member in enumerate(TEAM[:index]))
    found = files(*changes)
    there = {path: a for path, a in found.items() if (a.written_by or 0) <= index}
    missing = {path: Artifact(path=path, status="missing") for path in role.required}
    outcome = None
    if relative is not None:
        outcome = Outcome(value=max(0.0, relative), success=True, code="ok", metrics={"relative": relative})
    said: dict[str, Any] = {"action": message(code)} if code else {}
    request = CoachRequest(
        task=TASK, team=TEAM, role=role, episode=replace(EPISODE, turns=past), outcome=outcome,
        turn=turn(index, role.name, tool=OK, **said), before={**there, **missing}, after=there,
    )  # fmt: skip
    return asyncio.run(RubricCoach().score(request))


SHUFFLED: Change = {
    "X_train.pkl": {"signal": -0.05, "rows_follow": 0},
    "X_test.pkl": {"kept": 0.05},
    "model.pkl": {"agrees": 0.1, "near": -0.2},
}
NO_MODEL: Change = {"model.pkl": {"fitted": 0.05, "fitted_near": 0.0, "agrees": 0.05, "near": -0.1}}
SORTED: Change = {"submission.csv": {"transmitted": -0.9, "order": 0.0, "reordered": 1, "near": -0.9}}
CASES = [
    (ENGINEER, SHUFFLED, "X_train.pkl has not the rows of train.csv in their order"),
    (ENGINEER, {"X_test.pkl": {"kept": 0.1, "rows_follow": 0}}, "X_test.pkl has not the rows of test.csv"),
    (ENGINEER, {"X_test.pkl": {"kept": 0.1, "same_scale": 0.2}}, "on another scale than X_train.pkl"),
    (ENGINEER, {"X_train.pkl": {"signal": 1}, "X_test.pkl": {"kept": 0.1}}, "gives the target away"),
    (ENGINEER, {"X_train.pkl": {"signal": 0.1}, "X_test.pkl": {"kept": 0.1}}, "has lost much of what"),
    (ENGINEER, {"X_test.pkl": {"kept": -0.4}}, "does not go with X_train.pkl"),
    (ENGINEER, {"y_train.pkl": {"kept": -0.9, "order": 0.0}}, "holds the target of other rows"),
    (
        ENGINEER,
        {
            "y_train.pkl": {"kept": -1, "order": 1, "same_values": 0},
            "model.pkl": {"near": -0.5},
            "submission.csv": {"near": -0.5},
        },
        "the target on another scale",
    ),
    (MODELER, NO_MODEL, "has learned little"),
    (MODELER, {"model.pkl": {"fitted_near": 0.01}}, "predicts no better than a constant"),
    (ANALYST, SORTED, "predictions for other rows"),
    (ANALYST, {"submission.csv": {"order": -1, "near": -0.9}}, "turned around"),
]  # fmt: skip
UNCERTAIN = ("gives the target away", "the target on another scale")
"""What may do no harm, or be undone: it is blamed once the outcome is poor."""


@pytest.mark.parametrize(("role", "change", "words"), CASES)
def test_a_loss_is_named_and_blamed_on_its_maker_alone(role: Role, change: Change, words: str) -> None:
    own = judge(role, change, relative=-0.1 if role is ANALYST else None)
    assert words in own.reason
    is_certain = words not in UNCERTAIN
    assert own.blame == ({role.name: 1} if is_certain else {})
    assert own.score < (7 if is_certain else 8)
    last = judge(ANALYST, change, relative=-0.1)
    assert last.blame == {role.name: pytest.approx(1)}
    assert role is ANALYST or last.score >= 7, "the analyst's own work is sound"


def test_sound_files_are_not_held_against_anybody() -> None:
    for role in TEAM:
        verdict = judge(role, relative=0.9 if role is ANALYST else None)
        assert (verdict.blame, verdict.score >= 9) == ({}, True)
    assert measured(files(), "number") == measured({}, "number") == ()
    assert max(losses(files()).values()) == 0


def test_of_two_guilty_roles_both_are_blamed_and_the_third_is_not() -> None:
    reversed_test: Change = {"X_test.pkl": {"kept": 0.05, "rows_follow": 0}}
    verdicts = {
        ("data_engineer_0", "modeler_0"): judge(ANALYST, reversed_test, NO_MODEL, relative=-0.1),
        ("data_engineer_0", "analyst_0"): judge(ANALYST, SHUFFLED, SORTED, relative=-0.1),
        ("modeler_0", "analyst_0"): judge(ANALYST, NO_MODEL, SORTED, relative=-0.1),
    }  # fmt: skip
    for guilty, verdict in verdicts.items():
        assert set(verdict.blame) == set(guilty)
        assert min(verdict.blame.values()) > 0.2


def test_a_good_outcome_forgives_what_was_lost() -> None:
    assert judge(ANALYST, SORTED, relative=0.8).blame == {}
    assert judge(ANALYST, SORTED, relative=0.1).blame == {"analyst_0": 1}


def test_a_small_loss_counts_only_once_the_outcome_disappoints() -> None:
    lossy: Change = {"X_train.pkl": {"signal": 0.4}, "X_test.pkl": {"kept": 0.6}}
    assert judge(ENGINEER, lossy).blame == {}
    assert judge(ANALYST, lossy, relative=0.3).blame == {"data_engineer_0": 1}


def test_a_poor_outcome_without_a_mistake_goes_to_who_lost_most() -> None:
    assert judge(ANALYST, {"X_test.pkl": {"kept": 0.7}}, relative=0.0).blame == {"data_engineer_0": 1}
    assert judge(ANALYST, {"submission.csv": {"order": 0.85}}, relative=0.0).blame == {"analyst_0": 1}
    assert judge(ANALYST, {"model.pkl": {"agrees": 0.55}}, relative=0.0).blame == {"modeler_0": 1}


@pytest.mark.parametrize("relative", [0.3, 0.05, 0.0])
def test_who_has_not_acted_is_not_to_blame(relative: float) -> None:
    """The episode begins with the analyst, on a weak model of the scripted expert."""
    weak = {
        path: replace(artifact, written_by=0 if path == "submission.csv" else None)
        for path, artifact in files({"model.pkl": {"agrees": 0.5, "near": 0.45}}).items()
    }
    laid = {path: artifact for path, artifact in weak.items() if path != "submission.csv"}
    request = EpisodeRequest(
        task=TASK,
        team=TEAM,
        episode=replace(
            EPISODE,
            start_role=ANALYST.name,
            turns=(turn(0, ANALYST.name, tool=OK, handed_over=True),),
            stop_reason=StopReason.DONE,
        ),
        states=(laid, weak),
        outcome=Outcome(value=relative, success=True, code="ok", metrics={"relative": relative}),
    )
    inline = asyncio.run(RubricCoach().score(request.action(0)))
    (late,) = asyncio.run(RubricCoach().score_episode(request))
    assert late is not None
    assert inline.blame == late.blame == {}
    assert (late.raised, late.lowered) == pytest.approx((relative, 1 - relative))


REORDERS = """
import pandas as pd
pd.read_csv("test.csv").sort_values("a").to_pickle("X_test.pkl")
"""
SUBMITS_FEW = """
import pandas as pd
pd.read_csv("test.csv").head(9).to_csv("submission.csv", index=False)
"""
NOT_MEASURED: Change = {"X_test.pkl": {"attainable": 0.2}}
UNLIKE: Change = {"submission.csv": {"order": 0.6, "near": 0.1}}


def test_measurement_overrules_what_was_read_in_code() -> None:
    proven = judge(ENGINEER, code=REORDERS)
    assert (proven.blame, proven.score >= 8.5) == ({}, True)
    assert judge(ENGINEER, NOT_MEASURED, code=REORDERS).blame == {ENGINEER.name: 1}
    assert judge(ENGINEER, {"X_test.pkl": {"kept": 0.1}}, code=REORDERS).blame == {ENGINEER.name: 1}
    assert judge(ANALYST, code=SUBMITS_FEW).blame == {}
    assert judge(ANALYST, UNLIKE, code=SUBMITS_FEW).blame == {ANALYST.name: 1}


def test_a_good_outcome_overrules_what_was_read_in_code() -> None:
    good = judge(ANALYST, UNLIKE, code=SUBMITS_FEW, relative=0.95)
    assert (good.blame, good.score) == ({}, 10)
    assert judge(ANALYST, UNLIKE, code=SUBMITS_FEW, relative=0.3).blame == {ANALYST.name: 1}


def test_a_scale_that_the_submission_puts_back_is_no_mistake() -> None:
    scaled: Change = {
        "y_train.pkl": {"kept": -1, "order": 1, "same_values": 0},
        "model.pkl": {"near": -0.5, "agrees": 0.2},
    }
    back: Change = {"submission.csv": {"transmitted": -0.5, "near": 0.4}}
    left: Change = {"submission.csv": {"near": -0.5}}
    assert ENGINEER.name not in judge(ANALYST, scaled, back, relative=0.2).blame
    assert ENGINEER.name in judge(ANALYST, scaled, left, relative=0.2).blame


def test_a_weak_yardstick_is_no_evidence() -> None:
    lost: Change = {"X_train.pkl": {"plain": 0.03, "signal": 0.02}, "X_test.pkl": {"kept": 0.0}}
    assert judge(ENGINEER, lost).blame == {}
    far: Change = {"X_test.pkl": {"attainable": 0.2, "kept": 0.0}}
    assert judge(ENGINEER, far).blame == {}
