"""Hostile, broken and unusual submissions: what each is called, and that nothing raises or hangs."""

from __future__ import annotations

import csv
import io
import os
import random
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_envs.dsbench import submission
from mappa_envs.dsbench.grading import CODES, Grade, TaskSpec, grade, perfect_submission
from mappa_envs.dsbench.metrics import METRICS

PRICE = TaskSpec("rmse", "id", ("price",))
PRICES = "id,price\n3,10\n1,20\n2,30\n"
SICK = TaskSpec("log_loss", "id", ("sick",))
SICKS = "id,sick\n1,1\n2,0\n"
ILLNESS = TaskSpec("map@3", "id", ("name",), labels=("ache", "cold", "flu"))
ILLNESSES = "id,name\n1,flu\n2,cold\n"
SHARES = TaskSpec("mc_log_loss", "id", ("A", "B"), label_column="kind")
KINDS = "id,kind\n1,A\n2,B\n"
MB = 2**20


def by(metric: str) -> TaskSpec:
    return TaskSpec(metric, "id", ("x",))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.csv"
    path.write_text(PRICES)
    return path


def judged(tmp_path: Path, content: str | bytes, truth: str, spec: TaskSpec) -> Grade:
    path = tmp_path / "answers.csv"
    path.write_text(truth)
    return grade(content.encode() if isinstance(content, str) else content, path, spec)


def test_paths_that_hold_no_submission(answers: Path, tmp_path: Path) -> None:
    sock = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sock))
        assert grade(sock, answers, PRICE).code == "not_a_file"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    assert grade(dangling, answers, PRICE).code == "not_a_file"
    for path in ("/dev/zero", "/dev/stdin", "x" * 300):
        assert grade(tmp_path / path, answers, PRICE).code == "not_a_file"
    for path in (answers / "inside", tmp_path / "zero\0byte"):
        assert grade(path, answers, PRICE).code == "no_file"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc: no file whose reading fails")
def test_a_file_that_cannot_be_read_to_its_end(answers: Path) -> None:
    verdict = grade(Path("/proc/self/mem"), answers, PRICE)
    assert verdict.code == "not_a_file"
    assert "cannot be read" in verdict.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(answers: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed.csv"
    closed.write_text(PRICES)
    closed.chmod(0)
    assert grade(closed, answers, PRICE).code == "not_a_file"


@pytest.mark.parametrize(("size", "code"), [(0, "empty_file"), (14, "missing_ids"), (40 * MB, "too_large")])
def test_a_file_that_changes_after_it_was_opened(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, code: str
) -> None:
    moving = tmp_path / "submission.csv"
    moving.write_text(PRICES)
    look = os.fstat

    def look_and_change(descriptor: int) -> os.stat_result:
        about = look(descriptor)
        os.truncate(moving, size)
        return about

    monkeypatch.setattr(submission.os, "fstat", look_and_change)
    assert grade(moving, answers, PRICE).code == code


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (PRICES.replace("\n", "\r"), "ok", ""),
        (PRICES.replace("\n", "\r\n\r\n"), "ok", ""),
        ('\ufeff"id","price"\r\n"3","1e1"\r\n"1"," 20"\r\n" 2 ","30.0"', "ok", ""),
        (PRICES.replace("10", "True"), "ok", ""),
        (PRICES.encode("utf-16"), "not_text", "UTF-8"),
        (PRICES.encode("utf-16-le"), "not_text", "UTF-16"),
        (PRICES.replace("id", "é").encode("latin-1"), "not_text", "byte 0"),
        ("id,price\n3,\0\n", "not_text", "to_csv"),
        ("```csv\n" + PRICES, "ragged", "line 2 has 2 fields, the header has 1"),
        ('id,price\n3,10\n1,20\n2,"30\n', "ragged", "never closed"),
        ('id,price\n"3,10\n1,20\n2,30\n', "ragged", "never closed"),
        ('"', "ragged", "never closed"),
        (PRICES + '"', "ragged", "never closed"),
        ("id,price\n3," + "1" * 200_000, "ragged", "limit"),
        (",,id,price\n0,0,3,10\n", "duplicate_columns", "no name"),
        (PRICES.replace(",", ";"), "missing_id_column", "separated by commas"),
        (PRICES.replace(",", "\t"), "missing_id_column", "separated by commas"),
        ("ID,Id,price\n3,3,10\n", "missing_id_column", "no column 'id'"),
        (PRICES.replace("id,", ","), "missing_id_column", "a saved index?"),
        (PRICES + PRICES, "duplicate_ids", "3 rows repeat an id of column 'id': 3, 1, 2"),
        (PRICES.replace("3,", "03,", 1), "missing_ids", "ids such as 03, 1, 2"),
        (PRICES.replace("3,", "3e0,", 1), "missing_ids", "1 of 3"),
        ("id,price\n3,10\n1,20\n2,30\n7,1\n", "unknown_ids", "1 ids are not in test.csv: 7"),
        (PRICES.replace("10", "+nan").replace("20", ""), "blank_prediction", "2 of 3 cells of 'price'"),
        (PRICES.replace("10", "10%"), "not_numeric", "1 of 3 cells of 'price' are not plain numbers: 10%"),
        (PRICES.replace("10", '"1,000"'), "not_numeric", "thousands"),
        (PRICES.replace("10", '"10,5"'), "not_numeric", "decimal commas"),
        (PRICES.replace("10", "0x0A"), "not_numeric", "0x0A"),
        (PRICES.replace("10", "１０"), "not_numeric", "plain numbers"),
        (PRICES.replace("10", "\x1b[31mred"), "not_numeric", "\ufffd[31mred"),
        (
            PRICES.replace("10", "1e400"),
            "not_finite",
            "1 of 3 cells of 'price' are infinite or too large: 1e400",
        ),
        (PRICES.replace("10", "Infinity"), "not_finite", "Infinity"),
        (PRICES.replace("10", "1e308"), "undefined_score", "rmse"),
    ],
)
def test_unusual_tables(answers: Path, content: str | bytes, code: str, words: str) -> None:
    verdict = grade(content.encode() if isinstance(content, str) else content, answers, PRICE)
    assert verdict.code == code
    assert words in verdict.message
    assert (verdict.message == "") is verdict.valid
    assert "\x1b" not in verdict.message


