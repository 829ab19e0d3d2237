"""Several real processes over gloo, on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import delta_of_updates
from rollout_fakes import TASKS, toy
from tiny import make_model

from mappa_envs.coach import LLMCoach, make_coach
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import ConfigError
from mappa_train import cli
from mappa_train.checkpoint import RunFolder
from mappa_train.coaching import divided, has_budget, share_of_budget, used_by, used_since
from mappa_train.config import Config
from mappa_train.distributed import PATIENCE, UNHURRIED, LostRankError, Ranks, played_for_all, share_of
from mappa_train.launch import to_go_on
from mappa_train.rollout import EpisodePlan, RolloutTimes, plan_step
from mappa_train.settings import resolve

CASES: Sequence[Mapping[str, Any]] = (
    {"norm": "agent", "loss_mean": "sequence", "kl": "loss", "epochs": 2},
    {"algorithm": "reinforce_pp_baseline", "schedule": "cosine", "warmup": 0.3},
    {"norm": "task_type", "policy": "lora"},
    {"shard": "fsdp", "gradient_checkpointing": "on"},
    {"shard": "fsdp", "kl": "loss", "policy": "lora"},
    {"frozen_agents": "checker_0", "policy": "lora"},
    {"shard": "fsdp", "frozen_agents": "writer_0"},
    {"shared_policy": "on", "epochs": 2},
    {"shard": "fsdp", "shared_policy": "on", "policy": "lora"},
)

TAKEN_OVER = (0, 3, 4)
"""With these, two ranks also go on from a checkpoint of one process."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def start_ranks(size: int, *command: str) -> list[subprocess.Popen[str]]:
    """The same script in several processes, with what torchrun would put into their environments."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    known = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def run_cases(folder: Path, out: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """Two ranks with unequal shards, by the script `ranks.py`."""
    script = str(Path(__file__).parent / "ranks.py")
    workers = start_ranks(2, script, str(folder), str(out), json.dumps(cases))
    errors = [worker.communicate(timeout=600)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors


def without_shard(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "shard"}


@pytest.fixture(scope="module")
def learned(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks learned in each of the `CASES`, and in the `TAKEN_OVER` after these."""
    out = tmp_path_factory.mktemp("learned")
    for number, case in enumerate(TAKEN_OVER, len(CASES)):
        settings = without_shard(CASES[case])
        delta_of_updates(folder, updates=3, saved=out / f"{number}-given.pt", **settings)
    run_cases(folder, out, [*CASES, *(CASES[case] for case in TAKEN_OVER)])
    return out


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: "-".join(map(str, CASES[k].values())))
def test_two_ranks_learn_what_one_does(folder: Path, learned: Path, case: int) -> None:
    """The same weights after three updates in float64, on both ranks."""
    first, second = (torch.load(learned / f"{case}-{rank}.pt", weights_only=True) for rank in range(2))
    alone = delta_of_updates(folder, updates=3, **without_shard(CASES[case]))
    assert alone.norm() > 1e-3
    assert torch.equal(first, second)
    assert float((first - alone).abs().max()) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("case", [2, 3, 4], ids=lambda k: "-".join(map(str, CASES[k].values())))
def test_one_process_goes_on_from_the_checkpoint_of_two(folder: Path, learned: Path, case: int) -> None:
    settings = without_shard(CASES[case])
    four = delta_of_updates(folder, updates=4, **settings)
    found = torch.load(learned / f"{case}-0.pt", weights_only=True)
    last = delta_of_updates(folder, given=learned / f"{case}-saved.pt", **settings)
    assert float((last - four).abs().max()) < 1e-9
    assert float((last - found).abs().max()) > 1e-6


@pytest.mark.slow
def test_two_ranks_go_on_from_the_checkpoint_of_one(folder: Path, learned: Path) -> None:
    for number, case in enumerate(TAKEN_OVER, len(CASES)):
        four = delta_of_updates(folder, updates=4, **without_shard(CASES[case]))
        found = torch.load(learned / f"{number}-1.pt", weights_only=True)
        assert float((found - four).abs().max()) < 1e-9


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named() -> None:
    code = (
        "import os, sys, time\n"
        "from datetime import timedelta\n"
        "from mappa_train.distributed import join\n"
        "ranks = join(patience=timedelta(seconds=120))\n"
        "ranks._patience = timedelta(seconds=1)\n"
        "if ranks.rank == 1: time.sleep(2)\n"
        "ranks.meet('what takes longer than that', timedelta(seconds=120))\n"
        "if ranks.rank == 1: sys.stdin.readline()\n"
        "else: ranks.meet('the end of the rollout')\n"
    )
    first, second = start_ranks(2, "-c", code)
    error = first.communicate(timeout=200)[1]
    second.communicate(timeout=200)
    assert first.returncode == 1
    assert "the end of the rollout: rank 1 of 0 to 1 did not come within 1 s" in error


