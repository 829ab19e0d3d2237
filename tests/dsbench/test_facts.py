"""Measurements of files: near 1 for good work, low where the signal was lost, and never in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from inspection_bench import Bench, TinyTask, tiny_task

from mappa_envs.dsbench import artifacts, facts, signal
from mappa_envs.dsbench.pickle_checks import Fault
from mappa_envs.dsbench.target_scale import Target, by_rank, correlation, near
from mappa_envs.testing import FakeSandbox
from mappa_envs.testing.expert import expert_code
from mappa_envs.types import Artifact

ROLES = ("data_engineer_0", "modeler_0", "analyst_0")
PATHS = tuple(facts.FACTS)
KINDS = ("accuracy", "roc_auc", "mc_log_loss", "map@3", "rmsle", "mcrmse")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured has all the time that it takes, on whatever machine."""
    monkeypatch.setattr(facts, "TIME_S", 60.0)


def target(family: str, train: Mapping[str, Any], names: list[str], label: str | None = None) -> Target:
    hidden = [*names, *([label] if label else [])]
    return Target({"targets": names, "hidden": hidden, "family": family}, pd.DataFrame(train))


def test_nearness_and_correlation() -> None:
    b = np.array([[0.0], [1.0], [2.0]])
    assert near(b, b) == 1
    assert near(b * 0 + 1, b) == 0
    assert near(-b, b) == -1
    assert near(b + 1, b) == pytest.approx(1 - 3 / 2)
    assert correlation(3 * b + 1, b) == pytest.approx(1)
    assert by_rank(-(b**3), b) == pytest.approx(-1)
    with pytest.raises(Fault):
        near(b, b * 0)


def test_numbers_are_compared_by_their_rank_among_the_targets() -> None:
    found = target("number", {"size": [1.0, 10.0, 100.0, 1000.0]}, ["size"])
    assert found.of([10.0, 31.6, 1e9]).ravel().tolist() == pytest.approx([0.375, 0.435, 1.0], abs=0.01)
    assert near(found.of([0.0, 2.3, 4.6, 6.9]), found.truth) < 0.5, "a logarithm is not the target"


def test_codes_are_taken_for_the_classes_that_they_stand_for() -> None:
    found = target("label", {"kind": ["red", "blue", "red", "green"]}, ["kind"])
    found.learn_codes([2, 0, 2, 1])
    assert near(found.of([2, 0, 2, 1]), found.truth) == 1
    other = target("label", {"kind": ["red", "blue", "red", "green"]}, ["kind"])
    other.learn_codes([0, 2, 1, 2])
    assert near(other.of([0, 2, 1, 2]), other.truth) < 0.5, "another order of the rows"


def test_a_report_that_is_not_as_it_should_be_is_no_fact() -> None:
    told = {
        "model.pkl": {"fitted": 0.5, "agrees": 2, "near": float("nan"), "odd": 1, "fitted_near": True},
        "other": {"fitted": 1},
        "y_train.pkl": 3,
    }
    assert facts._checked(told) == {"model.pkl": {"fitted": 0.5}}
    assert facts._checked(None) == {}


def test_nothing_is_measured_twice_and_nothing_of_files_that_are_not_valid() -> None:
    asked: list[dict[str, Any]] = []

    def inspector(script: str, _: dict[str, bytes]) -> Any:
        names: dict[str, Any] = {}
        exec(script.split("\n", 1)[0], names)
        job = json.loads(names["job"])
        asked.append(job)
        if not job["stages"]:
            return {"plain": 0.5, "attainable": 0.5, "forecast": [[0.0]]}
        return {stage: {"digest": "d", "facts": {"y_train.pkl": {"kept": 1}}} for stage in job["stages"]}

    async def play() -> list[dict[str, dict[str, float]]]:
        sandbox, tables = FakeSandbox(inspector=inspector), frozenset(PATHS[:3])
        found = []
        for _ in range(2):
            async with await sandbox.open({}) as workspace:
                for valid in (frozenset[str](), tables, tables | {"submission.csv"}):
                    found.append(await facts.measure(workspace, {"test": "twice"}, valid))
        return found

    nothing, first, second, *_ = asyncio.run(play())
    assert (nothing, first, second) == ({}, {"y_train.pkl": {"kept": 1.0}}, first)
    assert [job["stages"] for job in asked] == [
        {}, {"tables": ""}, {"tables": "d"}, {"tables": ""}, {"tables": "d"},
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [None, [], {}, {"forecast": 1}, {"tables": {"digest": 3}}])
def test_without_facts_a_file_is_still_valid(answer: Any, task: TinyTask) -> None:
    def inspector(script: str, _: dict[str, bytes]) -> Any:
        if "measure(json" in script:
            return answer
        return {"status": "valid", "shape": [80, 2] if "X_train" in script.split("\n", 1)[0] else [20, 2]}

    async def look() -> dict[str, Artifact]:
        async with await FakeSandbox(inspector=inspector).open({}) as workspace:
            return await artifacts.inspect(workspace, ["X_train.pkl", "X_test.pkl"], task.spec, task.tables)

    found = asyncio.run(look())
    assert [(a.status, dict(a.facts)) for a in found.values()] == [("valid", {}), ("valid", {})]


