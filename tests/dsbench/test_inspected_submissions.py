"""The inspector, which has no answers, says of a submission what the grader says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mappa_envs.dsbench import artifacts, inspector
from mappa_envs.dsbench.artifacts import Tables
from mappa_envs.dsbench.grading import TaskSpec, grade

BITS = TaskSpec("accuracy", "id", ("y",), labels=("0", "1"))
BOOLS = TaskSpec("accuracy", "id", ("y",), labels=("False", "True"))
NUMBER = TaskSpec("rmse", "id", ("y",))
SHARES = TaskSpec("mc_log_loss", "id", ("a", "b"))


def by(metric: str, *labels: str) -> TaskSpec:
    return TaskSpec(metric, "id", ("y",), labels=labels or None)


def table(cell: Callable[[int], object], header: str = "id,y") -> str:
    return header + "\n" + "".join(f"{i},{cell(i)}\n" for i in range(20))


RIGHT = table(lambda i: i % 2)
CASES: list[tuple[str | bytes, TaskSpec, str]] = [
    (RIGHT, BITS, "ok"),
    (RIGHT, BOOLS, "ok"),
    (table(lambda i: ["FALSE", "TRUE"][i % 2]), BITS, "ok"),
    (table(lambda i: ["false", "true"][i % 2]), BOOLS, "ok"),
    (table(lambda i: float(i % 2)), BOOLS, "ok"),
    (table(lambda i: -0.0), BITS, "ok"),
    (table(lambda i: " 1 "), BITS, "ok"),
    (table(lambda i: i), BITS, "not_a_label"),
    (table(lambda i: bool(i % 2)), by("roc_auc", "0", "1"), "ok"),
    (table(lambda i: bool(i % 2)), NUMBER, "ok"),
    (table(lambda i: "1_000"), NUMBER, "not_numeric"),
    (table(lambda i: "\u0661"), NUMBER, "not_numeric"),
    (table(lambda i: "inf"), NUMBER, "not_finite"),
    (table(lambda i: "1e308"), NUMBER, "undefined_score"),
    (table(lambda i: "1e120"), NUMBER, "ok"),
    (table(lambda i: "1e308"), by("pearson"), "ok"),
    (table(lambda i: 1.5), by("log_loss", "0", "1"), "not_probability"),
    (table(lambda i: 1 + 1e-9), by("log_loss", "0", "1"), "ok"),
    (table(lambda i: "0,0", "id,a,b"), SHARES, "not_probability"),
    (table(lambda i: ".5,.5", "id,a,b"), SHARES, "ok"),
    (table(lambda i: '"a,b"'), by("map@3", "a", "b"), "not_a_label"),
    (table(lambda i: "b a"), by("map@3", "a", "b"), "ok"),
    (table(lambda i: f"{i},{i}", "id,y,y"), NUMBER, "duplicate_columns"),
    ("ID,id,y\n" + "".join(f"{i + 5},{i},1\n" for i in range(20)), BITS, "ok"),
    ("ID,Id,y\n" + "".join(f"{i},{i},1\n" for i in range(20)), BITS, "missing_id_column"),
    (RIGHT + "   \n", BITS, "ok"),
    ("\n\n" + RIGHT, BITS, "ok"),
    (RIGHT[:-2] + '"1', BITS, "ragged"),
    (RIGHT + "21\n", BITS, "ragged"),
    (RIGHT.replace("\n", "\r"), BITS, "ok"),
    (RIGHT.encode("utf-8-sig"), BITS, "ok"),
    (RIGHT.encode("utf-16"), BITS, "not_text"),
    (table(lambda i: "1,\0", "id,y,z"), BITS, "not_text"),
    (table(lambda i: "1," + "x" * 140_000, "id,y,z"), BITS, "ragged"),
    ("", BITS, "empty_file"),
    ("id,y\n", BITS, "no_rows"),
    (RIGHT + "19,1\n", BITS, "duplicate_ids"),
    (RIGHT + ",1\n", BITS, "blank_id"),
    (RIGHT + "20,1\n", BITS, "unknown_ids"),
    (RIGHT.replace("19,1\n", ""), BITS, "missing_ids"),
    (RIGHT.replace("19,1\n", "19,\n"), BITS, "blank_prediction"),
    (table(lambda i: "NA"), by("accuracy", "NA", "b"), "ok"),
    (table(lambda i: ["", "b"][i % 2]), by("accuracy", "", "b"), "ok"),
    (table(lambda i: "None"), by("jaccard"), "ok"),
]


def true_cells(spec: TaskSpec, row: int) -> Sequence[str]:
    if spec.labels:
        return [spec.labels[row % len(spec.labels)]]
    return [str(row % 2), str(1 - row % 2)] if spec is SHARES else [str(row)]


@pytest.mark.parametrize("readable", [True, False], ids=["", "large test.csv"])
@pytest.mark.parametrize(("text", "spec", "code"), CASES)
def test_the_inspector_agrees_with_the_grader(
    text: str | bytes,
    spec: TaskSpec,
    code: str,
    readable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    train, test, answers = (tmp_path / f"{name}.csv" for name in ("train", "test", "answers"))
    train.write_text("id,x,y\n" + "".join(f"{i},{i},0\n" for i in range(100, 140)))
    test.write_text("id,x\n" + "".join(f"{i},{i}\n" for i in range(20)))
    rows = [",".join([str(i), *true_cells(spec, i)]) for i in range(20)]
    answers.write_text("\n".join([",".join(["id", *spec.target_columns]), *rows]))
    submission = tmp_path / "submission.csv"
    submission.write_bytes(text if isinstance(text, bytes) else text.encode())
    job = artifacts.job("submission.csv", spec, Tables.read(train, test, spec))
    if not readable:
        job["max_compared_bytes"] = 1
    verdict = grade(submission, answers, spec)
    assert verdict.code == code
    found = inspector.examine(job)
    assert (found["status"] == "valid") is verdict.valid, found["problem"]


@pytest.mark.parametrize("cell", ["a", "None", "7"])
def test_labels_that_only_the_answers_have_cannot_be_judged(
    cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.csv").write_text("id\n1\n")
    (tmp_path / "submission.csv").write_text(f"id,y\n1,{cell}\n")
    tables = Tables.read(tmp_path / "test.csv", tmp_path / "test.csv", by("accuracy"))
    assert inspector.examine(artifacts.job("submission.csv", by("accuracy"), tables))["status"] == "valid"


def test_a_line_of_blanks_is_no_row(tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text("id,x\n1,2\n3,4\n   \n")
    tables = Tables.read(test, test, NUMBER)
    assert (tables.train_rows, tables.test_rows) == (2, 2)
