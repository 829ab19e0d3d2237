"""Exactness of an update: against the formula, and against itself in other packs, orders and processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import delta_of_updates, float64_policies
from tensordict import TensorDict
from tiny import AGENTS, make_config, make_model, make_policies, make_samples, no_autocast, plain_model
from torch import Tensor

from mappa_train.learner import Learner
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.types import SampleCredit

RETS = (0.9, 0.2, 0.1, 0.8, 0.5, 0.4, 0.7, 0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def policies(folder: Path) -> LoRAPolicies:
    return make_policies(folder)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_order_and_micro_batches_change_nothing_in_float64(folder: Path) -> None:
    """Only the order of sums is left, so that nothing but a few last digits may differ."""
    whole = delta_of_updates(folder, token_budget=4096)
    order = [7, 3, 11, 0, 5, 9, 1, 10, 2, 6, 8, 4]
    assert whole.norm() > 1e-3
    assert relative(delta_of_updates(folder, token_budget=64), whole) < 1e-8
    assert relative(delta_of_updates(folder, order, token_budget=100), whole) < 1e-8


@pytest.mark.parametrize("loss_mean", ["token", "sequence"])
def test_gradient_is_that_of_the_formula_on_padded_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loss_mean: str
) -> None:
    """Packed = padded: the library's own model on a right-padded batch, whatever stands in the padding."""
    caught: dict[str, list[Tensor]] = {}
    clip = Learner._clip_gradients

    def catch(self: Learner, agent: str) -> float:
        caught[agent] = [p.grad.clone() for p in policies.parameters(agent) if p.grad is not None]
        return clip(self, agent)

    with no_autocast(monkeypatch):
        monkeypatch.setattr(Learner, "_clip_gradients", catch)
        samples = make_samples(FullPolicies(folder, AGENTS), RETS)
        policies = float64_policies(folder)
        Learner(policies, make_config(lr=0.0, loss_mean=loss_mean)).update(samples)
    lengths = [len(s.action.generation.token_ids) for s in samples]
    tokens = torch.cat([torch.full((n,), r, dtype=torch.float64) for r, n in zip(RETS, lengths, strict=True)])
    advantages = (torch.tensor(RETS).double() - tokens.mean()) / tokens.std(correction=0)
    for agent in AGENTS:
        mine = [k for k, s in enumerate(samples) if s.action.agent == agent]
        for garbage in (0, 9):
            model = plain_model(folder).double()
            logprobs = padded_logprobs(model, [samples[k] for k in mine], 0.7, garbage)
            means = [p.mean() if loss_mean == "sequence" else p.sum() for p in logprobs]
            count = len(mine) if loss_mean == "sequence" else sum(lengths[k] for k in mine)
            # At ratio 1 the gradient of the surrogate is that of A · log π.
            (-sum(advantages[k] * m for k, m in zip(mine, means, strict=True)) / count).backward()
            wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
            assert relative(torch.cat([g.flatten() for g in caught[agent]]), wanted) < 1e-5


def padded_logprobs(
    model: Any, samples: Sequence[SampleCredit], temperature: float, garbage: int
) -> list[Tensor]:
    rows = [torch.cat([s.action.prompt_ids, s.action.generation.token_ids]) for s in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=garbage)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logprobs = (model(input_ids=ids, attention_mask=mask).logits / temperature).log_softmax(-1)
    found = []
    for k, s in enumerate(samples):
        start, response = len(s.action.prompt_ids), s.action.generation.token_ids.clone()
        at = logprobs[k, start - 1 : start - 1 + len(response)]
        found.append(at.gather(1, response[:, None])[:, 0])
    return found


@pytest.mark.parametrize(("setting", "steps"), [("actions_per_update", 3), ("minibatches", 2)])
def test_an_epoch_takes_every_action_once(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch, setting: str, steps: int
) -> None:
    """7 actions of an agent: 3, 3 and 1 by `actions_per_update`, 4 and 3 by `minibatches`; none dropped."""
    samples = make_samples(policies, [0.1 * k for k in range(14)])
    taken: list[list[int]] = []
    backward = Learner._backward

    def watched(self: Learner, agent: str, loss: Any, packs: list[TensorDict], **rest: Any) -> Any:
        if agent == AGENTS[0]:
            taken.append([k for pack in packs for k in pack["members"].tolist()])
        return backward(self, agent, loss, packs, **rest)

    monkeypatch.setattr(Learner, "_backward", watched)
    Learner(policies, make_config(epochs=2, **{setting: steps})).update(samples)
    per_epoch = len(taken) // 2
    assert sorted(map(len, taken[:per_epoch]), reverse=True) == [[3, 3, 1], [4, 3]][setting == "minibatches"]
    for epoch in (taken[:per_epoch], taken[per_epoch:]):
        assert sorted(k for part in epoch for k in part) == list(range(0, 14, 2))
    # The second epoch has the same minibatches: their old logprobs are of exactly these packs.
    assert sorted(map(sorted, taken[per_epoch:])) == sorted(map(sorted, taken[:per_epoch]))


def test_a_schedule_moves_with_every_optimizer_step(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: Any, *args: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    config = make_config(steps=2, minibatches=2, schedule="cosine", warmup=0.25, min_lr=1e-4, lr=1e-2)
    learner = Learner(policies, config)
    for version in range(2):
        samples = make_samples(policies, RETS, version)
        updates, _ = learner.update([s for s in samples if s.action.agent == AGENTS[0]])
    # 2 × 2 steps: the first quarter is warm-up, then half a cosine over the rest
    wanted = [1e-2, *(1e-4 + 9.9e-3 * (1 + math.cos(math.pi * k / 3)) / 2 for k in range(3))]
    assert rates == pytest.approx(wanted)
    assert updates[AGENTS[0]].lr == pytest.approx(wanted[-1])


def test_a_penalty_in_the_loss_is_in_no_return(policies: LoRAPolicies) -> None:
    """After an update the KL is not 0: it moves the token returns with `--kl reward` only."""
    learner = Learner(policies, make_config(kl="loss", lr=1e-2))
    learner.update(make_samples(policies, RETS))
    samples = make_samples(policies, RETS, version=1)
    updates, stats = learner.update(samples)
    lengths = torch.tensor([len(s.action.generation.token_ids) for s in samples])
    rets = torch.tensor(RETS).repeat_interleave(lengths)
    assert stats.mean == pytest.approx(float(rets.mean()), abs=1e-6)
    assert all(abs(updates[agent].kl or 0.0) > 1e-4 for agent in AGENTS)


@pytest.mark.slow
def test_the_penalty_in_the_loss_keeps_policies_close(folder: Path) -> None:
    """Flat returns give no advantage: the later updates follow the penalty alone, towards the reference."""
    norms = []
    for beta in (0.01, 10.0):
        policies = make_policies(folder)
        learner = Learner(policies, make_config(kl="loss", beta=beta, lr=1e-2))
        learner.update(make_samples(policies, RETS))
        for version in range(1, 4):
            updates, _ = learner.update(make_samples(policies, (0.5,) * 8, version))
        norms.append(sum(abs(updates[agent].kl or 0.0) for agent in AGENTS))
    assert norms[1] < norms[0]
