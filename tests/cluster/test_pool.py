"""The pool of workers on real Ray, with workers that do nothing but what a test tells them to."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mappa_envs.errors import SandboxError, UnavailableError
from mappa_envs.types import Episode, StopReason
from mappa_train.cluster import pool as pool_module
from mappa_train.cluster.pool import WorkerPool, _Job
from mappa_train.cluster.session import check_answers
from mappa_train.cluster.weights import Weights, digest, pack, publish, take_over
from mappa_train.cluster.worker import Joined
from mappa_train.rollout import EpisodePlan
from mappa_train.types import Action, EpisodeRollout, Generation

Deed = Callable[[int], None]


def plans_of(*tasks: str) -> list[EpisodePlan]:
    return [EpisodePlan(index=k, task_id=task, start_role=None) for k, task in enumerate(tasks)]


def rollout_of(plan: EpisodePlan, version: int) -> EpisodeRollout:
    answer = Generation(
        token_ids=torch.tensor([plan.index]),
        logprobs=torch.zeros(1),
        truncated=False,
        policy_version=version,
    )
    action = Action(agent="a_0", turn=0, prompt_ids=torch.tensor([1]), generation=answer)
    episode = Episode(
        env_id="e", task_id=plan.task_id, task_type="t", split="train", seed=0, stop_reason=StopReason.DONE
    )
    return EpisodeRollout(index=plan.index, episode=episode, actions=(action,))


def test_packed_weights_have_the_digest_of_their_numbers() -> None:
    state = {"b": torch.arange(4.0), "a": torch.ones(2, dtype=torch.bfloat16)}
    assert digest(pack(state)) == digest(pack(dict(reversed(state.items()))))
    assert digest(pack(state)) != digest(pack(state | {"b": torch.arange(4.0) + 1e-6}))


class Scripted:
    """A worker whose `deed` may do anything before it plays a chunk; told the first episode's number."""

    def __init__(self, deed: Deed) -> None:
        self.deed, self.version = deed, -1

    def join(self, weights: Weights | None) -> Joined:
        version = None if weights is None else weights.version
        self.version = -1 if version is None else version
        return Joined(node="here", pid=os.getpid(), model_sha256="same", version=version)

    def play(self, plans: tuple[EpisodePlan, ...], step: int) -> list[EpisodeRollout]:
        self.deed(plans[0].index)
        return [rollout_of(plan, self.version) for plan in plans]

    def close(self) -> None: ...


@contextmanager
def pool_of(num_workers: int, deed: Deed, timeout_s: float = 60.0, **options: Any) -> Iterator[WorkerPool]:
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    actor: Any = ray.remote(Scripted).options(num_cpus=0, **options)
    pool = WorkerPool(
        lambda number: actor.remote(deed),
        num_workers,
        model_sha256="same",
        timeout_s=timeout_s,
        concurrent_episodes=len(PLANS),
    )
    try:
        pool.start()
        pool.sync(Weights(version=3, parts={}, digests={}))
        yield pool
    finally:
        pool.close()


def once(mark: Path) -> bool:
    """Whether this is the first call with this mark, over all processes."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


PLANS = plans_of(*"aaaabbbbcccc")


def numbers(pool: WorkerPool) -> list[int]:
    """The episodes of a step as they came back."""
    told: list[int] = []
    rollouts, times = pool.collect(PLANS, 1, lambda done, total: told.append(done))
    assert told == sorted(set(told))
    assert told[-1] == len(PLANS)
    assert times.rollout > 0
    return [rollout.index for rollout in rollouts]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have no sandbox to close here, and some of them do not answer."""
    monkeypatch.setattr(pool_module, "CLOSE_S", 0.5)


