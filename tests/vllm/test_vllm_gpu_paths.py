"""What needs GPUs, as far as it goes without: vLLM's own code, with stand-ins where it would compute or send.

A stand-in for an engine has the methods of vLLM's class and no others, and takes what those take.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_bench import AGENTS, ALPHA, RANK, Bench, requests

from mappa_envs.errors import UnavailableError
from mappa_train.config import Config
from mappa_train.engine import choice
from mappa_train.engine import vllm as vllm_engine
from mappa_train.engine.base import SleepingEngine
from mappa_train.engine.vllm_async import AsyncVllmEngine
from mappa_train.engine.vllm_setup import (
    start_engine,
    start_own_processes,
    why_no_own_processes,
    why_not,
)
from mappa_train.engine.vllm_transfer import Remote, TransferredWeights
from mappa_train.engine.vllm_weights import named_weights
from mappa_train.policies import FullPolicies
from mappa_train.tokens import ChatTokenizer

WHY_NOT = why_not() or why_no_own_processes()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}"),
]

Calls = list[tuple[str, dict[str, Any]]]


class StandIn:
    """Writes down each call of a method that vLLM's `kind` has, with its arguments by name."""

    def __init__(self, kind: type, calls: Calls, **attributes: Any) -> None:
        self._kind, self._calls = kind, calls
        self.__dict__ |= attributes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._kind, name)

        def call(*args: Any, **options: Any) -> Any:
            bound = inspect.signature(method).bind(self, *args, **options)
            del bound.arguments["self"]
            self._calls.append((name, dict(bound.arguments)))
            return asyncio.sleep(0) if inspect.iscoroutinefunction(method) else True

        return call


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def on_gpus(folder: Path) -> Any:
    """What is looked at of a model that sits on a GPU."""
    from transformers import AutoConfig

    weight = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32)
    return SimpleNamespace(lm_head=SimpleNamespace(weight=weight), config=AutoConfig.from_pretrained(folder))


def test_whole_weights_go_over_nccl_as_vllms_own_sender_sends_them(
    folder: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import nccl_engine
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.v1.engine.async_llm import AsyncLLM

    calls: Calls = []
    sent: list[tuple[str, torch.Tensor]] = []
    closed: list[bool] = []

    def broadcast(iterator: Iterator[tuple[str, torch.Tensor]], **options: Any) -> None:
        assert options["src"] == 0
        sent.extend(iterator)

    def endpoint(init: Any) -> Any:
        assert (init.world_size, init.rank) == (3, 0)
        # vLLM would move the learner's thread to another stream.
        assert threading.current_thread() is not threading.main_thread()
        return SimpleNamespace(destroy=lambda: closed.append(True))

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", endpoint)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", broadcast)
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16), parallel_config=SimpleNamespace(world_size=2)
    )
    engine = StandIn(AsyncLLM, calls, vllm_config=vllm_config, errored=False)
    policies = FullPolicies(folder, AGENTS[:1])
    weights = TransferredWeights(AGENTS[:1], lambda index: Remote(engine, loop), "nccl")
    weights.load(AGENTS[0], 1, policies.sampler(AGENTS[0]))
    weights.close()

    names = [name for name, _ in calls]
    update = ["pause_generation", "start_weight_update", "update_weights", "finish_weight_update"]
    assert names == ["init_weight_transfer_engine", *update, "resume_generation"]
    # What arrives is what vLLM's receiving side takes.
    joined = NCCLWeightTransferInitInfo(**calls[0][1]["request"].init_info)
    assert (joined.rank_offset, joined.world_size, joined.packed) == (1, 3, True)
    told = nccl_engine.NCCLWeightTransferUpdateInfo(**calls[3][1]["request"].update_info)
    expected = named_weights(policies.sampler(AGENTS[0]))
    assert told.names == list(expected) == [name for name, _ in sent]
    assert "lm_head.weight" not in told.names
    assert set(told.dtype_names) == {"bfloat16"}
    for name, value in sent:
        assert torch.equal(value, expected[name].bfloat16())
    assert closed == [True]


def test_a_broadcast_that_nobody_receives_any_more_is_an_error(loop: asyncio.AbstractEventLoop) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = StandIn(AsyncLLM, [], vllm_config=None, errored=True)
    for_ever = threading.Event()
    with pytest.raises(UnavailableError, match="processes have ended"):
        Remote(engine, loop).take_part(for_ever.wait)
    for_ever.set()


