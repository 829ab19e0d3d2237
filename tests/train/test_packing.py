"""Packs: each sample's logprobs are its own, whatever else is in the pack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import alone, dense_mask, ids, make_model, no_autocast, plain_model
from torch import Tensor

from mappa_train.attention import use_packed_attention
from mappa_train.loss import token_logprobs
from mappa_train.packing import Pack, Sample, common_prefix, group_by_prefix, make_packs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = make_model(tmp_path_factory.mktemp("model"))
    model = plain_model(folder)
    use_packed_attention(model)
    return model


def make_sample(prompt: Sequence[int], response: Sequence[int]) -> Sample:
    return Sample(prompt=torch.tensor(prompt), response=torch.tensor(response))


def mixed_samples() -> list[Sample]:
    """Three that share 9 of their prompt, two that are equal, one apart; lengths differ."""
    generator = torch.Generator().manual_seed(3)
    shared, same = ids(generator, 9), ids(generator, 5)
    prompts = [torch.cat([shared, ids(generator, n)]) for n in (1, 4, 2)] + [same, same, ids(generator, 7)]
    return [Sample(prompt=p, response=ids(generator, 3 + k)) for k, p in enumerate(prompts)]


@torch.no_grad()
def packed_logprobs(model: Any, packs: Sequence[Pack]) -> dict[int, Tensor]:
    """By sample, as the learner has them but in fp32."""
    found = {}
    with pytest.MonkeyPatch.context() as patch, no_autocast(patch):
        for pack in packs:
            values, _ = token_logprobs(model, pack, 1.0)
            found |= zip(pack.members, values.split(list(pack.lengths)), strict=True)
    return found


@pytest.mark.parametrize("budget", [1, 24, 40, 10_000])
def test_logprobs_are_those_of_each_sample_alone(model: Any, budget: int) -> None:
    samples = mixed_samples()
    found = packed_logprobs(model, make_packs(samples, budget))
    assert sorted(found) == list(range(len(samples)))
    for k, sample in enumerate(samples):
        torch.testing.assert_close(found[k], alone(model, sample.prompt, sample.response), atol=1e-5, rtol=0)


def test_packed_equals_padded(model: Any) -> None:
    """The same samples side by side, padded on the right with garbage behind an attention mask."""
    samples = mixed_samples()
    found = packed_logprobs(model, make_packs(samples, 10_000))
    whole = [torch.cat([sample.prompt, sample.response]) for sample in samples]
    width = max(map(len, whole))
    for garbage in (0, 9):
        rows = torch.stack(
            [torch.nn.functional.pad(row, (0, width - len(row)), value=garbage) for row in whole]
        )
        mask = torch.stack([(torch.arange(width) < len(row)).long() for row in whole])
        with torch.no_grad():
            logprobs = model(input_ids=rows, attention_mask=mask).logits.log_softmax(-1)
        for k, sample in enumerate(samples):
            places = torch.arange(len(sample.prompt), len(whole[k]))
            padded = logprobs[k, places - 1, sample.response]
            torch.testing.assert_close(found[k], padded, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_traps_of_packing_are_real(model: Any) -> None:
    """Positions alone keep samples apart only without a mask and a cache, each of which is a default."""
    samples = [make_sample([2, 3, 4], [5, 6]), make_sample([7, 8, 9], [10, 11])]
    (pack,) = make_packs(samples, 10_000)
    found = packed_logprobs(model, [pack])
    inputs = {"input_ids": pack.ids[None], "position_ids": pack.positions[None]}
    ones = torch.ones_like(pack.ids[None])
    for trap in ({"attention_mask": ones, "use_cache": False}, {"use_cache": True}):
        logits = model(**inputs, **trap).logits[0].log_softmax(-1)
        wrong = logits[pack.predictors].gather(1, pack.targets[:, None])[:, 0].split(list(pack.lengths))
        first, second = pack.members
        torch.testing.assert_close(wrong[0], found[first], atol=1e-5, rtol=0)
        assert (wrong[1] - found[second]).abs().max() > 0.01


def test_order_of_samples_changes_nothing(model: Any) -> None:
    samples = mixed_samples()
    order = [4, 2, 0, 5, 3, 1]
    straight = packed_logprobs(model, make_packs(samples, 40))
    permuted = packed_logprobs(model, make_packs([samples[k] for k in order], 40))
    for place, k in enumerate(order):
        torch.testing.assert_close(permuted[place], straight[k], atol=1e-5, rtol=0)


def test_garbage_in_another_sample_changes_nothing(model: Any) -> None:
    samples = mixed_samples()
    (pack,) = make_packs(samples, 10_000)
    before = packed_logprobs(model, [pack])
    victim = pack.members[1]
    # Overwrite the own tokens (tail) of one sample in place.
    tails = [s for s in range(len(pack.parent)) if int(pack.parent[s]) != s]
    pack.ids[pack.segment == tails[1]] = 7
    after = packed_logprobs(model, [pack])
    for k in before:
        same = torch.equal(before[k], after[k])
        assert same == (k != victim)


def test_a_shared_prompt_is_packed_once() -> None:
    shared = list(range(2, 40))
    samples = [make_sample(shared, [5, 6, k]) for k in range(8)]
    (pack,) = make_packs(samples, 10_000)
    # 37 shared, then for each: the last prompt token and 3 of the response
    assert len(pack.ids) == 37 + 8 * 4
    assert pack.positions.tolist() == [*range(37), *([37, 38, 39, 40] * 8)]


def test_the_budget_is_kept_but_by_a_long_sample() -> None:
    samples = [*mixed_samples(), make_sample([3] * 50, [4] * 10)]
    packs = make_packs(samples, 30)
    assert len(packs) > 2
    for pack in packs:
        assert len(pack.ids) <= 30 or len(pack.members) == 1
    assert max(len(pack.ids) for pack in packs) == 60


def test_every_prompt_keeps_a_token_of_its_own() -> None:
    prompts = [torch.tensor(p) for p in ([1, 2, 3], [1, 2, 3], [1, 2], [1], [4, 5, 6, 7])]
    groups = group_by_prefix(prompts)
    assert sorted(i for members, _ in groups for i in members) == list(range(5))
    for members, shared in groups:
        for i in members:
            assert shared <= len(prompts[i]) - 1
            assert common_prefix(prompts[members[0]], prompts[i]) >= shared


def test_common_prefix() -> None:
    a = torch.tensor([1, 2, 3])
    assert [common_prefix(a, torch.tensor(b)) for b in ([1, 2, 4], [1, 2], [1, 2, 3, 4], [9])] == [2, 2, 3, 0]


def test_nothing_gives_no_pack() -> None:
    assert make_packs([], 100) == []


PROMPT = st.lists(st.integers(2, 4), min_size=1, max_size=8)
RESPONSE = st.lists(st.integers(5, 9), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PROMPT, RESPONSE), min_size=1, max_size=8), st.integers(1, 60))
def test_every_response_token_is_a_target_once(pairs: list[tuple[list[int], list[int]]], budget: int) -> None:
    samples = [make_sample(*pair) for pair in pairs]
    packs = make_packs(samples, budget)
    assert sorted(k for pack in packs for k in pack.members) == list(range(len(samples)))
    for pack in packs:
        # Packs hold their samples alone: each target's context, by the mask, is prompt and response so far.
        mask = dense_mask(pack)[0, 0]
        assert len(set(pack.predictors.tolist())) == len(pack.predictors)
        targets, predictors = (
            pack.targets.split(list(pack.lengths)),
            pack.predictors.split(list(pack.lengths)),
        )
        for k, mine, places in zip(pack.members, targets, predictors, strict=True):
            assert mine.tolist() == pairs[k][1]
            for j, place in enumerate(places.tolist()):
                seen = mask[place].nonzero()[:, 0]
                assert pack.ids[seen].tolist() == pairs[k][0] + pairs[k][1][:j]
                assert pack.positions[seen].tolist() == list(range(len(seen)))
                assert int(pack.ids[place + 1]) == pairs[k][1][j]