class Silent:
    """An actor that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: object())


NOW = 1000.0
"""What the clock of `silent` says all the time."""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> tuple[WorkerPool, list[tuple[int, str]]]:
    """A pool without Ray that gives workers 100 s for 4 episodes, and who it lost and why."""
    monkeypatch.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: NOW))
    pool = WorkerPool(lambda number: Silent(), 3, model_sha256="same", timeout_s=100.0, concurrent_episodes=4)
    lost: list[tuple[int, str]] = []
    monkeypatch.setattr(pool, "_lose", lambda worker, reason: lost.append((worker.number, reason)))
    return pool, lost


JOINED = Joined(node="here", pid=1, model_sha256="same", version=None)
TOO_LONG = "s, more than the {} s that --worker-timeout-s gives"


def test_how_long_a_worker_may_take_grows_with_its_chunk(
    silent: tuple[WorkerPool, list[tuple[int, str]]],
) -> None:
    pool, lost = silent
    for worker, size, age_s in zip(pool._workers, (9, 8, 1), (299.0, 201.5, 99.0), strict=True):
        pool._joined(worker, JOINED)
        worker.job = _Job(chunk=tuple(PLANS[:size]), answer="answer", since=NOW - age_s)
        pool._check_age(worker)
    assert lost == [(1, f"no answer on 8 episode(s) for 202 {TOO_LONG.format(200)}")]


def test_who_takes_over_no_weights_is_lost_and_who_finds_no_room_is_left(
    silent: tuple[WorkerPool, list[tuple[int, str]]],
) -> None:
    pool, lost = silent
    for worker in pool._workers[1:]:
        pool._joined(worker, JOINED)
    pool.sync(Weights(version=1, parts={}, digests={}))
    for worker, age_s in zip(pool._workers, (101.4, 101.4, 99.0), strict=True):
        worker.since -= age_s
        pool._check_age(worker)
    assert lost == [(1, f"it took over no weights for 101 {TOO_LONG.format(100)}")]
    for worker in pool._workers:
        worker.has_joined = False
    with pytest.raises(UnavailableError, match=r"not ready after 100 s .*: rollout worker 0 on a node that"):
        pool._check_age(pool._workers[0])


@pytest.mark.ray
@pytest.mark.slow
def test_whoever_dies_or_hangs_is_replaced_and_what_a_worker_raises_arrives_as_itself(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "STRAGGLES_AFTER_S", 0.5)
    monkeypatch.setattr(pool_module, "POLL_S", 0.2)

    def misbehave(index: int) -> None:
        if index == 4 and once(tmp_path / "died"):
            os._exit(1)
        if index == 8 and (tmp_path / "may hang").exists() and once(tmp_path / "hung"):
            time.sleep(1000)
        if (tmp_path / "may fail").exists():
            raise SandboxError("no room")

    with pool_of(2, misbehave) as pool:
        assert numbers(pool) == list(range(12))
        pool.start()  # whoever came instead is there
        (tmp_path / "may hang").touch()
        pool._timeout_s = 5.0
        assert numbers(pool) == list(range(12))
        pool._timeout_s = 60.0
        (tmp_path / "may fail").touch()
        with pytest.raises(SandboxError, match="no room") as caught:
            pool.collect(PLANS, 1)
    assert "raised by rollout worker" in "".join(caught.value.__notes__)
    said = [record.getMessage() for record in caplog.records]
    lost = [line for line in said if "is lost" in line]
    # Where the machine stands still for seconds, others may be too late as well.
    (died,) = [line for line in lost if "--worker-timeout-s" not in line]
    assert "on here (process" in died
    assert "are run again" in died
    assert len(lost) > 1
    assert any("straggles: it plays episode(s) 8, 9, 10 for" in line for line in said)


@pytest.mark.ray
@pytest.mark.slow
def test_a_stale_sample_and_too_many_losses_end_the_run_with_their_reason(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LEAST_REPLACED", 1)

    def die_then(index: int) -> None:
        if (tmp_path / "may die").exists():
            os._exit(1)

    with pool_of(1, die_then) as pool:
        pool.start()  # waits until the weights of `sync` have arrived
        current = pool._weights
        pool._weights = Weights(version=4, parts={}, digests={})
        with pytest.raises(RuntimeError, match=r"policy versions \[3\] for episode 0 of version 4"):
            pool.collect(PLANS, 1)
        pool._weights = current
        (tmp_path / "may die").touch()
        with pytest.raises(
            UnavailableError, match=r"2 rollout workers were lost .* worker 0 on here .*: .*resume"
        ):
            pool.collect(PLANS, 1)


@pytest.mark.ray
@pytest.mark.slow
def test_a_head_that_is_up_is_taken_for_one(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mappa_train.cluster.session.ANSWER_S", 60.0)
    assert check_answers(cluster.address) is None


@pytest.mark.ray
@pytest.mark.slow
def test_whoever_does_not_join_is_named(cluster: Any) -> None:
    with (
        pytest.raises(UnavailableError, match=r"not ready after 2 s .*: rollout worker 0 on a node that"),
        pool_of(1, lambda index: None, timeout_s=2.0, resources={"not-there": 1}),
    ):
        pass


@pytest.mark.ray
@pytest.mark.slow
def test_weights_that_arrive_as_others_are_refused(cluster: Any, model: Path) -> None:
    from tiny import make_policies

    sender, receiver = make_policies(model), make_policies(model)
    with torch.no_grad():
        for parameter in sender.parameters("checker_0"):
            parameter.add_(1.0)
    weights = publish(sender, 7)
    take_over(weights, receiver)
    assert torch.equal(receiver.parameters("checker_0")[0], sender.parameters("checker_0")[0])
    wrong = weights.digests | {"checker_0": "0" * 64}
    with pytest.raises(UnavailableError, match=r"checker_0: .* instead of 0000.*version 7"):
        take_over(Weights(version=7, parts=weights.parts, digests=wrong), receiver)
