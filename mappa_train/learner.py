"""One update of every policy that learns from one step's episodes.

What TorchRL does here: each policy's minibatches of packs are records (`TensorDict`) in a `ReplayBuffer` over
`LazyStackStorage`, which keeps ragged tensors without padding; `SamplerWithoutReplacement` draws the
minibatches of an epoch; the loss is a `LossModule`. What it does not: logprobs, the KL penalty, returns
and whitening, where its classes pad, misalign, or know no REINFORCE++ (see `loss.py`).

Several ranks with episodes of their own give the same update as one that has them all. For an algorithm that
compares, the episodes of one task must be on one rank, since groups are not gathered. All ranks make the same
passes: one that has fewer packs makes idle ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import pairwise

import torch
from tensordict import TensorDict, lazy_stack
from torch import Tensor
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement

from mappa_envs.errors import MappaError
from mappa_train.algorithms import ActionReturns, find_algorithm
from mappa_train.config import Config
from mappa_train.credit import group_numbers, moments, normalize, token_returns
from mappa_train.credit_log import action_credits
from mappa_train.distributed import ALONE, Ranks
from mappa_train.loss import PolicyLoss, find_advantages, token_logprobs
from mappa_train.packing import Pack, Sample, make_packs
from mappa_train.parallel import Distributor, exchange, idle_pack
from mappa_train.policies import Policies
from mappa_train.router import check_trained
from mappa_train.schedule import learning_rate
from mappa_train.sharding import load_optimizer_state, optimizer_state, whole
from mappa_train.types import Action, SampleCredit, UpdateStats
from mappa_train.update_stats import AdvantageStats, of_each_actor, pooled_stats

log = logging.getLogger(__name__)

MAX_DRIFT = 1e-4
"""Largest |log ratio| at a first minibatch, and |KL| of a policy that was never updated."""

_TOO_FAR = (
    "an update went too far. Lower lr in the run's config.toml and resume; if that does not help, delete its "
    "newest checkpoints first"
)

Minibatch = list[TensorDict]
"""The packs of one optimizer step."""


class NumericsError(MappaError):
    """A promise about the numbers does not hold: the run stops instead of learning from noise."""


class Learner:
    """Owns the optimizers. `update` trains on exactly the ids that were sampled.

    With several ranks it distributes the policies, which must be the same on all of them.
    """

    def __init__(self, policies: Policies, config: Config, ranks: Ranks = ALONE) -> None:
        if ranks.size > 1:
            policies.distribute(Distributor(config.shard, samples=not config.num_rollout_workers))
        self._policies = policies
        self._config = config
        self._ranks = ranks
        self._algorithm = find_algorithm(config.algorithm)()
        self._on_pack: Callable[[], None] = lambda: None
        self.version = 0
        self.intact = True
        """False while an update is under way: some agents may have moved and others not."""
        self._optimizers = {
            policy: torch.optim.AdamW(
                policies.parameters(policy),
                lr=config.lr,
                weight_decay=config.weight_decay,
                betas=(0.9, config.adam_beta2),
            )
            for policy in policies.trained
        }

    def update(
        self, samples: Sequence[SampleCredit], on_pack: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[dict[str, UpdateStats], AdvantageStats]:
        """One step of the algorithm for every policy that learns, and its figures by agent.

        `on_pack` is called often, with the number of agents that are done and of all: updates take minutes.
        Samples of frozen agents, and those whose `ret` is None, are left out of loss, statistics and
        denominator. Raises `NumericsError` if a sample is of an older policy, or where ratio or KL should be
        0 and is not, and `ConfigError` if the algorithm returns what is none.
        """
        stale = [s for s in samples if s.action.generation.policy_version != self.version]
        if stale:
            found = stale[0].action.generation.policy_version
            raise NumericsError(f"an action of policy version {found} reached the update of {self.version}")
        actors = {policy: self._policies.actors(policy) for policy in self._policies.trained}
        total = sum(map(len, actors.values()))
        self._on_pack = partial(on_pack, 0, total)
        self._policies.release_sampler()
        minibatches = {policy: self._score(policy, samples) for policy in actors}
        stats = self._add_advantages(minibatches, samples)
        self.intact = False
        updates: dict[str, UpdateStats] = {}
        for policy, agents in actors.items():
            self._on_pack = partial(on_pack, len(updates), total)
            update = self._train(policy, minibatches[policy])
            packs = [pack for minibatch in minibatches[policy] for pack in minibatch]
            updates |= of_each_actor(update, packs, samples, agents, self._ranks.gather)
        self._policies.refresh_sampler()
        self.version += 1
        self.intact = True
        return updates, stats

    def state(self) -> dict[str, object]:
        """Optimizers and version, for a checkpoint: asked for by all ranks, whole on the first."""
        optimizers = {policy: optimizer_state(optimizer) for policy, optimizer in self._optimizers.items()}
        return {"optimizers": optimizers, "version": self.version}

    def load_state(self, state: Mapping[str, object]) -> None:
        """The inverse of `state`. Raises `ConfigError` if it is of a run in which others learn."""
        optimizers = state["optimizers"]
        assert isinstance(optimizers, Mapping)
        check_trained(tuple(optimizers), self._policies.trained)
        for policy, optimizer in self._optimizers.items():
            load_optimizer_state(optimizer, optimizers[policy])
        self.version = int(str(state["version"]))

    def _split(self, members: list[int]) -> list[list[int]]:
        """Which actions each optimizer step of an epoch takes: drawn at random, none left out."""
        count = len(members)
        if self._config.actions_per_update:
            size = math.ceil(self._config.actions_per_update / self._ranks.size)
            edges = [*range(0, count, size), count]
        else:  # as many steps as the settings say, of sizes that differ by one at most
            steps = min(self._config.minibatches, count)
            edges = [k * count // steps for k in range(steps + 1)] if steps else [0]
        if len(edges) > 2:
            members = [members[k] for k in torch.randperm(count).tolist()]
        return [members[start:end] for start, end in pairwise(edges)]

    @torch.no_grad()
    def _score(self, policy: str, samples: Sequence[SampleCredit]) -> list[Minibatch]:
        """Old and reference logprobs, by the learner itself in the micro-batches it will train on."""
        actors = self._policies.actors(policy)
        mine = [k for k, s in enumerate(samples) if s.ret is not None and s.action.agent in actors]
        parts = self._split(mine)
        packed = [
            make_packs([_ids(samples[k].action) for k in part], self._config.token_budget) for part in parts
        ]
        num_packs = sum(map(len, packed))
        num_idle = int(max(self._gathered(num_packs))) - num_packs
        minibatches = [
            [self._record(policy, pack, samples, part) for pack in packs]
            for part, packs in zip(parts, packed, strict=True)
        ]
        self._score_idly(policy, num_idle)
        drifts = [
            float((pack["old_logprobs"] - pack["ref_logprobs"]).abs().max())
            for minibatch in minibatches
            for pack in minibatch
        ]
        # max() would drop a nan that is not the first.
        kl = float("nan") if any(map(math.isnan, drifts)) else max(drifts, default=0.0)
        # Comparisons are written so that nan fails them.
        if not kl < float("inf"):
            raise NumericsError(f"{policy}: logprobs are not finite; {_TOO_FAR}")
        if self.version == 0 and not kl <= MAX_DRIFT:
            raise NumericsError(f"{policy}: KL to the reference is {kl:.2g} before the first update, not 0")
        return minibatches

    def _score_idly(self, policy: str, count: int) -> None:
        """The passes that other ranks make and this one has no packs for."""
        for _ in range(count):
            token_logprobs(self._policies.activate(policy), idle_pack(), 1.0)
            with self._policies.reference(policy) as reference:
                token_logprobs(reference, idle_pack(), 1.0)

    def _record(
        self, policy: str, pack: Pack, samples: Sequence[SampleCredit], part: Sequence[int]
    ) -> TensorDict:
        """A pack with its logprobs; `members` are the places of its actions in `samples`."""
        self._on_pack()
        old, entropy = token_logprobs(
            self._policies.activate(policy), pack, self._config.temperature, entropy=True
        )
        with self._policies.reference(policy) as reference:
            ref, _ = token_logprobs(reference, pack, self._config.temperature)
        assert entropy is not None
        members = [part[k] for k in pack.members]
        lengths = torch.tensor(pack.lengths)
        weights = torch.ones(len(pack.targets))
        if self._config.loss_mean == "sequence":
            weights = (1.0 / lengths).repeat_interleave(lengths)
        return TensorDict(
            ids=pack.ids,
            positions=pack.positions,
            segment=pack.segment,
            parent=pack.parent,
            predictors=pack.predictors,
            targets=pack.targets,
            members=torch.tensor(members),
            lengths=lengths,
            old_logprobs=old.cpu(),
            ref_logprobs=ref.cpu(),
            sampler_logprobs=torch.cat([samples[k].action.generation.logprobs for k in members]),
            entropy=entropy.cpu(),
            weights=weights,
        )

    def _add_advantages(
        self, minibatches: Mapping[str, list[Minibatch]], samples: Sequence[SampleCredit]
    ) -> AdvantageStats:
        packs = [pack for some in minibatches.values() for minibatch in some for pack in minibatch]
        order = [samples[k] for pack in packs for k in pack["members"].tolist()]
        batch = self._batch(packs, order, group_numbers(order, samples))
        if self._algorithm.compares:
            _warn_of_groups_of_one(batch)
        advantages = find_advantages(self._algorithm, batch)
        for pack, part in zip(
            packs, torch.split(advantages, [len(p["targets"]) for p in packs]), strict=True
        ):
            pack["advantages"] = part
        count, mean, variance = moments(batch.tokens(batch.returns), self._ranks.gather)
        if not count:
            return AdvantageStats(mean=None, std=None, actions=())
        parts = self._ranks.gather_objects(action_credits(packs, samples))
        actions = merge(*parts, key=lambda item: (item.index, item.turn))  # in which each rank's are already
        return AdvantageStats(mean=mean, std=math.sqrt(variance), actions=tuple(actions))

    def _batch(
        self, packs: Sequence[TensorDict], order: Sequence[SampleCredit], groups: Sequence[int]
    ) -> ActionReturns:
        """What the algorithm gets to see; `order` are the samples as the packs have them."""
        beta = self._config.beta if self._config.kl == "reward" else 0.0
        penalties = [
            token_returns(0.0, old, ref, beta)
            for pack in packs
            for old, ref in zip(
                pack["old_logprobs"].split(pack["lengths"].tolist()),
                pack["ref_logprobs"].split(pack["lengths"].tolist()),
                strict=True,
            )
        ]
        lengths = [len(part) for part in penalties]
        penalty = torch.cat([torch.empty(0, dtype=torch.float64), *penalties])

        def whiten(values: Tensor) -> Tensor:
            if self._config.norm == "none":
                return values.float()
            names: list[str] | None = None
            if self._config.norm != "global":
                own = [s.action.agent if self._config.norm == "agent" else s.task_type for s in order]
                names = [name for name, length in zip(own, lengths, strict=True) for _ in range(length)]
            scopes = None
            if names is not None:
                scopes = sorted({name for part in self._ranks.gather_objects({*names}) for name in part})
            everything = torch.ones(len(values), dtype=torch.bool)
            return normalize(
                values, everything, names, self._ranks.gather, scopes=scopes, bare=values - penalty
            )

        return ActionReturns(
            returns=torch.tensor([s.ret for s in order], dtype=torch.float64),
            groups=torch.tensor(groups, dtype=torch.int64),
            num_groups=max(groups, default=-1) + 1,
            lengths=torch.tensor(lengths, dtype=torch.int64),
            penalties=penalty,
            whiten=whiten,
        )

    def _train(self, policy: str, minibatches: list[Minibatch]) -> UpdateStats:
        config, optimizer = self._config, self._optimizers[policy]
        per_epoch = max(int(count) for count in self._gathered(len(minibatches)))
        steps = per_epoch * config.epochs
        loss_module = PolicyLoss(
            self._policies.activate(policy),
            self._algorithm,
            clip=config.clip,
            temperature=config.temperature,
            beta=config.beta if config.kl == "loss" else 0.0,
        )
        losses, norms, clipped, trained = [], [], 0, 0
        rate = self._rate(0, max(steps, 1))
        for step, packs in enumerate(_draw(minibatches, per_epoch, config.epochs)):
            rate = self._rate(step, steps)
            loss, acted = self._backward(policy, loss_module, packs, first=step == 0)
            losses.append(loss)
            clipped, trained = clipped + acted, trained + sum(len(pack["targets"]) for pack in packs)
            norms.append(self._clip_gradients(policy))
            if not math.isfinite(norms[-1]) or not math.isfinite(losses[-1]):
                raise NumericsError(
                    f"{policy}: loss {losses[-1]}, gradient norm {norms[-1]}: not finite; {_TOO_FAR}"
                )
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return pooled_stats(
            [pack for minibatch in minibatches for pack in minibatch],
            self._ranks.gather,
            losses=losses,
            norms=norms,
            clips=(clipped, trained) if steps > 1 else (0, 0),
            lr=rate,
        )

    def _rate(self, step: int, steps: int) -> float:
        """The learning rate of one of the optimizer steps of this update."""
        total = self._config.steps
        return learning_rate(
            self._config, (self.version + step / steps) / total, (self.version + (step + 1) / steps) / total
        )

    def _backward(
        self, policy: str, loss_module: PolicyLoss, packs: Minibatch, *, first: bool
    ) -> tuple[float, int]:
        """Accumulate the gradient of one optimizer step, pack by pack; its loss, and where the clip acted.

        The mean is over the tokens (or actions) of all packs and ranks, however they are divided.
        """
        unit = "lengths" if self._config.loss_mean == "sequence" else "targets"
        denominator = sum(self._gathered(sum(len(pack[unit]) for pack in packs)))
        total, acted = 0.0, 0
        passes = int(max(self._gathered(len(packs))))
        for k in range(passes):
            with exchange(loss_module.model, now=k == passes - 1):
                if k >= len(packs):
                    logprobs, _ = token_logprobs(loss_module.model, idle_pack(), 1.0)
                    (0.0 * logprobs.sum()).backward()  # type: ignore[no-untyped-call]
                    continue
                pack = packs[k]
                self._on_pack()
                pack["denominator"] = torch.tensor(denominator, dtype=torch.float64)
                out = loss_module(pack)
                if first and not float(out["max_log_ratio"]) <= MAX_DRIFT:
                    drift = float(out["max_log_ratio"])
                    raise NumericsError(f"{policy}: log ratio {drift:.2g} at the first minibatch, not 0")
                # Gradients are averaged over ranks, and this is a part of a sum.
                (out["loss_objective"] * self._ranks.size).backward()
                total += float(out["loss_objective"].detach())
                acted += int(out["clipped"])
        return sum(self._gathered(total)), acted

    def _gathered(self, value: float) -> list[float]:
        """The number of each rank."""
        return [float(part) for part in self._ranks.gather(torch.tensor([value], dtype=torch.float64))]

    def _clip_gradients(self, policy: str) -> float:
        """Clip the gradients; their norm before."""
        parameters = self._policies.parameters(policy)
        return float(whole(torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm)))


def _ids(action: Action) -> Sample:
    return Sample(prompt=action.prompt_ids, response=action.generation.token_ids)


def _draw(minibatches: list[Minibatch], per_epoch: int, epochs: int) -> Iterator[Minibatch]:
    """The minibatches of every epoch, by a replay buffer; empty ones where other ranks have more."""
    buffer = ReplayBuffer(
        storage=LazyStackStorage(max(len(minibatches), 1)),
        sampler=SamplerWithoutReplacement(shuffle=len(minibatches) > 1),
        batch_size=1,
    )
    if minibatches:
        buffer.extend([TensorDict(packs=lazy_stack(minibatch)) for minibatch in minibatches])
    for _ in range(epochs):
        for k in range(per_epoch):
            yield list(buffer.sample()[0]["packs"].unbind(0)) if k < len(minibatches) else []


def _warn_of_groups_of_one(batch: ActionReturns) -> None:
    alone = int((batch.group_size() == 1).sum())
    if alone:
        log.warning(
            "%d of %d actions have no other of their group to compare with, and learn nothing from their "
            "return; raise --samples-per-task",
            alone,
            len(batch.returns),
        )
