"""The memory plan: what it adds up, when it stops a run, and what an allocation that fails becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import AGENTS, make_config, make_model, plain_model

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import memory
from mappa_train.memory import (
    ModelShape,
    Room,
    check_memory,
    memory_plan,
    out_of_memory,
    plan_memory,
    read_shape,
)
from mappa_train.parallel import Distributor
from mappa_train.policies import FullPolicies

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
    assert peak({**many, "concurrent_episodes": 6}) < peak(many)
    said = memory.advice(make_config(**base))
    assert all(
        knob in said
        for knob in ("--policy lora", "--gradient-ch", "--token-budget", "--concurrent-episodes (12 are")
    )
    assert "--policy" not in memory.advice(make_config(policy="lora"))
    assert "--concurrent-episodes" not in memory.advice(make_config(num_rollout_workers=2))


def test_a_run_that_cannot_fit_is_stopped_with_the_knobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(token_budget=1024)
    check = plan_memory(config, folder, 2)
    assert "GB on this" in check.lines[0]
    assert check.shortage is None
    room = Room(total=1e6, free=1e6)
    monkeypatch.setattr(memory, "measure_room", lambda **_: room)
    with pytest.raises(
        UnavailableError, match=r"more than the 0\.0 GB .* give it; try .*--token-budget"
    ) as caught:
        check_memory(config, folder, 2)
    assert caught.value.exit_code == 3


def test_a_run_is_stopped_only_where_it_lacks_more_than_the_plan_may_be_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(token_budget=1024)
    need = memory_plan(config, read_shape(folder), 2, gpu=torch.cuda.is_available()).peak
    room = Room(total=10 * need, free=need / 1.09)
    monkeypatch.setattr(memory, "measure_room", lambda **_: room)
    assert plan_memory(config, folder, 2).shortage is None
    room = Room(total=10 * need, free=need / 1.11)
    assert "are free now: wait until what has the rest is done, or try" in str(
        plan_memory(config, folder, 2).shortage
    )


def test_sharded_policies_have_a_copy_to_sample_from_unless_workers_play() -> None:
    def parts(**settings: Any) -> dict[str, float]:
        config = make_config(policy="full", learners_per_agent=2, shard="fsdp", **settings)
        return {part.name: part.num_bytes for part in memory_plan(config, BIG, 3, gpu=True).parts}

    assert parts()["sampler"] == 12e9
    assert "sampler" not in parts(num_rollout_workers=2)


def sizes_of(*, gpu: bool = True, **settings: Any) -> dict[str, float]:
    return {part.name: part.num_bytes for part in memory_plan(make_config(**settings), BIG, 3, gpu=gpu).parts}


def test_ddp_keeps_buckets_for_the_gradients_of_every_policy_that_learns() -> None:
    several: dict[str, Any] = {"learners_per_agent": 2, "frozen_agents": "modeler_0"}
    assert sizes_of(policy="full", **several)["DDP buckets"] == 8e9
    lora = sizes_of(policy="lora", **several)
    assert lora["DDP buckets"] == 2 * lora["gradients"] > 0
    assert "DDP buckets" not in sizes_of(policy="full", shard="fsdp", **several)
    assert "DDP buckets" not in sizes_of(policy="full")


def test_adapters_are_merged_for_vllm_too_but_nothing_is_cached_for_it() -> None:
    ours, vllm = sizes_of(policy="lora", engine="transformers"), sizes_of(policy="lora", engine="vllm")
    assert (vllm["sampler"], vllm["merged weights"]) == (ours["sampler"], ours["merged weights"])
    assert "sampler's cache" not in vllm
    assert not any("sampler" in name for name in sizes_of(policy="full", engine="vllm"))


def test_what_is_sharded_is_whole_while_it_is_loaded_where_no_gpu_is() -> None:
    sharded: dict[str, Any] = {"policy": "full", "learners_per_agent": 8, "shard": "fsdp"}
    assert sizes_of(gpu=False, **sharded)["whole model"] == 4e9
    assert "whole model" not in sizes_of(**sharded)
    part = memory.Part(name="whole model", num_bytes=4e9, when="loading")
    always = memory.Part(name="weights", num_bytes=1e9)
    assert memory.MemoryPlan(parts=(part, always), device="machine").peak == 5e9


def test_what_ranks_with_gpus_load_must_fit_into_the_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = 4 * read_shape(folder).num_parameters + memory.LIBRARIES
    asked = []

    def measure(*, gpu: bool, num_sharing: int = 1) -> Room:
        if gpu:
            return Room(total=1e12, free=1e12)
        asked.append(num_sharing)
        return Room(total=8 * whole / num_sharing, free=8 * whole / num_sharing)

    monkeypatch.setattr(memory, "has_gpu", lambda: True)
    monkeypatch.setattr(memory, "measure_room", measure)
    sharded: dict[str, Any] = {"policy": "full", "shard": "fsdp"}
    fits = plan_memory(make_config(**sharded, learners_per_agent=8), folder, 2)
    assert fits.shortage is None
    assert any("on this machine" in line for line in fits.lines)
    config = make_config(**sharded, learners_per_agent=9)
    with pytest.raises(
        UnavailableError, match=r"this machine .* try --policy lora, .*--learners-per-agent \(it is 9\)"
    ):
        check_memory(config, folder, 2)
    assert asked == [8, 9]
    assert plan_memory(make_config(policy="full", learners_per_agent=12), folder, 2).shortage is None


class Unwrapped(Distributor):
    """Leaves models as they are."""

    def __call__(self, model: Any) -> Any:
        return model


@pytest.mark.parametrize("samples", [True, False])
def test_sharded_policies_have_whole_copies_only_where_something_samples(folder: Path, samples: bool) -> None:
    policies = FullPolicies(folder, AGENTS)
    policies.distribute(Unwrapped("fsdp", samples=samples))
    for agent in AGENTS:
        assert (policies.sampler(agent) is not policies.activate(agent)) == samples


def test_a_warm_start_has_no_sampler_and_one_optimizer() -> None:
    config = make_config(policy="full")
    warm = memory_plan(config, BIG, 3, gpu=False, warm_start=True)
    sizes = {part.name: part.num_bytes for part in warm.parts}
    assert (sizes["optimizer"], sizes["weights"]) == (8e9, 12e9)
    assert not any("sampler" in name for name in sizes)
    assert "--concurrent-episodes" not in memory.advice(config, warm_start=True)


def test_a_model_without_readable_weights_has_no_plan(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError):
        read_shape(tmp_path)
    assert plan_memory(make_config(), tmp_path, 2).lines[0].startswith("unknown: ")


def test_what_is_available_is_part_of_the_machine() -> None:
    room = memory.measure_room(gpu=False)
    assert 1e8 < room.free <= room.total < 1e15  # torch alone, which is loaded, is more than that
    half = memory.measure_room(gpu=False, num_sharing=2)
    assert half.total == room.total / 2


def test_cached_files_do_not_count_against_a_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 400\nactive_file 200\n")
    assert memory.room_in_group(tmp_path) == Room(total=1000.0, free=700.0)
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(ValueError, match="max"):
        memory.room_in_group(tmp_path)


def test_a_control_group_of_version_1_has_a_limit_too(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"memory\.limit_in_bytes"):
        memory.room_in_group(tmp_path)
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.usage_in_bytes").write_text("900\n")
    own, whole = "inactive_file 1\nactive_file 1\n", "total_inactive_file 400\ntotal_active_file 200\n"
    (group / "memory.stat").write_text(own + whole)
    assert memory.room_in_group(tmp_path) == Room(total=1000.0, free=700.0)


def test_an_allocation_that_fails_names_the_knobs() -> None:
    with (
        pytest.raises(UnavailableError, match=r"out of memory.*--token-budget"),
        out_of_memory(make_config(token_budget=1024)),
    ):
        torch.empty(2**50)
    with (
        pytest.raises(UnavailableError, match=r"in its config\.toml, but for policy and model, then resume"),
        out_of_memory(make_config()),
    ):
        raise MemoryError
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")):
        with pytest.raises(UnavailableError, match=r"out of memory.*try"), out_of_memory(make_config()):
            raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory(make_config()):
        raise RuntimeError("shapes do not match")
