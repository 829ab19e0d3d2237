"""The memory plan: what it adds up, when it stops a run, and what an allocation that fails becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import make_config, make_model, plain_model

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import memory
from mappa_train.memory import ModelShape, memory_plan, out_of_memory, plan_memory, read_shape

BIG = ModelShape(
    num_parameters=1_000_000_000,
    matrices=((2048, 2048),) * 100,
    num_layers=24,
    hidden=2048,
    intermediate=8192,
    query_width=2048,
    key_width=512,
    vocabulary=50_000,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def peak(settings: dict[str, object], num_agents: int = 3) -> float:
    return memory_plan(make_config(**settings), BIG, num_agents, gpu=False).peak


def test_the_shape_is_the_models(folder: Path) -> None:
    shape = read_shape(folder)
    assert shape.num_parameters == sum(p.numel() for p in plain_model(folder).parameters())
    assert len(shape.matrices) == 14  # seven linear layers, two blocks
    assert (shape.hidden, shape.query_width, shape.key_width) == (32, 32, 16)


def test_full_weights_by_hand() -> None:
    """Each agent 4 bytes a weight and 8 of AdamW; once: the reference 4, gradients 4, bf16 copy 2."""
    plan = memory_plan(make_config(policy="full"), BIG, 3, gpu=False)
    sizes = {part.name: part.num_bytes for part in plan.parts}
    assert sizes["weights"] == 12e9
    assert sizes["optimizer"] == 24e9
    assert (sizes["reference"], sizes["gradients"], sizes["bf16 copy"]) == (4e9, 4e9, 2e9)
    assert plan.peak > 46e9


def test_every_knob_of_the_advice_needs_less() -> None:
    base: dict[str, object] = {"policy": "full", "token_budget": 8192, "episodes_per_step": 12}
    assert peak({**base, "policy": "lora"}) < peak(base)
    assert peak({**base, "gradient_checkpointing": "on"}) < peak(base)
    assert peak({**base, "token_budget": 1024}) < peak(base)
    assert peak(base, 2) < peak(base, 3)
    many: dict[str, object] = {"token_budget": 64, "episodes_per_step": 60, "samples_per_task": 6}
    assert peak({**many, "episodes_per_step": 6}) < peak(many)
    said = memory.advice(make_config(**base))
    assert all(
        knob in said for knob in ("--policy lora", "--gradient-ch", "--token-budget", "--episodes-per-step")
    )
    assert "--policy" not in memory.advice(make_config(policy="lora"))


def test_a_run_that_cannot_fit_is_stopped_with_the_knobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(token_budget=1024)
    lines = plan_memory(config, folder, 2)
    assert "GB on this" in lines[0]
    monkeypatch.setattr(memory, "available_memory", lambda *, gpu: 1e6)
    with pytest.raises(UnavailableError, match=r"0\.0 GB left; try .*--token-budget") as caught:
        plan_memory(config, folder, 2)
    assert caught.value.exit_code == 3


def test_a_model_without_readable_weights_has_no_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError):
        read_shape(tmp_path)
    assert plan_memory(make_config(), tmp_path, 2)[0].startswith("unknown: ")


def test_what_is_available_is_part_of_the_machine() -> None:
    assert 1e8 < memory.available_memory(gpu=False) < 1e15  # torch alone, which is loaded, is more than that


def test_cached_files_do_not_count_against_a_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 400\nactive_file 200\n")
    assert memory._left_in_group(tmp_path) == 700.0
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(ValueError, match="max"):
        memory._left_in_group(tmp_path)


def test_an_allocation_that_fails_names_the_knobs() -> None:
    with (
        pytest.raises(UnavailableError, match=r"out of memory.*--token-budget"),
        out_of_memory(make_config(token_budget=1024)),
    ):
        torch.empty(2**50)
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")):
        with pytest.raises(UnavailableError, match=r"out of memory.*try"), out_of_memory(make_config()):
            raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory(make_config()):
        raise RuntimeError("shapes do not match")