@pytest.mark.parametrize(
    ("content", "truth", "spec", "code", "words"),
    [
        (
            "id,sick\n1,1.2\n2,0\n",
            SICKS,
            SICK,
            "not_probability",
            "1 of 2 cells of 'sick' are outside [0, 1]: 1.2;",
        ),
        ("id,sick\n1,1.00001\n2,0\n", SICKS, SICK, "not_probability", "1.00001"),
        ("id,sick\n1,1\n2,-2e-6\n", SICKS, SICK, "not_probability", "-2e-6"),
        ("id,sick\n1,-0.5\n2,0\n", SICKS, SICK, "not_probability", "predict_proba"),
        ("id,A,B\n1,0.5,2\n2,0,1\n", KINDS, SHARES, "not_probability", "cells of 'B'"),
        ("id,A,B\n1,0,0\n2,0,0\n", KINDS, SHARES, "not_probability", "2 rows are all 0"),
        ("id,A\n1,0.5\n2,0\n", KINDS, SHARES, "missing_target_column", "no column 'B'"),
        ('id,name\n1,"flu, cold"\n2,flu\n', ILLNESSES, ILLNESS, "not_a_label", "by blanks only"),
        (
            "id,name\n1,flue\n2,colt\n",
            ILLNESSES,
            ILLNESS,
            "not_a_label",
            "ache, cold, flu; got colt, flue (2",
        ),
        ("id,x\n1,1\n", "id,x\n1,1\n", by("r2"), "undefined_score", "whatever is predicted"),
        ("id,x\n1,1\n2,0\n", "id,x\n1,1\n2,1\n", by("roc_auc"), "undefined_score", "roc_auc"),
    ],
)
def test_what_other_metrics_refuse(
    tmp_path: Path, content: str, truth: str, spec: TaskSpec, code: str, words: str
) -> None:
    verdict = judged(tmp_path, content, truth, spec)
    assert verdict.code == code
    assert words in verdict.message


