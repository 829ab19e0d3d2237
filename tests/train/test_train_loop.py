"""The loop from end to end: a tiny model, a sandbox that runs nothing, a coach that reads the text."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_fakes import KEYS, make_episode, make_rollout, make_turn
from safetensors.torch import load_file
from tiny import make_model

from mappa_envs.coach import BUDGET_SPENT, LLMCoach, make_coach
from mappa_envs.coach.base import CoachRequest
from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import CoachError, ConfigError, DataError, UnavailableError
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import StopReason
from mappa_train import team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.metrics import MetricLine
from mappa_train.plan import make_env
from mappa_train.policies import LoRAPolicies, pick_device
from mappa_train.progress import SilentProgress, opening
from mappa_train.report import read_episodes
from mappa_train.rollout import RolloutTimes
from mappa_train.settings import resolve
from mappa_train.types import EpisodeRollout
from mappa_train.update_stats import AdvantageStats

AGENTS = ("data_engineer_0", "modeler_0", "analyst_0")
OVERALL = (
    *(
        "step",
        "time_s",
        "episodes",
        "actions",
        "unscored",
        "score/mean",
        "return/mean",
        "adv/mean",
        "adv/std",
    ),
    *("outcome/success", "tokens/generated", "tokens/trained", "throughput/tokens_per_s", "time/rollout"),
    *("time/coach", "time/sandbox", "time/learn", "time/sync", "coach/cost_usd", "tool/error_rate"),
)
PER_AGENT = ["score", "kl", "clipfrac", "entropy", "loss", "grad_norm", "lr", "length"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def taste(request: CoachRequest) -> float:
    """A score that depends on the words alone, so that returns differ and repeat."""
    return hashlib.sha256(request.turn.action.encode()).digest()[0] / 25.5


@pytest.fixture
def sandboxes(monkeypatch: pytest.MonkeyPatch) -> list[FakeSandbox]:
    return use_fakes(monkeypatch)


def use_fakes(patch: pytest.MonkeyPatch) -> list[FakeSandbox]:
    """Sandbox and coach of every team from now on; the sandboxes that it opened."""
    opened: list[FakeSandbox] = []

    def open_fake(*args: Any, **options: Any) -> FakeSandbox:
        opened.append(FakeSandbox())
        return opened[-1]

    def make(config: Config, split: str | None = None, **shared: Any) -> Any:
        return make_env(config, split, **({"coach": FakeCoach(taste)} | shared))

    patch.setattr(team, "open_sandbox", open_fake)
    patch.setattr(team, "make_env", make)
    return opened


@pytest.fixture(scope="module")
def undisturbed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunFolder, list[FakeSandbox]]:
    """A run of two steps, and its sandboxes; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        opened = use_fakes(patch)
        config = settings(folder, tmp_path_factory.mktemp("whole") / "run")
        run = RunFolder.create(config)
        trainer.train(config, run, SilentProgress())
    return run, opened


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[RunFolder, list[FakeSandbox]]) -> RunFolder:
    return undisturbed[0]


def settings(folder: Path, out: Path, **changes: Any) -> Config:
    known: dict[str, Any] = {
        "model": str(folder),
        "out": str(out),
        "steps": 2,
        "episodes_per_step": 4,
        "samples_per_task": 2,
        "max_tasks": 2,
        "max_new_tokens": 16,
        "exploring_starts": 0.0,
        "lr": 1e-2,
        "minibatches": 2,
        "token_budget": 256,
    }
    if changes.get("policy") != "full":
        known["lora_rank"] = 4
    return resolve(known | changes)


