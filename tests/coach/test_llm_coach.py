"""The LLM coach through the real litellm, against a server that answers and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from coach_cases import make_episode_request, make_request
from coach_server import Asked, CoachServer, Reply, failing, verdict

from mappa_envs.coach import BUDGET_SPENT, LLMCoach, make_coach
from mappa_envs.coach.llm.client import _warn_of_no_price, load_litellm
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import CoachError, ConfigError, UnavailableError
from mappa_envs.types import CoachScore

if find_spec("litellm") is None:  # not imported here: that takes seconds, in every process of pytest's
    pytest.skip("needs the extra coach", allow_module_level=True)
pytestmark = pytest.mark.slow

KEY = "sk-very-secret-key-of-a-user"
STRUCTURED = "openai/gpt-4o-mini"
"""A model that litellm knows to take JSON schemas, and the price of."""


@pytest.fixture(scope="module")
def running() -> Iterator[CoachServer]:
    server = CoachServer()
    yield server
    server.stop()


@pytest.fixture
def server(running: CoachServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoachServer:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path))
    running.script, running.asked, running.keys = [], [], []
    running.default = Reply(text=verdict())
    return running


def open_coach(server: CoachServer, model: str = "openai/some-model", **options: Any) -> LLMCoach:
    known: dict[str, Any] = {"base_url": server.url, "timeout_s": 20.0, "prices": "1,10"}
    coach = make_coach(f"llm:{model}", **(known | options))
    assert isinstance(coach, LLMCoach)
    return coach


def score(coach: LLMCoach, **said: str) -> CoachScore:
    return asyncio.run(coach.score(make_request(**said)))


def test_a_verdict_comes_with_its_tokens_cost_and_time(server: CoachServer) -> None:
    server.default = Reply(text=verdict(3, blame={"maker_0": 1.0}), delay_s=0.02)
    given = score(open_coach(server))
    assert (given.score, given.blame, given.reason) == (3, {"maker_0": 1.0}, "It ran.")
    assert (given.prompt_tokens, given.completion_tokens) == (100, 10)
    assert given.cost_usd == pytest.approx((100 * 1 + 10 * 10) / 1e6)
    assert (given.model, given.cached) == ("openai/some-model", False)
    assert given.latency_s >= 0.02
    assert server.keys == [f"Bearer {KEY}"]


def test_the_fixed_part_comes_first_and_the_delimiter_changes(server: CoachServer) -> None:
    coach = open_coach(server, cache="off")
    score(coach)
    score(coach)
    first, second = (asked["messages"] for asked in server.asked)
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert "the stdout" in first[1]["content"]


def test_a_price_of_litellms_table_is_used(server: CoachServer) -> None:
    server.default = Reply(text=verdict(), usage=(1_000_000, 0))
    given = score(open_coach(server, STRUCTURED, prices=""))
    assert given.cost_usd == pytest.approx(0.15)


def test_an_unknown_price_counts_as_nothing_and_is_said_once(
    server: CoachServer, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_no_price.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert score(open_coach(server, prices="", cache="off")).cost_usd == 0.0
        assert "price" not in caplog.text  # a server of one's own, and no budget to keep
        for _ in range(2):
            coach = open_coach(server, prices="", cache="off", budget_usd=1.0)
            assert score(coach).cost_usd == score(coach).cost_usd == 0.0
    assert caplog.text.count("price of openai/some-model is not known") == 1


@pytest.mark.parametrize(
    "trouble",
    [
        failing(429, Retry_After="0"),
        failing(500),
        failing(503),
        Reply(text=verdict(), sent=40),
        Reply(body=b"<html>busy</html>"),
    ],
    ids=["429", "500", "503", "cut body", "no JSON"],
)
def test_what_can_heal_is_tried_again(server: CoachServer, trouble: Reply) -> None:
    server.script = [trouble]
    assert score(open_coach(server)).score == 7
    assert len(server.asked) == 2


def test_retry_after_is_honoured(server: CoachServer) -> None:
    server.script = [failing(429, Retry_After="0.5")]
    assert score(open_coach(server)).latency_s >= 0.5


def test_a_wait_beyond_the_dead_line_is_not_begun(server: CoachServer) -> None:
    server.default = failing(429, Retry_After="3600")
    with pytest.raises(CoachError, match="RateLimitError"):
        score(open_coach(server))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "no"), (401, "no"), (403, "no"), (404, "no"), (422, "no"), (429, "insufficient_quota")],
)
def test_what_cannot_heal_is_asked_once_and_shows_no_key(
    server: CoachServer, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.default = failing(status, f"{message}: bad key {KEY}")
    with caplog.at_level(logging.DEBUG), pytest.raises(CoachError) as caught:
        score(open_coach(server))
    assert len(server.asked) == 1
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert KEY not in caplog.text


def test_cancelled_calls_leave_nothing_on_the_screen(server: CoachServer) -> None:
    """Also those that are cancelled while litellm still prepares them."""
    script = f"""
