"""Policies that wait in the machine's memory until they are sharded: the same, to the last bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import AGENTS, make_config, make_model, make_samples, weights

from mappa_train import policies as module
from mappa_train import team
from mappa_train.distributed import join
from mappa_train.learner import Learner
from mappa_train.parallel import Distributor
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.sharding import twin, whole

RETS = (0.1, 0.9, 0.4, 0.6)
Policies = FullPolicies | LoRAPolicies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=True)


def make(folder: Path, policy: str, *, sharded: bool) -> Policies:
    if policy == "full":
        return FullPolicies(folder, AGENTS, checkpointing=True, sharded=sharded)
    return LoRAPolicies(folder, AGENTS, rank=4, alpha=8, seed=0, sharded=sharded)


def grown(policies: Policies, agent: str, by: float) -> dict[str, torch.Tensor]:
    return {name: by * value for name, value in policies.state(agent).items()}


@pytest.mark.parametrize("policy", ["full", "lora"])
def test_what_will_be_sharded_asks_for_no_device(
    folder: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> torch.device:
        raise AssertionError("the device is for parts only")

    monkeypatch.setattr(module, "pick_device", none)
    policies = make(folder, policy, sharded=True)
    policies.load_state(AGENTS[0], grown(policies, AGENTS[0], 2.0))
    policies.freeze_reference()
    with pytest.raises(AssertionError, match="parts only"):
        make(folder, policy, sharded=False)


def test_only_one_of_several_ranks_expects_a_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(policy="full", learners_per_agent=2, shard="fsdp")
    alone = team._load_policies(config, folder, AGENTS)  # as an evaluation of such a run has them
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    among = team._load_policies(config, folder, AGENTS)
    assert isinstance(alone, FullPolicies)
    assert isinstance(among, FullPolicies)
    assert (alone._sharded, among._sharded) == (False, True)


def test_equal_models_share_their_memory_until_one_is_another(folder: Path) -> None:
    policies = FullPolicies(folder, AGENTS, sharded=True)
    first, second = (policies.activate(agent) for agent in AGENTS)

    def place(model: Any) -> int:
        return int(model.model.embed_tokens.weight.data_ptr())

    assert place(first) == place(second)
    before = weights(policies, AGENTS[1])
    policies.load_state(AGENTS[0], grown(policies, AGENTS[0], 2.0))
    assert weights(policies, AGENTS[0]).equal(2 * before)
    assert weights(policies, AGENTS[1]).equal(before)
    assert first.lm_head.weight is first.model.embed_tokens.weight
    assert all(weight.requires_grad for weight in policies.parameters(AGENTS[0]))
    policies.freeze_reference()
    policies.load_state(AGENTS[0], grown(policies, AGENTS[0], 2.0))
    with policies.reference(AGENTS[0]) as reference:
        frozen = {name: value for name, value in reference.state_dict().items() if name != "lm_head.weight"}
        assert torch.cat([frozen[name].flatten() for name in sorted(frozen)]).equal(2 * before)
        assert not any(weight.requires_grad for weight in reference.parameters())
    assert weights(policies, AGENTS[0]).equal(4 * before)


def test_a_twin_has_weights_of_its_own_over_the_same_memory(folder: Path) -> None:
    model = FullPolicies(folder, AGENTS).activate(AGENTS[0])
    other = twin(model)
    other.requires_grad_(False)
    assert all(weight.requires_grad for weight in model.parameters())
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(a is not b and a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert other.model.layers[0] is not model.model.layers[0]


class Unwrapped(Distributor):
    """Leaves models as they are."""

    def __call__(self, model: Any) -> Any:
        return model


def test_a_sampler_begins_with_the_weights_of_its_policy(folder: Path) -> None:
    policies = FullPolicies(folder, AGENTS, sharded=True)
    policies.load_state(AGENTS[1], grown(policies, AGENTS[1], 3.0))
    policies.distribute(Unwrapped("fsdp", samples=True))
    for agent in AGENTS:
        assert same(policies.sampler(agent), policies.activate(agent))
    assert not same(policies.sampler(AGENTS[0]), policies.sampler(AGENTS[1]))


def same(model: Any, other: Any) -> bool:
    found, wanted = model.state_dict(), other.state_dict()
    return found.keys() == wanted.keys() and all(found[name].equal(wanted[name]) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "lora"])
def test_two_ranks_learn_the_same_bits_wherever_they_loaded(
    folder: Path, tmp_path: Path, policy: str
) -> None:
    from test_distributed import start_ranks

    workers = start_ranks(2, __file__, str(folder), policy, str(tmp_path))
    errors = [worker.communicate(timeout=600)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    for rank in range(2):
        found, wanted = (torch.load(tmp_path / f"{rank}-{k}.pt", weights_only=True) for k in (True, False))
        assert found.keys() == wanted.keys()
        assert [name for name, value in wanted.items() if not found[name].equal(value)] == []
        assert found["kl 0"].eq(0).all()
        assert not found["kl 1"].eq(0).any()


def learn(folder: Path, policy: str, out: Path) -> None:
    """What two updates with FSDP leave, of policies that went on from others than the model's."""
    torch.set_num_threads(1)
    ranks = join()
    for sharded in (True, False):
        policies = make(folder, policy, sharded=sharded)
        for k, agent in enumerate(AGENTS):
            policies.load_state(agent, grown(policies, agent, 1 + 0.01 * k))
        policies.freeze_reference()
        config = make_config(lr=1e-2, learners_per_agent=2, shard="fsdp", policy=policy)
        learner, found = Learner(policies, config, ranks), dict[str, torch.Tensor]()
        for version in range(2):
            samples = make_samples(policies, RETS, version=version)
            stats, _ = learner.update(samples[:3] if ranks.is_first else samples[3:])
            found[f"kl {version}"] = torch.tensor([update.kl for update in stats.values()])
        for agent in AGENTS:
            found[agent] = torch.cat([whole(p).flatten().float() for p in policies.parameters(agent)])
            sampled = policies.sampler(agent).state_dict().values()
            found[f"sampler of {agent}"] = torch.cat([value.flatten() for value in sampled])
        torch.save(found, out / f"{ranks.rank}-{sharded}.pt")
    ranks.close()


if __name__ == "__main__":
    learn(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
