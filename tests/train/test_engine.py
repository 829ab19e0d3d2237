"""Sampling: what is recorded is what the plain library model says, whatever shares the batch."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import (
    AGENTS,
    STOP,
    WORDS,
    alone,
    ids,
    make_engine,
    make_model,
    make_policies,
    make_requests,
    plain_model,
)

from mappa_train.engine.cache import roomy_cache, use_grouped_attention
from mappa_train.engine.transformers import _draw, _noise, _prefill
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.types import GenerationRequest

STOPS = (STOP, *range(5, 13))
"""Several ids that end an action, so that sequences of a batch end at different places."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return plain_model(folder)


@pytest.fixture
def policies(folder: Path) -> LoRAPolicies:
    return make_policies(folder)


def shake(policies: LoRAPolicies, agent: str, seed: int) -> None:
    """Give the agent an adapter that does something."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policies.parameters(agent):
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def test_logprobs_are_those_of_a_fresh_forward_pass(policies: LoRAPolicies, plain: Any) -> None:
    requests = make_requests(12)
    found = make_engine(policies, stop_ids=STOPS).generate(requests)
    assert len({len(answer.token_ids) for answer in found}) > 2
    for request, answer in zip(requests, found, strict=True):
        fresh = alone(plain, request.prompt_ids, answer.token_ids, temperature=0.7)
        torch.testing.assert_close(answer.logprobs, fresh, atol=1e-4, rtol=0)


def test_each_agent_samples_from_its_own_weights(folder: Path, policies: LoRAPolicies) -> None:
    for k, agent in enumerate(AGENTS):
        shake(policies, agent, k)
    requests = make_requests(8)
    found = make_engine(policies).generate(requests)
    for agent in AGENTS:
        model = policies.activate(agent).float()
        mine = [pair for pair in zip(requests, found, strict=True) if pair[0].agent == agent]
        assert len(mine) == 4
        for request, answer in mine:
            fresh = alone(model, request.prompt_ids, answer.token_ids, temperature=0.7)
            torch.testing.assert_close(answer.logprobs, fresh, atol=1e-4, rtol=0)
    one, two = (replace(requests[0], agent=agent) for agent in AGENTS)
    a, b = make_engine(policies).generate([one, two])
    assert a.token_ids.tolist() != b.token_ids.tolist()


def test_same_key_same_tokens_whatever_else_is_in_the_batch(policies: LoRAPolicies) -> None:
    requests = make_requests(10)
    engine = make_engine(policies, stop_ids=STOPS)
    together = engine.generate(requests)
    backwards = engine.generate(requests[::-1])[::-1]
    for k, request in enumerate(requests):
        (single,) = engine.generate([request])
        assert single.token_ids.tolist() == together[k].token_ids.tolist() == backwards[k].token_ids.tolist()
        torch.testing.assert_close(single.logprobs, together[k].logprobs, atol=1e-5, rtol=0)


def test_other_key_other_tokens(policies: LoRAPolicies) -> None:
    request = make_requests(1)[0]
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    answers = make_engine(policies, stop_ids=()).generate([replace(request, key=key) for key in keys])
    assert len({tuple(answer.token_ids.tolist()) for answer in answers}) == len(keys)


def test_a_stop_token_is_included_and_ends(policies: LoRAPolicies) -> None:
    answers = make_engine(policies, stop_ids=STOPS, max_new_tokens=40).generate(make_requests(16))
    ended = [answer for answer in answers if not answer.truncated]
    assert len(ended) > 4
    for answer in ended:
        assert int(answer.token_ids[-1]) in STOPS
    for answer in answers:
        assert not set(answer.token_ids[:-1].tolist()) & set(STOPS)
        assert len(answer.logprobs) == len(answer.token_ids)
        assert (answer.token_ids.dtype, answer.logprobs.dtype) == (torch.int64, torch.float32)


def test_truncated_means_the_length_limit(policies: LoRAPolicies) -> None:
    answers = make_engine(policies, stop_ids=STOPS, max_new_tokens=5).generate(make_requests(16))
    assert {answer.truncated for answer in answers} == {True, False}
    for answer in answers:
        assert answer.truncated == (int(answer.token_ids[-1]) not in STOPS)
        if answer.truncated:
            assert len(answer.token_ids) == 5


def test_a_stop_at_the_last_place_is_no_truncation(policies: LoRAPolicies) -> None:
    every = tuple(range(len(WORDS)))
    (answer,) = make_engine(policies, stop_ids=every, max_new_tokens=1).generate(make_requests(1))
    assert (len(answer.token_ids), answer.truncated) == (1, False)


def test_near_temperature_0_is_greedy(policies: LoRAPolicies, plain: Any) -> None:
    request = make_requests(1)[0]
    (answer,) = make_engine(policies, stop_ids=(), temperature=1e-4).generate([request])
    tokens = request.prompt_ids
    for _ in range(12):
        with torch.no_grad():
            tokens = torch.cat([tokens, plain(input_ids=tokens[None]).logits[0, -1].argmax()[None]])
    assert answer.token_ids.tolist() == tokens[len(request.prompt_ids) :].tolist()


def test_temperature_divides_the_logits(policies: LoRAPolicies, plain: Any) -> None:
    requests = make_requests(4)
    for temperature in (0.5, 2.0):
        answers = make_engine(policies, temperature=temperature).generate(requests)
        for request, answer in zip(requests, answers, strict=True):
            right = alone(plain, request.prompt_ids, answer.token_ids, temperature)
            wrong = alone(plain, request.prompt_ids, answer.token_ids, 1.0)
            torch.testing.assert_close(answer.logprobs, right, atol=1e-4, rtol=0)
            assert (answer.logprobs - wrong).abs().max() > 1e-2


def test_draws_follow_the_distribution() -> None:
    """Each token's share is its probability, within 4 standard errors of 20 000 draws."""
    logits = torch.tensor([0.0, 1.0, 2.0, -30.0])
    uniform = _noise(1234, 20_000)
    token, logprob = _draw(logits.expand(20_000, -1), uniform)
    wanted = logits.softmax(-1)
    shares = torch.bincount(token, minlength=4) / 20_000
    assert ((shares - wanted).abs() <= 4 * (wanted * (1 - wanted) / 20_000).sqrt()).all()
    torch.testing.assert_close(logprob, wanted.log()[token])


