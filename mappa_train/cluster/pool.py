"""Workers that play the episodes of a step, fed from one queue; those that are lost are replaced.

Ray says when a worker is gone; what it was playing then goes back to the front of the queue. Results are kept
by the number of the episode and returned in the order of the plans: none is lost, none counts twice.
"""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mappa_envs.errors import UnavailableError
from mappa_train.cluster.chunks import Chunk, ChunkQueue
from mappa_train.cluster.weights import Weights
from mappa_train.cluster.worker import Joined
from mappa_train.rollout import EpisodePlan, RolloutTimes
from mappa_train.types import EpisodeRollout

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How often ages are looked at while nothing comes back."""
CLOSE_S = 5.0
"""What workers get to end their sandboxes before they are ended."""
LEAST_REPLACED = 3
"""Workers that may be lost in one step, or all of them once if there are more."""
STRAGGLES = 3.0
"""A chunk that takes this many times the median is reported, but none under `STRAGGLES_AFTER_S`."""
STRAGGLES_AFTER_S = 30.0

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class _Job:
    """A chunk that is being played. `answer` is still to come."""

    chunk: Chunk
    answer: Any
    since: float
    reported: bool = False


@dataclass(kw_only=True)
class _Step:
    """The state of a step: what is to be handed out, and what has come back."""

    number: int
    queue: ChunkQueue
    finished: dict[int, EpisodeRollout] = field(default_factory=dict)
    spans: list[float] = field(default_factory=list)
    num_lost: int = 0

    @property
    def name(self) -> str:
        return f"step {self.number}" if self.number else "evaluation"


@dataclass
class _Worker:
    """One place among the workers, and who fills it now. `joining` is the answer that is still to come."""

    number: int
    actor: Any
    joining: Any
    since: float
    has_joined: bool = False
    where: str = "a node that is not known yet"
    job: _Job | None = None
    busy_s: float = 0.0
    num_episodes: int = 0

    @property
    def name(self) -> str:
        return f"rollout worker {self.number} on {self.where}"


class WorkerPool:
    """Places for workers, all filled as long as the cluster has room.

    Parameters
    ----------
    make : starts an actor with the methods of `RolloutWorker` for a place, from 0.
    num_workers : how many places.
    model_sha256 : of the base model that every worker must have found.
    timeout_s : how long a worker may take over `concurrent_episodes` episodes (over more in proportion), to
        join, or to take over weights, before it counts as lost. One for which there is no room is left to
        Ray, as long as others play.
    concurrent_episodes : how many of a chunk a worker plays side by side.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        num_workers: int,
        *,
        model_sha256: str,
        timeout_s: float,
        concurrent_episodes: int,
    ) -> None:
        self._make, self._model_sha256 = make, model_sha256
        self._timeout_s, self._concurrent = timeout_s, concurrent_episodes
        self._weights: Weights | None = None
        self._most_lost = max(LEAST_REPLACED, num_workers)
        self._step, self._looked = _Step(number=0, queue=ChunkQueue([], 1)), time.monotonic()
        self._workers = [self._launch(number) for number in range(num_workers)]

    def start(self) -> list[str]:
        """Wait until all have joined: who, and where. Raises `UnavailableError` with those who are not."""
        begun = time.monotonic()
        while missing := [worker for worker in self._workers if worker.joining is not None]:
            if time.monotonic() - begun > self._timeout_s:
                raise _not_ready(missing, self._timeout_s)
            self._turn()
        return [worker.name for worker in self._workers]

    def sync(self, weights: Weights) -> None:
        """From now on play with these weights. Each worker takes them over before its next chunk."""
        self._weights = weights
        for worker in self._workers:
            # Whoever has not joined yet gets them in the order of its calls.
            worker.joining, worker.since = worker.actor.join.remote(weights), time.monotonic()

    def collect(
        self,
        plans: Sequence[EpisodePlan],
        step: int,
        on_done: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[list[EpisodeRollout], RolloutTimes]:
        """Play the planned episodes and return them in plan order. Step 0 is an evaluation.

        Raises what a worker raised, `UnavailableError` if too many workers were lost or none is left, and
        `RuntimeError` if an episode was sampled from another policy version than that of the last `sync`.
        """
        start = time.perf_counter()
        queue = ChunkQueue(plans, len(self._workers))
        state = self._step = _Step(number=step, queue=queue)
        for worker in self._workers:
            worker.busy_s, worker.num_episodes = 0.0, 0
        while len(state.finished) < len(plans):
            before = len(state.finished)
            self._hand_out()
            self._turn()
            if len(state.finished) > before:
                on_done(len(state.finished), len(plans))
        log.info("%s: %s", state.name, "; ".join(map(_done_by, self._workers)))
        times = RolloutTimes(rollout=time.perf_counter() - start)
        return [state.finished[plan.index] for plan in plans], times

    def close(self) -> None:
        """End all workers; those that are idle close their sandboxes themselves."""
        import ray

        closing = [worker.actor.close.remote() for worker in self._workers if worker.job is None]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for worker in self._workers:
            ray.kill(worker.actor)

    def _launch(self, number: int) -> _Worker:
        actor = self._make(number)
        joining = actor.join.remote(self._weights)
        return _Worker(number=number, actor=actor, joining=joining, since=time.monotonic())

    def _hand_out(self) -> None:
        """One chunk to each worker that is ready and has none."""
        for worker in self._workers:
            if worker.joining is not None or worker.job is not None:
                continue
            if not (chunk := self._step.queue.take()):
                return
            answer = worker.actor.play.remote(chunk, self._step.number)
            worker.job = _Job(chunk=chunk, answer=answer, since=time.monotonic())

    def _turn(self) -> None:
        """Wait for the next answer, or `POLL_S`; enter what came and look after what did not."""
        import ray

        owner = {worker.joining: worker for worker in self._workers if worker.joining is not None}
        owner |= {worker.job.answer: worker for worker in self._workers if worker.job is not None}
        came, _ = ray.wait(list(owner), timeout=POLL_S)
        for answer in came:
            self._receive(owner[answer], answer)
        if time.monotonic() - self._looked > POLL_S:
            self._looked = time.monotonic()
            for worker in list(self._workers):
                self._check_age(worker)

    def _receive(self, worker: _Worker, answer: Any) -> None:
        import ray
        from ray import exceptions

        try:
            value = ray.get(answer, timeout=self._timeout_s)
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            cause.add_note(f"(raised by {worker.name})")
            raise cause from None
        except exceptions.RayError as error:  # the actor, its node or its result is gone
            self._lose(worker, _reason(error))
            return
        if answer == worker.joining:
            self._joined(worker, value)
        else:
            self._played(worker, value)

    def _joined(self, worker: _Worker, joined: Joined) -> None:
        worker.where, worker.joining = f"{joined.node} (process {joined.pid})", None
        worker.has_joined = True
        if joined.model_sha256 != self._model_sha256:
            raise UnavailableError(
                f"{worker.name} found other model weights (sha256 {joined.model_sha256[:12]}…) than this "
                f"process ({self._model_sha256[:12]}…); put the same model on every node"
            )
        wanted = None if self._weights is None else self._weights.version
        if joined.version != wanted:
            raise RuntimeError(f"{worker.name} holds policy version {joined.version}, not {wanted}")

    def _played(self, worker: _Worker, rollouts: list[EpisodeRollout]) -> None:
        assert self._weights is not None  # nobody plays before the first `sync`
        assert worker.job is not None  # what came is its answer
        step, job, worker.job = self._step, worker.job, None
        for plan, rollout in zip(job.chunk, rollouts, strict=True):
            versions = {action.generation.policy_version for action in rollout.actions}
            if rollout.index != plan.index or versions - {self._weights.version}:
                raise RuntimeError(
                    f"{worker.name} returned episode {rollout.index} of policy versions {sorted(versions)} "
                    f"for episode {plan.index} of version {self._weights.version}"
                )
            step.finished[plan.index] = rollout
        span = time.monotonic() - job.since
        step.spans.append(span)
        worker.busy_s += span
        worker.num_episodes += len(rollouts)

    def _check_age(self, worker: _Worker) -> None:
        now, step = time.monotonic(), self._step
        if (job := worker.job) is not None:
            age, limit = now - job.since, self._limit_s(job.chunk)
            if age > limit:
                self._lose(worker, _too_late(f"no answer on {len(job.chunk)} episode(s)", age, limit))
                return
            usual = statistics.median(step.spans) if step.spans else self._timeout_s
            if not job.reported and age > max(STRAGGLES_AFTER_S, STRAGGLES * usual):
                job.reported = True
                log.warning("%s: %s straggles: %s", step.name, worker.name, _playing(job, age))
        if worker.joining is None or now - worker.since <= self._timeout_s:
            return
        if worker.has_joined:
            self._lose(worker, _too_late("it took over no weights", now - worker.since, self._timeout_s))
        elif not any(other.has_joined for other in self._workers):
            raise _not_ready(self._workers, self._timeout_s)

    def _limit_s(self, chunk: Chunk) -> float:
        """How long a worker may take over a chunk, which it plays in so many rounds of episodes."""
        return self._timeout_s * -(-len(chunk) // self._concurrent)

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Give back what the worker was playing and fill its place anew."""
        import ray

        ray.kill(worker.actor)
        step, chunk = self._step, worker.job.chunk if worker.job is not None else ()
        step.queue.give_back(chunk)
        log.warning("%s is lost (%s); %d episode(s) of it are run again", worker.name, reason, len(chunk))
        step.num_lost += 1
        if step.num_lost > self._most_lost:
            raise UnavailableError(
                f"{step.num_lost} rollout workers were lost in one step; the last: {worker.name}: {reason}. "
                "Mend the cluster, or give workers more time (--worker-timeout-s; in the run's config.toml "
                "worker_timeout_s), then resume"
            )
        self._workers[worker.number] = self._launch(worker.number)


def _not_ready(workers: Sequence[_Worker], timeout_s: float) -> UnavailableError:
    names = ", ".join(worker.name for worker in workers)
    return UnavailableError(
        f"not ready after {timeout_s:g} s (--worker-timeout-s): {names}. Are the nodes up, and is there "
        "room? See: ray status"
    )


def _too_late(what: str, age_s: float, limit_s: float) -> str:
    return f"{what} for {age_s:.0f} s, more than the {limit_s:g} s that --worker-timeout-s gives"


def _done_by(worker: _Worker) -> str:
    return f"{worker.name}: {worker.num_episodes} episode(s) in {worker.busy_s:.1f} s"


def _playing(job: _Job, age_s: float) -> str:
    numbers = ", ".join(str(plan.index) for plan in job.chunk)
    return f"it plays episode(s) {numbers} for {age_s:.0f} s"


def _reason(error: Exception) -> str:
    """What Ray says of a loss: the first line and, where a traceback follows, the last. Without colours."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys((lines or [type(error).__name__])[:: max(1, len(lines) - 1)]))[:400]