class Interrupts(SilentProgress):
    """Ctrl-C once this step is finished."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, metrics: Mapping[str, Any]) -> None:
        if metrics["step"] == self.at:
            raise KeyboardInterrupt


def final_weights(run: RunFolder, step: int) -> dict[str, torch.Tensor]:
    where = run.checkpoints_path / f"step-{step:06d}"
    return {
        f"{agent}/{name}": value
        for agent in AGENTS
        for name, value in load_file(where / agent / team.WEIGHTS).items()
    }


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def without_seconds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if not k.startswith(("time", "throughput"))}


def test_a_run_leaves_everything(undisturbed: tuple[RunFolder, list[FakeSandbox]]) -> None:
    run, sandboxes = undisturbed
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    wanted = {*OVERALL, *(f"{name}/{agent}" for name in PER_AGENT for agent in AGENTS)}
    for line in lines:
        assert wanted - line.keys() == set()
        for start in ("stop/", "score_by/", "outcome/"):
            assert any(key.startswith(start) for key in line)
        assert (line["episodes"], line["actions"], line["unscored"]) == (4, 12, 0)
        assert line["tokens/trained"] == line["tokens/generated"] > 12
        assert line["adv/std"] > 0
        assert all(line[f"grad_norm/{agent}"] > 0 for agent in AGENTS)
    assert lines[0].keys() == lines[1].keys()
    assert all(lines[0][f"kl/{agent}"] == 0 for agent in AGENTS)
    assert all(lines[1][f"kl/{agent}"] != 0 for agent in AGENTS)
    assert run.steps() == [1, 2]
    assert "<html" in run.report_path.read_text()
    episodes = [json.loads(line) for line in run.episodes_path.read_text().splitlines()]
    assert [(e["step"], e["index"]) for e in episodes] == [(1 + k // 4, k) for k in range(8)]
    credit = [json.loads(line) for line in run.credit_path.read_text().splitlines()]
    assert [(c["index"], c["turn"]) for c in credit] == [(k, turn) for k in range(8) for turn in range(3)]
    for line in lines:
        mine = [c for c in credit if c["step"] == line["step"]]
        assert sum(c["tokens"] for c in mine) == line["tokens/trained"]
        assert sum(c["return"] for c in mine) / 12 == pytest.approx(line["return/mean"])
        assert sum(c["advantage"] * c["tokens"] for c in mine) == pytest.approx(0, abs=1e-3)
        assert any(c["advantage"] > 0.1 for c in mine)
    assert len(sandboxes) == 1
    assert sandboxes[0].closed
    first, last = final_weights(run, 1), final_weights(run, 2)
    assert any(not torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("checkpoint_every", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_an_interrupted_run_resumes_bit_for_bit(
    folder: Path,
    tmp_path: Path,
    sandboxes: list[FakeSandbox],
    monkeypatch: pytest.MonkeyPatch,
    whole: RunFolder,
    checkpoint_every: int,
) -> None:
    """Its weights and figures are those of the run that nobody interrupted; no line is there twice."""
    config = settings(folder, tmp_path / "cut", checkpoint_every=checkpoint_every)
    cut = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(config, cut, Interrupts(1))
    assert cut.steps() == [1]
    assert all(sandbox.closed for sandbox in sandboxes)
    torch.rand(17)  # a new process would not be where this one is
    plans_of = trainer.plans_of
    # Nor need an engine draw as often from PyTorch's numbers.
    monkeypatch.setattr(trainer, "plans_of", lambda *args: (torch.rand(17), plans_of(*args))[1])
    trainer.train(config, cut, SilentProgress(), resume=True)

    assert_same(final_weights(cut, 2), final_weights(whole, 2))
    assert [line["step"] for line in cut.read_metrics()] == [1, 2]
    for a, b in zip(cut.read_metrics(), whole.read_metrics(), strict=True):
        assert without_seconds(a) == without_seconds(b)
    assert len(cut.episodes_path.read_text().splitlines()) == 8
    assert cut.credit_path.read_bytes() == whole.credit_path.read_bytes()


@pytest.mark.slow
def test_an_update_is_finished_for_the_steps_that_have_no_checkpoint(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of it would leave nothing of them."""
    step, calls = torch.optim.AdamW.step, list[int]()

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:  # the second of six in step 2
            signal.raise_signal(signal.SIGINT)
        return step(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    config = settings(folder, tmp_path / "run", steps=3, checkpoint_every=10)
    run = RunFolder.create(config)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(config, run, SilentProgress())
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.steps() == [2]
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
    assert len(calls) == 12


@pytest.mark.slow
def test_resume_drops_lines_behind_its_checkpoint(
    tmp_path: Path, sandboxes: list[FakeSandbox], whole: RunFolder
) -> None:
    """A crash between the metrics of step 2 and its checkpoint must not leave step 2 twice."""
    shutil.copytree(whole.path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    (run.checkpoints_path / "step-000002" / "manifest.json").unlink()
    trainer.train(run.config(), run, SilentProgress(), resume=True)
    assert_same(final_weights(run, 2), final_weights(whole, 2))
    found, wanted = ([without_seconds(line) for line in its.read_metrics()] for its in (run, whole))
    assert found == wanted


@pytest.mark.slow
def test_measuring_on_held_out_tasks_disturbs_nothing(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox]
) -> None:
    """The same run but for the figures of the val tasks, which are null where nothing was measured."""
    runs = []
    for name, more in (
        ("plain", {}),
        ("measured", {"eval_every": 2, "eval_episodes": 3, "keep_checkpoints": 1}),
    ):
        config = settings(folder, tmp_path / name, steps=3, **more)
        runs.append(RunFolder.create(config))
        trainer.train(config, runs[-1], SilentProgress())
    plain, measured = (run.read_metrics() for run in runs)
    assert [line["eval/num_episodes"] for line in plain] == [None, None, None]
    assert [line["eval/num_episodes"] for line in measured] == [None, 3, 3]
    assert [line["eval/fair_accuracy"] for line in measured] == [None, 0.5, 0.5]
    assert measured[1]["eval/success_high"] > measured[1]["eval/success_low"] == 0
    for a, b in zip(plain, measured, strict=True):
        assert list(a) == list(b)
        assert trained_figures(a) == trained_figures(b)
    assert_same(final_weights(runs[0], 3), final_weights(runs[1], 3))
    states = [run.load().state["rng"] for run in runs]
    assert torch.equal(*states)
    assert len(runs[1].episodes_path.read_text().splitlines()) == 12
    assert runs[1].steps() == [2, 3]  # the best, and the newest
    assert (runs[1].checkpoints_path / "best").resolve().name == "step-000002"
    assert len(sandboxes) == 2


def trained_figures(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_seconds(line).items() if not name.startswith("eval/")}


@pytest.mark.slow
def test_a_run_with_more_steps_is_as_if_begun_with_them(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], whole: RunFolder
) -> None:
    config = settings(folder, tmp_path / "run", steps=1)
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    run.set_steps(2)
    trainer.train(run.config(), run, SilentProgress(), resume=True)
    assert_same(final_weights(run, 2), final_weights(whole, 2))
    for a, b in zip(run.read_metrics(), whole.read_metrics(), strict=True):
        assert without_seconds(a) == without_seconds(b)


