"""One update of every agent from one step's episodes.

What TorchRL does here: each agent's packs are records (`TensorDict`) in a `ReplayBuffer` over
`LazyStackStorage`, which keeps ragged tensors without padding; `SamplerWithoutReplacement` draws the
minibatches of an epoch; the loss is a `LossModule`. What it does not: logprobs, the KL penalty, returns
and whitening, where its classes pad, misalign, or know no REINFORCE++ (see `algorithms/reinforce_pp.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement

from mappa_envs.errors import MappaError
from mappa_train.algorithms.reinforce_pp import ReinforcePPLoss, token_logprobs
from mappa_train.config import Config
from mappa_train.credit import normalize, token_returns
from mappa_train.packing import Pack, Sample, make_packs
from mappa_train.policies import Policies
from mappa_train.types import SampleCredit, UpdateStats

MAX_DRIFT = 1e-4
"""Largest |log ratio| at a first minibatch, and |KL| of a policy that was never updated."""


class NumericsError(MappaError):
    """A promise about the numbers does not hold: the run stops instead of learning from noise."""


@dataclass(frozen=True, kw_only=True)
class AdvantageStats:
    """Token returns before normalization, over all agents."""

    mean: float | None
    std: float | None


class Learner:
    """Owns the optimizers. `update` trains on exactly the ids that were sampled."""

    def __init__(self, policies: Policies, config: Config) -> None:
        self._policies = policies
        self._config = config
        self.version = 0
        self.intact = True
        """False while an update is under way: some agents may have moved and others not."""
        self._optimizers = {
            agent: torch.optim.AdamW(
                policies.parameters(agent), lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.99)
            )
            for agent in policies.agents
        }

    def update(self, samples: Sequence[SampleCredit]) -> tuple[dict[str, UpdateStats], AdvantageStats]:
        """One step of REINFORCE++ for every agent that has samples.

        Samples whose `ret` is None are left out of loss, statistics and denominator. Raises
        `NumericsError` if a sample is of an older policy, or where ratio or KL should be 0 and is not.
        """
        stale = [s for s in samples if s.action.generation.policy_version != self.version]
        if stale:
            found = stale[0].action.generation.policy_version
            raise NumericsError(f"an action of policy version {found} reached the update of {self.version}")
        chosen = [sample for sample in samples if sample.ret is not None]
        mine = {a: [s for s in chosen if s.action.agent == a] for a in self._policies.agents}
        records = {agent: self._score(agent, group) for agent, group in mine.items()}
        stats = self._add_advantages(records, mine)
        self.intact = False
        updates = {agent: self._train(agent, records[agent], len(mine[agent])) for agent in mine}
        self.version += 1
        self.intact = True
        return updates, stats

    def state(self) -> dict[str, object]:
        """Optimizers and version, for a checkpoint."""
        optimizers = {agent: optimizer.state_dict() for agent, optimizer in self._optimizers.items()}
        return {"optimizers": optimizers, "version": self.version}

    def load_state(self, state: Mapping[str, object]) -> None:
        """The inverse of `state`."""
        optimizers = state["optimizers"]
        assert isinstance(optimizers, Mapping)
        for agent, optimizer in self._optimizers.items():
            optimizer.load_state_dict(optimizers[agent])
        self.version = int(str(state["version"]))

    @torch.no_grad()
    def _score(self, agent: str, samples: Sequence[SampleCredit]) -> list[TensorDict]:
        """Old and reference logprobs, by the learner itself in the micro-batches it will train on."""
        packs = make_packs(
            [Sample(prompt=s.action.prompt_ids, response=s.action.generation.token_ids) for s in samples],
            self._config.token_budget,
        )
        records = []
        for pack in packs:
            model = self._policies.activate(agent)
            old, entropy = token_logprobs(model, pack, self._config.temperature, entropy=True)
            with self._policies.reference() as reference:
                ref, _ = token_logprobs(reference, pack, self._config.temperature)
            assert entropy is not None
            records.append(_record(pack, samples, old, ref, entropy))
        drifts = [float((r["old_logprobs"] - r["ref_logprobs"]).abs().max()) for r in records]
        # max() would drop a nan that is not the first.
        kl = float("nan") if any(map(math.isnan, drifts)) else max(drifts, default=0.0)
        # Comparisons are written so that nan fails them.
        if not kl < float("inf"):
            raise NumericsError(f"{agent}: logprobs are not finite; lower --lr, then resume")
        if self.version == 0 and not kl <= MAX_DRIFT:
            raise NumericsError(f"{agent}: KL to the reference is {kl:.2g} before the first update, not 0")
        return records

    def _add_advantages(
        self, records: Mapping[str, list[TensorDict]], samples: Mapping[str, Sequence[SampleCredit]]
    ) -> AdvantageStats:
        values: list[Tensor] = []
        groups: list[str] = []
        for agent, packs in records.items():
            for record in packs:
                old = record["old_logprobs"].split(record["lengths"].tolist())
                ref = record["ref_logprobs"].split(record["lengths"].tolist())
                for k, o, r in zip(record["members"].tolist(), old, ref, strict=True):
                    sample = samples[agent][k]
                    assert sample.ret is not None
                    values.append(token_returns(sample.ret, o, r, self._config.beta))
                    scope = {"agent": agent, "task_type": sample.task_type}.get(self._config.norm, "all")
                    groups += [scope] * len(o)
        if not values:
            return AdvantageStats(mean=None, std=None)
        flat = torch.cat(values)
        everything = torch.ones(len(flat), dtype=torch.bool)
        if self._config.norm == "none":
            advantages = flat.float()
        else:
            advantages = normalize(flat, everything, None if self._config.norm == "global" else groups)
        place = 0
        for packs in records.values():
            for record in packs:
                count = len(record["targets"])
                record["advantages"] = advantages[place : place + count]
                place += count
        return AdvantageStats(mean=float(flat.mean()), std=float(flat.std(correction=0)))

    def _train(self, agent: str, records: list[TensorDict], num_actions: int) -> UpdateStats:
        config = self._config
        optimizer = self._optimizers[agent]
        if not records:
            return _nothing(config.lr)
        buffer = ReplayBuffer(
            storage=LazyStackStorage(len(records)),
            sampler=SamplerWithoutReplacement(shuffle=config.minibatches > 1),
            batch_size=math.ceil(len(records) / config.minibatches),
        )
        buffer.extend(records)
        loss_module = ReinforcePPLoss(
            self._policies.activate(agent), clip=config.clip, temperature=config.temperature
        )
        losses, norms, clipped, trained = [], [], 0, 0
        steps = math.ceil(len(records) / math.ceil(len(records) / config.minibatches)) * config.epochs
        for step in range(steps):
            batch = buffer.sample()
            losses.append(
                self._backward(agent, loss_module, batch, first=step == 0, tally=(counts := [0, 0]))
            )
            clipped, trained = clipped + counts[0], trained + counts[1]
            norm = torch.nn.utils.clip_grad_norm_(self._policies.parameters(agent), config.max_grad_norm)
            norms.append(float(norm))
            if not math.isfinite(norms[-1]) or not math.isfinite(losses[-1]):
                raise NumericsError(f"{agent}: loss {losses[-1]}, gradient norm {norms[-1]}: not finite")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        every = {
            key: torch.cat([r[key] for r in records]) for key in ("old_logprobs", "ref_logprobs", "entropy")
        }
        return UpdateStats(
            num_tokens=len(every["entropy"]),
            num_actions=num_actions,
            loss=sum(losses) / len(losses),
            kl=float((every["old_logprobs"] - every["ref_logprobs"]).mean()),
            clipfrac=clipped / trained if steps > 1 else None,
            entropy=float(every["entropy"].mean()),
            grad_norm=sum(norms) / len(norms),
            lr=float(optimizer.param_groups[0]["lr"]),
        )

    def _backward(
        self, agent: str, loss_module: ReinforcePPLoss, batch: TensorDict, *, first: bool, tally: list[int]
    ) -> float:
        """Accumulate the gradient of one optimizer batch, pack by pack; returns its loss."""
        packs = list(batch.unbind(0))
        num_tokens = sum(int(pack["trained"].sum()) for pack in packs)
        total = 0.0
        for pack in packs:
            pack["num_tokens"] = torch.tensor(max(num_tokens, 1))
            out = loss_module(pack)
            if first and not float(out["max_log_ratio"]) <= MAX_DRIFT:
                drift = float(out["max_log_ratio"])
                raise NumericsError(f"{agent}: log ratio {drift:.2g} at the first minibatch, not 0")
            out["loss_objective"].backward()
            total += float(out["loss_objective"].detach())
            tally[0] += int(out["clipped"])
        tally[1] += num_tokens
        return total


def _record(
    pack: Pack, samples: Sequence[SampleCredit], old: Tensor, ref: Tensor, entropy: Tensor
) -> TensorDict:
    sampler = torch.cat([samples[k].action.generation.logprobs for k in pack.members])
    return TensorDict(
        ids=pack.ids,
        positions=pack.positions,
        segment=pack.segment,
        parent=pack.parent,
        predictors=pack.predictors,
        targets=pack.targets,
        members=torch.tensor(pack.members),
        lengths=torch.tensor(pack.lengths),
        old_logprobs=old.cpu(),
        ref_logprobs=ref.cpu(),
        sampler_logprobs=sampler,
        entropy=entropy.cpu(),
        trained=torch.ones(len(pack.targets), dtype=torch.bool),
    )


def _nothing(lr: float) -> UpdateStats:
    return UpdateStats(
        num_tokens=0, num_actions=0, loss=None, kl=None, clipfrac=None, entropy=None, grad_norm=None, lr=lr
    )
