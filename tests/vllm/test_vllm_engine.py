"""vLLM as the engine: it samples what each agent's own fresh weights say, or there is an error."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tiny import STOP, WORDS, alone
from vllm_bench import AGENTS, ALPHA, CONTEXT, MAX_NEW, RANK, Bench, children, requests

from mappa_envs.errors import DataError, UnavailableError
from mappa_train.engine import vllm_setup, vllm_weights
from mappa_train.engine.base import InlineEngine
from mappa_train.engine.vllm_setup import why_not
from mappa_train.engine.vllm_weights import AdapterWeights, MergedWeights, SyncError
from mappa_train.types import Generation, GenerationRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]


def assert_fresh(bench: Bench, asked: list[GenerationRequest], found: list[Generation]) -> None:
    """Every logprob is that of a plain forward pass through the agent's merged weights."""
    assert len(asked) == len(found)
    for request, answer in zip(asked, found, strict=True):
        model = bench.policies.sampler(request.agent)
        fresh = alone(model, request.prompt_ids, answer.token_ids, temperature=0.7)
        torch.testing.assert_close(answer.logprobs, fresh, atol=1e-4, rtol=0)
        assert answer.policy_version == bench.version


def test_it_is_a_stream_engine(bench: Bench) -> None:
    assert isinstance(bench.engine, InlineEngine)


def test_every_agent_samples_from_its_own_fresh_weights(bench: Bench) -> None:
    asked = requests(9)
    first = bench.sample(asked)
    assert_fresh(bench, asked, first)
    bench.learn(seed=2)
    second = bench.sample(asked)
    assert_fresh(bench, asked, second)
    same_noise = [replace(asked[0], agent=agent) for agent in AGENTS]
    texts = {tuple(answer.token_ids.tolist()) for answer in bench.sample(same_noise)}
    assert len(texts) == len(AGENTS)


def test_a_stop_token_ends_an_action_and_belongs_to_it(bench: Bench) -> None:
    found = bench.sample(requests(30))
    stopped = [answer for answer in found if not answer.truncated]
    assert stopped
    for answer in found:
        ids = answer.token_ids.tolist()
        assert len(ids) == len(answer.logprobs)
        assert STOP not in ids[:-1]
        assert answer.truncated == (ids[-1] != STOP)
        assert not answer.truncated or len(ids) == MAX_NEW