def test_episodes_are_dealt_out_and_none_twice() -> None:
    plans = [EpisodePlan(index=k, task_id=f"t{k // 3}", start_role=None) for k in range(10)]
    for by_task in (False, True):
        shares = [share_of(plans, Ranks(rank, 3), by_task=by_task) for rank in range(3)]
        assert sorted(plan.index for share in shares for plan in share) == list(range(10))
        assert all(shares)
        if by_task:
            owners = {(plan.task_id, rank) for rank, share in enumerate(shares) for plan in share}
            assert len(owners) == 4


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_each_rank_gets_as_many_whole_episodes_as_the_others(size: int, share: float) -> None:
    """And as many of every start."""
    team, tasks = ("a", "b", "c"), [toy(name) for name in TASKS]
    for step in range(1, 21):
        plans = plan_step(
            step,
            num_episodes=24,
            samples_per_task=4,
            tasks=tasks,
            team=team,
            exploring_starts=share,
            seed=0,
        )
        shares = [share_of(plans, Ranks(rank, size), by_task=False) for rank in range(size)]
        for start in (None, *team[1:]):
            counts = [sum(plan.start_role == start for plan in mine) for mine in shares]
            assert max(counts) - min(counts) <= 1


class Patient(Ranks):
    """The second of two ranks; it notes how long it would wait for the first, which then gives `shared`."""

    def __init__(self, shared: Any) -> None:
        super().__init__(1, 2)
        self.shared, self.patience = shared, list[timedelta | None]()

    def meet(self, what: str, patience: timedelta | None = None) -> None:
        self.patience.append(patience)

    def share(self, make: Any) -> Any:
        return self.shared


def test_who_may_have_failed_because_of_another_lets_that_one_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("mappa_train.distributed.time.sleep", waited.append)
    store: Any = SimpleNamespace(compare_set=lambda key, expected, rank: rank.encode())
    for error in (ConfigError("mine"), RuntimeError("perhaps mine"), LostRankError("another's")):
        assert Ranks(1, 2, store=store).speaks(error)
    mine, lost = waited
    assert 0 < mine < lost


def test_ranks_wait_for_workers_as_long_as_it_takes() -> None:
    ranks = Patient(([], RolloutTimes(rollout=1.0)))
    plans = [EpisodePlan(index=k, task_id="t", start_role=None) for k in range(4)]
    assert played_for_all(plans, None, ranks, by_task=False)[2] == {1, 3}
    assert ranks.patience == [UNHURRIED]
    assert UNHURRIED > 100 * PATIENCE


class Gathered(Ranks):
    """The second of three ranks, the others of which have used 1 and 2 USD."""

    def __init__(self) -> None:
        super().__init__(1, 3)

    def gather_objects(self, value: Any) -> list[Any]:
        return [Usage(cost_usd=1.0), value, Usage(cost_usd=2.0)]


def test_ranks_keep_one_budget() -> None:
    coach = make_coach("llm:openai/m", base_url="http://localhost:1/v1", budget_usd=8.0)
    assert isinstance(coach, LLMCoach)
    coach.budget.add(Usage(cost_usd=2.0))
    before = used_by(coach)
    with share_of_budget(coach, 3):
        coach.budget.add(Usage(cost_usd=1.5))
        assert has_budget(coach)
        coach.budget.add(Usage(cost_usd=0.5))
        assert not has_budget(coach)
    assert has_budget(coach)
    used = used_since(coach, before, Gathered())
    assert used is not None
    assert (used.cost_usd, coach.budget.spent.cost_usd) == (5.0, 7.0)


def test_ranks_divide_the_limits_of_a_coach() -> None:
    config = resolve({"coach": "llm:openai/m", "coach_rpm": 60, "coach_tpm": 2})
    part = divided(config, 4)
    assert (part.coach_rpm, part.coach_tpm, part.coach_concurrency) == (15, 1, 8)
    assert divided(resolve({}), 4) == resolve({})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shard": "fsdp"}, "--shard fsdp: needs --learners-per-agent"),
        ({"learners_per_agent": 13}, "a step has 12 episode"),
        ({"learners_per_agent": 3, "algorithm": "grpo"}, "a step has 2 task"),
    ],
)
def test_learners_that_would_be_idle_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(settings)


def test_as_many_learners_as_were_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve({"learners_per_agent": 4, "shard": "fsdp"})
    assert to_go_on(config, {}) == config
    alone = to_go_on(config, {"learners_per_agent": 1})
    assert (alone.learners_per_agent, alone.shard) == (1, "ddp")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert to_go_on(config, {"learners_per_agent": None}).learners_per_agent == 3
    with pytest.raises(ConfigError, match="3 were launched"):
        to_go_on(config, {"learners_per_agent": 2})