@pytest.mark.parametrize(
    ("content", "truth", "spec", "score"),
    [
        ("id,name\n1,cold cold flu\n2,ache  cold\n", ILLNESSES, ILLNESS, (1 / 3 + 1 / 2) / 2),
        ("id,name\n1,cold ache cold flu\n2,cold\n", ILLNESSES, ILLNESS, 1 / 2),
        ("id,sick\n1,0\n2,0\n", SICKS, SICK, 34.538776394910684 / 2),
        ("id,sick\n1,True\n2,False\n", SICKS, SICK, 0.0),
        ("id,sick\n1,1.0000001\n2,-1e-7\n", SICKS, SICK, 0.0),
        ("id,x\n1,-0.0\n2,-0\n", "id,x\n1,0\n2,0\n", by("accuracy"), 1.0),
        ("id,x\n-0.0,5\n1.0,6\n", "id,x\n0,5\n1,6\n", by("rmse"), 0.0),
        ("id,b,A\n1,0,0.5\n2,3e-1,0\n", KINDS, SHARES, 0.0),
        ("id,x\n1,5\n2,5\n3,5\n", "id,x\n1,1\n2,2\n3,3\n", by("pearson"), 0.0),
        ("id,x\n1,.9\n2,.1\n3,.8\n", "id,x\n1,1\n2,False\n3,True\n", by("roc_auc"), 1.0),
        ("id,x\n1,1\n2,no\n", "id,x\n1,1\n2,no\n", by("accuracy"), 1.0),
        ("id,x\n1,1\n2,0\n3,1\n", "id,x\n1,1\n2,False\n3,True\n", by("accuracy"), 1.0),
        ("id,x\n1, low\n2,1.0\n", "id,x\n1,low \n2,1\n", by("accuracy"), 1.0),
        ("id,x\n1,01\n2,2\n", "id,x\n1,01\n2,2\n", by("qwk"), 1.0),
        ("id,x,y\n1,2,4\n", "id,x,y\n1,True,0\n", TaskSpec("mae", "id", ("x", "y")), 2.5),
        ("id,x\n1,7\n", "id,x\n1,3\n", by("rmse"), 4.0),
    ],
)
def test_what_other_metrics_take(
    tmp_path: Path, content: str, truth: str, spec: TaskSpec, score: float
) -> None:
    verdict = judged(tmp_path, content, truth, spec)
    assert verdict.code == "ok"
    assert verdict.score == pytest.approx(score)


def test_rounding_errors_of_probabilities_are_clipped_with_a_warning(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "id,A,B\n1,1.0000001,-1e-9\n2,0,1\n", KINDS, SHARES)
    assert str(verdict.score) == "0.0"
    assert "2 probabilities were outside [0, 1]" in verdict.warnings[0]


def test_a_long_cell_has_its_own_words(answers: Path) -> None:
    message = grade(b"id,price\n3," + b"1" * 200_000, answers, PRICE).message
    assert "line 2 has a cell of more than 131072 characters" in message


@pytest.mark.parametrize(
    ("more", "code"),
    [("", "unknown_ids"), ("3,1\n", "duplicate_ids"), (",1\n", "blank_id")],
)
def test_training_rows_too_in_any_order(answers: Path, more: str, code: str) -> None:
    training = "".join(f"{i},1\n" for i in range(100, 2100))
    body = PRICES.removeprefix("id,price\n")
    first, last = (f"id,price\n{rows}".encode() for rows in (body + training + more, training + body + more))
    assert grade(first, answers, PRICE).code == grade(last, answers, PRICE).code == code


def test_no_message_holds_a_true_value(tmp_path: Path) -> None:
    truth = "id,x\n1,hidden\n2,secret\n3,covert\n"
    spec = TaskSpec("accuracy", "id", ("x",))
    for content in (
        "id,x\n1,a\n2,b\n3,c\n",
        "id,x\n1,0\n2,1\n3,1\n",
        "id,x\n1,\n2,\n3,\n",
        "id,x\n9,a\n",
        "x\n",
    ):
        verdict = judged(tmp_path, content, truth, spec)
        assert not verdict.valid
        assert not any(word in verdict.message for word in ("hidden", "secret", "covert"))