@pytest.mark.slow
def test_the_seed_decides(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], whole: RunFolder
) -> None:
    config = settings(folder, tmp_path / "run", steps=1, seed=1)
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    mine, others = (
        {turn.action for episode in read_episodes(its.path, 1) for turn in episode.turns}
        for its in (run, whole)
    )
    assert len(mine) == len(others) == 12
    assert len(mine & others) < 3  # one of a token may be there twice


@pytest.mark.slow
def test_a_deterministic_run_on_a_cpu_is_the_same_run(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], whole: RunFolder
) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    config = settings(folder, tmp_path / "run", deterministic="on")
    run = RunFolder.create(config)
    try:
        trainer.train(config, run, SilentProgress())
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(final_weights(run, 2), final_weights(whole, 2))


def test_too_many_unscored_actions_end_the_run(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: CoachRequest) -> float:
        raise CoachError("no answer")

    monkeypatch.setattr(
        team, "make_env", lambda c, s=None, **k: make_env(c, s, **({"coach": FakeCoach(fail)} | k))
    )
    config = settings(folder, tmp_path / "run")
    run = RunFolder.create(config)
    with pytest.raises(UnavailableError, match="12 of 12"):
        trainer.train(config, run, SilentProgress())
    assert run.read_metrics() == []
    assert run.steps() == []
    assert sandboxes[0].closed


def test_an_episode_without_an_outcome_is_no_failed_one() -> None:
    """With returns of outcomes: what nobody graded is left out, and not a 0."""
    rollouts = [make_rollout(k, make_episode(outcome=outcome)) for k, outcome in enumerate((0.0, None, 0.5))]
    found = [item.ret for item in trainer.credit_samples(rollouts, resolve({"returns": "outcome"}))]
    assert found == [0.0, 0.0, None, None, 0.5, 0.5]


def cut(rollout: EpisodeRollout, *turns: int) -> EpisodeRollout:
    """The same, but these actions came to the length limit."""
    actions = [
        replace(action, generation=replace(action.generation, truncated=action.turn in turns))
        for action in rollout.actions
    ]
    return replace(rollout, actions=tuple(actions))


def test_what_is_left_out_of_learning_counts_in_the_returns_of_others() -> None:
    """Scores 2, 8 (cut), 5 and none: (0.2 + 0.8 + 0.5) / 3, (0.8 + 0.5) / 2, 0.5, with the 8 in the first."""
    rollout = cut(make_rollout(0, make_episode((2.0, 8.0, 5.0, None))), 1)
    trained, masked = (
        [item.ret for item in trainer.credit_samples([rollout], resolve({"truncated": kind}))]
        for kind in ("train", "mask")
    )
    assert trained == [pytest.approx(0.5), pytest.approx(0.65), pytest.approx(0.5), None]
    assert masked == [trained[0], None, trained[2], None]


def test_a_step_of_which_nothing_is_learned_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rollout, config = make_rollout(0, make_episode((2.0, None))), resolve({"truncated": "mask"})
    for rollouts in ([], [rollout]):
        trainer._warn_of_nothing(3, trainer.credit_samples(rollouts, config))
    assert not caplog.records
    trainer._warn_of_nothing(3, trainer.credit_samples([cut(rollout, 0)], config))
    assert "step 3: nothing is learned: all 2 actions are unscored or masked; 1 were cut" in caplog.text


