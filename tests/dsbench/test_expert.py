"""The scripted expert solves every kind of task, and only its artifacts stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from inspection_bench import KINDS, Bench, TinyTask, tiny_task

from mappa_envs.dsbench.artifacts import inspect
from mappa_envs.dsbench.grading import TaskSpec, grade
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.testing.expert import ExpertPolicy, expert_action, expert_code, lay_artifacts

ROLES = ["data_engineer_0", "modeler_0", "analyst_0"]
FILES = ["X_train.pkl", "y_train.pkl", "X_test.pkl", "model.pkl", "submission.csv"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if k > 1 else ()) for k, kind in enumerate(KINDS)]
)
def test_every_artifact_is_valid_and_the_submission_beats_a_guess(
    kind: str, tmp_path: Path, bench: Bench
) -> None:
    task = tiny_task(kind, tmp_path)

    async def play() -> bytes:
        async with await bench.sandbox.open(task.files) as workspace:
            await lay_artifacts(workspace, task, ROLES)
            found = await inspect(workspace, FILES, task.spec, task.tables)
            assert {a.path: (a.status, a.problem) for a in found.values()} == dict.fromkeys(
                FILES, ("valid", "")
            )
            return await workspace.read("submission.csv", 10**6)

    verdict = grade(asyncio.run(play()), task.answers, task.spec)
    assert verdict.code == "ok", verdict.message
    assert verdict.score is not None
    good = {"accuracy": 0.8, "roc_auc": 0.9, "map@3": 0.8}
    poor = {"mc_log_loss": 0.8, "rmsle": 0.4, "mcrmse": 1.5}
    assert verdict.score > good[kind] if kind in good else verdict.score < poor[kind]


def test_one_hot_targets_without_a_label_column(tmp_path: Path) -> None:
    task = tiny_task("mc_log_loss", tmp_path)
    bare = TinyTask("bare", replace(task.spec, label_column=None), task.files, task.answers)
    assert "train[['A', 'B', 'C']].idxmax(axis=1)" in expert_code("data_engineer_0", bare)


def test_scores_of_several_columns(tmp_path: Path, bench: Bench) -> None:
    def lines(table: Iterable[tuple[int, ...]]) -> str:
        return "".join(",".join(map(str, row)) + "\n" for row in table)

    rows = [(i, i % 10, int(i % 10 > 4), int(i % 3 == 0)) for i in range(100)]
    (tmp_path / "train.csv").write_text("id,x,A,B\n" + lines(rows[:80]))
    (tmp_path / "test.csv").write_text("id,x\n" + lines(row[:2] for row in rows[80:]))
    (tmp_path / "answers.csv").write_text("id,A,B\n" + lines((row[0], *row[2:]) for row in rows[80:]))
    files = {name: tmp_path / name for name in ("train.csv", "test.csv")}
    task = TinyTask("two", TaskSpec("roc_auc", "id", ("A", "B")), files, tmp_path / "answers.csv")

    async def play() -> bytes:
        async with await bench.sandbox.open(files) as workspace:
            await lay_artifacts(workspace, task, ROLES)
            return await workspace.read("submission.csv", 10**6)

    verdict = grade(asyncio.run(play()), task.answers, task.spec)
    assert verdict.code == "ok", verdict.message
    # Column A follows from x, column B does not.
    assert verdict.score is not None
    assert verdict.score > 0.65


def test_text_and_gaps_are_learnt_on_the_training_rows(tmp_path: Path, bench: Bench) -> None:
    task = tiny_task("accuracy", tmp_path)
    test = task.files["test.csv"]
    test.write_text(test.read_text().replace("Rome", "Aachen").replace("Oslo", "Zug"))
    code = expert_code("data_engineer_0", task)
    look = "print(*sorted(pd.read_pickle('X_test.pkl')['city'].unique()))"
    result, found = bench.look(task, [code, look], ["X_train.pkl", "X_test.pkl"])
    assert all(artifact.status == "valid" and not artifact.problem for artifact in found.values())
    # Bern, Oslo, Rome are 0, 1, 2: a new word gets its place in their order.
    assert result.stdout.splitlines()[-1] == "0.0 3.0"


def test_only_artifacts_are_laid(task: TinyTask, bench: Bench) -> None:
    async def files() -> list[str]:
        async with await bench.sandbox.open(task.files) as workspace:
            await lay_artifacts(workspace, task, ROLES[:2])
            listing = await workspace.run("import os; print(*sorted(os.listdir('.')))")
            return listing.stdout.split()

    assert asyncio.run(files()) == sorted([*FILES[:4], "test.csv", "train.csv"])


def test_a_message_is_short_text_and_one_closed_python_block(task: TinyTask) -> None:
    for role in ROLES:
        action = ExpertPolicy()(role, task)
        assert action == expert_action(role, task)
        assert action.count("```") == 2
        assert "```python\n" in action
        assert len(action) < 1200


def test_rows_without_a_target_are_left_out(task: TinyTask, bench: Bench) -> None:
    train = task.files["train.csv"]
    rows = train.read_text().splitlines()
    train.write_text("\n".join([rows[0], *(row.rpartition(",")[0] + "," for row in rows[1:6]), *rows[6:]]))
    code = [expert_code(role, task) for role in ROLES]
    ran, found = bench.look(task, code, FILES)
    assert ran.ok, ran.stderr
    assert {a.path: a.status for a in found.values()} == dict.fromkeys(FILES, "valid")
    assert found["X_train.pkl"].shape == (75, 3)


def test_unknown_role_and_unsolvable_task_say_so(task: TinyTask, bench: Bench) -> None:
    with pytest.raises(ConfigError, match="knows no role 'poet_0'"):
        expert_action("poet_0", task)

    async def without_data() -> None:
        async with await bench.sandbox.open({}) as workspace:
            await lay_artifacts(workspace, task, ROLES[:1])

    # On one line, with the way out.
    with pytest.raises(DataError, match=r"the scripted expert failed \(FileNotFoundError\).*starts 0\Z"):
        asyncio.run(without_data())