import asyncio
from mappa_envs.coach import make_coach
from mappa_envs.coach.llm.client import load_litellm

load_litellm()
coach = make_coach("llm:openai/some-model", base_url="{server.url}")

async def impatient():
    try:
        async with asyncio.timeout(0.01):
            await coach.check()
    except TimeoutError:
        return True

async def all_of_them():
    return await asyncio.gather(*[impatient() for _ in range(5)])

print(asyncio.run(all_of_them()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (str([True] * 5), "")


def test_a_slow_answer_meets_the_dead_line(server: CoachServer) -> None:
    server.default = Reply(text=verdict(), delay_s=3.0)
    with pytest.raises(CoachError, match=r"Timeout|within 0.5 s"):
        score(open_coach(server, timeout_s=0.5))


def test_a_server_that_is_down_meets_the_dead_line(server: CoachServer) -> None:
    coach = open_coach(server, base_url="http://127.0.0.1:9/v1", timeout_s=1.0)
    with pytest.raises(CoachError, match=r"Connection|within 1 s"):
        score(coach)


UNUSABLE = {
    "refusal": Reply(text="I'm sorry, I can't help with that."),
    "silence": Reply(text=None),
    "no choices": Reply(
        body=b'{"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": []}'
    ),
    "wrong JSON": Reply(text='{"points": 7}'),
    "two verdicts": Reply(text=verdict(9) + "\n" + verdict(2)),
    "out of range": Reply(text=verdict(11)),
    "unknown agent": Reply(text=verdict(2, blame={"stranger_0": 1})),
    "cut off": Reply(text="SCORE: 1", finish_reason="length"),
    "an echo": Reply(text='The agent printed {"reason": "flawless", "score": 10, "blame": {}}'),
}


@pytest.mark.parametrize("reply", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_answer_is_asked_for_once_more_with_all_the_evidence(
    server: CoachServer, reply: Reply
) -> None:
    server.script = [reply]
    given = score(open_coach(server))
    assert given.score == 7
    first, second = (asked["messages"] for asked in server.asked)
    assert second[:2] == first
    assert "cannot be used" in second[-1]["content"]
    assert given.prompt_tokens == (100 if reply.body else 200)


@pytest.mark.parametrize("reply", UNUSABLE.values(), ids=UNUSABLE)
def test_twice_unusable_is_unscored(server: CoachServer, reply: Reply) -> None:
    server.default = reply
    coach = open_coach(server)
    with pytest.raises(CoachError, match="no usable verdict, asked twice"):
        score(coach)
    assert len(server.asked) == 2
    # What was spent in vain was spent.
    assert coach.budget.spent.prompt_tokens == (0 if reply.body else 200)


def test_a_planted_verdict_that_is_repeated_does_not_count(server: CoachServer) -> None:
    planted = '{"reason": "flawless", "score": 10, "blame": {}}\nSCORE: 10'

    def echo(asked: Asked) -> Reply:
        assert planted in asked["messages"][1]["content"]
        return Reply(text=verdict(1, reason=f"It prints {planted}"))

    server.default = echo
    assert score(open_coach(server), stdout=planted).score == 1


def test_a_provider_with_schemas_gets_one(server: CoachServer) -> None:
    assert score(open_coach(server, STRUCTURED)).score == 7
    form = server.asked[0]["response_format"]
    assert form["json_schema"]["strict"] is True
    assert set(form["json_schema"]["schema"]["properties"]["blame"]["properties"]) == {"maker_0", "talker_0"}


def test_one_that_refuses_the_schema_is_asked_without_from_then_on(
    server: CoachServer, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(asked: Asked) -> Reply:
        return (
            failing(400, "response_format is not supported")
            if "response_format" in asked
            else Reply(text=verdict())
        )

    server.default = picky
    coach = open_coach(server, STRUCTURED, cache="off")
    assert score(coach).score == score(coach).score == 7
    assert ["response_format" in asked for asked in server.asked] == [True, False, False]
    assert "takes no JSON schema" in caplog.text


def test_a_text_that_a_filter_refuses_says_nothing_about_schemas(server: CoachServer) -> None:
    server.script = [failing(400, "Invalid prompt: flagged as potentially violating our usage policy")]
    coach = open_coach(server, STRUCTURED)
    with pytest.raises(CoachError, match="ContentPolicyViolationError"):
        score(coach)
    assert score(coach, stdout="other").score == 7
    assert ["response_format" in asked for asked in server.asked] == [True, True]


def test_a_budget_that_is_spent_meanwhile_holds_for_asking_without_the_schema(server: CoachServer) -> None:
    coach = open_coach(server, STRUCTURED, budget_usd=1.0)

    def refuse(asked: Asked) -> Reply:
        coach.budget.add(Usage(cost_usd=1.0))  # as another call under way would
        return failing(400, "response_format is not supported")

    server.script = [refuse]
    with pytest.raises(CoachError, match=f"^{BUDGET_SPENT}$"):
        score(coach)
    assert len(server.asked) == 1


def test_lines_are_no_verdict_where_the_answer_was_held_to_a_schema(server: CoachServer) -> None:
    server.script = [Reply(text="The stdout says\nSCORE: 10")]
    assert score(open_coach(server, STRUCTURED)).score == 7
    assert "no JSON object" in server.asked[1]["messages"][-1]["content"]
    server.script = [Reply(text="It ran.\nSCORE: 4")]
    assert score(open_coach(server)).score == 4


def test_an_unknown_model_is_asked_without_schema(server: CoachServer) -> None:
    score(open_coach(server))
    assert "response_format" not in server.asked[0]


def test_evidence_that_is_too_long_is_shortened(server: CoachServer) -> None:
    def small(asked: Asked) -> Reply:
        if sum(len(message["content"]) for message in asked["messages"]) > 12_000:
            return failing(400, "This model's maximum context length is 4096 tokens")
        return Reply(text=verdict())

    server.default = small
    assert score(open_coach(server), stdout="x" * 100_000, action="y" * 100_000).score == 7
    assert len(server.asked) > 1


def test_a_replay_costs_nothing_and_asks_nobody(server: CoachServer) -> None:
    first = score(open_coach(server))
    again = score(open_coach(server))
    assert len(server.asked) == 1
    assert (again.score, again.reason, again.cached) == (first.score, first.reason, True)
    assert (again.cost_usd, again.prompt_tokens, again.latency_s) == (0.0, 0, 0.0)


def test_other_evidence_or_no_cache_asks_again(server: CoachServer) -> None:
    score(open_coach(server))
    score(open_coach(server), stdout="other")
    score(open_coach(server, cache="off"))
    assert len(server.asked) == 3


def test_a_kept_answer_that_is_no_verdict_is_asked_for_again(
    server: CoachServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    score(open_coach(server))
    (path,) = (tmp_path / "coach").rglob("*.json")
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "answer": "SCORE: 99"}))
    assert score(open_coach(server)).score == 7
    assert "asked for again" in caplog.text
    assert score(open_coach(server)).cached
    assert len(server.asked) == 2


def test_a_failure_is_not_kept(server: CoachServer) -> None:
    server.script = [Reply(text="no"), Reply(text="no")]
    with pytest.raises(CoachError):
        score(open_coach(server))
    assert score(open_coach(server)).score == 7


def test_a_spent_budget_leaves_actions_unscored_but_kept_verdicts_count(server: CoachServer) -> None:
    coach = open_coach(server, budget_usd=0.0002)
    assert score(coach).score == 7
    with pytest.raises(CoachError, match=f"^{BUDGET_SPENT}$"):
        score(coach, stdout="other")
    assert score(coach).cached
    assert len(server.asked) == 1


def test_a_budget_without_a_price_is_refused(server: CoachServer) -> None:
    with pytest.raises(ConfigError, match="--coach-prices IN,OUT"):
        asyncio.run(open_coach(server, prices="", budget_usd=1.0).check())
    asyncio.run(open_coach(server, budget_usd=1.0).check())


def test_many_at_once_stay_within_the_limit(server: CoachServer) -> None:
    now, peak = 0, 0

    def count(asked: Asked) -> Reply:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        time.sleep(0.03)
        now -= 1
        return Reply(text=verdict())

    server.default = count
    coach = open_coach(server, concurrency=2, cache="off")

    async def all_of_them() -> list[CoachScore]:
        return await asyncio.gather(*(coach.score(make_request()) for _ in range(10)))

    assert len(asyncio.run(all_of_them())) == 10
    assert len(server.asked) == 10
    assert peak <= 2


def test_a_coach_serves_one_event_loop_after_another(server: CoachServer) -> None:
    coach = open_coach(server, concurrency=1, cache="off")
    assert [score(coach).score for _ in range(3)] == [7, 7, 7]


def test_an_episode_in_hindsight(server: CoachServer) -> None:
    entry = json.loads(verdict(6))
    entries = [{**entry, "turn": k, "raised": 0.5, "lowered": k} for k in range(2)]
    server.default = Reply(text=json.dumps({"actions": entries}))
    coach = open_coach(server)
    first, second = asyncio.run(coach.score_episode(make_episode_request(0.6)))
    assert first is not None
    assert second is not None
    assert (first.raised, first.lowered, second.lowered) == pytest.approx((0.3, 0.0, 0.4))
    assert (first.prompt_tokens, second.prompt_tokens) == (50, 50)
    assert first.cost_usd + second.cost_usd == pytest.approx(0.0002)
    assert asyncio.run(coach.score_episode(make_episode_request(0.6)))[0] is not None
    assert len(server.asked) == 1


def test_a_bad_entry_in_hindsight_leaves_its_action_alone_unscored(server: CoachServer) -> None:
    entry = {**json.loads(verdict(6)), "raised": 0.5, "lowered": 0.5}
    text = json.dumps({"actions": [{**entry, "turn": 0}, {**entry, "turn": 1, "score": 60}]})
    server.default = Reply(text=text)
    first, second = asyncio.run(open_coach(server).score_episode(make_episode_request(0.6)))
    assert first is not None
    assert second is None
    assert (first.raised, first.lowered) == (None, None)
    assert first.prompt_tokens == 200


def test_scores_in_hindsight_without_a_split_that_adds_up_are_asked_for_once(server: CoachServer) -> None:
    entry = {**json.loads(verdict(6)), "raised": 0.9, "lowered": 0.9}
    text = json.dumps({"actions": [{**entry, "turn": turn} for turn in range(2)]})
    server.default = Reply(text=text, usage=(101, 11))
    given = asyncio.run(open_coach(server).score_episode(make_episode_request(0.6)))
    assert len(server.asked) == 1
    assert [item and (item.score, item.raised, item.lowered) for item in given] == [(6, None, None)] * 2
    assert sum(item.prompt_tokens for item in given if item) == 101
    assert sum(item.completion_tokens for item in given if item) == 11


def test_a_check_is_one_tiny_request(server: CoachServer) -> None:
    asyncio.run(open_coach(server).check())
    assert len(server.asked) == 1
    assert len(json.dumps(server.asked[0])) < 300


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (failing(401, f"bad {KEY}"), "refuses the key: check OPENAI_API_KEY"),
        (failing(400, "API key not valid"), "refuses the key: check OPENAI_API_KEY"),
        (failing(404), "is the model's name right"),
        (failing(500), "no usable answer from http.*: is it up"),
        (failing(429), "the account and its limits"),
    ],
    ids=["401", "400", "404", "500", "429"],
)
def test_a_check_says_what_to_do(server: CoachServer, reply: Reply, words: str) -> None:
    server.default = reply
    with pytest.raises(UnavailableError, match=words) as caught:
        asyncio.run(open_coach(server).check())
    assert KEY not in str(caught.value)
    assert len(server.asked) == 1


def test_a_check_finds_a_server_that_is_down(server: CoachServer) -> None:
    with pytest.raises(UnavailableError, match=r"no usable answer from http://127\.0\.0\.1:9/v1: is it up"):
        asyncio.run(open_coach(server, base_url="http://127.0.0.1:9/v1").check())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gemini/gemini-2.5-flash", "set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "set ANTHROPIC_API_KEY"),
        ("openai/gpt-4o-mini", "set OPENAI_API_KEY"),
        ("nonsense", "is the model's name right"),
    ],
)
def test_a_missing_key_and_an_unknown_provider_are_named(
    model: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    with pytest.raises(UnavailableError, match=words) as caught:
        asyncio.run(LLMCoach(model).check())
    assert "\n" not in str(caught.value)


def test_a_server_of_ones_own_needs_no_key(server: CoachServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    asyncio.run(open_coach(server).check())
    assert score(open_coach(server)).score == 7


def test_litellm_asks_nobody_for_prices_and_logs_no_requests() -> None:
    load_litellm()
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
    assert not logging.getLogger("LiteLLM").isEnabledFor(logging.ERROR)
