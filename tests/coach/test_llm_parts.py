"""What an LLM coach is made of, without a model: settings, cache, limits, what is retried, what is hidden."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coach_cases import make_request

from mappa_envs.blocking import in_shared_loop
from mappa_envs.coach import BUDGET_SPENT, LLMCoach, make_coach
from mappa_envs.coach.llm import limits as limits_module
from mappa_envs.coach.llm.cache import AnswerCache, cache_key
from mappa_envs.coach.llm.client import _count, describe, redact, retry_after_s
from mappa_envs.coach.llm.coach import _part, _Question
from mappa_envs.coach.llm.fence import visible
from mappa_envs.coach.llm.limits import Budget, Pace, Usage
from mappa_envs.errors import CoachError, ConfigError

if find_spec("litellm") is None:  # not imported here: that takes seconds, in every process of pytest's
    pytest.skip("needs the extra coach", allow_module_level=True)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("llm:", {}, "needs a model"),
        ("llm", {}, "needs a model"),
        ("llm:a/b", {"base_url": "localhost:8000"}, "must be an address"),
        ("llm:a/b", {"base_url": "http://me:pass@host/v1"}, "no keys or passwords"),
        ("llm:a/b", {"base_url": "http://host/v1?key=1"}, "no keys or passwords"),
        ("llm:a/b", {"timeout_s": 0}, "timeout_s must be greater than 0"),
        ("llm:a/b", {"concurrency": 0}, "at least 1"),
        ("llm:a/b", {"rpm": -1}, "not be negative"),
        ("llm:a/b", {"budget_usd": float("nan")}, "not be negative"),
        ("llm:a/b", {"cache": "yes"}, "known: 'on', 'off'"),
        ("llm:a/b", {"prices": "3"}, "two numbers"),
        ("llm:a/b", {"prices": "1,-2"}, "two numbers"),
        ("llm:a/b", {"mood": "kind"}, "options"),
        ("rubric", {"base_url": "http://host"}, "options"),
    ],
)
def test_senseless_settings_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_coach(name, **options)


def test_an_llm_coach_is_made_without_asking_anybody() -> None:
    coach = make_coach("llm:gemini/gemini-2.5-flash", prices="0.3,2.5", budget_usd=5.0)
    assert isinstance(coach, LLMCoach)
    assert coach.model == "gemini/gemini-2.5-flash"


def test_a_cache_keeps_and_another_process_finds(tmp_path: Path) -> None:
    key = cache_key({"b": 1, "a": "é"})
    assert key == cache_key({"a": "é", "b": 1})
    AnswerCache(tmp_path).put(key, "answer")
    assert AnswerCache(tmp_path).get(key) == "answer"
    assert AnswerCache(tmp_path).get("00" * 32) is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"key": "other", "answer": "x"}', b"[" * 100_000])
def test_a_damaged_entry_is_ignored_with_a_warning_and_rewritten(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache, key = AnswerCache(tmp_path), "ab" * 32
    cache.put(key, "answer")
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.get(key) is None
    assert "damaged" in caplog.text
    cache.put(key, "again")
    assert cache.get(key) == "again"
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    AnswerCache(tmp_path / "file").put("ab" * 32, "answer")
    assert "could not be kept" in caplog.text


def test_an_answer_that_could_not_be_kept_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "ab" * 32
    (tmp_path / "ab" / f"{key}.json").mkdir(parents=True)
    AnswerCache(tmp_path).put(key, "answer")
    assert "could not be kept" in caplog.text
    assert [path.name for path in (tmp_path / "ab").iterdir()] == [f"{key}.json"]


@pytest.mark.parametrize(
    "char", [*"\ufe00\ufe0f\U000e0100\U000e01ef\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\uffa0"]
)
def test_what_is_printable_and_yet_unseen_is_written_out(char: str) -> None:
    assert char.isprintable()
    assert visible(f"a{char}é") == f"a{char.encode('unicode_escape').decode()}é"


@pytest.mark.parametrize(("tokens", "of"), [(0, 3), (2, 3), (100, 3), (7, 1), (10**9, 7)])
def test_tokens_are_split_into_nearly_equal_parts_without_a_rest(tokens: int, of: int) -> None:
    parts = [_part(tokens, part, of) for part in range(of)]
    assert sum(parts) == tokens
    assert max(parts) - min(parts) <= 1


def test_the_key_depends_on_what_changes_the_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(request: Any, model: str = "a/b", **options: Any) -> str:
        kept: list[str] = []
        coach = LLMCoach(model, **options)

        async def stop(question: Any) -> Any:
            kept.append(coach._key(question))
            raise CoachError("stop")

        coach._answer = stop  # type: ignore[method-assign]
        with pytest.raises(CoachError, match="stop"):
            asyncio.run(coach.score(request))
        return kept[0]

    request = make_request()
    same = key(request)
    assert key(make_request()) == same
    assert key(request, timeout_s=3.0, rpm=5, budget_usd=1.0, prices="1,1") == same
    assert key(replace(request, turn=replace(request.turn, sandbox_s=77.0))) == same
    assert key(request, "a/c") != same
    assert key(request, base_url="http://x/v1") != same
    assert key(make_request(stdout="other")) != same
    monkeypatch.setattr("mappa_envs.coach.llm.coach.VERSION", 1)  # its answers were kept by laxer rules
    assert key(request) != same


def test_a_budget_refuses_once_it_is_spent() -> None:
    budget = Budget(0.3)
    budget.add(Usage(prompt_tokens=5, cost_usd=0.2))
    budget.check()
    budget.add(Usage(prompt_tokens=5, cost_usd=None))
    budget.check()
    budget.add(Usage(completion_tokens=2, cost_usd=0.1))
    with pytest.raises(CoachError, match=f"^{BUDGET_SPENT}$"):
        budget.check()
    assert budget.spent == Usage(prompt_tokens=10, completion_tokens=2, cost_usd=pytest.approx(0.3))


def test_no_budget_never_refuses() -> None:
    budget = Budget(0.0)
    budget.add(Usage(cost_usd=1e9))
    budget.check()


def test_no_more_than_so_many_calls_at_once() -> None:
    async def most() -> int:
        pace, now, peak = Pace(concurrency=3, rpm=0, tpm=0), 0, 0

        async def one() -> None:
            nonlocal now, peak
            async with pace.slot():
                await pace.wait(10)
                now += 1
                peak = max(peak, now)
                await asyncio.sleep(0)
                now -= 1

        await asyncio.gather(*(one() for _ in range(20)))
        return peak

    assert asyncio.run(most()) == 3


@pytest.mark.parametrize(("limits", "free"), [({"rpm": 2, "tpm": 0}, 2), ({"rpm": 0, "tpm": 100}, 4)])
def test_a_minute_has_so_many_requests_and_tokens(limits: dict[str, int], free: int) -> None:
    async def passed() -> int:
        pace, count = Pace(concurrency=9, **limits), 0

        async def one() -> None:
            nonlocal count
            await pace.wait(100)
            count += 1

        jobs = [asyncio.create_task(one()) for _ in range(8)]
        for _ in range(200):  # who need not wait for a moment to come has passed by then
            await asyncio.sleep(0)
        for job in jobs:
            job.cancel()
        return count

    assert asyncio.run(passed()) == free


def test_a_minute_makes_room_only_as_what_was_sent_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MINUTE_S", 0.4)

    async def sent() -> list[float]:
        pace, moments = Pace(concurrency=9, rpm=2, tpm=0), list[float]()
        for _ in range(5):
            await pace.wait(4)
            moments.append(time.monotonic())
        return moments

    moments = asyncio.run(sent())
    # The first and the third, and so on, are a whole minute apart; written down a moment later, each of them.
    assert all(later - first > 0.25 for first, later in zip(moments, moments[2:], strict=False))


def test_limits_work_in_a_second_loop_though_some_waited_in_the_first() -> None:
    pace = Pace(concurrency=1, rpm=0, tpm=0)

    async def enter() -> None:
        async with pace.slot():
            await pace.wait(4)

    async def leave_waiting() -> None:
        await pace.slot().__aenter__()
        waiting = asyncio.ensure_future(enter())
        await asyncio.sleep(0)
        loops.append((asyncio.get_running_loop(), waiting))

    loops: list[object] = []
    first = asyncio.new_event_loop()
    first.run_until_complete(leave_waiting())
    asyncio.run(asyncio.wait_for(enter(), 60))
    assert len(loops) == 1
    for task in asyncio.all_tasks(first):
        task.cancel()
    first.run_until_complete(asyncio.sleep(0))
    first.close()


@pytest.mark.parametrize(
    ("told", "read"), [(-(10**9), 0), (10**400, 10**9), (float("nan"), 0), ("a", 0), (7, 7)]
)
def test_a_servers_count_of_tokens_is_believed_within_reason(told: object, read: int) -> None:
    assert _count(told) == read


def test_an_error_is_told_once_and_without_its_wrapping() -> None:
    error = TimeoutError(
        "litellm.InternalServerError: InternalServerError: OpenAIException - Connection error."
    )
    assert describe(error) == "TimeoutError: Connection error"
    assert describe(ValueError("ValueError: ")) == "ValueError: "


def test_servers_named_in_the_environment_do_not_share_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    question = _Question(
        system="s", parts=lambda scale: [], schema={}, read=lambda text, last, structured: text
    )
    for url in ("http://a/v1", "http://b/v1"):
        for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
            monkeypatch.setenv(name, url)
        keys |= {LLMCoach("openai/x")._key(question), LLMCoach("openai/x", base_url=url)._key(question)}
    assert len(keys) == 4


def test_a_request_larger_than_a_minutes_tokens_is_sent_all_the_same() -> None:
    asyncio.run(asyncio.wait_for(Pace(concurrency=1, rpm=0, tpm=10).wait(100_000), 50))


def test_what_runs_in_the_shared_loop_returns_raises_and_is_cancelled_as_here() -> None:
    ended: list[str] = []
    began = threading.Event()

    async def work(word: str) -> str:
        try:
            if word == "wait":
                began.set()
                await asyncio.sleep(60)
            if word == "fail":
                raise KeyError(word)
        finally:
            ended.append(word)
        return await in_shared_loop(asyncio.sleep(0, word))

    async def both() -> None:
        assert await in_shared_loop(work("ok")) == "ok"
        with pytest.raises(KeyError):
            await in_shared_loop(work("fail"))
        waiting = asyncio.create_task(in_shared_loop(work("wait")))
        await asyncio.to_thread(began.wait, 50)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await in_shared_loop(work("last")) == "last"  # after the cancelled one, in the same loop

    asyncio.run(both())
    assert ended == ["ok", "fail", "wait", "last"]


def test_keys_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret-value")
    text = (
        "bad very-secret-value, sk-proj-abcdef1234, AIzaSyA1234567890, Bearer abc.def and "
        "https://host/x?alt=1&key=zzz123&b=2; the task is risk-free"
    )
    shown = redact(text)
    for secret in ("very-secret", "abcdef1234", "AIza", "abc.def", "zzz123"):
        assert secret not in shown
    assert "&b=2; the task is risk-free" in shown


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("0.5", 0.5, 0.5),
        ("-3", 0, 0),
        (format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True), 3000, 3601),
        (format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True), 0, 0),
    ],
    ids=["seconds", "half a second", "negative", "in an hour", "an hour ago"],
)
def test_retry_after_is_seconds_or_a_date(value: str, low: float, high: float) -> None:
    error: Any = SimpleNamespace(response=SimpleNamespace(headers={"retry-after": value}))
    found = retry_after_s(error)
    assert found is not None
    assert low <= found <= high


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-after": "soon"},
        {"retry-after": ""},
        {"retry-after": f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT"},
        {"retry-after": f"Mon, 01 Jan 2020 00:00:00 +{'9' * 20}"},
    ],
)
def test_no_usable_retry_after_is_none(headers: dict[str, str]) -> None:
    error: Any = SimpleNamespace(response=SimpleNamespace(headers=headers))
    assert retry_after_s(error) is None
    assert retry_after_s(ValueError()) is None


def test_the_cache_holds_no_evidence(tmp_path: Path) -> None:
    AnswerCache(tmp_path).put("ab" * 32, "the answer")
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text()) == {"key": "ab" * 32, "answer": "the answer"}
