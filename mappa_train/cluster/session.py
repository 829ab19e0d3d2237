"""Ray itself: begin or join a cluster, reserve room for the workers, start them; and leave nothing behind.

with rollout_workers(config, team, say) as workers:
    workers.sync(publish(team.policies, version))
    rollouts, times = workers.collect(plans, step)
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mappa_envs.errors import UnavailableError, boundary, install_hint
from mappa_train.config import Config
from mappa_train.gpu import has_gpu
from mappa_train.memory import num_sharing
from mappa_train.model import find_cached, load_pretrained
from mappa_train.router import count_policies

if TYPE_CHECKING:
    from mappa_train.cluster.pool import WorkerPool
    from mappa_train.team import Team

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""How long the head of a cluster gets to answer each of two knocks."""
RESERVE_S = 20.0
"""How long the cluster gets to reserve room that it says it has."""
WORKER_CPUS = 1
BASE_MEMORY = 1 << 30
"""Of a worker without its model: libraries, environments and sandboxes."""
NUM_AGENTS = 3
"""Of the teams that there are."""
RESOURCES = ("CPU", "GPU", "memory")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster and what it has."""

    name: str
    resources: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ResourcePlan:
    """What every worker gets (CPUs, GPUs, memory in bytes), and the nodes that they share."""

    where: str
    nodes: tuple[Node, ...]
    num_workers: int
    each: dict[str, float]

    def check(self) -> None:
        """Raise `UnavailableError`, with what is short, if not all workers find room."""
        room = [
            int(min(node.resources.get(name, 0) // need for name, need in self.each.items() if need))
            for node in self.nodes
        ]
        if sum(room) >= self.num_workers:
            return
        short = []
        for name, need in self.each.items():
            have = sum(node.resources.get(name, 0) for node in self.nodes)
            if have < need * self.num_workers:
                short.append(f"{_amount(name, need * self.num_workers)} wanted, {_amount(name, have)} there")
        why = "; ".join(short) or f"each needs {_amounts(self.each)} on one node"
        raise UnavailableError(
            f"--num-rollout-workers {self.num_workers}: {self.where} has room for {sum(room)} ({why}). "
            f"Take fewer workers, or add nodes"
        )

    def lines(self) -> list[str]:
        """For people: the nodes, and what each worker gets."""
        nodes = [f"{node.name}: {_amounts(node.resources)}" for node in self.nodes]
        return [f"{self.where}: {'; '.join(nodes)}", f"{self.num_workers} x ({_amounts(self.each)})"]


def plan_lines(config: Config) -> list[str]:
    """The resource plan for `--dry-run`. Asks a cluster that there is; starts and reserves nothing.

    Raises `UnavailableError` if it does not fit.
    """
    if not config.ray_address:
        plan = make_plan(config, "this machine", (_this_machine(config),))
    else:
        with _connected(config):
            plan = _cluster_plan(config)
    plan.check()
    return plan.lines()


@contextlib.contextmanager
def rollout_workers(config: Config, team: Team, say: Callable[[str], None]) -> Iterator[WorkerPool | None]:
    """The workers of a run, ready to play; None where the settings want none. `say` gets who sits where.

    Raises `UnavailableError` without Ray, without an answer from the cluster, or without room in it.
    """
    if not config.num_rollout_workers:
        yield None
        return
    from mappa_train.cluster.desk import coach_for_workers
    from mappa_train.cluster.pool import WorkerPool

    with contextlib.ExitStack() as stack:
        stack.enter_context(_connected(config))
        plan, group = stack.enter_context(_reserved(config))
        coach, relay = coach_for_workers(team.env.coach)
        if relay is not None:
            stack.callback(relay.close)
        # Where not all workers can be started, those that were end with the placement group.
        pool = WorkerPool(
            lambda number: _start_worker(config, coach, plan.each, group, number),
            config.num_rollout_workers,
            model_sha256=load_pretrained(config.model).sha256,
            timeout_s=config.worker_timeout_s,
            concurrent_episodes=config.concurrent_episodes,
        )
        stack.callback(pool.close)
        for line in [*plan.lines(), *pool.start()]:
            log.info("%s", line)
            say(line)
        yield pool


def make_plan(config: Config, where: str, nodes: tuple[Node, ...]) -> ResourcePlan:
    """What the workers of these settings need on these nodes."""
    wants_gpu = any(node.resources.get("GPU") for node in nodes)
    if not config.ray_address and has_gpu():  # where learners have them all, workers on CPUs are no way out
        wants_gpu, where = True, f"{where} without the learners' GPUs"
    each: dict[str, float] = {
        "CPU": WORKER_CPUS,
        "GPU": float(wants_gpu),
        "memory": BASE_MEMORY + _model_memory(config),
    }
    return ResourcePlan(where=where, nodes=nodes, num_workers=config.num_rollout_workers, each=each)


def _model_memory(config: Config) -> float:
    """Bytes of a worker's weights on a CPU: bf16 and fp32 (lora), or fp32 for each policy and once more."""
    kept = find_cached(config.model)
    # Nothing where the model is not on this machine yet: nobody knows before it is fetched.
    stored = sum(file.stat().st_size for file in kept.folder.glob("*.safetensors")) if kept else 0
    num_policies, _ = count_policies(config, NUM_AGENTS)
    return float(stored * (3 if config.policy == "lora" else 2 * (num_policies + 1)))