def look(bench: Bench, task: TinyTask, **codes: str) -> dict[str, Artifact]:
    """What is found after the expert's team, with other code for some roles."""
    code = [codes.get(role.removesuffix("_0")) or expert_code(role, task) for role in ROLES]
    result, found = bench.look(task, code, list(PATHS))
    assert result.ok, result.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_good_work_keeps_the_signal(kind: str, tmp_path: Any, bench: Bench) -> None:
    found = look(bench, tiny_task(kind, tmp_path))
    assert found == look(bench, tiny_task(kind, tmp_path)), "measured alike in another workspace"
    known = {path: artifact.facts for path, artifact in found.items()}
    assert {path: set(part) <= set(facts.FACTS[path]) for path, part in known.items()} == dict.fromkeys(
        PATHS, True
    )
    assert known["y_train.pkl"] == {"kept": 1, "order": 1, "same_values": 1, "known": 1}
    assert known["X_test.pkl"]["kept"] > 0.9 * known["X_test.pkl"]["attainable"] > 0.5
    assert known["X_test.pkl"]["same_scale"] == known["X_train.pkl"]["rows_follow"] == 1
    assert known["model.pkl"]["fitted"] > 0.8
    assert known["model.pkl"]["agrees"] > 0.8
    assert known["submission.csv"]["transmitted"] > 0.99
    assert known["submission.csv"]["order"] > 0.99


def with_lines(role: str, task: TinyTask, before: str, lines: str) -> str:
    return expert_code(role, task).replace(before, lines + before, 1)


SAVING = 'X_train.to_pickle("X_train.pkl")'
TURNED = "X_train = X_train[::-1].reset_index(drop=True)\n"
APART = "X_train, X_test = ((t - t.mean()) / (t.std() + 1e-9) for t in (X_train, X_test))\n"
LOST = [
    ("data_engineer", SAVING, "X_test = X_test[::-1].reset_index(drop=True)\n", "X_test.pkl", "rows_follow"),
    ("data_engineer", SAVING, TURNED, "X_train.pkl", "rows_follow"),
    ("data_engineer", SAVING, "X_test = X_test / 50\n", "X_test.pkl", "same_scale"),
    ("data_engineer", SAVING, APART, "X_test.pkl", "same_scale"),
    ("data_engineer", SAVING, "y_train = y_train[::-1].reset_index(drop=True)\n", "y_train.pkl", "kept"),
    ("data_engineer", SAVING, "X_train, X_test = X_train * 0, X_test * 0\n", "X_test.pkl", "kept"),
    ("modeler", "model.fit(X, y)", "y = y[::-1]\n", "model.pkl", "fitted"),
    ("modeler", "model.fit(X, y)", "X = X * 0\n", "model.pkl", "agrees"),
    ("analyst", "submission.to_csv", "submission.iloc[:, 1] = submission.iloc[:, 1].to_numpy()[::-1]\n",
        "submission.csv", "order"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seat", "before", "lines", "path", "fact"), LOST)
def test_a_loss_shows_where_it_was_made(
    seat: str, before: str, lines: str, path: str, fact: str, tmp_path: Any, bench: Bench
) -> None:
    task = tiny_task("rmsle", tmp_path)
    good, bad = look(bench, task), look(bench, task, **{seat: with_lines(f"{seat}_0", task, before, lines)})
    assert bad[path].facts[fact] < 0.5 < good[path].facts[fact]
    assert {artifact.status for artifact in bad.values()} == {"valid"}


@pytest.mark.slow
def test_a_table_that_an_agent_changed_is_no_yardstick(task: TinyTask, bench: Bench) -> None:
    spoil = expert_code("data_engineer_0", task) + 'train.iloc[::-1].to_csv("train.csv", index=False)\n'
    found = look(bench, task, data_engineer=spoil)
    assert {(a.status, len(a.facts)) for a in found.values()} == {("valid", 0)}


@pytest.mark.slow
def test_measuring_that_takes_too_long_costs_the_facts_alone(
    task: TinyTask, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "TIME_S", 0.001)
    monkeypatch.setattr(facts, "_yardsticks", {})
    found = look(bench, task)
    assert {(a.status, len(a.facts)) for a in found.values()} == {("valid", 0)}


def test_a_sample_of_rows_is_the_same_every_time() -> None:
    assert signal.sample(50, 5).tolist() == signal.sample(50, 5).tolist()
    assert sorted(signal.sample(5, 50)) == list(range(5))