def test_a_run_goes_on_with_other_machines() -> None:
    config = resolve({"num_rollout_workers": 4, "ray_address": "lost:6379", "placement": "spread"})
    elsewhere = to_go_on(config, {"ray_address": "new:6379", "num_rollout_workers": "2", "steps": 99})
    assert elsewhere == replace(config, ray_address="new:6379", num_rollout_workers=2)
    assert to_go_on(config, {"num_rollout_workers": "0"}) == Config()
    with pytest.raises(ConfigError, match="--ray-address new:6379: needs --num-rollout-workers"):
        to_go_on(config, {"num_rollout_workers": "0", "ray_address": "new:6379"})
    with pytest.raises(ConfigError, match="--num-rollout-workers many: must be a whole number"):
        to_go_on(config, {"num_rollout_workers": "many"})


RUN = (
    "--env dsbench-v0 --episodes-per-step 4 --max-tasks 2 --exploring-starts 0 --lora-rank 4 --coach taste "
    "--algorithm taste:Taste --max-new-tokens 16 --token-budget 256"
)

MEASURED = ("--eval-every", "1", "--eval-episodes", "2")
"""The first rank measures while the others wait: whatever all must do together would hang here."""


def start_run(folder: Path, out: Path, *flags: str, taste: str = "") -> subprocess.Popen[str]:
    """A run of its own, with the coach of `taste.py`."""
    paths = {"PYTHONPATH": str(Path(__file__).parent), "TASTE": taste}
    command = [sys.executable, "-m", "mappa_train", *RUN.split(), "--model", str(folder), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--learners-per-agent", "2", *flags],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def played(run: Path) -> list[tuple[int, list[str]]]:
    """Number and actions of each episode of a run folder."""
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    return [(line["index"], [turn["action"] for turn in line["episode"]["turns"]]) for line in lines]


def credited(run: Path) -> list[tuple[int, int, float]]:
    """Episode, turn and return of each action that was learned from, as they stand in the file."""
    lines = [json.loads(line) for line in (run / "credit.jsonl").read_text().splitlines()]
    return [(line["index"], line["turn"], line["return"]) for line in lines]


@pytest.mark.slow
def test_two_ranks_make_one_run_that_one_can_resume(folder: Path, tmp_path: Path) -> None:
    run = start_run(folder, tmp_path / "two", "--steps", "1", "--shard", "fsdp", *MEASURED)
    shown, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert shown.count("step 1/1  score") == 1
    alone = [*RUN.split(), "--model", str(folder), "--steps", "1", "--out", str(tmp_path / "one")]
    assert cli.main([*alone, *MEASURED]) == 0
    assert played(tmp_path / "two") == played(tmp_path / "one")
    assert credited(tmp_path / "two") == credited(tmp_path / "one")
    one, two = (RunFolder(tmp_path / name).read_metrics() for name in ("one", "two"))
    for key in ("episodes", "actions", "score/mean", "return/mean", "tokens/trained", "kl/modeler_0"):
        assert two[0][key] == one[0][key]
    for key in ("adv/mean", "adv/std", "entropy/modeler_0", "grad_norm/modeler_0"):
        assert two[0][key] == pytest.approx(one[0][key], rel=0.05)
    assert two[0]["eval/num_episodes"] == one[0]["eval/num_episodes"] == 2
    log = (tmp_path / "two" / "run.log").read_text()
    assert log.count("evaluation: the slowest episodes") == 1  # one rank measures
    assert cli.main(["resume", str(tmp_path / "two"), "--steps", "2", "--learners-per-agent", "1"]) == 0
    assert [line["step"] for line in RunFolder(tmp_path / "two").read_metrics()] == [1, 2]
    assert len(played(tmp_path / "two")) == 8


@pytest.mark.slow
def test_an_interruption_ends_all_ranks(folder: Path, tmp_path: Path) -> None:
    run = start_run(folder, tmp_path / "run", "--steps", "500", *MEASURED)
    deadline = time.monotonic() + 240
    while not RunFolder(tmp_path / "run").steps() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    errors = run.communicate(timeout=240)[1]
    assert run.returncode == 130, errors
    assert RunFolder(tmp_path / "run").read_metrics()[0]["eval/num_episodes"] == 2
    assert errors.count("interrupted; the last checkpoint is") == 1
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("crash", 1, "error: RuntimeError: this rank was told to crash (traceback in "),
        ("killed", 3, "error: rank 1 was killed by SIGKILL"),
    ],
)
def test_when_one_rank_fails_all_end_with_its_message(
    folder: Path, tmp_path: Path, what: str, code: int, words: str
) -> None:
    run = start_run(folder, tmp_path / "run", "--steps", "2", taste=f"1:{what}")
    errors = run.communicate(timeout=300)[1]
    assert run.returncode == code, errors
    assert [line[: len(words)] for line in errors.splitlines() if line.startswith("error")] == [words]
