"""The loop with vLLM: a tiny model, a sandbox that runs nothing, a coach that reads the text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model
from vllm_bench import children

from mappa_envs.coach.base import CoachRequest
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_train import team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.engine import vllm as vllm_engine
from mappa_train.engine.vllm import VllmEngine
from mappa_train.engine.vllm_async import AsyncVllmEngine
from mappa_train.engine.vllm_setup import why_no_own_processes, why_not
from mappa_train.engine.vllm_weights import MergedWeights, SyncError
from mappa_train.plan import make_env
from mappa_train.progress import SilentProgress
from mappa_train.settings import resolve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]


def taste(request: CoachRequest) -> float:
    """A score that depends on the words alone."""
    return hashlib.sha256(request.turn.action.encode()).digest()[0] / 25.5


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of two short steps on a tiny model, without sandbox and with `taste` as the coach."""

    def make(config: Config, split: str | None = None, **shared: Any) -> Any:
        return make_env(config, split, **({"coach": FakeCoach(taste)} | shared))

    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: FakeSandbox())
    monkeypatch.setattr(team, "make_env", make)
    changes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = make_model(tmp_path / "model", tie_word_embeddings=True, max_position_embeddings=8192, **changes)
    known = {"engine": "vllm", "model": model, "steps": 2, "episodes_per_step": 4, "samples_per_task": 2}
    return known | {"max_tasks": 2, "max_new_tokens": 16, "exploring_starts": 0.0, "lr": 1e-3}


def steps_of(run: RunFolder) -> list[int]:
    """The steps of a run, each of which has learned from something."""
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert all(line["tokens/trained"] > 0 for line in lines)
    return [line["step"] for line in lines]


def test_a_run_learns_and_one_that_skips_a_sync_ends_and_can_be_resumed(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[VllmEngine] = []
    monkeypatch.setattr(VllmEngine, "sleep", lambda engine: sleeps.append(engine))

    # Whole weights, embeddings and tied head among them.
    config = resolve(known | {"out": tmp_path / "run", "policy": "full"})
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    assert steps_of(run) == [1, 2]
    assert len(sleeps) == 2  # between sampling and learning

    loads = iter([True] * 3)  # the first sync loads all three, the second none
    load = MergedWeights.load
    config = resolve(known | {"out": tmp_path / "skips", "lora_rank": 4})
    run = RunFolder.create(config)
    with monkeypatch.context() as patch:
        patch.setattr(
            MergedWeights, "load", lambda *arguments: load(*arguments) if next(loads, False) else None
        )
        with pytest.raises(SyncError, match="data_engineer_0: after the sync, logprobs of the probe differ"):
            trainer.train(config, run, SilentProgress())
    assert run.latest() == 1
    # Adapters, with engines that are started anew.
    trainer.train(config, RunFolder.open(run.path), SilentProgress(), resume=True)
    assert steps_of(run) == [1, 2]


def test_a_run_with_one_policy_for_all_learns_from_one_engine(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = vllm_engine.start_engine
    monkeypatch.setattr(
        vllm_engine, "start_engine", lambda *a, **o: (started.append(start(*a, **o)), started[-1])[1]
    )
    config = resolve(known | {"out": tmp_path / "run", "lora_rank": 4, "shared_policy": "on"})
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    assert steps_of(run) == [1, 2]
    assert len(started) == 1


@pytest.mark.skipif(why_no_own_processes() is not None, reason=f"{why_no_own_processes()}")
def test_a_run_learns_from_one_engine_of_adapters_in_a_process_of_its_own(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--engine-gpus` makes it on GPUs; on a CPU there is no such setting."""

    def apart(*args: Any, **options: Any) -> AsyncVllmEngine:
        del options["sleeps"]
        return AsyncVllmEngine(*args, **options | {"gpus": [()], "backend": "file", "adapters": (4, 8)})

    monkeypatch.setattr("mappa_train.engine.vllm.VllmEngine", apart)
    config = resolve(known | {"out": tmp_path / "run", "lora_rank": 4, "lora_alpha": 8})
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    assert steps_of(run) == [1, 2]
    assert [child for child in children() if "VLLM" in "".join(child.cmdline())] == []
