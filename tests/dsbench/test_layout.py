from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.layout import check, load_folder
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import ConfigError, DataError

OFFICIAL = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "dsbench_layout"
TOML = 'metric = "rmse"\nid = "id"\ntargets = ["price"]\n'


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A copy of the layout with its quirks: no answers, no folder, odd sample names, JSON Lines."""
    if not OFFICIAL.is_dir():
        pytest.skip(f"no shared cases at {OFFICIAL}")
    return Path(shutil.copytree(OFFICIAL, tmp_path / "official"))


def own(root: Path, name: str = "houses", toml: str = TOML) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "train.csv").write_text("id,rooms,town,price\n1,3,Bonn,100\n2,,Ulm,90\n3,4,Ulm,120\n")
    (folder / "test.csv").write_text("id,rooms,town\n4,3,Ulm\n5,2,Bonn\n")
    (folder / "answers.csv").write_text("id,price\n4,95\n5,80\n")
    (folder / "description.txt").write_text("Predict the price\nof a house.\n")
    return folder


@pytest.mark.parametrize(
    "inside", [".", "data_modeling", "data_modeling/data", "data_modeling/data/data_resplit"]
)
def test_the_official_layout_from_any_of_its_folders(
    official: Path, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tasks = {task.task_id: task for task in load_tasks(str(official / inside))}
    assert sorted(tasks) == [
        "bike-sharing-demand",
        "playground-series-s4e3",
        "playground-series-s4e6",
        "tabular-playground-series-sep-2021",
        "titanic",
    ]
    assert "dont-overfit-ii is passed over: there are no answers" in caplog.text
    bike, steel = tasks["bike-sharing-demand"], tasks["playground-series-s4e3"]
    assert (bike.spec.metric, bike.spec.id_column, bike.split) == ("rmsle", "datetime", "train")
    assert (bike.dummy, bike.reference) == (4.8, 0.0)
    assert bike.relative(2.4) == pytest.approx(0.5)
    assert "casual" not in bike.prompt
    assert (len(steel.spec.target_columns), steel.split) == (7, "test")
    names = {task.files["sample_submission.csv"].name for task in tasks.values()}
    assert {"sampleSubmission.csv", "gender_submission.csv", "sample_solution.csv"} <= names
    for task in tasks.values():
        assert set(task.files) == {"train.csv", "test.csv", "sample_submission.csv"}
        assert task.answers not in task.files.values()


def test_the_official_answers_are_perfect(official: Path) -> None:
    findings = {finding.task: finding for finding in check(official)}
    assert not findings["dont-overfit-ii"].ok
    assert "no folder" in findings["conways-reverse-game-of-life-2020"].message
    assert "digit-recognizer" not in findings
    assert sum(finding.ok for finding in findings.values()) == 5


def test_a_renamed_official_column_is_one_clear_error(official: Path) -> None:
    answers = official / "data_modeling/data/answers/titanic/test_answer.csv"
    answers.write_text(answers.read_text().replace("Survived", "Alive"))
    with pytest.raises(
        DataError, match=r"titanic/test_answer\.csv: no column 'Survived'.*Alive.*Fix: "
    ) as error:
        load_tasks(str(official))
    assert str(error.value) in [finding.message for finding in check(official) if not finding.ok]


def test_the_root_of_dsbench_comes_from_the_environment(
    official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSBENCH_ROOT", raising=False)
    with pytest.raises(ConfigError, match="DSBENCH_ROOT"):
        load_tasks("dsbench")
    monkeypatch.setenv("DSBENCH_ROOT", str(official))
    assert [task.task_id for task in load_tasks("dsbench", split="test")] == [
        "playground-series-s4e3",
        "playground-series-s4e6",
    ]


def test_own_folder(tmp_path: Path) -> None:
    own(tmp_path)
    (task,) = load_folder(tmp_path)
    assert (task.task_id, task.task_type, task.split) == ("houses", "regression", "train")
    assert task.prompt == (
        "Predict the price of a house.\n"
        "Target: price. Id: id. Metric: RMSE, lower is better.\n"
        "Numbers: rooms. Text: town. Missing values: rooms."
    )
    assert task.relative(1e9) == 1.0
    assert task.relative(None) is None
    assert load_folder(tmp_path / "houses") == [task]
    assert [finding.ok for finding in check(tmp_path)] == [True]


def test_splits_where_nobody_named_them(tmp_path: Path) -> None:
    for number in range(5):
        own(tmp_path, f"task{number}")
    splits = [task.split for task in load_folder(tmp_path)]
    assert sorted(splits) == ["test", "train", "train", "train", "val"]
    (tmp_path / "task0" / "task.toml").write_text(TOML + 'split = "test"\n')
    assert [task.split for task in load_folder(tmp_path)] == ["test", *["train"] * 4]
    with pytest.raises(DataError, match='split = "val"'):
        load_tasks(str(tmp_path), split="val")


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (
            "train.csv",
            "price",
            "cost",
            r"train\.csv: no column 'price' \(it has: id, rooms, town, cost\)\. Fix: ",
        ),
        ("test.csv", "id", "key", r"test\.csv: no column 'id'.*Fix: "),
        ("answers.csv", "price", "cost", r"answers\.csv: no column 'price'.*Fix: "),
        ("test.csv", "rooms", "price", r"test\.csv: column 'price' is the target"),
        ("task.toml", "metric", "metrik", r"task\.toml: unknown key 'metrik'"),
        ("task.toml", "rmse", "best", r"task\.toml: unknown metric 'best'; known: "),
        ("task.toml", 'id = "id"', "", r"task\.toml: 'id' is missing"),
        ("task.toml", '["price"]', "[]", r"task\.toml: 'targets' must be a list"),
        ("task.toml", '"id"', "7", r"task\.toml: 'id' must be text"),
        ("task.toml", '"id"', '"id"\nsplit = "dev"', r"split = 'dev' must be one of train, val, test"),
        ("task.toml", '"id"', '"id"\ndummy = "low"', r"'dummy' must be a score"),
        ("task.toml", "=", ":", r"task\.toml: "),
    ],
)
def test_one_clear_error_names_file_and_fix(
    tmp_path: Path, file: str, old: str, new: str, words: str
) -> None:
    path = own(tmp_path) / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=words):
        load_folder(tmp_path)
    assert [finding.ok for finding in check(tmp_path)] == [False]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    (own(tmp_path) / "test.csv").unlink()
    with pytest.raises(DataError, match=r"test\.csv: there is no such file"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("id,price\n4,95\n", "ids are not the 2 ids"),
        ("id,price\n4,95\n4,80\n", "twice"),
        ("id,price\n4,95\n5,cheap\n", "plain numbers"),
    ],
)
def test_check_reads_the_answers(tmp_path: Path, answers: str, words: str) -> None:
    (own(tmp_path) / "answers.csv").write_text(answers)
    (finding,) = check(tmp_path)
    assert not finding.ok
    assert words in finding.message


def test_labels_come_from_training(tmp_path: Path) -> None:
    own(tmp_path, toml='metric = "accuracy"\nid = "id"\ntargets = ["town"]\n')
    folder = tmp_path / "houses"
    (folder / "test.csv").write_text("id,rooms\n4,3\n5,2\n")
    (folder / "answers.csv").write_text("id,town\n4,Ulm\n5,Ulm\n")
    (task,) = load_folder(tmp_path)
    assert task.spec.labels == ("Bonn", "Ulm")
    assert "Target: town (Bonn, Ulm)." in task.prompt


def test_long_descriptions_are_cut(tmp_path: Path) -> None:
    (own(tmp_path) / "description.txt").write_text("A sentence of no use. " * 1000)
    (task,) = load_folder(tmp_path)
    assert len(task.prompt) < 800
    assert task.prompt.splitlines()[0].endswith("no use.")


def test_a_folder_without_tasks_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tasks\. Tried .*task\.toml and .*data_resplit"):
        load_folder(tmp_path)
    with pytest.raises(DataError, match="no tasks"):
        check(tmp_path)


def test_the_table_of_official_tasks_is_sound() -> None:
    import json
    from importlib import resources

    facts = json.loads((resources.files("mappa_envs.dsbench") / "dsbench.json").read_text())
    assert len(facts) == 74
    for name, task in facts.items():
        assert metrics.perfect(task["metric"]) == task["perfect"], name
        assert task["split"] in ("train", "val", "test")
    assert sum(task["split"] == "test" for task in facts.values()) == 8