def _this_machine(config: Config) -> Node:
    # What Ray would leave after its object store.
    memory = 0.7 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus, gpus = os.cpu_count() or 1, len(free_gpus(config))
    resources = {"CPU": float(cpus), "GPU": float(gpus), "memory": memory}
    return Node(name=os.uname().nodename, resources=resources)


def free_gpus(config: Config) -> list[str]:
    """The GPUs of this machine after those of its learners, as CUDA_VISIBLE_DEVICES calls them."""
    if not has_gpu():
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE)
    names = visible.split(",")[:count] if visible is not None else [str(k) for k in range(count)]
    return names[num_sharing(config) :]


def _cluster_plan(config: Config) -> ResourcePlan:
    import ray

    nodes_of_ray: Any = ray.nodes  # untyped there
    nodes = tuple(
        Node(
            name=f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
            resources={name: node["Resources"].get(name, 0.0) for name in RESOURCES},
        )
        for node in nodes_of_ray()
        if node["Alive"]
    )
    return make_plan(config, f"Ray {ray.__version__}, {len(nodes)} node(s)", nodes)


@contextlib.contextmanager
def only_free_gpus(config: Config) -> Iterator[None]:
    """Processes that are started within this see no GPU of a learner.

    Ray counts what this variable shows, and its workers take it over: it would give out the first GPU first.
    """
    if not has_gpu():
        yield
        return
    visible = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(free_gpus(config))
    try:
        yield
    finally:
        del os.environ[VISIBLE]
        if visible is not None:
            os.environ[VISIBLE] = visible


@contextlib.contextmanager
def _connected(config: Config) -> Iterator[None]:
    """In a cluster while the context lasts. One that is begun here ends with it."""
    address = config.ray_address
    if find_spec("ray") is None:
        raise UnavailableError(f"--num-rollout-workers needs Ray; {install_hint('ray')}")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():  # by whoever called us, whose it stays
        yield
        return
    what = f"--ray-address {address}: no cluster answers there" if address else "Ray cannot be started here"
    # The dashboard is a server without a password. In a cluster, whoever began it decides about it.
    options: dict[str, Any] = {"address": address or "local"}
    if not address:
        options["include_dashboard"] = False
    _say_it_in_the_log()
    # Where a node does not come up, Ray raises a plain `Exception`.
    with _own_sigterm(), boundary(UnavailableError, what, Exception):
        if address:
            check_answers(address)
        with contextlib.nullcontext() if address else only_free_gpus(config):
            ray.init(**options, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """Raise `ConnectionError` or `TimeoutError` if no head of a cluster answers there.

    It has `ANSWER_S` for each of two knocks, and where its name has several addresses, the first one is at
    each of them. Left alone, Ray tries for minutes. What is waited for is the handshake of gRPC, which the
    head serves: a port that is open alone is not enough.
    """
    import grpc
    from ray._private.services import canonicalize_bootstrap_address

    found = canonicalize_bootstrap_address(address)  # of `auto`: what runs here, or ran here last
    if found is None:
        raise ConnectionError("this machine is in none")
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ConnectionError(f"{found}: {error}. Is its head up? See there: ray status") from error
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return  # its certificates are Ray's own affair
    with grpc.insecure_channel(found) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
        except grpc.FutureTimeoutError:
            raise TimeoutError(
                f"{found}: the port is open, but no head of Ray speaks there. Is it that of its head (6379)?"
            ) from None


def _say_it_in_the_log() -> None:
    """Ray's own messages, such as that it checks tokens, go where those of other libraries go: to run.log."""
    ray_log = logging.getLogger("ray")
    # A handler that does nothing: where there is no log, the last resort would be the screen.
    ray_log.handlers = [logging.NullHandler()]
    ray_log.propagate = True


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray's own handler would end the process without its checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _reserved(config: Config) -> Iterator[tuple[ResourcePlan, Any]]:
    """The plan, and a placement group with one bundle a worker. Ray chooses the nodes."""
    from ray.util.placement_group import placement_group, remove_placement_group

    plan = _cluster_plan(config)
    plan.check()
    bundles = [{name: need for name, need in plan.each.items() if need}] * plan.num_workers
    group = placement_group(bundles, strategy=config.placement.upper())
    try:
        if not group.wait(RESERVE_S):
            raise UnavailableError(
                f"--num-rollout-workers {plan.num_workers}: the cluster is big enough, but others use it: "
                f"nothing came free in {RESERVE_S:.0f} s. See: ray status"
            )
        yield plan, group
    finally:
        remove_placement_group(group)


def _start_worker(config: Config, coach: Any, each: dict[str, float], group: Any, number: int) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from mappa_train.cluster.worker import RolloutWorker

    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
    options = {"num_cpus": each["CPU"], "num_gpus": each["GPU"], "memory": each["memory"]}
    actor: Any = ray.remote(RolloutWorker).options(scheduling_strategy=place, **options)
    return actor.remote(config, coach, os.getcwd())


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:.1f} GB memory" if name == "memory" else f"{value:g} {name}s"


def _amounts(values: dict[str, float]) -> str:
    return ", ".join(_amount(name, values[name]) for name in RESOURCES if values.get(name))
