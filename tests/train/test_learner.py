"""One update on tiny policies: what it must change, and what it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tiny import (
    AGENTS,
    WORDS,
    alone,
    make_config,
    make_engine,
    make_model,
    make_policies,
    make_requests,
    make_samples,
    no_autocast,
    plain_model,
    weights,
)
from torch import Tensor
from torchrl.data import ReplayBuffer

from mappa_train.algorithms.reinforce_pp import ReinforcePP
from mappa_train.learner import Learner, NumericsError
from mappa_train.loss import PolicyLoss, token_logprobs
from mappa_train.packing import Sample, make_packs
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.types import SampleCredit

RETS = (0.9, 0.2, 0.1, 0.8, 0.5, 0.4, 0.7, 0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def policies(folder: Path) -> LoRAPolicies:
    return make_policies(folder)


def all_weights(policies: LoRAPolicies | FullPolicies) -> Tensor:
    return torch.cat([weights(policies, agent) for agent in policies.agents])


def action_logprob(policies: LoRAPolicies | FullPolicies, sample: SampleCredit) -> float:
    action = sample.action
    model = policies.sampler(action.agent)
    return float(alone(model, action.prompt_ids, action.generation.token_ids, 0.7).sum())


def delta_of_update(
    folder: Path, pick: Sequence[int] | None = None, rets: Sequence[float | None] = RETS, **settings: Any
) -> Tensor:
    """What one update of full policies adds to all weights."""
    policies = FullPolicies(folder, AGENTS)
    samples = make_samples(policies, rets)
    before = all_weights(policies)
    chosen = samples if pick is None else [samples[k] for k in pick]
    Learner(policies, make_config(**settings)).update(chosen)
    return all_weights(policies) - before


def packs_of(minibatches: Sequence[TensorDict]) -> list[TensorDict]:
    """What a learner hands to its replay buffer, pack by pack."""
    return [pack for minibatch in minibatches for pack in minibatch["packs"].unbind(0)]


def test_kl_is_0_and_ratio_1_at_the_first_update(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = []
    forward = PolicyLoss.forward

    def watched(self: PolicyLoss, record: TensorDict) -> TensorDict:
        out = forward(self, record)
        ratios.append(float(out["max_log_ratio"]))
        return out

    monkeypatch.setattr(PolicyLoss, "forward", watched)
    updates, _ = Learner(policies, make_config()).update(make_samples(policies, RETS))
    assert {agent: updates[agent].kl for agent in AGENTS} == dict.fromkeys(AGENTS, 0.0)
    assert ratios
    assert max(ratios) <= 1e-4


def test_an_update_says_how_far_it_is_at_every_pack(policies: LoRAPolicies) -> None:
    said: list[tuple[int, int]] = []
    learner = Learner(policies, make_config(token_budget=64))
    learner.update(make_samples(policies, RETS), lambda done, total: said.append((done, total)))
    assert {total for _, total in said} == {len(AGENTS)}
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert {done for done, _ in said} == set(range(len(AGENTS)))
    assert len(said) > 4 * len(AGENTS)


def test_full_policies_update_too(folder: Path) -> None:
    policies = FullPolicies(folder, AGENTS)
    samples = make_samples(policies, RETS)
    before = action_logprob(policies, samples[0])
    updates, _ = Learner(policies, make_config(lr=1e-4)).update(samples)
    assert all(updates[agent].kl == 0.0 for agent in AGENTS)
    assert action_logprob(policies, samples[0]) > before


def test_a_second_update_begins_at_ratio_1_with_a_kl(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config(lr=1e-2))
    learner.update(make_samples(policies, RETS))
    updates, _ = learner.update(make_samples(policies, RETS, version=1))
    assert learner.version == 2
    assert all(abs(updates[agent].kl or 0.0) > 1e-4 for agent in AGENTS)


def test_a_stale_sample_is_an_error(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config())
    samples = make_samples(policies, RETS)
    learner.update(samples)
    before = all_weights(policies)
    with pytest.raises(NumericsError, match="version 0"):
        learner.update(samples)
    fresh = make_samples(policies, RETS, version=1)
    with pytest.raises(NumericsError, match="version 0"):
        learner.update([*fresh, samples[0]])
    assert torch.equal(all_weights(policies), before)


def test_a_policy_that_is_not_the_reference_at_first_is_an_error(policies: LoRAPolicies) -> None:
    for parameter in policies.parameters(AGENTS[1]):
        parameter.data += 0.1
    samples = make_samples(policies, RETS)
    with pytest.raises(NumericsError, match=r"checker_0.*KL"):
        Learner(policies, make_config()).update(samples)


def test_a_ratio_that_is_not_1_at_first_is_an_error(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = ReplayBuffer.extend

    def shifted(self: ReplayBuffer, records: list[TensorDict]) -> Any:
        for record in packs_of(records):
            record["old_logprobs"] = record["old_logprobs"] + 0.01
        return extend(self, records)

    monkeypatch.setattr(ReplayBuffer, "extend", shifted)
    with pytest.raises(NumericsError, match="ratio"):
        Learner(policies, make_config()).update(make_samples(policies, RETS))


@pytest.mark.parametrize("mine", [0, 1])
def test_samples_of_one_agent_change_that_agent_only(folder: Path, mine: int) -> None:
    policies = make_policies(folder)
    samples = [s for s in make_samples(policies, RETS) if s.action.agent == AGENTS[mine]]
    before = {agent: weights(policies, agent) for agent in AGENTS}
    base = {n: p.clone() for n, p in policies.activate(AGENTS[0]).named_parameters() if "lora" not in n}
    updates, _ = Learner(policies, make_config()).update(samples)
    other = AGENTS[1 - mine]
    assert not torch.equal(weights(policies, AGENTS[mine]), before[AGENTS[mine]])
    assert torch.equal(weights(policies, other), before[other])
    for name, parameter in policies.activate(AGENTS[0]).named_parameters():
        assert "lora" in name or torch.equal(parameter, base[name])
    assert (updates[other].num_tokens, updates[other].num_actions, updates[other].loss) == (0, 0, None)


def test_torchrl_really_carries_the_update(policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record passes through the buffer and the loss; without either nothing is learned."""
    stored: list[TensorDict] = []
    lost: list[int] = []
    extend, forward = ReplayBuffer.extend, PolicyLoss.forward

    def counted_extend(self: ReplayBuffer, records: list[TensorDict]) -> Any:
        stored.extend(packs_of(records))
        return extend(self, records)

    def counted_forward(self: PolicyLoss, record: TensorDict) -> TensorDict:
        lost.append(len(record["targets"]))
        return forward(self, record)

    monkeypatch.setattr(ReplayBuffer, "extend", counted_extend)
    monkeypatch.setattr(PolicyLoss, "forward", counted_forward)
    samples = make_samples(policies, RETS)
    Learner(policies, make_config()).update(samples)
    num_tokens = sum(len(s.action.generation.token_ids) for s in samples)
    assert sum(len(record["targets"]) for record in stored) == num_tokens
    assert sorted(lost) == sorted(len(record["targets"]) for record in stored)