def test_a_run_that_lost_its_start_is_not_resumed_from_the_base(tmp_path: Path) -> None:
    """π_ref would be another one."""
    config = resolve({"init": "warm", "out": str(tmp_path / "run")})
    unused: Any = None
    with pytest.raises(DataError, match=r"start/manifest\.json: damaged or missing .* begin the run again"):
        trainer._begin(config, RunFolder.create(config), unused, unused, unused, True, unused)


def test_a_step_without_an_action_is_told(caplog: pytest.LogCaptureFixture) -> None:
    nothing = make_rollout(0, make_episode(turns=(), stop_reason=StopReason.CONTEXT))
    trainer._check_scored(3, resolve({}), [make_rollout(1), nothing])
    assert not caplog.records
    trainer._check_scored(3, resolve({}), [nothing, nothing])
    assert "step 3: no episode came to an action" in caplog.text
    assert "they ended by: context" in caplog.text


def test_a_run_ends_with_its_steps_or_the_budget() -> None:
    coach = make_coach("llm:openai/m", base_url="http://localhost:1/v1", budget_usd=2.0)
    assert isinstance(coach, LLMCoach)
    config = resolve({"steps": 3, "coach": "llm:openai/m", "coach_budget_usd": 2.0})
    loop: Any = SimpleNamespace(
        config=config, team=SimpleNamespace(env=SimpleNamespace(coach=coach)), keys=KEYS
    )

    def line(*rollouts: EpisodeRollout, step: int = 2) -> MetricLine:
        no_time = RolloutTimes(rollout=0.0)
        nothing = AdvantageStats(mean=None, std=None, actions=())
        return trainer._line(step, rollouts, [], {}, nothing, loop, no_time, None, 0.0, 0.0)

    missed = make_rollout(1, make_episode(turns=(make_turn(0, "a_0", None, unscored_reason=BUDGET_SPENT),)))
    lines = [line(make_rollout(0)), line(make_rollout(0), step=3)]
    lines.append(line(make_rollout(0), missed))  # one rank's part of the budget may be spent first
    coach.budget.add(Usage(cost_usd=2.0))
    lines.append(line(make_rollout(0)))  # and every action has its score
    assert [item["coach/budget_spent"] for item in lines] == [None, None, 2.0, 2.0]
    assert [trainer._is_last(item, config) for item in lines] == [False, True, True, True]


def test_the_step_that_spends_the_budget_exactly_is_the_last(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(settings(folder, tmp_path / "run"))
    monkeypatch.setattr(trainer, "has_budget", lambda coach: not run.credit_path.exists())
    trainer.train(run.config(), run, SilentProgress())
    assert run.steps() == [1]
    assert [line["coach/budget_spent"] for line in run.read_metrics()] == [run.config().coach_budget_usd]
    assert run.read_metrics()[0]["unscored"] == 0


@pytest.mark.slow
def test_a_finished_checkpoint_is_not_written_again(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while older ones are deleted: to replace the newest would put the only one at risk."""

    def interrupt(run: RunFolder, keep: int) -> None:
        raise KeyboardInterrupt

    saved: list[int] = []
    save = RunFolder.save
    monkeypatch.setattr(trainer, "tidy", interrupt)
    monkeypatch.setattr(
        RunFolder, "save", lambda run, step, *rest: (saved.append(step), save(run, step, *rest))[1]
    )
    run = RunFolder.create(settings(folder, tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(run.config(), run, SilentProgress())
    assert saved == run.steps() == [1]


def test_a_run_says_what_and_where_it_is_before_its_first_step(
    folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox]
) -> None:
    said: list[str] = []

    class Watcher(SilentProgress):
        def say(self, line: str) -> None:
            said.append(line)

        def start(self, total_steps: int, agents: Sequence[str], first_step: int = 1) -> None:
            raise KeyboardInterrupt

    run = RunFolder.create(settings(folder, tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(run.config(), run, Watcher())
    assert said == [opening(run.path, str(folder), str(pick_device()))]


def test_full_policies_train_too(folder: Path, tmp_path: Path, sandboxes: list[FakeSandbox]) -> None:
    config = settings(folder, tmp_path / "run", policy="full", steps=1, lr=1e-4)
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    assert run.steps() == [1]
    assert "lm_head.weight" in {name.split("/")[1] for name in final_weights(run, 1)}


def test_resume_needs_the_weights_of_every_agent(folder: Path, tmp_path: Path) -> None:
    policies = LoRAPolicies(folder, AGENTS, rank=4, alpha=8, seed=0)
    with pytest.raises(ConfigError, match="data_engineer_0"):
        team.load_weights(tmp_path, policies)