def test_the_ends_of_the_uniform_range_are_tokens() -> None:
    logits = torch.tensor([[-1e9, 0.0, 0.0, -1e9]]).expand(2, -1)
    token, _ = _draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
    assert token.tolist() == [1, 2]


def test_the_policy_version_is_recorded(policies: LoRAPolicies) -> None:
    engine = make_engine(policies)
    engine.sync(3)
    assert {answer.policy_version for answer in engine.generate(make_requests(3))} == {3}


def test_nothing_asked_nothing_given(policies: LoRAPolicies) -> None:
    assert make_engine(policies).generate([]) == []


def test_full_policies_sample_alike(folder: Path, policies: LoRAPolicies) -> None:
    requests = make_requests(6)
    lora = make_engine(policies).generate(requests)
    full = make_engine(FullPolicies(folder, AGENTS)).generate(requests)
    assert [a.token_ids.tolist() for a in lora] == [a.token_ids.tolist() for a in full]


def test_more_requests_than_a_batch(policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = make_requests(9)
    engine = make_engine(policies, stop_ids=STOPS)
    before = [answer.token_ids.tolist() for answer in engine.generate(requests)]
    monkeypatch.setattr("mappa_train.engine.transformers.MAX_BATCH", 2)
    assert [answer.token_ids.tolist() for answer in engine.generate(requests)] == before


def test_cancel_ends_a_running_generate(policies: LoRAPolicies) -> None:
    engine = make_engine(policies, stop_ids=(), max_new_tokens=100_000)
    ended: list[BaseException] = []

    def sample() -> None:
        try:
            engine.generate(make_requests(1))
        except BaseException as error:  # noqa: BLE001  (looked at below)
            ended.append(error)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    for _ in range(600):  # once would be lost if the thread were slow to begin
        time.sleep(0.1)
        engine.cancel()
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    assert isinstance(ended[0], asyncio.CancelledError)


@torch.inference_mode()
def test_cache_and_attention_equal_the_library_also_after_compaction(folder: Path, plain: Any) -> None:
    """Hidden states of each sequence at each token, with headroom so small that buffers grow twice."""
    fast = plain_model(folder)
    use_grouped_attention(fast)
    generator = torch.Generator().manual_seed(1)
    prompts = [request.prompt_ids for request in make_requests(6, agents=("a_0",))]
    live = _prefill(fast, prompts, headroom=2)
    sequences = dict(enumerate(prompts))
    for place in range(8):
        for row, hidden in zip(live.rows.tolist(), live.hidden, strict=True):
            wanted = plain.model(input_ids=sequences[row][None]).last_hidden_state[0, -1]
            torch.testing.assert_close(hidden, wanted, atol=1e-5, rtol=1e-5)
        if place == 2:
            live.select([0, 2, 5])
        if place == 5:
            live.select([1])
        token = ids(generator, len(live.rows))
        for row, t in zip(live.rows.tolist(), token, strict=True):
            sequences[row] = torch.cat([sequences[row], t[None]])
        live.advance(fast, token)
    assert live.rows.tolist() == [2]


@torch.inference_mode()
def test_the_roomy_cache_copies_only_when_its_room_is_full(folder: Path) -> None:
    model = plain_model(folder)
    cache = roomy_cache(model, headroom=4)
    places = []
    for _ in range(10):
        model.model(input_ids=torch.tensor([[3]]), past_key_values=cache, use_cache=True)
        places.append(cache.layers[0].keys.data_ptr())
    assert cache.get_seq_length() == 10
    # Room for 1 + 4 tokens, then for 6 + 4.
    assert len(set(places)) == 2


def test_requests_of_one_token(policies: LoRAPolicies, plain: Any) -> None:
    prompts = [torch.tensor([3]), torch.tensor([4]), torch.tensor([3, 9])]
    requests = [
        GenerationRequest(agent=AGENTS[0], prompt_ids=p, key=(0, 0, k, 0)) for k, p in enumerate(prompts)
    ]
    for request, answer in zip(requests, make_engine(policies).generate(requests), strict=True):
        fresh = alone(plain, request.prompt_ids, answer.token_ids, temperature=0.7)
        torch.testing.assert_close(answer.logprobs, fresh, atol=1e-4, rtol=0)
