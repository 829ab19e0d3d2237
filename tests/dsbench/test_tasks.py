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

from mappa_envs.dsbench import baselines, metrics, suite, tables
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.dsbench.recipes import RECIPES
from mappa_envs.dsbench.tasks import Column, DSBenchTask, load_tasks, make_prompt, too_good
from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_envs.sampling import stratified
from mappa_envs.types import Task


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


@pytest.mark.slow
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
    with pytest.raises(ConfigError, match="tasks: empty"):  # of a shell variable that nobody set
        load_tasks("")
    with pytest.raises(ConfigError, match=r"'nowhere'.*known: 'embedded'"):
        load_tasks("nowhere")
    with pytest.raises(ConfigError, match="known: train, val, test"):
        load_tasks("embedded", split="dev")
    with pytest.raises(DataError, match="no tasks"):
        load_tasks(str(tmp_path))


def test_relative_scores_are_clipped_in_either_direction() -> None:
    falling, rising = toy_task("rmse", 8, 4), toy_task("roc_auc", 0.5, 0.9)
    assert [falling.relative(score) for score in (9, 8, 6, 4, 0)] == [0, 0, 0.5, 1, 1]
    assert [rising.relative(score) for score in (0.1, 0.7, 1.0)] == pytest.approx([0, 0.5, 1])
    assert toy_task("rmse", None, None).relative(123.0) == 1.0
    assert falling.relative(None) is None


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


def toy_task(metric: str, dummy: float | None, reference: float | None) -> DSBenchTask:
    return DSBenchTask(
        task_id="t", task_type="regression", split="train", prompt="", spec=TaskSpec(metric, "id", ("x",)),
        answers=Path("answers.csv"), dummy=dummy, reference=reference,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "dummy", "reference", "score", "suspicious"),
    [
        ("rmse", 10.0, 4.0, 0.0, True),
        ("rmse", 10.0, 4.0, 0.19, True),
        ("rmse", 10.0, 4.0, 0.21, False),
        ("rmse", 10.0, 1.4, 0.0, False),
        ("roc_auc", 0.5, 0.8, 1.0, True),
        ("roc_auc", 0.5, 0.8, 0.98, False),
        ("r2", 0.0, 0.7, 0.99, True),
        ("rmse", 10.0, 0.0, 0.0, False),
        ("rmse", 0.0, 0.0, 0.0, False),
        ("rmse", None, 4.0, 0.0, False),
        ("rmse", 10.0, None, 0.0, False),
        ("rmse", 10.0, 4.0, None, False),
    ],
)
def test_a_score_too_good_to_be_true(
    metric: str, dummy: float | None, reference: float | None, score: float | None, suspicious: bool
) -> None:
    assert too_good(toy_task(metric, dummy, reference), score) is suspicious


def test_perfect_scores_are_suspicious_on_hard_tasks_and_the_experts_never(
    embedded: list[DSBenchTask],
) -> None:
    perfect = {task.task_id for task in embedded if too_good(task, metrics.perfect(task.spec.metric))}
    assert {"titanic-survival", "cycling-power", "superstore-sales", "emissions"} <= perfect
    assert not {"breast-cancer", "iris-species", "digits", "digits-eight", "wine-cultivar"} & perfect
    assert len(perfect) >= 25
    for task in embedded:
        assert not too_good(task, suite.read_baselines()[task.task_id]["expert"])
        assert not too_good(task, task.reference)
    emissions = next(task for task in embedded if task.task_id == "emissions")
    # The mean of the neighbouring years of each country: the best honest guess that we know.
    assert not too_good(emissions, 13.46)


def kinds_of(counts: dict[str, int]) -> list[Task]:
    return [
        Task(task_id=f"{kind}-{i}", task_type=kind, split="train", prompt="")
        for kind, count in counts.items()
        for i in range(count)
    ]


def test_every_step_has_the_types_in_proportion() -> None:
    tasks = kinds_of({"classification": 34, "regression": 29, "text": 1})
    for step in range(1, 40):
        count = Counter(task.task_type for task in stratified(tasks, 16, seed=3, step=step))
        assert 7 <= count["classification"] <= 10
        assert 6 <= count["regression"] <= 9


@pytest.mark.parametrize("count", [1, 4, 5, 10, 11, 23])
def test_every_task_is_drawn_before_any_is_drawn_again(count: int) -> None:
    tasks = kinds_of({"classification": 6, "regression": 4})
    drawn = [task.task_id for step in range(1, 31) for task in stratified(tasks, count, seed=0, step=step)]
    for start in range(0, len(drawn) - 9, 10):
        assert len(set(drawn[start : start + 10])) == 10
    for start in range(0, len(drawn), count):
        assert len(set(drawn[start : start + count])) == min(count, 10)


def test_stratified_steps_are_a_function_of_seed_and_step() -> None:
    tasks = kinds_of({"classification": 9, "regression": 9})
    first = stratified(tasks, 6, seed=1, step=5)
    assert stratified(list(reversed(tasks)), 6, seed=1, step=5) == first
    assert stratified(tasks, 6, seed=2, step=5) != first
    assert stratified(tasks, 6, seed=1, step=1) != stratified(tasks, 6, seed=1, step=4)
    for arguments in ((tasks, 0, 1, 1), (tasks, 1, 1, 0), ([], 1, 1, 1)):
        with pytest.raises(ConfigError, match="must be 1 or more"):
            stratified(*arguments)


def test_max_mb_leaves_out_large_tasks(embedded: list[DSBenchTask], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        small = load_tasks("embedded", "train", max_mb=0.05)
    names = {task.task_id for task in small}
    assert "iris-species" in names
    assert "superstore-sales" not in names
    assert "task superstore-sales is left out: 0." in caplog.text
    assert len(load_tasks("embedded", "train", max_mb=100)) == 22
    with pytest.raises(DataError, match=r"max_mb = 0: the smallest task has 0\.\d+ MB"):
        load_tasks("embedded", max_mb=0)
