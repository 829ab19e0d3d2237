from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_envs.dsbench.grading import (
    CODES,
    TaskSpec,
    canonical,
    grade,
    judge,
    perfect_submission,
    size_limit,
)
from mappa_envs.dsbench.metrics import METRICS, REPORT_KEYS
from mappa_envs.errors import ConfigError, DataError

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "submissions"
PRICE = TaskSpec("rmse", "id", ("price",))
PRICES = "id,price\n3,10\n1,20\n2,30\n"
SPECIES = TaskSpec("accuracy", "id", ("kind",), labels=("cat", "dog", "owl"))
KINDS = "id,kind\n1,cat\n2,dog\n3,dog\n"


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return write(tmp_path / "answers.csv", PRICES)


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    return write(tmp_path / "answers.csv", KINDS)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def cases() -> list[object]:
    if not (CASES / "expected.json").is_file():
        return [pytest.param({}, marks=pytest.mark.skip(reason=f"no shared cases at {CASES}"))]
    return [pytest.param(case, id=case["file"]) for case in json.loads((CASES / "expected.json").read_text())]


@pytest.mark.parametrize("case", cases())
def test_shared_cases(case: dict[str, object]) -> None:
    spec = TaskSpec(**json.loads((CASES / "tasks.json").read_text())[case["task"]])
    verdict = grade(CASES / str(case["file"]), CASES / "answers" / f"{case['task']}.csv", spec)
    assert (verdict.valid, verdict.code) == (case["valid"], case["code"])
    assert verdict.score == (None if case["score"] is None else pytest.approx(case["score"], abs=1e-5))
    assert bool(verdict.warnings) is case["warning"]
    assert bool(verdict.message) is not verdict.valid


@pytest.mark.parametrize(
    ("submission", "code"),
    [
        (None, "no_file"),
        (b"", "empty_file"),
        (b" \r\n\t\n", "empty_file"),
        (b"\xef\xbb\xbf", "empty_file"),
        (b'""\n""\n', "empty_file"),
        (b"\x80\x04\x95", "not_text"),
        ("id,price\n1,2\n".encode("utf-16"), "not_text"),
        (b"id,price\n1,2,3\n", "ragged"),
        (b"id,price,price\n1,2\n", "ragged"),
        (b"cost,cost\n1,2\n", "duplicate_columns"),
        (b"cost,rooms\n", "missing_id_column"),
        (b"id,price\n1,20\n2,30\n9,1\n", "missing_ids"),
        (b"id,price\n3,\n1,20\n2,x\n4,1\n", "unknown_ids"),
        (b"id,price\n3,10\n1,inf\n2,thirty\n", "not_numeric"),
        (b"id,price\n1\n", "ragged"),
        (b'id,price\n1,"' + b"x" * 200_000, "ragged"),
        (b"id,price,price\n1,2,3\n", "duplicate_columns"),
        (b"3,10\n1,20\n2,30\n", "missing_id_column"),
        (b"id,cost\n3,10\n1,20\n2,30\n", "missing_target_column"),
        (b"id,price\n", "no_rows"),
        (b"id,price\n,10\n1,20\n2,30\n", "blank_id"),
        (b"id,price\n3,10\n1,20\n1,20\n", "duplicate_ids"),
        (b"id,price\n3,10\n1,20\n", "missing_ids"),
        (b"id,price\n3,10\n1,20\n2,30\n4,1\n", "unknown_ids"),
        (b"id,price\n3,\n1,20\n2,x\n", "blank_prediction"),
        (b"id,price\n3,$10\n1,inf\n2,30\n", "not_numeric"),
        (b"id,price\n3,1_0\n1,20\n2,30\n", "not_numeric"),
        (b"id,price\n3,-inf\n1,20\n2,30\n", "not_finite"),
        (b"id,price\n3,1e999\n1,20\n2,30\n", "not_finite"),
        (b"id,price\n3,1e200\n1,20\n2,30\n", "undefined_score"),
        (b"id,price\n3,10\n1,20\n2,30\n", "ok"),
    ],
)
def test_codes(prices: Path, submission: bytes | None, code: str) -> None:
    verdict = grade(submission, prices, PRICE)
    assert verdict.code == code
    assert verdict.code in CODES
    assert (verdict.score is None) is not verdict.valid