def test_a_tied_head_that_stays_stale_is_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # A sampler that is loaded again has the embeddings of the model's folder.
    monkeypatch.setattr(bench.policies, "release_sampler", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(vllm_weights, "pack_tied_head", lambda model: None)
        bench.shake(seed=3)
        # Of the base's own weights alone the head would be right: the embeddings must change, too.
        bench.policies.sampler(AGENTS[0]).get_input_embeddings().weight.data.mul_(1.2)
        with pytest.raises(SyncError, match=f"{AGENTS[0]}.*nats a token"):
            bench.sync()
    bench.sync()
    asked = requests(6)
    assert_fresh(bench, asked, bench.sample(asked))
    bench.policies.sampler(AGENTS[0]).get_input_embeddings().weight.data.div_(1.2)


def test_a_skipped_load_is_caught_after_one_small_update(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.AdamW(bench.policies.parameters(AGENTS[1]), lr=1e-3)
    for parameter in bench.policies.parameters(AGENTS[1]):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    optimizer.zero_grad()
    with monkeypatch.context() as patch:
        patch.setattr(MergedWeights, "load", lambda self, agent, version, model: None)
        with pytest.raises(SyncError, match=AGENTS[1]):
            bench.sync()
    with pytest.raises(UnavailableError, match="sync"):
        bench.sample(requests(1))
    bench.sync()
    assert len(bench.sample(requests(1))) == 1


def test_no_prompt_is_answered_from_the_cache_of_old_weights(bench: Bench) -> None:
    asked = requests(3, length=256)
    bench.sample(asked)
    bench.learn(seed=4)
    assert_fresh(bench, asked, bench.sample(asked))


def test_a_request_repeats_in_whatever_company(bench: Bench) -> None:
    asked = requests(24)
    together = bench.sample(asked)
    for k in (0, 7, 23):
        (again,) = bench.sample([asked[k]])
        assert torch.equal(again.token_ids, together[k].token_ids)
    other = replace(asked[0], key=(0, 1, 99, 0))
    assert not torch.equal(bench.sample([other])[0].token_ids, together[0].token_ids)


def test_more_seeded_prompts_than_a_batch_takes_do_not_end_the_engine(bench: Bench) -> None:
    # 60 prompts of 300 tokens: four times what vLLM takes at once. Cut in pieces, a seeded one would end it.
    asked = requests(60, length=300, agents=AGENTS[:1])
    found = bench.sample(asked)
    assert_fresh(bench, asked[-3:], found[-3:])


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (torch.full((CONTEXT - MAX_NEW + 1,), 5), f"a prompt of {CONTEXT - MAX_NEW + 1} tokens"),
        (torch.tensor([], dtype=torch.int64), "a prompt of 0 tokens"),
        (torch.tensor([5, len(WORDS)]), "outside the vocabulary"),
        (torch.tensor([5, -1]), "outside the vocabulary"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_a_clean_error(
    bench: Bench, prompt: torch.Tensor, words: str
) -> None:
    bad = GenerationRequest(agent=AGENTS[0], prompt_ids=prompt, key=(0, 1, 0, 0))
    with pytest.raises(DataError, match=f"{AGENTS[0]}.*{words}"):
        bench.sample([bad])
    assert len(bench.sample(requests(1))) == 1


def test_the_longest_prompt_that_is_let_in_has_room_for_a_whole_action(bench: Bench) -> None:
    prompt = torch.full((CONTEXT - MAX_NEW,), 5)
    asked = [GenerationRequest(agent=AGENTS[0], prompt_ids=prompt, key=(0, 1, k, 0)) for k in range(8)]
    assert all(len(a.token_ids) == MAX_NEW for a in bench.sample(asked) if a.truncated)


def test_an_unknown_agent_is_a_clean_error(bench: Bench) -> None:
    with pytest.raises(DataError, match="no such agent"):
        bench.sample([replace(requests(1)[0], agent="nobody_0")])


def test_a_cancelled_task_frees_its_request(bench: Bench) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(bench.engine.agenerate(requests(1)[0]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.run(give_up)
    bench.sync()
    assert bench.unfinished() == 0


def test_cancel_ends_all_and_the_next_sync_goes_on(bench: Bench) -> None:
    async def cancelled() -> list[Any]:
        tasks = [asyncio.create_task(bench.engine.agenerate(item)) for item in requests(12)]
        await asyncio.sleep(0)
        bench.engine.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = bench.run(cancelled)
    assert all(isinstance(item, asyncio.CancelledError) for item in found)
    assert bench.unfinished() == 0
    bench.sync()
    assert len(bench.sample(requests(2))) == 2


def test_at_the_deadline_the_tokens_so_far_come_back(bench: Bench) -> None:
    (nothing,) = bench.sample(requests(1), deadline_s=0.0)
    assert nothing.truncated
    assert len(nothing.token_ids) == 0
    step, (engine, *_) = bench.engine._take, bench.engine._engines()

    def late_after(count: int) -> Callable[[Any], None]:
        def take(output: Any) -> None:
            step(output)
            if len(output.outputs[0].token_ids) == count and not output.finished:
                bench.engine._pending[output.request_id].deadline = 0.0

        return take

    bench.engine._take = late_after(3)  # type: ignore[method-assign]
    try:
        asked = requests(4, agents=AGENTS[:1])
        found = bench.sample(asked, deadline_s=600.0)
    finally:
        del bench.engine._take
    assert {len(answer.token_ids) for answer in found if answer.truncated} == {3}
    assert_fresh(bench, asked, found)
    assert engine.get_num_unfinished_requests() == 0


def test_a_sync_waits_for_nobody_and_says_so(bench: Bench) -> None:
    async def both() -> Generation:
        answer = asyncio.create_task(bench.engine.agenerate(requests(1)[0]))
        await asyncio.sleep(0)
        tried: Future[str] = Future()
        bench.engine._jobs.put(partial(sync, tried))
        assert await asyncio.wrap_future(tried) == "sync while 1 requests are under way"
        return await answer

    def sync(tried: Future[str]) -> None:
        with pytest.raises(RuntimeError) as caught:
            bench.engine.sync(99)
        tried.set_result(str(caught.value))

    assert bench.run(both).policy_version == bench.version


def test_the_thread_that_serves_steps_all_engines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """So PyTorch computes in one thread alone, and its helpers need not be woken for each piece of work."""
    steppers: set[int] = set()
    for engine in bench.engine._engines():
        step = engine.step

        def watched(step: Callable[[], Any] = step) -> Any:
            steppers.add(threading.get_ident())
            return step()

        monkeypatch.setattr(engine, "step", watched)
    bench.sample(requests(6))
    assert steppers == {threading.get_ident()}


def test_it_binds_nobody_to_a_core(bench: Bench) -> None:
    """What this process starts later, such as the sandbox, would inherit it."""
    assert bench.sample(requests(1))
    assert os.sched_getaffinity(0) == os.sched_getaffinity(psutil.Process().ppid())


@pytest.mark.parametrize("deadline_s", [None, 600.0])
def test_the_earliest_agent_goes_first_where_nothing_is_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, deadline_s: float | None
) -> None:
    engines, busy = bench.engine._engines(), []
    for k, engine in enumerate(engines):

        def watched(k: int = k, step: Callable[[], Any] = engine.step) -> Any:
            busy.append((k, [other.has_unfinished_requests() for other in engines[:k]]))
            return step()

        monkeypatch.setattr(engine, "step", watched)
    bench.sample(requests(6), deadline_s=deadline_s)
    assert {k for k, _ in busy} == set(range(len(engines)))
    assert any(any(earlier) for _, earlier in busy) == (deadline_s is not None)


def test_there_are_no_processes_that_could_be_left_behind(bench: Bench) -> None:
    assert bench.sample(requests(1))
    assert [child.cmdline() for child in children() if child not in bench.others] == []


def test_the_learner_keeps_its_say_about_threads(bench: Bench) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_a_dead_engine_is_a_clean_error_for_all_who_wait(folder: Path) -> None:
    bench = Bench(folder, AGENTS[:2])
    with pytest.raises(UnavailableError, match="sync it first"):
        bench.sample(requests(1))
    with closing(bench.engine):
        torch.manual_seed(7)
        bench.sync()
        # vLLM has left the seed of the step, which the state begins with.
        assert torch.get_rng_state()[0] == 7

        def fail() -> None:
            raise RuntimeError("out of memory")

        for engine in bench.engine._engines():
            engine.step = fail

        async def everything() -> list[Any]:
            tasks = [bench.engine.agenerate(item) for item in requests(6, agents=AGENTS[:2])]
            return await asyncio.gather(*tasks, return_exceptions=True)

        found = bench.run(everything)
        assert all(isinstance(item, UnavailableError) for item in found)
        assert "out of memory" in str(found[0])
        assert "resume" in str(found[0])
        with pytest.raises(UnavailableError, match="vLLM has stopped"):
            bench.sample(requests(1))
        with pytest.raises(UnavailableError, match="vLLM has stopped"):
            bench.sync()


def test_a_start_without_the_memory_for_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup, "_CPU_CACHE_TOKENS", 10**13)
    bench = Bench(folder, AGENTS[:1])
    words = "vLLM did not start: there is too little memory for it .* try a smaller --model, or --engine tra"
    with closing(bench.engine), pytest.raises(UnavailableError, match=words):
        bench.sync()


def test_adapters_of_one_engine_say_what_the_merged_weights_say(folder: Path) -> None:
    bench = Bench(folder, adapters=(RANK, ALPHA))
    with closing(bench.engine):
        asked = requests(9, length=128)
        for seed in (1, 2, 3):
            bench.learn(seed)
            assert_fresh(bench, asked, bench.sample(asked))
        (engine,) = bench.engine._engines()
        assert len(engine.list_loras()) == len(AGENTS)
        _refuses_a_broken_adapter(bench, asked)
    assert isinstance(bench.engine._weights, type(None))


def _refuses_a_broken_adapter(bench: Bench, asked: list[GenerationRequest]) -> None:
    """At the sync, where it is an error; with a prompt it would end the engine."""
    whole = vllm_weights.write_adapter

    def broken(folder: Path, state: dict[str, torch.Tensor], alpha: int) -> None:
        whole(folder, state, alpha)
        (folder / "adapter_model.safetensors").unlink()

    vllm_weights.write_adapter = broken
    try:
        with pytest.raises(Exception, match="dapter"):
            bench.sync()
    finally:
        vllm_weights.write_adapter = whole
    bench.learn(seed=4)
    assert_fresh(bench, asked, bench.sample(asked))
    weights = bench.engine._weights
    assert isinstance(weights, AdapterWeights)
    kept = [Path(weights.adapter(agent).lora_path) for agent in AGENTS]
    assert all(path.is_dir() for path in kept)
