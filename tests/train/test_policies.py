"""Which weights a policy takes over, and which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import AGENTS, make_model, make_policies, weights

from mappa_envs.errors import ConfigError
from mappa_train.policies import FullPolicies, LoRAPolicies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_an_adapter_of_other_settings_is_refused_and_not_half_loaded(folder: Path) -> None:
    policies, other = make_policies(folder), LoRAPolicies(folder, AGENTS, rank=2, alpha=8, seed=1)
    before, state = weights(policies, AGENTS[1]), policies.state(AGENTS[1])
    with pytest.raises(ConfigError, match=r"the weights of checker_0 do not fit .*lora_A.* is \(2, "):
        policies.load_state(AGENTS[1], other.state(AGENTS[1]))
    some = dict(list(state.items())[1:])
    with pytest.raises(ConfigError, match=r"is missing there and \(4, "):
        policies.load_state(AGENTS[1], some)
    with pytest.raises(ConfigError, match=r"stranger is \(.*\) there and unknown here"):
        policies.load_state(AGENTS[1], {**state, "a.stranger": next(iter(state.values()))})
    assert weights(policies, AGENTS[1]).equal(before)
    policies.load_state(AGENTS[1], make_policies(folder).state(AGENTS[1]))


@pytest.mark.parametrize("tied", [False, True])
def test_whole_weights_are_all_there_or_refused(tmp_path: Path, tied: bool) -> None:
    policies = FullPolicies(make_model(tmp_path / "model", tie_word_embeddings=tied), AGENTS)
    state = policies.state(AGENTS[0])
    assert ("lm_head.weight" in state) is not tied
    doubled = {name: 2 * value for name, value in state.items()}
    policies.load_state(AGENTS[0], doubled)
    assert weights(policies, AGENTS[0]).equal(2 * weights(policies, AGENTS[1]))
    doubled.pop("model.norm.weight")
    with pytest.raises(ConfigError, match=r"writer_0 do not fit .*model\.norm\.weight is missing"):
        policies.load_state(AGENTS[0], doubled)