def test_what_is_no_file_is_never_followed(prices: Path, tmp_path: Path) -> None:
    link, folder, pipe = tmp_path / "link", tmp_path / "folder", tmp_path / "pipe"
    link.symlink_to(prices)
    folder.mkdir()
    os.mkfifo(pipe)
    assert grade(prices, prices, PRICE).score == 0
    assert [grade(path, prices, PRICE).code for path in (link, folder, pipe)] == ["not_a_file"] * 3
    assert grade(tmp_path / "nothing", prices, PRICE).code == "no_file"


def test_a_large_file_is_refused_before_it_is_read(prices: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.csv"
    with big.open("wb") as file:
        file.truncate(50 * 2**30)
    assert grade(big, prices, PRICE).code == "too_large"


def test_the_size_limit_leaves_room_for_every_cell() -> None:
    def least(num_columns: int, cell: str) -> int:
        return 500_000 * (num_columns + 1) * (len(cell) + 1)

    few = TaskSpec("rmse", "id", ("price",))
    many = TaskSpec("mc_log_loss", "id", [f"class {n}" for n in range(100)], label_column="kind")
    words = TaskSpec("jaccard", "id", ("selected",))
    assert size_limit(3, few) == size_limit(3, words) == 32 * 2**20
    assert size_limit(500_000, few) > least(1, "-1.7976931348623157e+308")
    assert size_limit(500_000, many) > least(100, "-1.7976931348623157e+308")
    assert size_limit(500_000, words) > least(1, "word " * 100)


def test_messages_say_what_to_mend(prices: Path, kinds: Path) -> None:
    assert (
        "1 of 3 ids of test.csv are missing: 2" in grade(b"id,kind\n3,cat\n1,cat\n", kinds, SPECIES).message
    )
    codes = grade(b"id,kind\n1,0\n2,1\n3,1\n", kinds, SPECIES).message
    assert "must be one of cat, dog, owl; got 0, 1" in codes
    assert "inverse_transform" in codes
    assert "line 3 has 3 fields" in grade(b"id,kind\n1,0\n2,1,1\n", kinds, SPECIES).message


def test_labels_that_the_answers_lack_may_be_predicted(kinds: Path) -> None:
    assert grade(b"id,kind\n1,owl\n2,dog\n3,dog\n", kinds, SPECIES).score == pytest.approx(2 / 3)


def test_a_label_called_none_is_no_blank(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,kind\n1,None\n2,some\n")
    spec = TaskSpec("accuracy", "id", ("kind",))
    assert grade(answers, answers, spec).score == 1
    assert grade(b"id,kind\n1,nan\n2,some\n", answers, spec).code == "blank_prediction"


@pytest.mark.parametrize("guess", ["True,False", "true,FALSE", "1,0", "1.0,0.0"])
@pytest.mark.parametrize("truth", ["1,0", "True,False"])
def test_booleans_and_digits_stand_for_each_other(tmp_path: Path, truth: str, guess: str) -> None:
    table = "id,kind\na,{}\nb,{}\n"
    answers = write(tmp_path / "answers.csv", table.format(*truth.split(",")))
    spec = TaskSpec("accuracy", "id", ("kind",))
    assert grade(table.format(*guess.split(",")).encode(), answers, spec).score == 1


def test_a_decimal_is_no_label(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,level\n1,2\n2,3\n")
    spec = TaskSpec("qwk", "id", ("level",), labels=("1", "2", "3"))
    assert grade(b"id,level\n1,2.0\n2,3\n", answers, spec).score == 1
    assert grade(b"id,level\n1,2.4\n2,3\n", answers, spec).code == "not_a_label"


def test_the_positive_class_of_text_labels_is_the_last(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,sick\n1,yes\n2,no\n3,yes\n")
    guess = b"id,sick\n1,0.9\n2,0.1\n3,0.8\n"
    assert grade(guess, answers, TaskSpec("roc_auc", "id", ("sick",))).score == 1
    assert grade(guess, answers, TaskSpec("roc_auc", "id", ("sick",), positive="no")).score == 0
    assert grade(b"id,sick\n1,1.2\n2,0\n3,1\n", answers, TaskSpec("log_loss", "id", ("sick",))).code == (
        "not_probability"
    )


def test_class_probabilities_are_scaled_with_a_warning(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,a,b\n1,1,0\n2,0,1\n")
    spec = TaskSpec("mc_log_loss", "id", ("a", "b"))
    verdict = grade(b"id,a,b\n1,0.6,0.2\n2,0.2,0.6\n", answers, spec)
    assert verdict.score == pytest.approx(0.2876820724)
    assert "scaled" in verdict.warnings[0]
    assert grade(b"id,a,b\n1,0,0\n2,0.2,0.6\n", answers, spec).code == "not_probability"


def test_a_saved_index_is_ignored_with_a_warning(prices: Path) -> None:
    verdict = grade(b",id,price\n0,3,10\n1,1,20\n2,2,30\n", prices, PRICE)
    assert verdict.score == 0
    assert "saved index" in verdict.warnings[0]


def test_the_id_column_is_never_taken_for_a_target(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,ID\n1,5\n")
    assert grade(b"id,x\n1,5\n", answers, TaskSpec("rmse", "id", ("ID",))).code == "missing_target_column"


def test_a_text_may_be_blank_only_where_the_truth_is(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,part\n1,so nice\n2,\n")
    spec = TaskSpec("jaccard", "id", ("part",))
    assert grade(answers, answers, spec).score == 1
    assert grade(b"id,part\n1,\n2,x\n", answers, spec).code == "blank_prediction"


@given(order=st.permutations(range(12)), values=st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=12))
def test_the_order_of_rows_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], values: list[float]
) -> None:
    answers = tmp_path_factory.getbasetemp() / "twelve.csv"
    if not answers.exists():
        answers.write_text("id,price\n" + "".join(f"{i},{i * i}\n" for i in range(12)))
    rows = [f"{i},{value!r}\n" for i, value in enumerate(values)]
    straight = grade(("id,price\n" + "".join(rows)).encode(), answers, PRICE)
    shuffled = grade(("id,price\n" + "".join(rows[i] for i in order)).encode(), answers, PRICE)
    assert straight == shuffled
    assert straight.valid
    without = grade(("id,price\n" + "".join(rows[i] for i in order[1:])).encode(), answers, PRICE)
    assert without.code == "missing_ids"


@given(
    content=st.one_of(st.binary(max_size=200), st.text(alphabet='id,price"\n\r0123.eE+-_ ä').map(str.encode))
)
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    answers = tmp_path_factory.getbasetemp() / "three.csv"
    if not answers.exists():
        answers.write_text(PRICES)
    assert grade(content, answers, PRICE).code in CODES


@pytest.mark.parametrize("name", sorted(METRICS))
def test_the_truth_is_perfect_by_every_metric(tmp_path: Path, name: str) -> None:
    answers = write(tmp_path / "answers.csv", "id,x\n1,0\n2,1\n3,1\n4,0\n")
    spec = TaskSpec(name, "id", ("x",))
    if name == "mc_log_loss":
        spec = TaskSpec(name, "id", ("0", "1"), label_column="x")
    verdict = grade(perfect_submission(answers, spec), answers, spec)
    assert verdict.score == pytest.approx(1.0 if METRICS[name].higher_is_better else 0.0, abs=1e-9)


def test_report_of_a_submission(prices: Path) -> None:
    _, figures = judge(b"id,price\n3,12\n1,22\n2,32\n", prices, PRICE)
    assert (figures["rmse"], figures["rmse_pct"], figures["accuracy"]) == (2.0, 10.0, None)
    assert judge(b"id,price\n3,12\n", prices, PRICE)[1] == dict.fromkeys(REPORT_KEYS)


@pytest.mark.parametrize(
    ("name", "labels", "defined"),
    [
        ("accuracy", ("0", "1"), "accuracy f1 roc_auc"),
        ("qwk", ("0", "1", "2"), "accuracy f1"),
        ("log_loss", None, "accuracy f1 roc_auc"),
        ("mc_log_loss", None, "accuracy f1 roc_auc"),
        ("mae", None, "mae mae_pct rmse rmse_pct r2"),
        ("map@3", ("0", "1", "2"), "accuracy f1"),
        ("jaccard", None, ""),
    ],
)
def test_figures_that_each_kind_of_task_has(
    tmp_path: Path, name: str, labels: tuple[str, ...] | None, defined: str
) -> None:
    answers = write(tmp_path / "answers.csv", "id,x\n1,0\n2,1\n3,1\n4,0\n")
    spec = TaskSpec(name, "id", ("x",), labels=labels)
    if name == "mc_log_loss":
        spec = TaskSpec(name, "id", ("0", "1"), label_column="x")
    submission = perfect_submission(answers, spec)
    verdict, figures = judge(submission, answers, spec)
    assert {key for key, value in figures.items() if value is not None} == set(defined.split())
    assert tuple(figures) == REPORT_KEYS
    assert verdict == grade(submission, answers, spec)


def test_broken_answers_are_the_owners_fault(tmp_path: Path) -> None:
    good = PRICES.encode()
    for text, words in (
        ("id,cost\n1,2\n", "no column 'price'"),
        ("id,price\n1,2\n1,3\n", "twice"),
        ("id,price\n1,much\n", "plain numbers"),
        ("id,price\n", "unusable answers: there are none"),
    ):
        with pytest.raises(DataError, match=words):
            grade(good, write(tmp_path / "answers.csv", text), PRICE)
    with pytest.raises(DataError, match=r"gone\.csv"):
        grade(good, tmp_path / "gone.csv", PRICE)


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "map@3"])
@pytest.mark.parametrize("gap", ["", "nan", " NaN"])
def test_answers_without_a_label(tmp_path: Path, metric: str, gap: str) -> None:
    answers = write(tmp_path / "answers.csv", f"id,x\n1,a\n2,{gap}\n")
    with pytest.raises(DataError, match=r"column 'x' has no label in 1 rows"):
        grade(b"id,x\n1,1\n2,0\n", answers, TaskSpec(metric, "id", ("x",)))
    named = TaskSpec("accuracy", "id", ("x",), labels=("a", gap.strip().lower()))
    if gap == gap.strip().lower():
        assert grade(f"id,x\n1,a\n2,{gap}\n".encode(), answers, named).score == 1


def test_a_ranking_of_labels_with_blanks_cannot_be_written(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.csv", "id,x\n1,Zika\n2,West Nile\n")
    with pytest.raises(DataError, match=r"column 'x' has the label 'West Nile'.* in one word"):
        grade(b"id,x\n1,Zika\n2,Zika\n", answers, TaskSpec("map@3", "id", ("x",)))
    assert grade(answers, answers, TaskSpec("accuracy", "id", ("x",))).score == 1


@pytest.mark.parametrize("metric", ["f1", "roc_auc"])
def test_a_positive_that_is_no_label(tmp_path: Path, metric: str) -> None:
    answers = write(tmp_path / "answers.csv", "id,sick\n1,yes\n2,no\n")
    with pytest.raises(DataError, match=r"positive = 'ill' is not one of the labels no, yes"):
        grade(b"id,sick\n1,1\n2,0\n", answers, TaskSpec(metric, "id", ("sick",), positive="ill"))
    booleans = write(tmp_path / "booleans.csv", "id,sick\n1,True\n2,False\n")
    assert grade(booleans, booleans, TaskSpec("f1", "id", ("sick",), positive="1")).score == 1


def test_a_spec_knows_its_metric_by_any_name() -> None:
    assert TaskSpec("Quadratic_Weighted_Kappa", "id", ["x"]).metric == "qwk"
    with pytest.raises(ConfigError, match="unknown metric"):
        TaskSpec("best", "id", ("x",))


@pytest.mark.parametrize(
    ("cell", "same"),
    [("1.0", "1"), (" 2. ", "2"), ("007", "007"), ("2.4", "2.4"), ("-0.0", "0"), ("-0", "0"), ("-1.0", "-1")],
)
def test_ids_and_labels_compare_as_text(cell: str, same: str) -> None:
    assert canonical(cell) == same


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"target_columns": "y"}, "target_columns"),
        ({"target_columns": []}, "target_columns"),
        ({"target_columns": ["y", "y"]}, "target_columns: 'y' is the id column or stands twice"),
        ({"target_columns": ["id"]}, "target_columns: 'id' is the id column or stands twice"),
        ({"target_columns": [1]}, "target_columns"),
        ({"metric": None}, "metric"),
        ({"id_column": None}, "id_column"),
    ],
)
def test_a_spec_that_makes_no_sense_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TaskSpec(**{"metric": "rmse", "id_column": "id", "target_columns": ("y",), **changes})
