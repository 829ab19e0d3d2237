"""What vLLM's engines leave behind when they end, or never began. vLLM itself is not needed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import AGENTS, WORDS, make_config, make_model

from mappa_envs.errors import UnavailableError
from mappa_train.engine import choice, vllm, vllm_async, vllm_transfer
from mappa_train.engine.vllm_async import AsyncVllmEngine
from mappa_train.engine.vllm_weights import AdapterWeights, bring_in
from mappa_train.tokens import ChatTokenizer


class Team:
    """Policies that note what is asked of them."""

    agents = names = AGENTS

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sampler(self, policy: str) -> Any:
        self.calls.append(f"sampler of {policy}")

    def release_sampler(self) -> None:
        self.calls.append("release")


def loading(policies: Any) -> None:
    engines = {name: SimpleNamespace(reset_prefix_cache=lambda: True) for name in AGENTS}
    weights: Any = SimpleNamespace(engines=engines, load=lambda *_: None, adapter=lambda _: None)
    probe: Any = SimpleNamespace(check=lambda *_: 0.0)
    bring_in(weights, policies, probe, 1, lambda *_: None)


def test_the_sampler_is_released_once_all_weights_are_in() -> None:
    team = Team()
    loading(team)
    assert team.calls == [*(f"sampler of {name}" for name in AGENTS), "release"]


def test_opening_an_engine_loads_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "prepare", lambda: None)
    monkeypatch.setattr(choice, "check_engine_here", lambda config: None)
    team: Any = Team()
    folder = make_model(tmp_path)
    engine: Any = choice.open_engine(make_config(engine="vllm"), team, folder, ChatTokenizer(folder))
    assert team.calls == []
    assert engine._sampling.vocabulary == len(WORDS)
    engine.close()


def test_an_engine_that_does_not_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    team: Any = Team()

    def fail() -> Any:
        raise UnavailableError("no")

    with pytest.raises(UnavailableError):
        AdapterWeights(team, fail, alpha=8)
    assert list(tmp_path.iterdir()) == []
    weights = AdapterWeights(team, SimpleNamespace, alpha=8)
    assert len(list(tmp_path.iterdir())) == 1
    weights.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", [True, False])
def test_senders_are_shut_down_where_a_later_one_does_not_connect(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def connect(remote: Any, source: Any, backend: str) -> Any:
        if fails and remote.name == AGENTS[1]:
            raise UnavailableError("no NCCL")
        return SimpleNamespace(shutdown=lambda: closed.append(remote.name))

    def start(index: int) -> Any:
        model = SimpleNamespace(dtype=torch.bfloat16)
        return SimpleNamespace(name=AGENTS[index], vllm_config=SimpleNamespace(model_config=model))

    monkeypatch.setattr(vllm_transfer, "connect", connect)
    if fails:
        with pytest.raises(UnavailableError, match="no NCCL"):
            vllm_transfer.TransferredWeights(AGENTS, start, "nccl")
        assert closed == [AGENTS[0]]
        return
    weights = vllm_transfer.TransferredWeights(AGENTS, start, "nccl")
    assert closed == []
    weights.close()
    assert sorted(closed) == sorted(AGENTS)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncVllmEngine:
    monkeypatch.setattr(vllm_async, "prepare", lambda **_: None)
    team: Any = Team()
    sampling: Any = None
    return AsyncVllmEngine(team, tmp_path, sampling, probe_ids=torch.arange(4), gpus=[()], backend="file")


@pytest.mark.parametrize("dies", [False, True])
def test_closing_ends_the_loop_and_its_thread(engine: AsyncVllmEngine, dies: bool) -> None:
    closed: list[bool] = []
    weights: Any = SimpleNamespace(close=lambda: closed.append(True))
    engine._weights = weights
    if dies:
        engine._loop.call_soon_threadsafe(engine._loop.stop)
        engine._thread.join(60)
    engine.close()
    engine.close()
    assert closed == [True]
    assert not engine._thread.is_alive()
    assert engine._loop.is_closed()
    assert engine._stderr.closed


def test_weights_that_cannot_be_closed_keep_nothing_else_open(engine: AsyncVllmEngine) -> None:
    def fail() -> None:
        raise OSError("disk")

    weights: Any = SimpleNamespace(close=fail)
    engine._weights = weights
    with pytest.raises(OSError, match="disk"):
        engine.close()
    assert engine._loop.is_closed()
    assert engine._stderr.closed