HUGE = {
    "commas": b"," * (32 * MB),
    "blank lines": b"id,price\n" + b"\n" * (32 * MB - 9),
    "one column": b"x\n" * (16 * MB),
    "many rows": b"id,price\n" + b"1,2\n" * (8 * MB - 4),
    "one line": b"x" * (32 * MB),
    "quotes": b'"' * (32 * MB),
    "a wide row": b"id,price\n1" + b"," * (32 * MB - 20),
    "distinct columns": b",".join(b"%d" % i for i in range(4_000_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_the_largest_files_are_read_in_seconds(answers: Path, name: str) -> None:
    start = time.process_time()
    verdict = grade(HUGE[name], answers, PRICE)
    assert not verdict.valid
    assert len(verdict.message) < 1000
    assert time.process_time() - start < 15


def test_a_million_columns_more(answers: Path) -> None:
    many = [b"c%d" % i for i in range(10**6)]
    lines = [b",".join([*many, *start]) for start in ((b"price", b"id"),)]
    lines += [b"1," * 10**6 + row for row in (b"10,3", b"20,1", b"30,2")]
    verdict = grade(b"\n".join(lines), answers, PRICE)
    assert verdict.score == 0
    assert "ignored: c0, c1, c2, …" in verdict.warnings[0]


SPECS = {
    name: TaskSpec(name, "id", ("0", "1"), label_column="x")
    if name == "mc_log_loss"
    else TaskSpec(name, "id", ("x",))
    for name in METRICS
}
TRUTH = "id,x\n" + "".join(f"{i},{i % 3 % 2}\n" for i in range(9))


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nine") / "answers.csv"
    path.write_text(TRUTH)
    return path


cells = st.one_of(
    st.sampled_from(
        ["0", "1", "0.5", "nan", "inf", "1e400", "-1", "True", "", " ", "x", '"', "1,0", "\n", "é", "\x00"]
    ),
    st.text(max_size=5),
    st.floats().map(repr),
)
tables = st.lists(st.tuples(st.integers(-1, 9), cells), max_size=12).map(
    lambda rows: "id,x\n" + "".join(f"{id_},{cell}\n" for id_, cell in rows)
)
complete = st.lists(cells, min_size=9, max_size=9).map(
    lambda column: "id,x\n" + "".join(f"{id_},{cell}\n" for id_, cell in enumerate(column))
)


@given(
    content=st.one_of(
        st.binary(max_size=300),
        st.text(alphabet='id,x"\n\r0123.eE+-_ ä\t;').map(str.encode),
        st.one_of(tables, complete).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ),
    name=st.sampled_from(sorted(SPECS)),
)
@settings(deadline=None, max_examples=300)
def test_whatever_the_content_there_is_a_verdict_soon(nine: Path, content: bytes, name: str) -> None:
    start = time.process_time()
    verdict = grade(content, nine, SPECS[name])
    assert verdict.code in CODES
    assert verdict.valid is (verdict.code == "ok") is (verdict.score is not None)
    assert bool(verdict.message) is not verdict.valid
    assert verdict.message.isprintable()
    assert time.process_time() - start < 5


@given(
    name=st.sampled_from(sorted(SPECS)),
    seed=st.integers(0, 10**6),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    extra=st.booleans(),
    mark=st.booleans(),
)
@settings(deadline=None)
def test_the_truth_is_perfect_in_any_form(
    nine: Path, name: str, seed: int, quoting: int, end: str, extra: bool, mark: bool
) -> None:
    spec = SPECS[name]
    head, *rows = csv.reader(io.StringIO(perfect_submission(nine, spec).decode()))
    shuffle = random.Random(seed)
    shuffle.shuffle(rows)
    columns = list(range(len(head)))
    shuffle.shuffle(columns)
    table = [[row[at] for at in columns] + (["more"] if extra else []) for row in ([*head], *rows)]
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows(table)  # type: ignore[arg-type]
    verdict = grade(text.getvalue().encode("utf-8-sig" if mark else "utf-8"), nine, spec)
    assert verdict.code == "ok"
    assert verdict.score == pytest.approx(1.0 if METRICS[name].higher_is_better else 0.0, abs=1e-9)
    assert bool(verdict.warnings) is extra
