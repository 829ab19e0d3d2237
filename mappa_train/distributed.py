"""Several processes that train one team: who is who, what they tell each other, how they end together.

Every process (a *rank*) runs the same program (SPMD) with a team of its own, plays its share of a step's
episodes, hands them to all others and learns from its share. Where rollout workers play, the first rank has
all episodes played and hands them on. Tensors of the models travel in PyTorch's own wrappers (`sharding.py`);
here are the few numbers and records beside them, over gloo, on CPUs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from mappa_envs.errors import MappaError, UnavailableError
from mappa_train.launch import num_launched
from mappa_train.rollout import EpisodePlan, RolloutTimes
from mappa_train.types import EpisodeRollout

T = TypeVar("T")

PATIENCE = timedelta(hours=1)
"""How long ranks wait for the slowest rollout, and in a collective operation, before they give up."""
UNHURRIED = timedelta(days=7)
"""How long they wait for what the first one does for all. If it ends, the launcher ends them."""
END_S = 30.0
"""How long a rank that failed with another is left to the launcher."""
GRACE_S = 1.0
"""After an error that another rank's end may have caused, that one speaks first."""
LOST_GRACE_S = 5.0
"""After one that it did cause, its launcher does, who has to notice first, however busy the machine is."""
_MISSING = re.compile(r"Ranks? ([\d, ]+) failed to pass")
_FAILED = "mappa/failed"


class LostRankError(MappaError):
    """Another rank did not come, or is gone."""


class Ranks:
    """This process among those of a run. Alone, everything here does nothing and costs nothing."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        store: Any = None,
        group: Any = None,
        patience: timedelta = PATIENCE,
    ) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._group = group
        self._patience = patience

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run folder and shows the progress."""
        return self.rank == 0

    def gather(self, values: Tensor) -> list[Tensor]:
        """A float64 tensor of every rank, in rank order; each gives the same shape (`credit.Gather`)."""
        if self.size == 1:
            return [values]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self._group)
        return parts

    def gather_objects(self, value: T) -> list[T]:
        """A record of every rank, in rank order. They are pickled: our own processes trust each other."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._group)
        return found

    def share(self, make: Callable[[], T]) -> T:
        """What `make` gives on the first rank, for all; the others wait, and do not call it."""
        made: list[Any] = [make() if self.is_first else None]
        if self.size > 1:
            dist.broadcast_object_list(made, 0, group=self._group)
        shared: T = made[0]
        return shared

    def meet(self, what: str, patience: timedelta | None = None) -> None:
        """Wait for all ranks. Raises `LostRankError`, which names who is missing, after `patience`.

        None: that which the ranks have with each other in general.
        """
        if self.size == 1:
            return
        patience = patience or self._patience
        try:
            dist.monitored_barrier(self._group, timeout=patience, wait_all_ranks=True)
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            who = f"rank {missing[1].strip()}" if missing else "another rank"
            raise LostRankError(
                f"{what}: {who} of 0 to {self.size - 1} did not come within "
                f"{patience.total_seconds():g} s, or is gone; run.log may say why"
            ) from error

    def speaks(self, error: BaseException) -> bool:
        """Whether it is this rank that tells the user of an error, since it was the first to fail.

        Another one is kept here until the launcher ends it: the first exit code is that of the run.
        """
        if self.size == 1:
            return True
        try:
            if isinstance(error, LostRankError):
                time.sleep(LOST_GRACE_S)
            elif not isinstance(error, MappaError):
                time.sleep(GRACE_S)
            first = self._store.compare_set(_FAILED, "", str(self.rank)).decode()
            if first != str(self.rank):
                time.sleep(END_S)
        except KeyboardInterrupt:
            return False
        except RuntimeError:  # the store was the launcher's, who is gone
            return self.is_first
        return bool(first == str(self.rank))

    def close(self) -> None:
        """Leave the others, in good order."""
        if self.size > 1:
            dist.destroy_process_group()


ALONE = Ranks()


def join(patience: timedelta = PATIENCE) -> Ranks:
    """This process among those that torchrun or `launch` started; `ALONE` if there are none.

    On a GPU machine each rank has the GPU of its LOCAL_RANK, and models are exchanged over NCCL. Raises
    `UnavailableError` if there are fewer GPUs than ranks.
    """
    if num_launched() == 1:
        return ALONE
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise UnavailableError(
                f"{os.environ.get('LOCAL_WORLD_SIZE')} processes on this machine need as many GPUs, and it "
                f"has {torch.cuda.device_count()}; lower --learners-per-agent (or --nproc-per-node)"
            )
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://", timeout=patience))
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    # A group of its own: a barrier that names who is missing is gloo's alone.
    group = dist.new_group(backend="gloo", timeout=patience)
    return Ranks(rank, size, store=store, group=group, patience=patience)


def play_together(
    plans: Sequence[EpisodePlan],
    play: Callable[[Sequence[EpisodePlan]], tuple[list[EpisodeRollout], RolloutTimes]],
    ranks: Ranks,
    *,
    by_task: bool,
) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
    """Each rank plays its share; all get all episodes, in plan order, and the indices of their own.

    The times are this rank's, but for the length of the rollout, which is that of the slowest.
    """
    mine = share_of(plans, ranks, by_task=by_task)
    rollouts, times = play(mine) if mine else ([], RolloutTimes(rollout=0.0))
    ranks.meet("the end of the rollout")
    parts = ranks.gather_objects((rollouts, times.rollout))
    everything = sorted((item for part, _ in parts for item in part), key=lambda item: item.index)
    longest = max(seconds for _, seconds in parts)
    return everything, replace(times, rollout=longest), frozenset(plan.index for plan in mine)


def played_for_all(
    plans: Sequence[EpisodePlan],
    found: tuple[list[EpisodeRollout], RolloutTimes] | None,
    ranks: Ranks,
    *,
    by_task: bool,
) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
    """All ranks get what the first one `found`, and the indices of their shares.

    The others, whose `found` is None, wait for it as long as it takes.
    """
    ranks.meet("the end of the rollout", UNHURRIED)
    shared = ranks.share(lambda: found)
    assert shared is not None  # the first rank has it
    rollouts, times = shared
    return rollouts, times, frozenset(plan.index for plan in share_of(plans, ranks, by_task=by_task))


def share_of(plans: Sequence[EpisodePlan], ranks: Ranks, *, by_task: bool) -> list[EpisodePlan]:
    """The planned episodes that this rank learns from, and plays where no workers do, in plan order.

    Dealt out one by one; `by_task` (for algorithms that compare the episodes of one task, and so need them
    on one rank) task by task. Those that start alike follow each other, so that each rank gets as many of
    them: starts take turns in a step, and in its order one of two ranks would get only whole episodes.
    """
    units: dict[object, list[EpisodePlan]] = {}
    for plan in plans:
        units.setdefault(plan.task_id if by_task else plan.index, []).append(plan)
    dealt = sorted(units.values(), key=lambda unit: [plan.start_role or "" for plan in unit])
    mine = {plan.index for unit in dealt[ranks.rank :: ranks.size] for plan in unit}
    return [plan for plan in plans if plan.index in mine]
