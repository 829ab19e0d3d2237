"""What is wrong with the settings and tables of a task of one's own: each is one clear finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_files import TOML, own

from mappa_envs.dsbench.layout import check, load_folder
from mappa_envs.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path_factory.mktemp("cache")))


def label_task(root: Path, more: str, *, metric: str = "f1", answers: str = "4,b\n5,a\n") -> Path:
    """Labels a, b and c in train.csv."""
    folder = own(root, "signs", f'metric = "{metric}"\nid = "id"\ntargets = ["sign"]\n{more}\n')
    (folder / "train.csv").write_text("id,rooms,sign\n1,3,a\n2,,b\n3,4,c\n6,4,\n")
    (folder / "test.csv").write_text("id,rooms\n4,3\n5,2\n")
    (folder / "answers.csv").write_text(f"id,sign\n{answers}")
    return folder


def finding_of(root: Path) -> str:
    """The one finding, with its problem; '' where there is none."""
    (finding,) = check(root)
    assert "\n" not in finding.message
    return "" if finding.ok else finding.message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("dummy = nan", "'dummy' must be a score, a finite number; got nan"),
        ("reference = inf", "'reference' must be a score, a finite number; got inf"),
        (f"dummy = 1{'0' * 400}", "'dummy' must be a score, a finite number; got 1000"),
        ("dummy = true", "'dummy' must be a score, a finite number; got True"),
        (
            "dummy = 3\nreference = 8.5",
            "reference = 8.5 must be better than dummy = 3, and a good rmse is low",
        ),
        ("dummy = 3\nreference = 3", "reference = 3 must be better than dummy = 3"),
        ("labels = [[1]]", "'labels' must be text or numbers, such as \"b\"; got [1]"),
        ("labels = [{a = 1}]", "'labels' must be text or numbers"),
        ("positive = [1]", "'positive' must be text or numbers, such as \"b\"; got [1]"),
        ("labels = " + "[" * 3000 + "]" * 3000, "task.toml: "),
    ],
)
def test_senseless_settings_are_one_clear_finding(tmp_path: Path, more: str, words: str) -> None:
    folder = own(tmp_path, toml=TOML + more + "\n")
    assert words in finding_of(tmp_path)
    with pytest.raises(DataError, match=r"task\.toml: "):
        load_folder(folder)


def test_a_reference_is_better_in_the_metrics_own_direction(tmp_path: Path) -> None:
    own(tmp_path, toml=TOML + "dummy = 8\nreference = 3\n")
    assert finding_of(tmp_path) == ""
    own(tmp_path / "other", toml=TOML.replace("rmse", "r2") + "dummy = 0.9\nreference = 0.1\n")
    assert "reference = 0.1 must be better than dummy = 0.9, and a good r2 is high" in finding_of(
        tmp_path / "other"
    )


@pytest.mark.parametrize("targets", ['[["price"]]', "[3]", '[""]'])
def test_targets_are_names(tmp_path: Path, targets: str) -> None:
    own(tmp_path, toml=TOML.replace('["price"]', targets))
    assert "'targets' must be names of columns in quotes" in finding_of(tmp_path)


@pytest.mark.parametrize(
    ("metric", "more", "words"),
    [
        ("accuracy", "", ""),
        ("accuracy", 'labels = ["a", "b", "c", "d"]', ""),
        ("accuracy", 'labels = ["a", "b"]', "the label 'c' is not among 'labels' (a, b): add it there"),
        ("map@3", 'labels = ["a", "b"]', "the label 'c' is not among 'labels' (a, b)"),
        ("qwk", "", "qwk counts how far labels are apart, so that they must be numbers; got 'a'"),
        ("f1", "", "f1 needs two labels, or the one that counts, but there are 3 (a, b, c): set 'positive'"),
        ("roc_auc", "", "roc_auc needs two labels, or the one that counts, but there are 3"),
        ("roc_auc", 'positive = "b"', ""),
        ("f1", 'positive = "x"', "positive = 'x' is not among the labels (a, b, c)"),
        ("f1", 'labels = ["a", "b", "c"]\npositive = "x"', "positive = 'x' is not among the labels"),
    ],
)
def test_labels_are_those_of_training(tmp_path: Path, metric: str, more: str, words: str) -> None:
    label_task(tmp_path, more, metric=metric)
    message = finding_of(tmp_path)
    assert words in message
    assert bool(words) is bool(message)


@pytest.mark.parametrize("gap", ["", "NaN", "NA"])
def test_a_gap_in_the_target_is_no_label(tmp_path: Path, gap: str) -> None:
    folder = label_task(tmp_path, "", metric="roc_auc", answers="4,1\n5,0\n")
    (folder / "train.csv").write_text(f"id,rooms,sign\n1,3,0\n2,,1\n3,4,{gap}\n")
    (task,) = load_folder(tmp_path)
    assert (task.spec.labels, task.spec.positive) == (("0", "1"), "1")
    assert finding_of(tmp_path) == ""


def test_true_and_1_are_the_same_label(tmp_path: Path) -> None:
    folder = label_task(tmp_path, "labels = [true, false]\npositive = true", answers="4,1\n5,0\n")
    (folder / "train.csv").write_text("id,rooms,sign\n1,3,0\n2,,1\n")
    assert finding_of(tmp_path) == ""
    (folder / "task.toml").write_text((folder / "task.toml").read_text().replace("= true", '= "yes"'))
    assert "positive = 'yes' is not among the labels" in finding_of(tmp_path)


def test_the_classes_of_training_are_the_target_columns(tmp_path: Path) -> None:
    toml = 'metric = "mc_log_loss"\nid = "id"\ntargets = ["a", "b"]\nlabel_column = "sign"\n'
    (label_task(tmp_path, "", metric="accuracy") / "task.toml").write_text(toml)
    assert "the label 'c' is not among 'targets' (a, b)" in finding_of(tmp_path)


@pytest.mark.parametrize("cell", ["cheap", "1_000", "3 €"])
def test_a_number_is_no_text(tmp_path: Path, cell: str) -> None:
    path = own(tmp_path) / "train.csv"
    path.write_text(path.read_text() + f"6,1,Ulm,\n7,1,Ulm,{cell}\n")
    message = finding_of(tmp_path)
    assert (
        f"row 5 below the header has {cell!r} in the target 'price', but rmse needs plain numbers" in message
    )


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("id\n4\n5\n", "test.csv: has the column 'id' alone; add the features of train.csv"),
        ("id,rooms,garden\n4,1,1\n5,1,1\n", "test.csv: column 'garden' is not in train.csv; add it there"),
    ],
)
def test_features_are_in_both_tables(tmp_path: Path, test: str, words: str) -> None:
    (own(tmp_path) / "test.csv").write_text(test)
    assert words in finding_of(tmp_path)


@pytest.mark.parametrize("sample", ["id,price\n4,95\n5,80\n", "price,id\n80.0,5\n95,4.0\n"])
def test_a_sample_that_is_the_answers_is_refused(tmp_path: Path, sample: str) -> None:
    (own(tmp_path) / "sample_submission.csv").write_text(sample)
    assert "sample_submission.csv holds the answers" in finding_of(tmp_path)
    with pytest.raises(DataError, match=r"sample_submission\.csv holds the answers"):
        load_folder(tmp_path)


def test_a_perfect_sample_in_other_words_is_found_by_check(tmp_path: Path) -> None:
    folder = label_task(tmp_path, 'positive = "b"', metric="roc_auc")
    (folder / "sample_submission.csv").write_text("id,sign\n4,0.9\n5,0.1\n")
    assert len(load_folder(tmp_path)) == 1
    assert "sample_submission.csv holds the answers" in finding_of(tmp_path)


def test_a_sample_with_one_guess_for_all_rows_is_no_leak(tmp_path: Path) -> None:
    folder = own(tmp_path)
    for rows in ("4,95\n", "4,95\n5,95\n"):
        (folder / "test.csv").write_text("id,rooms,town\n4,3,Ulm\n" + "5,2,Bonn\n" * (rows.count("\n") - 1))
        for name in ("answers.csv", "sample_submission.csv"):
            (folder / name).write_text("id,price\n" + rows)
        assert finding_of(tmp_path) == ""


def test_task_toml_may_have_a_byte_order_mark_but_no_other_encoding(tmp_path: Path) -> None:
    path = own(tmp_path) / "task.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert finding_of(tmp_path) == ""
    path.write_bytes(b'description = "K\xf6ln"\n' + TOML.encode())
    message = finding_of(tmp_path)
    assert "task.toml: is not UTF-8 text (invalid start byte, byte 0xf6); convert it" in message
