"""What a run on workers says before it starts: no cluster here."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mappa_envs.coach import FakeCoach, RubricCoach
from mappa_envs.errors import CoachError, ConfigError, UnavailableError
from mappa_train.cluster import desk, session
from mappa_train.cluster.desk import _portable, coach_for_workers
from mappa_train.cluster.session import Node, ResourcePlan, make_plan
from mappa_train.cluster.worker import RolloutWorker
from mappa_train.settings import resolve

GB = 1e9


def plan_of(*nodes: tuple[float, float, float], num_workers: int, gpus: float = 0.0) -> ResourcePlan:
    return ResourcePlan(
        where="Ray",
        nodes=tuple(
            Node(name=f"n{k}", resources={"CPU": cpu, "GPU": gpu, "memory": memory})
            for k, (cpu, gpu, memory) in enumerate(nodes)
        ),
        num_workers=num_workers,
        each={"CPU": 1.0, "GPU": gpus, "memory": 2 * GB},
    )


def test_a_plan_that_fits_is_told_in_two_lines() -> None:
    plan = plan_of((4, 1, 8 * GB), (4, 1, 8 * GB), num_workers=2, gpus=1.0)
    plan.check()
    assert plan.lines() == [
        "Ray: n0: 4 CPUs, 1 GPUs, 8.0 GB memory; n1: 4 CPUs, 1 GPUs, 8.0 GB memory",
        "2 x (1 CPUs, 1 GPUs, 2.0 GB memory)",
    ]


def test_what_is_short_is_named_with_exit_code_3() -> None:
    with pytest.raises(UnavailableError, match=r"has room for 2 \(3 GPUs wanted, 2 GPUs there\)") as caught:
        plan_of((4, 2, 64 * GB), num_workers=3, gpus=1.0).check()
    assert caught.value.exit_code == 3
    with pytest.raises(UnavailableError, match=r"6\.0 GB memory wanted, 4\.0 GB memory there"):
        plan_of((8, 0, 4 * GB), num_workers=3).check()
    # Enough in total, but nowhere enough in one place.
    with pytest.raises(UnavailableError, match=r"each needs 1 CPUs, 2\.0 GB memory on one node"):
        plan_of((2, 0, 1 * GB), (2, 0, 1 * GB), num_workers=1).check()


def test_a_worker_wants_a_gpu_where_there_are_any_and_memory_for_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "config.json").write_text("{}")
    nodes = (Node(name="n", resources={"CPU": 8.0, "GPU": 2.0, "memory": GB}),)
    lora = make_plan(resolve({"model": str(tmp_path), "num_rollout_workers": 2}), "Ray", nodes)
    full = make_plan(
        resolve({"model": str(tmp_path), "num_rollout_workers": 2, "policy": "full", "lr": 1e-6}),
        "Ray",
        nodes,
    )
    assert lora.each["GPU"] == 1
    assert full.each["memory"] > lora.each["memory"] > 2**30


@pytest.mark.parametrize(
    ("visible", "learners", "free"),
    [(None, 1, "1,2"), ("4,GPU-b,7", 2, "7"), ("0,1,2", 3, "")],
)
def test_a_ray_of_the_run_s_own_gets_the_gpus_that_learners_leave(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, learners: int, free: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr(session, "has_gpu", lambda: True)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = resolve({"num_rollout_workers": 1, "learners_per_agent": learners})
    with session.only_free_gpus(config):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == free
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    if free:
        assert "without the learners' GPUs" in session.plan_lines(config)[0]
    else:
        with pytest.raises(UnavailableError, match=r"has room for 0 \(1 GPUs wanted, 0 GPUs there\)"):
            session.plan_lines(config)


def test_what_answers_workers_ends_where_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: str) -> None:
        raise UnavailableError("no model")

    closed: list[str] = []
    relay = SimpleNamespace(close=lambda: closed.append("relay"))
    team: Any = SimpleNamespace(env=SimpleNamespace(coach=None))
    monkeypatch.setattr(session, "_connected", nullcontext)
    monkeypatch.setattr(session, "_reserved", lambda config: nullcontext((None, None)))
    monkeypatch.setattr(desk, "coach_for_workers", lambda coach: (coach, relay))
    monkeypatch.setattr(session, "load_pretrained", fail)
    with (
        pytest.raises(UnavailableError, match="no model"),
        session.rollout_workers(resolve({"num_rollout_workers": 1}), team, closed.append),
    ):
        pass
    assert closed == ["relay"]


def test_a_worker_that_a_rank_began_is_no_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of_a_rank = ("RANK", "LOCAL_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    for name in (*of_a_rank, "MY_RANK", "ROLE_ARN"):
        monkeypatch.setenv(name, "1")
    RolloutWorker(resolve({}), None, str(tmp_path / "elsewhere"))
    assert not os.environ.keys() & set(of_a_rank)
    assert {"MY_RANK", "ROLE_ARN"} <= os.environ.keys()


@pytest.mark.parametrize(
    ("name", "value"), [("ray_address", "auto"), ("placement", "spread"), ("worker_timeout_s", 60)]
)
def test_settings_of_workers_without_any_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match="needs --num-rollout-workers"):
        resolve({name: value})
    assert getattr(resolve({name: value, "num_rollout_workers": 1}), name) == value


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", "head:6379/x", "me@head:6379"])
def test_an_address_that_is_none_of_a_head_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--ray-address .*: give HOST:PORT"):
        resolve({"ray_address": address, "num_rollout_workers": 1})


@pytest.mark.parametrize("address", ["auto", "head:6379", "192.0.2.1:6379", "[::1]:6379"])
def test_the_address_of_a_head_is_taken(address: str) -> None:
    assert resolve({"ray_address": address, "num_rollout_workers": 1}).ray_address == address


@pytest.mark.ray
@pytest.mark.slow
def test_where_no_head_answers_that_is_said_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "ANSWER_S", 1.0)
    with socket.create_server(("", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError, match=f":{port}: the port is open, but no head of Ray"):
            session.check_answers(f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "mappa_train", "--num-rollout-workers", "1", "--dry-run"]
    job = subprocess.run(
        [*command, "--ray-address", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert job.returncode == 3
    assert job.stdout == ""
    assert f"error: --ray-address 127.0.0.1:{port}: no cluster answers there" in job.stderr
    assert "Is its head up?" in job.stderr


def test_a_coach_that_only_computes_goes_to_the_workers_itself() -> None:
    for coach in (RubricCoach(), FakeCoach(), None):
        assert coach_for_workers(coach) == (coach, None)


def test_an_error_that_cannot_travel_keeps_its_words() -> None:
    class Local(Exception):
        pass

    known = CoachError("busy")
    assert _portable(known) is known
    found = _portable(Local("odd"))
    assert str(pickle.loads(pickle.dumps(found))) == "Local: odd"


def test_a_verdict_that_cannot_travel_is_an_error_where_it_was_asked_and_holds_up_no_other() -> None:
    class Odd:
        async def score(self, request: Any) -> Any:
            return threading.Lock() if request == "odd" else "a verdict"

    coach: Any = Odd()
    for request, value, kind in (("odd", None, TypeError), ("plain", "a verdict", type(None))):
        found = asyncio.run(desk._verdict(coach, "score", request))  # type: ignore[arg-type]
        assert found[0] == value
        assert isinstance(found[1], kind)