def test_the_loss_decides_the_update(policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = PolicyLoss.forward

    def silent(self: PolicyLoss, record: TensorDict) -> TensorDict:
        out = forward(self, record)
        out["loss_objective"] = out["loss_objective"] * 0.0
        return out

    monkeypatch.setattr(PolicyLoss, "forward", silent)
    before = all_weights(policies)
    Learner(policies, make_config()).update(make_samples(policies, RETS))
    assert torch.equal(all_weights(policies), before)


def test_an_unscored_sample_changes_nothing(folder: Path) -> None:
    rets = (0.9, 0.2, 0.1, None, None, 0.4, 0.7, 0.3)
    with_them = delta_of_update(folder, rets=rets)
    without = delta_of_update(folder, rets=rets, pick=[0, 1, 2, 5, 6, 7])
    assert with_them.norm() > 0
    assert torch.equal(with_them, without)
    assert not torch.equal(with_them, delta_of_update(folder))


def test_all_unscored_changes_nothing_and_counts_as_a_version(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config())
    before = all_weights(policies)
    updates, stats = learner.update(make_samples(policies, (None,) * 8))
    assert torch.equal(all_weights(policies), before)
    assert (stats.mean, stats.std) == (None, None)
    assert all(updates[agent].loss is None for agent in AGENTS)
    assert learner.version == 1


def test_flat_returns_change_nothing(policies: LoRAPolicies) -> None:
    before = all_weights(policies)
    Learner(policies, make_config()).update(make_samples(policies, (0.6,) * 8))
    assert torch.equal(all_weights(policies), before)


def test_flat_returns_give_no_advantage_once_there_is_a_kl(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config(lr=1e-2))
    learner.update(make_samples(policies, RETS))
    _, stats = learner.update(make_samples(policies, (0.6,) * 8, version=1))
    assert len(stats.actions) == 8
    assert all(item.kl != 0 for item in stats.actions)
    assert [item.advantage for item in stats.actions] == [0.0] * 8


def test_good_actions_become_likelier_and_bad_ones_less(policies: LoRAPolicies) -> None:
    samples = make_samples(policies, (1.0, 0.0, 0.0, 1.0))  # each agent has one good and one bad
    before = [action_logprob(policies, sample) for sample in samples]
    Learner(policies, make_config(lr=1e-2)).update(samples)
    gains = [action_logprob(policies, s) - b for s, b in zip(samples, before, strict=True)]
    assert min(gains[0], gains[3]) > 0 > max(gains[1], gains[2])


def test_lr_0_changes_nothing(policies: LoRAPolicies) -> None:
    before = all_weights(policies)
    updates, _ = Learner(policies, make_config(lr=0.0)).update(make_samples(policies, RETS))
    assert torch.equal(all_weights(policies), before)
    assert all((updates[agent].grad_norm or 0) > 0 for agent in AGENTS)


def test_state_round_trip(folder: Path) -> None:
    """A learner that was saved and loaded updates bit for bit as the first would have."""
    policies = make_policies(folder)
    learner = Learner(policies, make_config())
    learner.update(make_samples(policies, RETS))
    state = {agent: {n: v.clone() for n, v in policies.state(agent).items()} for agent in AGENTS}
    saved = learner.state()
    buffer = torch.tensor(0)  # the state must survive torch.save with weights_only
    path = folder / "state.pt"
    torch.save({"learner": saved, "buffer": buffer}, path)
    samples = make_samples(policies, RETS[::-1], version=1)
    learner.update(samples)

    other = make_policies(folder)
    for agent in AGENTS:
        other.load_state(agent, state[agent])
    resumed = Learner(other, make_config())
    resumed.load_state(torch.load(path, weights_only=True)["learner"])
    assert resumed.version == 1
    assert torch.equal(all_weights(other), torch.cat([_flat(state[agent]) for agent in AGENTS]))
    resumed.update(samples)
    assert torch.equal(all_weights(other), all_weights(policies))

    forgetful = make_policies(folder)
    for agent in AGENTS:
        forgetful.load_state(agent, state[agent])
    fresh = Learner(forgetful, make_config())
    fresh.version = 1
    fresh.update(samples)
    assert not torch.equal(all_weights(forgetful), all_weights(policies))


def test_what_the_settings_decide_is_not_taken_from_a_checkpoint(policies: LoRAPolicies) -> None:
    """config.toml may have been changed before a run goes on, and says what it does."""
    saved = Learner(policies, make_config(weight_decay=0.1)).state()
    learner = Learner(policies, make_config(weight_decay=0.3, adam_beta2=0.5))
    learner.load_state(saved)
    groups = [group for optimizer in learner._optimizers.values() for group in optimizer.param_groups]
    assert [(group["weight_decay"], group["betas"]) for group in groups] == [(0.3, (0.9, 0.5))] * 2


def _flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([state[name].float().flatten() for name in sorted(state)])


def test_advantage_stats_are_of_the_token_returns(policies: LoRAPolicies) -> None:
    """At the first update KL is 0, so each token's return is its action's G: a token-weighted mean."""
    samples = make_samples(policies, RETS)
    _, stats = Learner(policies, make_config()).update(samples)
    every = torch.cat([torch.full((len(s.action.generation.token_ids),), float(s.ret or 0)) for s in samples])
    assert stats.mean == pytest.approx(float(every.mean()), abs=1e-6)
    assert stats.std == pytest.approx(float(every.std(correction=0)), abs=1e-6)


@pytest.mark.parametrize("norm", ["global", "agent", "task_type", "none"])
def test_scope_of_normalization(policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch, norm: str) -> None:
    """Within each scope the trained advantages have mean 0 and variance 1; "none" keeps G itself."""
    stored: dict[str, list[TensorDict]] = {}
    extend, train = ReplayBuffer.extend, Learner._train

    def counted(self: ReplayBuffer, records: list[TensorDict]) -> Any:
        stored[names[-1]] = packs_of(records)
        return extend(self, records)

    names: list[str] = []

    def named(self: Learner, agent: str, *rest: Any) -> Any:
        names.append(agent)
        return train(self, agent, *rest)

    monkeypatch.setattr(ReplayBuffer, "extend", counted)
    monkeypatch.setattr(Learner, "_train", named)
    samples = make_samples(policies, RETS)
    Learner(policies, make_config(norm=norm)).update(samples)
    scopes: dict[str, list[Tensor]] = {}
    for agent, records in stored.items():
        for record in records:
            parts = record["advantages"].split(record["lengths"].tolist())
            for k, part in zip(record["members"].tolist(), parts, strict=True):
                assert samples[k].action.agent == agent
                scope = {"agent": agent, "task_type": samples[k].task_type}.get(norm, "all")
                scopes.setdefault(scope, []).append(part)
                if norm == "none":
                    torch.testing.assert_close(part, torch.full_like(part, float(samples[k].ret or 0)))
    assert len(scopes) == {"global": 1, "none": 1}.get(norm, 2)
    for parts in scopes.values():
        whole = torch.cat(parts).double()
        assert norm == "none" or abs(float(whole.mean())) < 1e-5
        assert norm == "none" or abs(float(whole.var(correction=0)) - 1) < 1e-4


def test_minibatches_and_epochs_take_optimizer_steps(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    step = torch.optim.AdamW.step

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(1)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    samples = make_samples(policies, RETS)
    updates, _ = Learner(policies, make_config(minibatches=2, epochs=3)).update(samples)
    assert len(steps) == 2 * 2 * 3  # for each of two agents
    assert all(updates[agent].clipfrac is not None for agent in AGENTS)


@pytest.mark.parametrize("count", [0, 1, 3, 8, 12, 13])
def test_a_pass_takes_the_steps_that_were_asked_for(policies: LoRAPolicies, count: int) -> None:
    """Each action once, in so many steps of equal size but for one action; or so many actions a step."""
    members = list(range(100, 100 + count))
    for minibatches in (1, 2, 5, 8):
        parts = Learner(policies, make_config(minibatches=minibatches))._split(members)
        assert len(parts) == min(minibatches, count)
        assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1
        assert sorted(k for part in parts for k in part) == members
    parts = Learner(policies, make_config(actions_per_update=5))._split(members)
    assert [len(part) for part in parts] == [5] * (count // 5) + ([count % 5] if count % 5 else [])
    assert sorted(k for part in parts for k in part) == members


def test_clipfrac_is_undefined_with_a_single_step(policies: LoRAPolicies) -> None:
    updates, _ = Learner(policies, make_config()).update(make_samples(policies, RETS))
    assert all(updates[agent].clipfrac is None for agent in AGENTS)


def test_loss_of_one_record_by_hand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L = Σ c (−w · min(ρA, clip(ρ, 1 ± ε)A) + β · k3) / N, w = min(π_old / π_sampler, 2)."""
    policies = FullPolicies(folder, AGENTS[:1])
    (sample,) = make_samples(policies, (1.0,), agents=AGENTS[:1])
    caught: list[TensorDict] = []
    extend = ReplayBuffer.extend

    def catch(self: ReplayBuffer, records: list[TensorDict]) -> Any:
        caught.extend(packs_of(records))
        return extend(self, records)

    with no_autocast(monkeypatch):
        monkeypatch.setattr(ReplayBuffer, "extend", catch)
        Learner(policies, make_config(lr=0.0, norm="none")).update([sample])
        record = caught[0]
        logprobs = alone(
            plain_model(folder), sample.action.prompt_ids, sample.action.generation.token_ids, 0.7
        )
        n = len(logprobs)
        assert n >= 4
        shift = torch.zeros(n)
        shift[:4] = torch.tensor([0.5, -0.5, 0.5, -0.5])
        advantages = torch.ones(n)
        advantages[2:4] = -1.0
        weights = 1.0 * (torch.arange(n) != n - 1)
        off = torch.linspace(-2, 2, n)
        old = logprobs - shift
        ref = logprobs - torch.linspace(-1, 2, n)
        record["old_logprobs"], record["advantages"], record["weights"] = old, advantages, weights
        record["sampler_logprobs"], record["denominator"] = old - off, torch.tensor(7)
        record["ref_logprobs"] = ref
        model = policies.activate(AGENTS[0])
        out = PolicyLoss(model, ReinforcePP(), clip=0.2, temperature=0.7)(record)
        with_kl = PolicyLoss(model, ReinforcePP(), clip=0.2, temperature=0.7, beta=0.3)(record)
    ratio = shift.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    wanted = -(surrogate * off.exp().clamp(max=2.0) * weights).sum() / 7
    torch.testing.assert_close(out["loss_objective"].detach(), wanted, atol=1e-4, rtol=0)
    # The penalty is not weighted by w: k3 = π_ref/π − 1 − log(π_ref/π).
    wanted += 0.3 * (((ref - logprobs).exp() - 1 - (ref - logprobs)) * weights).sum() / 7
    torch.testing.assert_close(with_kl["loss_objective"].detach(), wanted, atol=1e-4, rtol=0)
    assert int(out["clipped"]) == 2  # ratio 1.65 with A > 0, ratio 0.61 with A < 0


def test_sampler_and_learner_agree(policies: LoRAPolicies) -> None:
    """The learner's own logprobs are the sampler's within bf16, after an update as well."""
    learner = Learner(policies, make_config(lr=1e-2))
    samples = make_samples(policies, RETS)
    learner.update(samples)
    engine = make_engine(policies)
    engine.sync(learner.version)
    requests = make_requests(8)
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        (pack,) = make_packs([Sample(prompt=request.prompt_ids, response=answer.token_ids)], 4096)
        with torch.no_grad():
            mine, entropy = token_logprobs(policies.activate(request.agent), pack, 0.7, entropy=True)
        assert (mine - answer.logprobs).abs().mean() < 0.05
        assert entropy is not None
        assert ((entropy > 0) & (entropy < math.log(len(WORDS)))).all()


def test_an_older_sample_is_not_saved_by_its_missing_return(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config())
    samples = make_samples(policies, RETS)
    learner.update(samples)
    with pytest.raises(NumericsError):
        learner.update([replace(samples[0], ret=None)])


def test_weights_that_are_not_finite_stop_the_run_before_a_step(policies: LoRAPolicies) -> None:
    learner = Learner(policies, make_config())
    samples = make_samples(policies, RETS)
    with torch.no_grad():
        policies.parameters(AGENTS[1])[-1].fill_(torch.nan)
    before = all_weights(policies)
    with pytest.raises(NumericsError, match="finite"):
        learner.update(samples)
    assert torch.equal(all_weights(policies).nan_to_num(), before.nan_to_num())


def test_an_update_that_was_cut_short_is_known(
    policies: LoRAPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(policies, make_config())
    train, calls = learner._train, []

    def interrupted(agent: str, *rest: Any) -> Any:
        calls.append(agent)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(agent, *rest)

    monkeypatch.setattr(learner, "_train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.update(make_samples(policies, RETS))
    assert not learner.intact
    assert learner.version == 0
