"""The grader: a table of tricky answers, properties of numbers, bombs, threads and speed."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from grading_cases import ALL
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mappa_envs.child import HelperPool
from mappa_envs.errors import SandboxError
from mappa_envs.mathchat import grade, grading
from mappa_envs.mathchat.grading import judge, judge_apart, read_golds
from mappa_envs.mathchat.intervals import interval
from mappa_envs.mathchat.latex import find_answer, plain
from mappa_envs.mathchat.parts import both_signs, cut, is_balanced, split

MORE_CASES = Path(__file__).parents[3] / "shared" / "cases" / "math_grading.jsonl"
LIMIT_S = 2.0
BUSY_S = 20.0
"""That limit on a machine that does other things meanwhile; without a limit it would be minutes."""


@pytest.fixture(scope="module", autouse=True)
def _started() -> None:
    assert grade(r"\boxed{y+x}", "x+y")  # asks math-verify, and so starts the helper


@pytest.mark.parametrize(("kind", "gold", "response", "right"), ALL)
def test_tricky_answers(kind: str, gold: object, response: str, right: bool) -> None:
    start = time.monotonic()
    assert grade(response, gold) is right  # type: ignore[arg-type]  # golds that are no answer, too
    assert time.monotonic() - start < BUSY_S


@pytest.mark.slow
def test_the_comparison_of_the_page_is_current() -> None:
    from bare_math_verify import differences, judged, summary  # loads math-verify, which takes a while

    pairs = judged()
    page = (Path(__file__).parents[2] / "docs" / "mathchat.md").read_text("utf-8")
    assert summary(pairs) in page, "print both tables: python tests/mathchat/bare_math_verify.py"
    assert differences(pairs) in page


def test_more_tricky_answers() -> None:
    if not MORE_CASES.exists():
        pytest.skip(f"no further cases at {MORE_CASES}")
    cases = [json.loads(line) for line in MORE_CASES.read_text().splitlines()]
    wrong = [case for case in cases if grade(case["pred"], case["gold"]) is not case["want"]]
    assert wrong == []


WAYS = (
    lambda n: str(n),
    lambda n: f"{n}.0",
    lambda n: f"{n:,}",
    lambda n: f"{n:,}".replace(",", r"{,}"),
    lambda n: f"{n:,}".replace(",", r"\,"),
    lambda n: f"-00{-n}" if n < 0 else f"00{n}",
    lambda n: rf"\frac{{{2 * n}}}{{2}}",
    lambda n: rf"\dfrac{{{-3 * n}}}{{-3}}",
    lambda n: f"{7 * n}/7",
    lambda n: rf"\text{{{n}}}",
    lambda n: rf"{n}\text{{ cm}}",
    lambda n: f"x = {n}",
    lambda n: rf"{n}^\circ",
    lambda n: f"${n}$",
    lambda n: f"{n}e0",
    lambda n: rf"{n} \times 10^0",
    lambda n: rf"{n - 1} + 1",
    lambda n: rf"\left( {n} \right)",
    lambda n: str(n).replace("-", "−"),
    lambda n: rf"\mathbf{{{n}}}.",
)
INTEGERS = st.integers(-(10**12), 10**12) | st.integers(-1200, 1200)
WAY = st.sampled_from(WAYS)


@settings(deadline=None, max_examples=400)
@given(n=INTEGERS, gold_way=WAY, way=WAY)
def test_a_number_equals_itself_however_it_is_written(n: int, gold_way, way) -> None:  # type: ignore[no-untyped-def]
    assert grade(rf"\boxed{{{way(n)}}}", gold_way(n))


@settings(deadline=None, max_examples=400)
@given(a=INTEGERS, b=INTEGERS, near=st.booleans(), gold_way=WAY, way=WAY)
def test_two_different_numbers_never_match(a: int, b: int, near: bool, gold_way, way) -> None:  # type: ignore[no-untyped-def]
    b = a + 1 + abs(b) % 3 if near else b
    assume(a != b)
    assert not grade(rf"\boxed{{{way(b)}}}", gold_way(a))


FRACTIONS = st.fractions(max_denominator=10**6)


@settings(deadline=None, max_examples=200)
@given(x=FRACTIONS, y=FRACTIONS)
def test_fractions_and_decimals_are_exact(x: Fraction, y: Fraction) -> None:
    def tex(value: Fraction) -> str:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    assert grade(rf"\boxed{{{tex(x)}}}", f"{x.numerator}/{x.denominator}")
    assert grade(rf"\boxed{{{tex(y)}}}", tex(x)) == (x == y)
    rounded = f"{float(x):.8f}"
    assert grade(rf"\boxed{{{rounded}}}", tex(x)) == (Fraction(rounded) == x)


SPELLED = (
    r"\frac { } ( ) [ ] \sqrt ^ _ 1 9 99 x \pi , ; \text{ "
    r"or \pm = \le ! % \boxed{ \{ \} \cup \infty - + . e i E \int "
    r"\sum \begin{pmatrix} \end{pmatrix} \\ & \binom \overline{ 0. / ½ ² ° \in < > * \cdot \circ "
)
PIECES = st.sampled_from(SPELLED.split())


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    pieces=st.lists(PIECES | st.just(" "), max_size=30),
    gold=st.sampled_from(["60", "x+1", "(1,2)", r"\{1\}"]),
)
def test_no_heap_of_latex_makes_it_raise_or_hang(pieces: list[str], gold: str) -> None:
    start = time.monotonic()
    assert grade(rf"\boxed{{{''.join(pieces)}}}", gold) in (True, False)
    assert grade(rf"\boxed{{{gold}}}", "".join(pieces)) in (True, False)
    assert time.monotonic() - start < 2 * BUSY_S


@settings(deadline=None, max_examples=300)
@given(response=st.text() | st.text("\\boxed{}()[]0123456789,.^!%$ frac=<>+-*/", max_size=60), gold=st.text())
def test_no_text_makes_it_raise(response: str, gold: str) -> None:
    assert grade(response, gold) in (True, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb", [r"\sum_{k=1}^{10^{9}} k^{k}", r"x^{x^{x^{9^{9^{9}}}}}", r"\binom{10^9}{10^8} x"]
)
def test_bombs_one_after_another_take_at_most_two_seconds_each(bomb: str) -> None:
    for _ in range(2):
        start = time.monotonic()
        assert not grade(rf"\boxed{{{bomb}}}", "x+1")
        assert time.monotonic() - start < BUSY_S
    assert grade(r"\boxed{1+x}", "x+1")


@pytest.mark.slow
def test_a_comparison_may_wait_for_the_processor_but_not_use_it_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mappa_envs.mathchat import verify_process  # loads math-verify, which takes a while

    def wait(gold: str, answer: str) -> bool:
        time.sleep(0.8)
        return True

    def work(gold: str, answer: str) -> bool:
        while True:
            pass

    for same, code in ((wait, "right"), (work, "undecided")):
        monkeypatch.setattr(verify_process, "_same", same)
        assert verify_process.compare(b"", golds=["1"], answer="1", limit_s=0.05) == code


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [(MemoryError, "undecided"), (RecursionError, "wrong")])
def test_too_little_memory_is_no_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], code: str
) -> None:
    from mappa_envs.mathchat import verify_process

    def fail(gold: str, answer: str, ask: object) -> bool:
        raise error

    monkeypatch.setattr(verify_process, "same", fail)
    assert verify_process.compare(b"", golds=["1"], answer="1", limit_s=5) == code


def test_a_machine_that_stalls_is_not_the_agents_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stalled_verify.py").write_text("import time\ndef compare(data, **_): time.sleep(1000)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(grading, "_helpers", HelperPool("stalled_verify", memory_mb=1024))
    monkeypatch.setattr(grading, "STALL_S", 0.2)
    with pytest.raises(SandboxError):
        judge(r"\boxed{y+x}", ["x+y"])


def test_a_long_message_is_read_in_linear_time() -> None:
    start = time.process_time()
    for unit in ("\\boxed{", "{", "\\boxed{1} and ", "answer is ", "answer to ", "<think>", "$"):
        assert not grade(unit * (200_000 // len(unit)), "17")
    for unit in (" ", "(", "\n-", "\\text{", "or "):
        assert not grade("\\boxed{1}" + unit * (200_000 // len(unit)) + "x\\boxed{2}", "17")
    for unit in ("\\", " ", "{", "1\\over ", "{1\\choose ", "\\text{", "\\text{n ", "\\underline{\\text{"):
        assert plain(unit * (100_000 // len(unit)) + "x}")
    assert time.process_time() - start < 5 * LIMIT_S


def test_plain_numbers_take_thousands_a_second() -> None:
    start = time.process_time()
    for number in range(5000):
        assert grade(f"So the sum is $\\boxed{{{number}}}$.", number)
    assert 5000 / (time.process_time() - start) > 3000


def test_it_works_in_threads_and_leaves_an_alarm_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        found: list[bool] = []
        threads = [
            threading.Thread(target=lambda: found.append(grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert left > 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert found == [True] * 4


def test_the_verdict_says_what_was_read() -> None:
    assert judge(r"\boxed{8}", ["7"]).code == "wrong"
    assert judge("I do not know.", ["7"]).code == "no_answer"
    assert judge(r"\boxed{" + "x" * 5000 + "}", ["7"]).code == "too_long"
    assert judge(r"\boxed{ 007 }", ["7"]).answer == "007"
    assert asyncio.run(judge_apart(r"\boxed{b a}", ["a b"])).right
    assert asyncio.run(judge_apart(r"\boxed{x^{9^{9^{9^9}}}}", ["x"])).code in ("undecided", "wrong")


def test_a_broken_helper_is_not_the_agents_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grading, "_helpers", HelperPool("mappa_envs.no_such_module", memory_mb=1024))
    with pytest.raises(SandboxError):
        judge(r"\boxed{y+x}", ["x+y"])
    assert grade(r"\boxed{y+x}", "x+y") is False
    assert "math-verify could not be asked" in caplog.text


OTHER = {"12": "13", r"2\sqrt{3}": r"3\sqrt{2}", r"\frac12": r"\frac13"}
BETWEEN = (
    r", ; / | & \\ : ... ? 或 、 – [ { ( or and to until vs else \lor \vee \land \wedge \cup \cap \quad \, "
    r"\to \mapsto \implies \iff \approx \sim \ne \equiv \in \mid \text{or} \text{OR} \text{(or)} \text{vs.} "
    r"\text{/} \text{then} }\boxed{"
)
JOINTS = [*BETWEEN.split(), r"} or \boxed{", r"\text{ but also }", r"\text{ or maybe }", "\n"]


@pytest.mark.slow
@pytest.mark.parametrize("gold", OTHER)
def test_two_different_answers_are_none_whatever_stands_between_them(gold: str) -> None:
    other = OTHER[gold]
    pairs = ((other, gold), (f"x = {other}", f"x = {gold}"), (f"x = {other}", f"y = {gold}"))
    taken = [
        (first, joint, second)
        for first, second in pairs
        for joint in JOINTS
        if joint != r"\implies" or "y" not in second
        if grade(rf"\boxed{{{first} {joint} {second}}}", gold)
    ]
    assert taken == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"2 \le x < 5", "[2 , 5)"), ("]0,1]", "(0,1]"), (r"\mathbb{R} \setminus (3, 2)", None),
        (r"\mathbb{R} \setminus (-2, 3]", r"(-\infty,-2],(3,\infty)"), (r"x \ne a, b", None),
        (r"\mathbb{R} \setminus \{1,-1\}", r"(-\infty,-1),(-1,1),(1,\infty)"), ("x = 2", None), ("12", None),
        (r"x \ne 2", r"(-\infty,2),(2,\infty)"),
    ],
)  # fmt: skip
def test_intervals_that_are_not_written_as_such(text: str, meant: str | None) -> None:
    assert interval(text) == meant


def test_an_answer_is_taken_apart_outside_its_brackets() -> None:
    assert cut(r"f(x, y) = \sum_{k=1}^{2} k = 3", "=") == ["f(x, y)", r"\sum_{k=1}^{2} k", "3"]
    assert split("[0, 1)") == (["[0, 1)"], ("[", ")"))
    assert split("(1, 2), (3, 4)") == (["(1, 2)", "(3, 4)"], None)
    assert both_signs(r"(\pm 1, \mp 2)") == ("(+ 1, - 2)", "(- 1, + 2)")
    assert both_signs(r"\pm 1 \pm i") == (r"\pm 1 \pm i",)
    assert [is_balanced(text) for text in ("[0, 1)", r"\{1\}", "(1", ")1(")] == [True, True, False, False]


def test_golds() -> None:
    assert read_golds("080 or 081 (both were accepted)") == ("080", "081")
    assert read_golds([142.0, "007", 3]) == ("142", "007", "3")
    assert read_golds(r"x = 1 \text{ or } x = 2") == (r"x = 1 \text{ or } x = 2",)
    assert read_golds("x = 1 or x = 2") == ("x = 1 or x = 2",)
    assert read_golds(float("inf")) == ()
    assert read_golds(10**5000) == ()


def test_the_answer_of_a_message() -> None:
    assert find_answer(r"\boxed{1} and \boxed{2}") == "1, 2"
    assert find_answer(r"\boxed{\frac{1}{2}} is the answer") == r"\frac{1}{2}"
    assert find_answer("The answer is 5.") == "5"
    assert find_answer("Nothing.") is None
