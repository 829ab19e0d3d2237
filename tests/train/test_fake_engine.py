"""The fake engines keep the promises of `engine/base.py`: what is built on them may build on any."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from mappa_train.engine.base import BatchEngine, StreamEngine
from mappa_train.engine.fake import CharTokenizer, FakeBatchEngine, FakeStreamEngine, Pace, random_words
from mappa_train.types import GenerationRequest


def request(index: int, agent: str = "writer_0") -> GenerationRequest:
    return GenerationRequest(agent=agent, prompt_ids=torch.tensor([1, 2]), key=(0, 1, index, 0))


def test_they_are_of_one_kind_each() -> None:
    batch, stream = FakeBatchEngine(random_words(seed=0)), FakeStreamEngine(random_words(seed=0))
    assert isinstance(batch, BatchEngine)
    assert not isinstance(batch, StreamEngine)
    assert isinstance(stream, StreamEngine)
    assert not isinstance(stream, BatchEngine)


def test_what_they_say_depends_on_seed_and_key_alone() -> None:
    batch = FakeBatchEngine(random_words(seed=0)).generate([request(0), request(1)])
    again = FakeBatchEngine(random_words(seed=0)).generate([request(1)])
    assert torch.equal(again[0].token_ids, batch[1].token_ids)
    assert not torch.equal(batch[0].token_ids, batch[1].token_ids)
    other = FakeBatchEngine(random_words(seed=1)).generate([request(1)])
    assert not torch.equal(other[0].token_ids, batch[1].token_ids)
    alone = asyncio.run(FakeStreamEngine(random_words(seed=0)).agenerate(request(1)))
    assert torch.equal(alone.token_ids, batch[1].token_ids)
    assert len(alone.logprobs) == len(alone.token_ids)


def test_the_tokenizer_reads_what_the_engines_say() -> None:
    (answer,) = FakeBatchEngine(lambda request: "Grüße 🙂").generate([request(0)])
    assert CharTokenizer().decode(answer.token_ids) == "Grüße 🙂"


def test_the_version_is_that_of_the_last_sync() -> None:
    engine = FakeBatchEngine(random_words(seed=0))
    engine.sync(3)
    assert engine.generate([request(0)])[0].policy_version == 3


def test_at_the_deadline_the_part_so_far_comes_back() -> None:
    engine = FakeStreamEngine(lambda request: "x" * 1000, Pace(tokens_per_s=1000))
    answer = asyncio.run(engine.agenerate(request(0), deadline_s=0.01))
    assert answer.truncated
    assert len(answer.token_ids) == 10


def test_cancel_ends_a_batch_in_another_thread_and_sync_makes_it_usable_again() -> None:
    engine = FakeBatchEngine(random_words(seed=0), Pace(hangs=lambda request: request.key[2] == 1))
    threading.Timer(0.02, engine.cancel).start()
    with pytest.raises(asyncio.CancelledError):
        engine.generate([request(0), request(1)])
    engine.sync(1)
    assert len(engine.generate([request(0)])) == 1


def test_cancel_ends_every_request_of_a_stream() -> None:
    engine = FakeStreamEngine(random_words(seed=0), Pace(hangs=lambda request: True))

    async def check() -> list[object]:
        jobs = [asyncio.create_task(engine.agenerate(request(k))) for k in range(3)]
        await asyncio.sleep(0)
        assert engine.num_running == 3
        await asyncio.to_thread(engine.cancel)
        return list(await asyncio.gather(*jobs, return_exceptions=True))

    assert [type(found) for found in asyncio.run(check())] == [asyncio.CancelledError] * 3
    assert engine.num_running == 0


def test_a_batch_takes_the_time_of_all_its_messages() -> None:
    start = time.monotonic()
    FakeBatchEngine(random_words(seed=0), Pace(action_s=0.01)).generate([request(k) for k in range(5)])
    assert time.monotonic() - start >= 0.05
