"""The official layout of DSBench, and what `dsbench.json` says of its tasks."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

import pytest
from official_files import write_official, write_task

from mappa_envs.__main__ import main
from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.grading import grade
from mappa_envs.dsbench.layout import check, load_folder
from mappa_envs.dsbench.official import official_facts
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import ConfigError, DataError

FACTS = official_facts()
PAPER_TEST = {
    "lmsys-chatbot-arena", "playground-series-s3e2", "playground-series-s3e25", "playground-series-s4e1",
    "playground-series-s4e2", "playground-series-s4e3", "playground-series-s4e6",
    "tabular-playground-series-jul-2021",
}  # fmt: skip
NOT_IN_THE_PAPER = {
    "conways-reverse-game-of-life-2020", "playground-series-s3e9", "see-click-predict-fix",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def official(tmp_path: Path) -> Path:
    return write_official(tmp_path / "DSBench")


@pytest.mark.parametrize(
    "inside", ["..", "../data_modeling", "../data_modeling/data", "../data_modeling/data/data_resplit"]
)
def test_any_folder_of_the_archive_will_do(
    official: Path, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tasks = {task.task_id: task for task in load_tasks(str((official / inside).resolve()))}
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
    assert (tasks["titanic"].dummy, tasks["titanic"].reference) == (FACTS["titanic"]["baseline"], 1.0)
    names = {task.files["sample_submission.csv"].name for task in tasks.values()}
    assert {"sampleSubmission.csv", "gender_submission.csv", "sample_solution.csv"} <= names
    for task in tasks.values():
        assert set(task.files) == {"train.csv", "test.csv", "sample_submission.csv"}
        assert task.answers not in task.files.values()


def test_check_says_task_by_task_what_is_missing(official: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = {finding.task: finding for finding in check(official)}
    assert sum(finding.ok for finding in findings.values()) == 5
    assert "there are no answers at" in findings["dont-overfit-ii"].message
    assert "no folder" in findings["conways-reverse-game-of-life-2020"].message
    assert "14 training rows, 7 test rows" in findings["titanic"].message
    assert main(["data", "check", str(official)]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"PROBLEM +dont-overfit-ii: passed over: there are no answers", printed)
    assert "7 tasks looked at, 2 cannot be used" in printed


def test_check_succeeds_only_if_every_task_can_be_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_task(data, "titanic", "PassengerId", ("Survived",), [(0,), (1,)], None)
    assert main(["data", "check", str(tmp_path)]) == 0
    (data / "answers" / "titanic" / "test_answer.csv").unlink()
    assert main(["data", "check", str(tmp_path)]) == 1
    with pytest.raises(DataError, match=r"no usable task\. titanic: there are no answers at"):
        load_folder(tmp_path)


def test_an_unknown_folder_and_an_empty_one_say_so(tmp_path: Path) -> None:
    write_task(tmp_path / "data", "my-houses", "id", ("price",), [(1,), (2,)], None)
    (finding,) = check(tmp_path)
    assert not finding.ok
    assert "it is no task of DSBench" in finding.message
    assert "task.toml" in finding.message
    (tmp_path / "empty" / "data_resplit").mkdir(parents=True)
    with pytest.raises(DataError, match="no tasks"):
        check(tmp_path / "empty")


def test_a_missing_sample_is_built_and_valid(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_task(data, "titanic", "PassengerId", ("Survived",), [(0,), (1,)], None)
    write_task(data, "lmsys-chatbot-arena", "id", FACTS["lmsys-chatbot-arena"]["targets"],
        [(1, 0, 0), (0, 1, 0), (0, 0, 1)], None)  # fmt: skip
    write_task(
        data, "tweet-sentiment-extraction", "textID", ("selected_text",), [("so good",), ("bad",)], None
    )
    for name in ("commonlitreadabilityprize", "playground-series-s3e12"):
        write_task(data, name, "id", ("target",), [(0,), (1,)], None)
    tasks = load_folder(tmp_path)
    assert len(tasks) == 5
    for task in tasks:
        sample = task.files["sample_submission.csv"]
        assert tmp_path / "cache" / "samples" == sample.parent
        verdict = grade(sample, task.answers, task.spec)
        assert verdict.code == "ok", verdict.message
    assert load_folder(tmp_path) == tasks


def test_a_folder_of_one_task_is_that_task_and_others_are_all(official: Path) -> None:
    for part in ("data_resplit", "answers"):
        assert [task.task_id for task in load_tasks(str(official / "data" / part / "titanic"))] == ["titanic"]
    everything = load_folder(official)
    for inside in ("data/answers", "data/task"):
        assert load_folder(official / inside) == everything
    with pytest.raises(DataError, match=r"no tasks.*Give the folder .* DSBench's folder data_modeling"):
        load_folder(official / "save_performance" / "baseline")


def test_a_folder_may_be_given_relative(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(official / "data" / "data_resplit" / "titanic")
    assert [finding.task for finding in check(".")] == ["titanic"]


def test_what_else_lies_in_the_folders_changes_nothing(official: Path) -> None:
    tasks, findings = load_folder(official), check(official)
    folder = official / "data" / "data_resplit" / "titanic"
    for name in ("train.csv.zip", "readme.md", ".ipynb_checkpoints/gender_submission-checkpoint.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"PK")
    (official / "data.zip").write_bytes(b"PK")
    (folder.parent / "notes.txt").write_text("")
    assert load_folder(official) == tasks
    assert check(official) == findings


def test_the_sample_is_never_a_guess_among_tables(official: Path) -> None:
    folder = official / "data" / "data_resplit" / "titanic"
    answers = official / "data" / "answers" / "titanic" / "test_answer.csv"
    (folder / "a_test_answer.csv").write_text(answers.read_text())
    (task,) = load_folder(folder)
    assert task.files["sample_submission.csv"].name == "gender_submission.csv"
    (folder / "gender_submission.csv").rename(folder / "gender.csv")
    with pytest.raises(DataError, match=r"titanic: a_test_answer\.csv, gender\.csv may each be the sample"):
        load_folder(folder)
    (folder / "gender.csv").unlink()
    with pytest.raises(DataError, match=r"a_test_answer\.csv holds the answers"):
        load_folder(folder)


def test_a_renamed_column_is_one_clear_error(official: Path) -> None:
    answers = official / "data/answers/titanic/test_answer.csv"
    answers.write_text(answers.read_text().replace("Survived", "Alive"))
    with pytest.raises(
        DataError, match=r"titanic/test_answer\.csv: no column 'Survived'.*Alive.*Fix: "
    ) as error:
        load_tasks(str(official))
    assert str(error.value) in [finding.message for finding in check(official) if not finding.ok]


def test_a_missing_table_is_one_clear_error(official: Path) -> None:
    (official / "data/data_resplit/titanic/test.csv").unlink()
    with pytest.raises(DataError, match=r"titanic/test\.csv: there is no such file; restore it"):
        load_tasks(str(official))


@pytest.mark.parametrize(("result", "dummy"), [("nan", 0.5), ("", 0.5), ("0.61", 0.61)])
def test_scores_of_the_archive_count_where_they_are_numbers(
    official: Path, result: str, dummy: float
) -> None:
    name = "tabular-playground-series-sep-2021"
    folder = official / "save_performance" / "baseline" / name
    folder.mkdir()
    (folder / "result.txt").write_text(result)
    task = next(task for task in load_tasks(str(official)) if task.task_id == name)
    assert task.dummy == dummy


def test_scores_of_the_archive_in_the_wrong_order_are_refused(official: Path) -> None:
    """With them, the worst submission would have the best outcome."""
    (official / "save_performance/GT/bike-sharing-demand/result.txt").write_text("5.1")
    with pytest.raises(
        DataError, match=r"save_performance: reference = 5\.1 must be better than dummy = 4\.8"
    ):
        load_tasks(str(official))


def test_an_answer_with_a_label_unknown_to_train_is_found(official: Path) -> None:
    answers = official / "data/answers/tabular-playground-series-sep-2021/test_answer.csv"
    answers.write_text(answers.read_text().replace(",1\n", ",0.5\n", 1))
    (finding,) = [finding for finding in check(official) if finding.task.startswith("tabular")]
    assert "test_answer.csv: the label '0.5' is not among those of train.csv (0, 1)" in finding.message


def test_other_names_of_id_and_target_are_taken_from_the_answers(tmp_path: Path) -> None:
    write_task(tmp_path / "data", "playground-series-s3e10", "id", ("Strength",), [(0,), (1,)], None)
    write_task(tmp_path / "data", "playground-series-s3e3", "id", ("Attrition",), [(0,), (1,)], None)
    pulsar, staff = load_folder(tmp_path)
    assert (pulsar.spec.id_column, pulsar.spec.target_columns) == ("id", ("Strength",))
    assert (staff.spec.id_column, staff.spec.target_columns) == ("id", ("Attrition",))


def test_data_json_may_be_an_array_or_missing(official: Path) -> None:
    listing = official / "data.json"
    (official / "data/data_resplit/titanic").rename(official / "data/elsewhere")
    findings = check(official)
    assert "titanic" in {finding.task for finding in findings}
    listing.write_text("[" + ",".join(listing.read_text().splitlines()) + "]")
    assert check(official) == findings
    listing.unlink()
    assert {finding.task for finding in findings} - {finding.task for finding in check(official)} == {
        "titanic", "conways-reverse-game-of-life-2020",
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"{name: titanic}", b'{"name": "K\xf6ln"}', b"[" * 100_000])
def test_a_broken_data_json_is_named(official: Path, content: bytes) -> None:
    (official / "data.json").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.json: neither JSON nor JSON Lines"):
        check(official)


def test_the_root_comes_from_the_environment(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSBENCH_ROOT", raising=False)
    with pytest.raises(ConfigError, match="DSBENCH_ROOT"):
        load_tasks("dsbench")
    monkeypatch.setenv("DSBENCH_ROOT", str(official))
    assert [task.task_id for task in load_tasks("dsbench", split="test")] == [
        "playground-series-s4e3",
        "playground-series-s4e6",
    ]


def test_the_titanic_is_no_spaceship(official: Path) -> None:
    """The paper's released prompt of titanic is that of spaceship-titanic: who obeys it cannot succeed."""
    task = next(task for task in load_tasks(str(official)) if task.task_id == "titanic")
    assert "Target: Survived" in task.prompt
    assert "Transported" not in task.prompt
    assert "Metric: accuracy" in task.prompt
    assert "RMSE" not in task.prompt
    assert FACTS["spaceship-titanic"]["targets"] == ["Transported"]


