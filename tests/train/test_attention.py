"""Attention by the layout of a pack is that of the square mask which says the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import WORDS, dense_mask, ids, make_model, no_autocast, plain_model
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from mappa_envs.errors import ConfigError
from mappa_train.attention import layout_of, use_packed_attention
from mappa_train.packing import Pack, Sample, make_packs
from mappa_train.parallel import idle_pack
from mappa_train.policies import hidden_states


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def samples() -> list[Sample]:
    """Three that share a beginning, and one on its own."""
    generator = torch.Generator().manual_seed(5)
    shared = ids(generator, 9)
    prompts = [torch.cat([shared, ids(generator, n)]) for n in (1, 4, 2)]
    prompts.append(ids(generator, 7))
    return [Sample(prompt=p, response=ids(generator, 3 + k)) for k, p in enumerate(prompts)]


def nothing_shared() -> list[Sample]:
    """Two whose prompts are a token, which is their own."""
    return [Sample(prompt=torch.tensor([2]), response=torch.arange(3, 6 + k)) for k in range(2)]


def states_and_gradient(model: Any, pack: Pack, *, dense: bool) -> tuple[Tensor, Tensor]:
    """What predicts the targets, and the gradient of a sum of it for the first layer's keys."""
    weight = model.model.layers[0].self_attn.k_proj.weight
    weight.grad = None
    if dense:
        out = model.model(
            input_ids=pack.ids[None],
            position_ids=pack.positions[None],
            attention_mask=dense_mask(pack),
            use_cache=False,
        )
        states = out.last_hidden_state[0][pack.predictors]
    else:
        states = hidden_states(model, pack)
    states.square().sum().backward()
    return states.detach(), weight.grad.clone()


@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_states_and_gradients_are_those_of_the_square_mask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    model = plain_model(folder)
    packed = plain_model(folder)
    use_packed_attention(packed)
    with no_autocast(monkeypatch):
        for pack in [*make_packs(samples(), budget), *make_packs(nothing_shared(), budget)]:
            states, gradient = states_and_gradient(packed, pack, dense=False)
            wanted, wanted_gradient = states_and_gradient(model, pack, dense=True)
            torch.testing.assert_close(states, wanted, atol=2e-5, rtol=0)
            torch.testing.assert_close(gradient, wanted_gradient, atol=1e-3, rtol=1e-3)


def lengths_of(packs: Sequence[Pack]) -> list[tuple[int, ...]]:
    return [g for pack in packs for g in layout_of(pack, torch.float32, torch.device("cpu")).groups]


def test_a_layout_covers_every_token_and_joins_a_single_tail() -> None:
    packs = make_packs(samples(), 10_000)
    groups = lengths_of(packs)
    assert sum(sum(group) for group in groups) == sum(len(pack.ids) for pack in packs)
    assert sorted(map(len, groups)) == [1, 4]
    assert lengths_of(make_packs(nothing_shared(), 10_000)) == [(0, 4, 5)]
    assert lengths_of([idle_pack()]) == [(2,)]


def test_a_model_with_more_behind_its_head_is_refused(folder: Path) -> None:
    model = plain_model(folder)
    head = model.lm_head.forward
    for change in (lambda x: x / 8, lambda x: 3.0 * (x / 3.0).tanh(), lambda x: x + torch.arange(len(WORDS))):
        model.lm_head.forward = lambda hidden, change=change: change(head(hidden))
        with pytest.raises(ConfigError, match="LlamaForCausalLM scales, caps or shifts"):
            use_packed_attention(model)
    model.lm_head.forward = head
    use_packed_attention(model)


def test_a_window_is_no_matter_until_a_sample_is_longer() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = MistralForCausalLM(
        MistralConfig(vocab_size=len(WORDS), num_key_value_heads=1, sliding_window=8, **sizes)
    ).eval()
    use_packed_attention(model)
    fitting, longer = (Sample(prompt=torch.arange(2, 8), response=torch.arange(2, 2 + n)) for n in (2, 3))
    for samples in ([fitting], [fitting] * 3):  # one causal sequence, and a beginning with tails
        assert hidden_states(model, *make_packs(samples, 100)).shape == (2 * len(samples), 16)
    for samples in ([longer], [fitting, longer]):
        with pytest.raises(ConfigError, match="reaches back 8 tokens, and the learner's all 9"):
            hidden_states(model, *make_packs(samples, 100))


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_an_attention_with_something_unknown_is_refused(folder: Path, name: str) -> None:
    model = plain_model(folder)
    attend = model.model.layers[1].self_attn.forward
    model.model.layers[1].self_attn.forward = lambda **given: attend(**given, **{name: None})
    use_packed_attention(model)
    model.model.layers[1].self_attn.forward = lambda **given: attend(
        **given, **{name: torch.ones(1, 1, 1, 1)}
    )
    with pytest.raises(ConfigError, match=f"its attention uses {name}"):
        use_packed_attention(model)


def test_a_layer_that_knows_no_layout_is_refused(folder: Path) -> None:
    """Such as a state that is carried along the sequence, from one sample of the pack to the next."""
    model = plain_model(folder)
    attend = model.model.layers[1].self_attn.forward
    model.model.layers[1].self_attn.forward = lambda layout=None, **given: attend(**given)
    with pytest.raises(
        ConfigError, match="1 of the 2 layers of LlamaForCausalLM have no attention that keeps"
    ):
        use_packed_attention(model)


def test_a_model_of_another_build_is_refused() -> None:
    with pytest.raises(ConfigError, match="Linear is not built like Llama or Qwen"):
        use_packed_attention(torch.nn.Linear(1, 1))


def test_masks_are_of_tails_only() -> None:
    """The square of the whole pack is never made: memory grows with tails × (beginning + tail)."""
    (pack,) = make_packs(samples(), 10_000)
    layout = layout_of(pack, torch.float32, torch.device("cpu"))
    assert layout.masks
    for (start, tail), mask in layout.masks.items():
        assert mask.shape == (tail, start + tail)
        assert bool((mask[0, : start + 1] == 0).all())
        assert bool(torch.isneginf(mask[0, start + 1 :]).all())
