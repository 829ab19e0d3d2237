"""The main job with rollout workers: same episodes and weights as one process, whatever dies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import processes
import pytest
import torch
from processes import MARK
from safetensors.torch import load_file

from mappa_envs.coach import CoachRequest, register_coach
from mappa_envs.types import CoachScore
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.progress import SilentProgress
from mappa_train.settings import resolve
from mappa_train.team import WEIGHTS
from mappa_train.trainer import train

pytestmark = [pytest.mark.ray, pytest.mark.slow]
AGENTS = ("data_engineer_0", "modeler_0", "analyst_0")
STEPS = 3
ONE_BY_ONE = {"concurrent_episodes": 1}
WORKER = re.compile(r"ray::RolloutWorker(?!\.__init__)")
AGENT_OF_RAY = re.compile(r"ray::(Dashboard|RuntimeEnv)Agent")


class Taste:
    """A coach of the driver: a score that depends on the words alone.

    When it is asked for the n-th time, it does `deeds[n]` before it answers: in the middle of an episode.
    """

    reads_scores = False
    num_asked = 0
    deeds: ClassVar[dict[int, Callable[[], None]]] = {}

    async def score(self, request: CoachRequest) -> CoachScore:
        Taste.num_asked += 1
        deed = Taste.deeds.pop(Taste.num_asked, None)
        if deed is not None:
            await asyncio.to_thread(deed)
        score = hashlib.sha256(request.turn.action.encode()).digest()[0] / 25.5
        return CoachScore(score=score, reason="to my taste", model="taste")


register_coach("cluster_taste", Taste)


def settings(model: Path, out: Path, **changes: Any) -> Config:
    known: dict[str, Any] = {
        "model": str(model),
        "coach": "cluster_taste",
        "out": str(out),
        "steps": STEPS,
        "episodes_per_step": 6,
        "samples_per_task": 3,
        "max_tasks": 2,
        "max_new_tokens": 16,
        "lr": 1e-2,
        "lora_rank": 4,
        "token_budget": 256,
    }
    return resolve(known | changes)


def run_it(config: Config) -> RunFolder:
    run = RunFolder.create(config)
    train(config, run, SilentProgress())
    return run


def played(run: RunFolder) -> list[Any]:
    """What was said and scored, episode by episode; not how long it took."""
    lines = [json.loads(line) for line in run.episodes_path.read_text().splitlines()]
    return [
        (
            line["step"],
            line["index"],
            line["episode"]["task_id"],
            [(turn["agent"], turn["action"], turn["final_score"]) for turn in line["episode"]["turns"]],
        )
        for line in lines
    ]


def weights(run: RunFolder, step: int = STEPS) -> dict[str, torch.Tensor]:
    return {
        f"{agent}/{name}": value
        for agent in AGENTS
        for name, value in load_file(run.checkpoint_path(step) / agent / WEIGHTS).items()
    }


def largest_difference(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One process that plays episode by episode: the same batches as workers that do, so the same bits."""
    return run_it(settings(model, tmp_path_factory.mktemp("alone") / "run", **ONE_BY_ONE))


def test_two_workers_on_two_nodes_play_what_one_process_plays_and_learn_the_same(
    second_node: Any, model: Path, tmp_path: Path
) -> None:
    known = {"lr": 1e-5, "steps": 2}
    alone = run_it(settings(model, tmp_path / "alone", **known))
    asked = Taste.num_asked
    run = run_it(settings(model, tmp_path / "run", **known, num_rollout_workers=2, placement="spread"))
    assert played(run) == played(alone)
    assert Taste.num_asked - asked == sum(len(episode[-1]) for episode in played(run))
    # An update moves weights by 1e-5. Smaller batches move logits in their last digits, which Adam magnifies
    # where a gradient is next to nothing.
    assert largest_difference(weights(alone, 1), weights(alone, 2)) > 5e-6
    assert largest_difference(weights(run, 2), weights(alone, 2)) < 3e-6


def test_killed_workers_and_a_lost_node_lose_nothing_and_count_nothing_twice(
    cluster: Any,
    second_node: Any,
    model: Path,
    alone: RunFolder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mark = f"{MARK}=session".encode()

    def workers() -> list[int]:
        """Those that Ray has finished making."""
        return processes.find(lambda title, env: WORKER.match(title) is not None and mark in env)

    def both() -> list[int]:
        # One that is still being made would be made again, elsewhere, and nothing would be lost.
        assert processes.wait_until(lambda: len(workers()) == 2)
        return workers()

    def kill_workers() -> None:
        processes.kill(both())

    def lose_node() -> None:
        both()
        cluster.remove_node(second_node, allow_graceful=False)

    # Before the last step, in which whoever has played its last chunk is not missed.
    in_first_step = sum(len(episode[-1]) for episode in played(alone) if episode[0] == 1)
    Taste.deeds = {
        Taste.num_asked + 4: kill_workers,
        Taste.num_asked + in_first_step + 6: lose_node,
    }
    config = settings(model, tmp_path / "run", **ONE_BY_ONE, num_rollout_workers=2, placement="spread")
    run = run_it(config)
    assert Taste.deeds == {}
    assert caplog.text.count("is lost") >= 3
    assert played(run) == played(alone)
    assert largest_difference(weights(alone, 1), weights(alone)) > 1e-3
    assert largest_difference(weights(run), weights(alone)) == 0


def test_after_the_loss_of_the_head_a_resumed_run_is_the_uninterrupted_one(
    cluster: Any, model: Path, alone: RunFolder, tmp_path: Path
) -> None:
    out, mark = tmp_path / "run", f"{MARK}=head".encode()
    # In the middle of the second step.
    loss_at = 3 + sum(len(episode[-1]) for episode in played(alone) if episode[0] == 1)
    command = [sys.executable, str(Path(__file__).with_name("lose_head.py")), str(model), str(out)]
    # Ray's processes give up on their head after a minute otherwise.
    env = os.environ | {MARK: "head", "RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
    with (tmp_path / "said").open("wb") as said:
        job = subprocess.run([*command, str(loss_at)], env=env, stderr=said, timeout=300)
    assert job.returncode != 0
    assert "GCS" in (tmp_path / "said").read_text()
    assert RunFolder(out).steps() == [1]
    # Ray's own agents, of which nothing holds a sandbox, an engine or a model, may take a minute more to end.
    ours = partial(processes.find, lambda title, env: mark in env and not AGENT_OF_RAY.match(title))
    assert processes.wait_until(lambda: not ours())
    run = RunFolder.open(out)
    train(settings(model, out, **ONE_BY_ONE, num_rollout_workers=1), run, SilentProgress(), resume=True)
    assert played(run) == played(alone)
    assert largest_difference(weights(run), weights(alone)) == 0