def test_the_table_of_tasks_is_sound() -> None:
    # DSBench's 74 and tabular-playground-series-oct-2021, which has data but no script there.
    assert len(FACTS) == 75
    for name, task in FACTS.items():
        assert metrics.perfect(task["metric"]) == task["perfect"], name
        worse = task["baseline"] < task["perfect"]
        assert worse == metrics.higher_is_better(task["metric"]), name
        assert task["id"]
        assert task["targets"]
        assert task["type"] in ("classification", "regression", "text")
    kinds = [task["type"] for task in FACTS.values()]
    assert (kinds.count("classification"), kinds.count("regression"), kinds.count("text")) == (40, 34, 1)


def test_every_task_has_a_short_text_of_its_own() -> None:
    texts = [task["text"] for task in FACTS.values()]
    assert len(set(texts)) == len(texts)
    for name, task in FACTS.items():
        assert 40 < len(task["text"]) < 160, name
        assert task["text"].endswith(".")


def test_the_splits_are_the_papers() -> None:
    split = {name: task["split"] for name, task in FACTS.items()}
    assert {name for name in split if split[name] == "test"} == PAPER_TEST
    assert all(split[name] == "train" for name in NOT_IN_THE_PAPER)
    training = [name for name in FACTS if name not in PAPER_TEST | NOT_IN_THE_PAPER]
    assert len(training) == 64
    drawn = set()
    for kind in ("classification", "regression"):
        small = [
            name for name in training if FACTS[name]["type"] == kind and FACTS[name].get("mb", 1e9) <= 50
        ]
        drawn |= set(sorted(small, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:4])
    assert {name for name in split if split[name] == "val"} == drawn
