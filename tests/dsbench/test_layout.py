from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_files import TOML, own

from mappa_envs.dsbench import layout
from mappa_envs.dsbench.grading import grade
from mappa_envs.dsbench.layout import check, load_folder
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import DataError, UnavailableError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MAPPA_CACHE", str(folder))
    return folder


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


def test_a_saved_index_is_no_feature_of_the_prompt(tmp_path: Path) -> None:
    folder = own(tmp_path)
    (folder / "train.csv").write_text(",id,rooms,price\n0,1,3,100\n1,2,2,90\n")
    (folder / "test.csv").write_text(",id,rooms\n0,4,3\n1,5,2\n")
    (task,) = load_folder(tmp_path)
    assert task.prompt.splitlines()[2] == "Numbers: rooms."
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


def test_a_folder_that_is_not_there_has_no_neighbours(tmp_path: Path) -> None:
    """Only a folder that is there stands for the archive around it."""
    (tmp_path / "data_resplit" / "titanic").mkdir(parents=True)
    with pytest.raises(DataError, match=r"nowhere: no tasks, since this is no folder; correct the path$"):
        check(tmp_path / "nowhere")
    with pytest.raises(DataError) as caught:
        check("/proc")
    assert "//" not in str(caught.value)


def test_a_missing_sample_is_built_once(tmp_path: Path, cache: Path) -> None:
    own(tmp_path)
    (task,) = load_folder(tmp_path)
    sample = task.files["sample_submission.csv"]
    assert sample.read_text() == "id,price\n4,0.0\n5,0.0\n"
    stamp = sample.stat().st_mtime_ns
    assert load_folder(tmp_path)[0].files["sample_submission.csv"].stat().st_mtime_ns == stamp
    assert [path.name for path in (cache / "samples").iterdir()] == [sample.name]
    (tmp_path / "houses" / "sample_submission.csv").write_text("id,price\n4,1\n5,1\n")
    mine = load_folder(tmp_path)[0].files["sample_submission.csv"]
    assert mine == tmp_path / "houses" / "sample_submission.csv"


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path)
    (cache / "file").write_text("")
    monkeypatch.setenv("MAPPA_CACHE", str(cache / "file"))
    with pytest.raises(UnavailableError, match=r"file/samples.*MAPPA_CACHE"):
        load_folder(tmp_path)


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n"])
def test_byte_order_marks_and_line_ends_of_any_kind(tmp_path: Path, ends: str) -> None:
    folder = own(tmp_path)
    plain = load_folder(tmp_path)[0].prompt
    for path in folder.glob("*.csv"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_text().replace("\n", ends).encode())
    assert load_folder(tmp_path)[0].prompt == plain
    assert [finding.message for finding in check(tmp_path)] == [
        "regression, rmse, 3 training rows, 2 test rows"
    ]


@pytest.mark.parametrize("file", ["train.csv", "test.csv", "answers.csv"])
def test_latin_1_tables_say_how_to_convert_them(tmp_path: Path, file: str) -> None:
    path = own(tmp_path) / file
    path.write_bytes(path.read_bytes() + (b"6,1,K\xf6ln,1\n" if file == "train.csv" else b"K\xf6ln,1,1\n"))
    (finding,) = check(tmp_path)
    assert not finding.ok
    assert str(path) in finding.message
    if file != "answers.csv":
        assert "is not UTF-8 text" in finding.message
        assert "iconv -f latin1 -t utf-8" in finding.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_tables_say_how_to_convert_them(tmp_path: Path, encoding: str) -> None:
    path = own(tmp_path) / "train.csv"
    text = path.read_text() if encoding == "utf-16" else "\ufeff" + path.read_text()
    path.write_bytes(text.encode(encoding))
    (finding,) = check(tmp_path)
    assert "it looks like UTF-16, so by: iconv -f utf-16 -t utf-8" in finding.message


def test_latin_1_far_down_in_train_is_found_by_check(tmp_path: Path) -> None:
    path = own(tmp_path) / "train.csv"
    with path.open("ab") as file:
        file.write(b"6,1,Ulm,3\n" * 400_000 + b"7,1,K\xf6ln,1\n")
    assert load_folder(tmp_path)[0].task_id == "houses"
    (finding,) = check(tmp_path)
    assert "train.csv: is not UTF-8 text (invalid start byte, byte 0xf6)" in finding.message


def test_ids_as_floats_are_the_same_ids(tmp_path: Path) -> None:
    folder = own(tmp_path)
    (folder / "test.csv").write_text("id,rooms,town\n4.0,3,Ulm\n5.0,2,Bonn\n")
    assert [finding.ok for finding in check(tmp_path)] == [True]
    (task,) = load_folder(tmp_path)
    assert grade(b"id,price\n5.0,80\n4,95\n", task.answers, task.spec).score == 0