def test_an_engine_that_ends_before_nccl_connects_is_an_error(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.weight_transfer import nccl_engine
    from vllm.v1.engine.async_llm import AsyncLLM

    for_ever = threading.Event()
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda init: for_ever.wait(20))
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16), parallel_config=SimpleNamespace(world_size=1)
    )
    engine = StandIn(AsyncLLM, [], vllm_config=config, errored=True)
    with pytest.raises(UnavailableError, match=r"NCCL between .*: vLLM's processes have ended"):
        TransferredWeights(AGENTS[:1], lambda index: Remote(engine, loop), "nccl")
    for_ever.set()


def test_engines_on_gpus_of_their_own_are_started_as_vllm_takes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda args: args)
    start = partial(start_own_processes, folder, on_gpus(folder), gpus=(2, 3), context_tokens=512)
    args = start(backend="nccl")
    assert (args.device_ids, args.tensor_parallel_size, args.dtype) == ([2, 3], 2, "bfloat16")
    assert args.weight_transfer_config.backend == "nccl"
    assert args.kv_cache_memory_bytes is None
    module, name = args.worker_extension_cls.rsplit(".", 1)
    assert inspect.isclass(getattr(importlib.import_module(module), name))
    shared = start(backend=None, num_adapters=3, lora_rank=16)
    assert shared.weight_transfer_config is None
    assert (shared.enable_lora, shared.max_loras, shared.max_lora_rank) == (True, 3, 16)


def test_an_engine_beside_the_learner_starts_in_what_that_leaves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker.utils import request_memory

    for kind in (LLMEngine, AsyncLLM):
        monkeypatch.setattr(kind, "from_engine_args", lambda args: args)
    left: Any = SimpleNamespace(total_memory=80 << 30, free_memory=20 << 30, device_="cuda:0")
    beside = start_engine(folder, on_gpus(folder), context_tokens=512)
    assert request_memory(left, beside) < left.free_memory
    alone = start_own_processes(folder, on_gpus(folder), gpus=(1,), backend=None, context_tokens=512)
    with pytest.raises(ValueError, match="less than desired GPU memory"):
        request_memory(left, alone)


@pytest.mark.parametrize(
    ("settings", "gpus", "adapters"),
    [
        ({"policy": "full", "engine_gpus": 4}, [(4, 5), (6, 7)], None),
        ({"policy": "lora", "engine_gpus": 2}, [(6, 7)], (16, 32)),
    ],
)
def test_the_settings_open_engines_on_their_gpus(
    folder: Path,
    settings: dict[str, Any],
    gpus: list[tuple[int, ...]],
    adapters: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(choice, "has_gpu", lambda: True)
    config = Config(engine="vllm", **settings)
    engine = choice.open_engine(config, FullPolicies(folder, AGENTS[:2]), folder, ChatTokenizer(folder))
    assert isinstance(engine, AsyncVllmEngine)
    with closing(engine):
        assert (engine._gpus, engine._backend, engine._adapters) == (gpus, "nccl", adapters)


def test_an_engine_sleeps_until_the_next_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    calls: Calls = []
    engine = StandIn(LLMEngine, calls, engine_core=SimpleNamespace(shutdown=lambda: None))
    options: dict[str, Any] = {}

    def start(folder: Path, model: Any, **given: Any) -> Any:
        options.update(given)
        return engine

    def bring_in(*args: Any) -> None:
        calls.append(("load", {}))

    monkeypatch.setattr(vllm_engine, "start_engine", start)
    monkeypatch.setattr(vllm_engine, "bring_in", bring_in)
    bench = Bench(folder, adapters=(RANK, ALPHA), sleeps=True)
    assert isinstance(bench.engine, SleepingEngine)
    with closing(bench.engine):
        bench.engine.sleep()  # nothing is there yet
        bench.sync()
        assert options["sleeps"]
        bench.engine.sleep()
        bench.engine.sleep()
        with pytest.raises(UnavailableError, match="sync it first"):
            bench.sample(requests(1))
        bench.sync()
        bench.sync()
    asleep = ("sleep", {"level": 1})
    assert calls == [("load", {}), asleep, ("wake_up", {}), ("load", {}), ("load", {})]


def test_an_engine_that_may_sleep_is_told_so_when_it_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    monkeypatch.setattr(LLMEngine, "from_engine_args", lambda args: args)
    start = partial(start_engine, folder, on_gpus(folder), context_tokens=512)
    assert start(sleeps=True).enable_sleep_mode
    assert not start().enable_sleep_mode
