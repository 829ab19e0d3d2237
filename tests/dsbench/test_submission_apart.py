"""The helper process gives the verdicts of `grade`, in bounded time and memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from mappa_envs.child import HelperPool
from mappa_envs.dsbench import grader_helper, grader_process
from mappa_envs.dsbench.grader_process import judge_apart
from mappa_envs.dsbench.grading import Figures, Grade, TaskSpec, judge
from mappa_envs.errors import DataError, SandboxError

PRICE = TaskSpec("rmse", "id", ("price",))
KIND = TaskSpec("f1_macro", "id", ("kind",), labels=("cat", "dog", "owl"))
SHARES = TaskSpec("mc_log_loss", "id", ("A", "B"), label_column="kind")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "answers.csv"
    path.write_text("id,price\n3,10\n1,20\n2,30\n")
    return path


def apart(submission: bytes, answers: Path, spec: TaskSpec) -> tuple[Grade, Figures]:
    return asyncio.run(judge_apart(submission, answers, spec))


@pytest.mark.parametrize(
    ("spec", "truth", "submission"),
    [
        (PRICE, "id,price\n3,10\n1,20\n", b"id,price,x\n3,11\n1,20\n"),
        (PRICE, "id,price\n3,10\n1,20\n", b"id,price,x\n3,11,0\n1,20,0\n"),
        (PRICE, "id,price\n3,10\n1,10\n", b"id,price\n3,11\n1,10\n"),
        (KIND, "id,kind\n1,cat\n2,dog\n", b"id,kind\n1,cat\n2,owl\n"),
        (KIND, "id,kind\n1,cat\n2,dog\n", b"\x80\x04"),
        (SHARES, "id,kind\n1,A\n2,B\n", b"id,A,B\n1,.5,.6\n2,.1,.9\n"),
    ],
)
def test_the_verdict_is_that_of_this_process(
    tmp_path: Path, spec: TaskSpec, truth: str, submission: bytes
) -> None:
    answers = tmp_path / "answers.csv"
    answers.write_text(truth)
    assert apart(submission, answers, spec) == judge(submission, answers, spec)


def test_a_relative_path_is_that_of_the_caller(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart(b"", prices, PRICE)  # the helper runs already, in another folder
    monkeypatch.chdir(tmp_path)
    assert apart(prices.read_bytes(), Path(prices.name), PRICE)[0].score == 0


def test_what_takes_too_much_processor_time_is_too_large(
    prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_process, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(grader_process, "WAIT_FACTOR", 2000.0)
    verdict, figures = apart(b"," * 2**25, prices, PRICE)
    assert (verdict.code, set(figures.values())) == ("too_large", {None})
    assert "more than 0.05 s of processor time" in verdict.message
    monkeypatch.undo()
    assert apart(prices.read_bytes(), prices, PRICE)[0].score == 0


def test_a_machine_that_stalls_is_not_the_submissions_fault(
    prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = HelperPool(grader_helper.__name__, memory_mb=grader_process.MEMORY_MB, size=1)
    monkeypatch.setattr(grader_process, "_helpers", pool)
    monkeypatch.setattr(grader_process, "WAIT_FACTOR", 0.01)
    helper = pool._take()
    pool._idle.append(helper)
    helper.process.send_signal(signal.SIGSTOP)
    with pytest.raises(SandboxError, match=r"grading a submission.*took longer than 0\.2 s"):
        apart(prices.read_bytes(), prices, PRICE)
    monkeypatch.setattr(grader_process, "WAIT_FACTOR", 10.0)
    assert apart(prices.read_bytes(), prices, PRICE)[0].score == 0
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_the_metrics_are_imported_before_the_clock_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing them takes a second and more, a verdict on two rows some milliseconds."""
    answers = tmp_path / "answers.csv"
    answers.write_text("id,kind\n1,cat\n2,dog\n")
    fresh = HelperPool(grader_helper.__name__, memory_mb=grader_process.MEMORY_MB, size=1)
    monkeypatch.setattr(grader_process, "_helpers", fresh)
    helper = fresh._take()  # has begun, and waits for its first call
    loaded = Path(f"/proc/{helper.process.pid}/maps").read_text()
    fresh._idle.append(helper)
    assert "/sklearn/metrics/" in loaded
    assert "/scipy/stats/" in loaded
    assert apart(answers.read_bytes(), answers, KIND)[0].score == 1
    assert fresh._idle == [helper]
    fresh.close()


@pytest.mark.slow
def test_what_takes_too_much_memory_is_too_large(prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = HelperPool(grader_helper.__name__, memory_mb=900, size=1)
    monkeypatch.setattr(grader_process, "_helpers", small)
    assert apart(prices.read_bytes(), prices, PRICE)[0].score == 0
    verdict, _ = apart(b"," * 2**25, prices, PRICE)
    assert (verdict.code, verdict.valid) == ("too_large", False)
    assert "memory" in verdict.message
    small.close()


def test_broken_answers_are_still_the_owners_fault(prices: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'cost'"):
        apart(b"id,cost\n1,2\n", prices, TaskSpec("rmse", "id", ("cost",)))
    with pytest.raises(DataError, match=r"gone\.csv"):
        apart(b"id,price\n1,2\n", tmp_path / "gone.csv", PRICE)


def test_long_answers_get_more_time(tmp_path: Path) -> None:
    long = tmp_path / "long.csv"
    with long.open("wb") as file:
        os.truncate(file.fileno(), 50 * 2**20)
    assert grader_process._limit_s(long) == 100.0
    assert grader_process._limit_s(Path(os.devnull)) == grader_process.TIMEOUT_S


def test_many_at_once_from_one_loop(prices: Path) -> None:
    async def all_of_them() -> list[tuple[Grade, Figures]]:
        tables = [f"id,price\n3,{10 + n}\n1,20\n2,30\n".encode() for n in range(40)]
        return await asyncio.gather(*(judge_apart(table, prices, PRICE) for table in tables))

    scores = [verdict.score for verdict, _ in asyncio.run(all_of_them())]
    assert scores == pytest.approx([n / 3**0.5 for n in range(40)])
