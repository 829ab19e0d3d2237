from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_envs.dsbench import baselines, suite, tables
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.recipes import RECIPES
from mappa_envs.dsbench.tasks import Column, DSBenchTask, load_tasks, make_prompt
from mappa_envs.errors import ConfigError, DataError, UnavailableError


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def embedded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[DSBenchTask]:
    monkeypatch.setenv("MAPPA_CACHE", str(cache))
    return load_tasks("embedded")


@pytest.fixture
def one_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Only the tasks of iris, built into an empty cache."""
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(suite, "RECIPES", tuple(r for r in RECIPES if r.table == "iris"))
    monkeypatch.setattr(suite, "TABLES", {"iris": tables.TABLES["iris"]})
    return tmp_path / "cache"


def test_every_split_has_both_kinds(embedded: list[DSBenchTask]) -> None:
    kinds = Counter((task.split, task.task_type) for task in embedded)
    assert set(kinds) == {(s, k) for s in ("train", "val", "test") for k in ("classification", "regression")}
    assert min(kinds.values()) >= 3
    assert len(embedded) == len(RECIPES) == 38
    assert {task.task_id for task in load_tasks(split="train")} >= {"iris-species", "auto-fuel-economy"}


def test_no_table_is_in_two_splits() -> None:
    assert len({(recipe.table, recipe.split) for recipe in RECIPES}) == len(tables.TABLES)


def test_every_task_is_sound(embedded: list[DSBenchTask]) -> None:
    assert baselines.validate() == []


def test_prompts_are_short_and_tell_no_answer(embedded: list[DSBenchTask]) -> None:
    for task in embedded:
        assert len(task.prompt) < 420, task.task_id
        assert "id" in task.prompt
        assert "is better" in task.prompt
        assert all(name in task.prompt for name in task.spec.target_columns)
        assert "answers" not in "".join(map(str, task.files.values())) + task.prompt


def test_files_hold_what_they_should(embedded: list[DSBenchTask]) -> None:
    import pandas as pd

    for task in embedded:
        assert set(task.files) == {"train.csv", "test.csv", "sample_submission.csv"}
        train, test = (pd.read_csv(task.files[name]) for name in ("train.csv", "test.csv"))
        hidden = [task.spec.label_column] if task.spec.label_column else list(task.spec.target_columns)
        assert sorted(set(train.columns) - set(test.columns)) == sorted(hidden)
        ids = [*train["id"], *test["id"]]
        assert sorted(ids) == list(range(len(ids)))
        if task.task_type == "classification":
            assert train[hidden[0]].nunique() >= 2


def test_a_build_is_the_same_bytes(tmp_path: Path, embedded: list[DSBenchTask]) -> None:
    recipes = [recipe for recipe in RECIPES if recipe.table in ("penguins", "cycling", "movies")]
    suite.write_suite(tmp_path, recipes)
    built = {task.task_id: task for task in embedded}
    for recipe in recipes:
        for path in (tmp_path / recipe.name).iterdir():
            assert path.read_bytes() == (built[recipe.name].answers.parent / path.name).read_bytes()
            assert b"\r" not in path.read_bytes()


def _build(_: int) -> str:
    return str(suite.ensure_built())


def test_two_processes_may_build_at_once(one_table: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        folders = set(pool.map(_build, range(4)))
    assert len(folders) == 1
    assert [path.name for path in one_table.iterdir()] == [Path(folders.pop()).name]


def test_a_damaged_cache_is_built_again(one_table: Path) -> None:
    folder = suite.ensure_built()
    (folder / "iris-species" / "train.csv").write_text("id\n")
    assert suite.ensure_built() == folder
    assert (folder / "iris-species" / "train.csv").stat().st_size > 1000
    assert list(one_table.iterdir()) == [folder]


def test_a_changed_source_disables_its_tasks(
    one_table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wine = replace(tables.TABLES["wine"], files=("wine_2.csv",))
    monkeypatch.setitem(tables.TABLES, "wine", wine)
    monkeypatch.setattr(suite, "TABLES", {"iris": tables.TABLES["iris"], "wine": wine})
    monkeypatch.setattr(suite, "RECIPES", tuple(r for r in RECIPES if r.table in ("iris", "wine")))
    with caplog.at_level(logging.WARNING):
        folder = suite.ensure_built()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["iris-petals", "iris-species"]
    assert "wine-cultivar" in caplog.text
    assert "wine_2.csv" in caplog.text
    monkeypatch.setattr(tables, "checksums", dict)
    with pytest.raises(UnavailableError, match=r"iris\.csv has changed"):
        suite.ensure_built()


def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_table: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UnavailableError, match=r"file/cache.*MAPPA_CACHE"):
        load_tasks("embedded")


def test_a_full_disk_leaves_nothing_behind(one_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(root: Path, recipes: object) -> None:
        (root / "half").write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suite, "write_suite", full)
    with pytest.raises(UnavailableError, match=r"cache: No space left on device"):
        suite.ensure_built()
    assert list(one_table.iterdir()) == []


def test_unknown_sources_and_splits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nowhere'.*known: 'embedded'"):
        load_tasks("nowhere")
    with pytest.raises(ConfigError, match="known: train, val, test"):
        load_tasks("embedded", split="dev")
    with pytest.raises(DataError, match="no tasks"):
        load_tasks(str(tmp_path))


def test_relative_scores_are_clipped_in_either_direction(tmp_path: Path) -> None:
    def task(dummy: float | None, reference: float | None) -> DSBenchTask:
        spec = TaskSpec("rmse", "id", ("x",))
        return DSBenchTask(
            task_id="t", task_type="regression", split="train", prompt="", spec=spec, answers=tmp_path,
            dummy=dummy, reference=reference,
        )  # fmt: skip

    assert [task(8, 4).relative(score) for score in (9, 8, 6, 4, 0)] == [0, 0, 0.5, 1, 1]
    assert [task(0.5, 0.9).relative(score) for score in (0.1, 0.7, 1.0)] == pytest.approx([0, 0.5, 1])
    assert task(None, None).relative(123.0) == 1.0
    assert task(8, 4).relative(None) is None


def test_long_column_lists_are_shortened() -> None:
    columns = [Column(name=f"c{i}", is_number=i % 2 == 0, has_gaps=i == 3) for i in range(30)]
    prompt = make_prompt("Predict.", TaskSpec("roc_auc", "id", ("y",), positive="1"), columns)
    assert prompt.splitlines()[1] == (
        "Target: y (probability of 1). Id: id. Metric: ROC-AUC, higher is better."
    )
    assert prompt.splitlines()[2] == (
        "Numbers: c0, c2, c4, c6. Text: c1, c3, c5, c7. … (30 columns). Missing values: c3."
    )


def test_importing_and_loading_is_light(cache: Path, embedded: list[DSBenchTask]) -> None:
    code = (
        "import sys; from mappa_envs.dsbench import grading, layout, metrics, suite, tasks; "
        "tasks.load_tasks(split='train'); "
        "heavy = {'torch', 'transformers', 'ray', 'litellm', 'docker', 'pandas', 'sklearn'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    environment = {**os.environ, "MAPPA_CACHE": str(cache)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
