"""What goes wrong silently elsewhere: low precision, adapters, foreign logprobs, recomputed layers."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import AGENTS, WORDS, make_config, make_model, make_policies, make_samples, weights
from torch.overrides import TorchFunctionMode

from mappa_train.learner import Learner
from mappa_train.loss import token_logprobs
from mappa_train.packing import Sample, make_packs
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.types import SampleCredit, UpdateStats

RETS = (0.9, 0.2, 0.1, 0.8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def samples(folder: Path) -> list[SampleCredit]:
    return make_samples(make_policies(folder), RETS)


def updated(
    policies: LoRAPolicies | FullPolicies, samples: Sequence[SampleCredit], **settings: Any
) -> dict[str, UpdateStats]:
    return Learner(policies, make_config(**settings)).update(samples)[0]


def test_a_small_step_is_not_lost_in_bf16(folder: Path, samples: list[SampleCredit]) -> None:
    """At the paper's rate of 1e-6 nearly every fp32 weight moves; of bf16 weights nearly none would."""
    policies = FullPolicies(folder, AGENTS)
    before = weights(policies, AGENTS[0])
    updated(policies, samples, lr=1e-6)
    after = weights(policies, AGENTS[0])
    assert all(p.dtype == torch.float32 for agent in AGENTS for p in policies.parameters(agent))
    moved = before != after
    # Rows of the embedding that no sample has stay where they are.
    assert float(moved.float().mean()) > 0.8
    assert float((before.bfloat16() != after.bfloat16()).float().mean()) < 0.05


def test_adapters_are_fp32(folder: Path) -> None:
    policies = make_policies(folder)
    assert {p.dtype for agent in AGENTS for p in policies.parameters(agent)} == {torch.float32}


def test_switching_adapters_before_the_backward_pass_would_lose_gradients(
    folder: Path, samples: list[SampleCredit]
) -> None:
    """The trap is real, and no update falls into it: every adapter of every agent learns."""
    policies = make_policies(folder)
    action = samples[0].action
    (pack,) = make_packs([Sample(prompt=action.prompt_ids, response=action.generation.token_ids)], 4096)
    logprobs, _ = token_logprobs(policies.activate(AGENTS[0]), pack, 1.0)
    policies.activate(AGENTS[1])
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in policies.parameters(AGENTS[0]))

    trained = make_policies(folder)
    before = {agent: [p.detach().clone() for p in trained.parameters(agent)] for agent in AGENTS}
    updated(trained, samples)
    for agent in AGENTS:
        outer = [
            (p, old)
            for p, old in zip(trained.parameters(agent), before[agent], strict=True)
            if not old.any()  # the B of an adapter: A has no gradient while B is 0
        ]
        assert len(outer) == 14  # seven linear layers, two blocks
        assert all(not torch.equal(p, old) for p, old in outer)


def shifted(samples: Sequence[SampleCredit], by: float) -> list[SampleCredit]:
    """The same actions as a sampler would give them whose logprobs are off by so much."""
    out = []
    for sample in samples:
        generation = replace(sample.action.generation, logprobs=sample.action.generation.logprobs + by)
        out.append(replace(sample, action=replace(sample.action, generation=generation)))
    return out


def norms(folder: Path, samples: Sequence[SampleCredit], by: float) -> tuple[float, float]:
    """Norm of the first agent's gradient, and the KL that it reports."""
    stats = updated(FullPolicies(folder, AGENTS), shifted(samples, by))[AGENTS[0]]
    assert stats.grad_norm is not None
    assert stats.kl is not None
    return stats.grad_norm, stats.kl


def test_importance_weights_correct_the_sampler_and_are_truncated(
    folder: Path, samples: list[SampleCredit]
) -> None:
    """Each token counts min(π_old / π_sampler, 2); old logprobs are the learner's own, whoever sampled."""
    plain, kl = norms(folder, samples, 0.0)
    rarer, kl_of_rarer = norms(folder, samples, 1.0)
    assert rarer == pytest.approx(plain * math.exp(-1.0), rel=1e-2)
    assert kl_of_rarer == kl == 0.0
    at_most_twice, _ = norms(folder, samples, -5.0)
    assert norms(folder, samples, -9.0)[0] == at_most_twice
    assert at_most_twice == pytest.approx(2 * plain, rel=0.1)


@pytest.mark.parametrize("kind", [FullPolicies, LoRAPolicies])
def test_checkpointing_changes_no_bit_and_computes_layers_again(
    folder: Path, samples: list[SampleCredit], monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    calls: list[bool] = []
    name = "transformers.models.llama.modeling_llama.LlamaMLP.forward"
    module, attribute = name.rsplit(".", 1)
    forward = getattr(pytest.importorskip(module.rsplit(".", 1)[0]).LlamaMLP, attribute)

    def counted(self: Any, hidden: torch.Tensor) -> Any:
        calls.append(torch.is_grad_enabled())
        return forward(self, hidden)

    monkeypatch.setattr(name, counted)
    options = {"rank": 4, "alpha": 8, "seed": 0} if kind is LoRAPolicies else {}
    found = []
    for checkpointing in (False, True):
        calls.clear()
        policies = kind(folder, AGENTS, checkpointing=checkpointing, **options)
        updated(policies, samples)
        found.append((torch.cat([weights(policies, agent) for agent in AGENTS]), sum(calls)))
    (plain, once), (again, twice) = found
    assert torch.equal(plain, again)
    assert twice == 2 * once > 0


class LogitShapes(TorchFunctionMode):
    """Notes the shapes of what is normalized over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.logsumexp:
            self.seen.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_logits_are_of_answers_alone_and_a_few_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_policies(folder).activate(AGENTS[0])
    (pack,) = make_packs([Sample(prompt=torch.arange(2, 40), response=torch.arange(2, 9))], 4096)
    whole, _ = token_logprobs(model, pack, 0.7)
    monkeypatch.setattr("mappa_train.loss.LOGIT_CHUNK", 4)
    with LogitShapes() as shapes:
        found, _ = token_logprobs(model, pack, 0.7)
    assert shapes.seen == [(4, len(WORDS)), (3, len(WORDS))]
    torch.testing.assert_close(found, whole, atol=0.02, rtol=0)


def test_a_released_sampler_samples_as_before(folder: Path, samples: list[SampleCredit]) -> None:
    policies = make_policies(folder)
    updated(policies, samples)
    prompt = samples[0].action.prompt_ids[None]
    with torch.no_grad():
        before = policies.sampler(AGENTS[0])(input_ids=prompt).logits
        gone = weakref.ref(policies.sampler(AGENTS[0]))
        policies.release_sampler()
        gc.collect()
        assert gone() is None
        assert torch.equal(policies.sampler(AGENTS[0])(input_ids=prompt).logits, before)
        assert not torch.equal(policies.sampler(AGENTS[1])(input_ids=prompt).logits, before)
