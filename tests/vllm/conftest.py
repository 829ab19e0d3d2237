"""A tiny model with tied embeddings in vLLM: one engine for all tests, since vLLM takes its time to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tiny import make_model
from vllm_bench import Bench


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 32 is the smallest head that vLLM's attention has on a CPU.
    changes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return make_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=True, **changes)


@pytest.fixture(scope="session")
def started(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    with closing(bench.engine):
        bench.engine.sync(0)
        yield bench


@pytest.fixture
def bench(started: Bench) -> Bench:
    """The one engine, with fresh weights and nothing under way."""
    started.learn(seed=1)
    assert started.unfinished() == 0
    return started