@pytest.mark.parametrize(
    ("metric", "problem"),
    [("rmse", ""), ("mae", ""), ("r2", "undefined_score"), ("pearson", "undefined_score")],
)
def test_one_test_row_is_enough_where_the_metric_is_defined(
    tmp_path: Path, metric: str, problem: str
) -> None:
    folder = own(tmp_path, toml=TOML.replace("rmse", metric))
    (folder / "test.csv").write_text("id,rooms,town\n4,3,Ulm\n")
    (folder / "answers.csv").write_text("id,price\n4,95\n")
    (finding,) = check(tmp_path)
    assert finding.ok is not bool(problem)
    assert problem in finding.message


@pytest.mark.parametrize(
    ("ids", "note"),
    [
        (("004", "005"), "; note: pandas.read_csv makes 4 of the id 004: put a letter before the ids"),
        (("a004", "005"), ""),
        (("0", "10"), ""),
    ],
)
def test_ids_that_lose_their_zeros_are_noted(tmp_path: Path, ids: tuple[str, str], note: str) -> None:
    folder = own(tmp_path)
    (folder / "test.csv").write_text(f"id,rooms,town\n{ids[0]},3,Ulm\n{ids[1]},2,Bonn\n")
    (folder / "answers.csv").write_text(f"id,price\n{ids[0]},95\n{ids[1]},80\n")
    (finding,) = check(tmp_path)
    assert finding.ok
    assert finding.message == f"regression, rmse, 3 training rows, 2 test rows{note}"


def test_a_constant_target_is_nothing_to_learn(tmp_path: Path) -> None:
    (own(tmp_path) / "train.csv").write_text("id,rooms,town,price\n1,3,Bonn,100\n2,,Ulm,100\n")
    (finding,) = check(tmp_path)
    assert not finding.ok
    assert "train.csv: the target price has the same value in all 2 rows" in finding.message


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train.csv", "", "train.csv: is empty; it needs a header line"),
        ("test.csv", "\n\n", "test.csv: is empty; it needs a header line"),
        ("test.csv", "id,rooms,town\n", "test.csv: has a header but no rows"),
        ("train.csv", "id,rooms,town,price\n", "train.csv: has a header but no rows"),
        ("train.csv", "id,rooms,rooms,price\n1,2,3,4\n", "column 'rooms' stands twice in the header"),
        (
            "train.csv",
            "id,rooms,town,price\n1,3,Bonn, Rhein,9\n",
            "row 1 below the header has 5 fields, not 4",
        ),
        ("train.csv", "id;rooms;town;price\n1;3;Bonn;9\n", "no column 'price' (it has: id;rooms;town;price)"),
        ("train.csv", 'id,rooms,town,price\n1,3,"Bonn,9\n', "row 1 below the header has 3 fields, not 4"),
        ("train.csv", "id,rooms,town,price\n1,\0,Bonn,9\n", "train.csv: has binary content"),
        ("train.csv", "id, rooms,town,price\n1,3,Bonn,9\n", "column ' rooms' has blanks around its name"),
        ("test.csv", "id,rooms,town \n4,3,Ulm\n5,2,Bonn\n", "column 'town ' has blanks around its name"),
        ("sample_submission.csv", "id,cost\n4,1\n", "sample_submission.csv: no column 'price'"),
    ],
)
def test_bad_tables_are_one_clear_finding(tmp_path: Path, file: str, content: str, words: str) -> None:
    (own(tmp_path) / file).write_text(content)
    (finding,) = check(tmp_path)
    assert not finding.ok
    assert words in finding.message
    assert "\n" not in finding.message


_MEASURE = """
import re, sys
from pathlib import Path
from mappa_envs.dsbench.layout import check, load_folder
for look in sys.argv[2:]:
    print(load_folder(Path(sys.argv[1])) if look == "load" else check(sys.argv[1])[0].message)
    print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.slow
def test_large_files_are_never_in_memory_whole(tmp_path: Path) -> None:
    """90 MB and 3 GB (sparse: one line without end), in a process whose peak of memory is measured."""
    folder = own(tmp_path)
    row = "6,1,Ulm,3\n"
    (folder / "train.csv").write_text("id,rooms,town,price\n5,1,Ulm,9\n" + row * 2_000_000)
    for name, header, rest in (("test.csv", "id,rooms,town", "1,Ulm"), ("answers.csv", "id,price", "111111")):
        with (folder / name).open("w") as file:
            file.write(f"{header}\n")
            file.writelines(f"{id_},{rest}\n" for id_ in range(10, 2_000_010))
    assert (folder / "answers.csv").stat().st_size > layout.GRADED_BYTES
    _, load_mb, message, check_mb = _measure(tmp_path, "load", "check")
    assert "2000001 training rows, 2000000 test rows; the answers are large" in message
    assert int(load_mb) < 150
    assert int(check_mb) < 150
    os.truncate(folder / "train.csv", 3 * 2**30)
    message, peak_mb = _measure(tmp_path, "check")
    assert "train.csv: has a line of more than 4194304 characters" in message
    assert int(peak_mb) < 150


def _measure(root: Path, *looks: str) -> list[str]:
    command = [sys.executable, "-c", _MEASURE, str(root), *looks]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
