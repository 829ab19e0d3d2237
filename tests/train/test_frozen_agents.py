"""Agents that act without learning: `--frozen-agents`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rollout_fakes import TASKS, toy
from run_fakes import KEYS, make_episode, make_line, make_rollout, make_update
from safetensors.torch import load_file
from test_memory import BIG
from tiny import AGENTS, make_config, make_model, make_requests, make_samples, weights

from mappa_envs.coach import FakeCoach, register_coach
from mappa_envs.errors import ConfigError
from mappa_envs.testing import FakeSandbox
from mappa_train import cli, team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.engine.transformers import TransformersEngine
from mappa_train.learner import Learner
from mappa_train.memory import memory_plan
from mappa_train.metrics import step_metrics
from mappa_train.model import load_pretrained
from mappa_train.model_card import model_card
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.rollout import plans_of
from mappa_train.router import check_frozen
from mappa_train.settings import resolve
from mappa_train.team import WEIGHTS
from mappa_train.types import SampleCredit

ACTOR, FROZEN = AGENTS
OTHERS = ("reinforce_pp_baseline", "rloo", "ppo_clip", "outcome")
ALGORITHMS = ("grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS))
BOTH = ("lora", pytest.param("full", marks=pytest.mark.slow))
COACH = "words_of_frozen_agents"
RETS = (0.9, 0.2, 0.1, 0.8, 0.5, 0.4, 0.7, 0.3)
TEAM = ("data_engineer_0", "modeler_0", "analyst_0")


@pytest.fixture(scope="module", autouse=True)
def coach() -> None:
    """Scores that depend on the words alone."""
    register_coach(COACH, lambda: FakeCoach(lambda request: len(request.turn.action) * 37 % 101 / 10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def made(folder: Path, policy: str, frozen: tuple[str, ...] = (FROZEN,)) -> LoRAPolicies | FullPolicies:
    if policy == "full":
        return FullPolicies(folder, AGENTS, frozen=frozen)
    return LoRAPolicies(folder, AGENTS, rank=4, alpha=8, seed=0, frozen=frozen)


def as_masked(samples: list[SampleCredit]) -> list[SampleCredit]:
    """The same, but the actions of the frozen agent are left out of learning."""
    return [replace(s, ret=None) if s.action.agent == FROZEN else s for s in samples]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("analyst_0,", "--frozen-agents analyst_0,: a name is empty"),
        ("analyst_0, analyst_0", "names analyst_0 twice"),
        ("analist_0", r"analist_0 is no agent of dsbench-v0 \(did you mean analyst_0\?\); there are data_"),
        (",".join(TEAM), "nobody is left who learns"),
    ],
)
def test_names_that_do_not_fit_the_team_are_refused(value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_frozen(resolve({"frozen_agents": value}), TEAM)


def test_a_wrong_name_is_told_by_the_dry_run_with_the_team(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--frozen-agents", "verifier_0", "--dry-run"]) == 2
    assert "verifier_0 is no agent of dsbench-v0" in (said := capsys.readouterr().err)
    assert ", ".join(TEAM) in said


@pytest.mark.parametrize("policy", BOTH)
def test_the_others_learn_as_if_the_actions_were_masked(folder: Path, policy: str) -> None:
    """Bit for bit, the statistics too; and the weights of the frozen agent do not move."""
    found = []
    for frozen in ((FROZEN,), ()):
        policies = made(folder, policy, frozen)
        start = weights(policies, FROZEN)
        learner = Learner(policies, make_config(lr=1e-3))
        for version in range(2):
            samples = make_samples(policies, RETS, version=version)
            updates, stats = learner.update(samples if frozen else as_masked(samples))
        found.append((weights(policies, ACTOR), stats, updates[ACTOR]))
        if frozen:
            assert torch.equal(weights(policies, FROZEN), start)
            assert list(updates) == [ACTOR]
            assert {credit.agent for credit in stats.actions} == {ACTOR}
            assert updates[ACTOR].kl not in (None, 0.0)
    (mine, *mine_too), (wanted, *wanted_too) = found
    assert torch.equal(mine, wanted)
    assert mine_too == wanted_too


def test_freezing_changes_no_adapter_and_samples_as_before(folder: Path) -> None:
    requests = make_requests(4)
    said = []
    for frozen in ((FROZEN,), ()):
        policies = made(folder, "lora", frozen)
        engine = TransformersEngine(policies, (1,), max_new_tokens=8, temperature=0.7)
        said.append([answer.token_ids.tolist() for answer in engine.generate(requests)])
        said.append([weights(policies, agent).tolist() for agent in AGENTS])
    assert said[:2] == said[2:]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_leaves_them_alone(folder: Path, algorithm: str) -> None:
    policies = made(folder, "lora")
    before = {agent: weights(policies, agent) for agent in AGENTS}
    samples = make_samples(policies, RETS)
    updates, _ = Learner(policies, make_config(algorithm=algorithm, lr=1e-2)).update(samples)
    assert list(updates) == [ACTOR]
    assert torch.equal(weights(policies, FROZEN), before[FROZEN])
    assert not torch.equal(weights(policies, ACTOR), before[ACTOR])


@pytest.mark.parametrize("policy", ["lora", "full"])
def test_a_frozen_agent_keeps_its_warm_start(folder: Path, policy: str) -> None:
    policies = made(folder, policy)
    torch.manual_seed(3)
    warm = {
        agent: {name: value + 0.05 * torch.randn_like(value) for name, value in policies.state(agent).items()}
        for agent in AGENTS
    }
    for agent in AGENTS:
        policies.load_state(agent, warm[agent])
    policies.freeze_reference()
    updates, _ = Learner(policies, make_config(lr=1e-3)).update(make_samples(policies, RETS))
    assert updates[ACTOR].kl == 0.0
    kept = policies.state(FROZEN)
    assert all(torch.equal(kept[name], value) for name, value in warm[FROZEN].items())


def test_there_is_no_optimizer_for_them_and_resume_takes_no_other_choice(folder: Path) -> None:
    policies = made(folder, "lora")
    learner = Learner(policies, make_config())
    learner.update(make_samples(policies, RETS))
    state: Any = learner.state()
    assert list(state["optimizers"]) == [ACTOR]
    Learner(made(folder, "lora"), make_config()).load_state(state)
    for frozen in ((), (ACTOR,)):
        with pytest.raises(ConfigError, match=f"optimizers of {ACTOR}, .* Were frozen_agents or shared_"):
            Learner(made(folder, "lora", frozen), make_config()).load_state(state)


def test_their_scores_count_in_their_teammates_returns() -> None:
    """Scores 2 and 8: (0.2 + 0.8) / 2 for the first, who learns from it; the second is left out."""
    rollout = make_rollout(0, make_episode((2.0, 8.0)))
    found = trainer.credit_samples([rollout], resolve({"frozen_agents": FROZEN}))
    assert [(item.action.agent, item.ret) for item in found] == [(ACTOR, pytest.approx(0.5)), (FROZEN, None)]


def test_no_episode_begins_where_nobody_learns_any_more() -> None:
    def starts(frozen: str) -> set[str | None]:
        config = resolve({"frozen_agents": frozen, "exploring_starts": 1.0})
        env: Any = SimpleNamespace(possible_agents=list(TEAM), tasks=[toy(name) for name in TASKS])
        return {plan.start_role for plan in plans_of(1, config, env)}

    assert starts("") == {"modeler_0", "analyst_0"} == starts("data_engineer_0")
    assert starts("analyst_0") == {"modeler_0"}
    assert starts("modeler_0") == {"modeler_0", "analyst_0"}
    assert starts("analyst_0,modeler_0") == {None}


def test_a_step_in_which_frozen_agents_alone_acted_is_told(caplog: pytest.LogCaptureFixture) -> None:
    config = resolve({"frozen_agents": f"{ACTOR},{FROZEN}"})
    samples = trainer.credit_samples([make_rollout(0)], config)
    trainer._warn_of_nothing(3, samples, AGENTS)
    assert "all 2 actions are unscored or masked, or of frozen agents" in caplog.text


def test_their_keys_are_in_the_metrics_with_null() -> None:
    rollouts = [make_rollout(0)]
    line = step_metrics(1, rollouts, {ACTOR: make_update()}, keys=KEYS, timings={}, time_s=1.0)
    assert line.keys() == make_line(1, rollouts).keys()
    for name in ("kl", "clipfrac", "entropy", "loss", "grad_norm", "lr"):
        assert line[f"{name}/{FROZEN}"] is None
    assert line[f"lr/{ACTOR}"] == 1e-3
    assert all(line[f"{name}/{agent}"] is not None for name in ("score", "length") for agent in KEYS.agents)


def test_they_need_no_optimizer_and_no_reference() -> None:
    def sizes(**settings: Any) -> dict[str, float]:
        config = make_config(frozen_agents="analyst_0", **settings)
        return {part.name: part.num_bytes for part in memory_plan(config, BIG, 3, gpu=False).parts}

    full = sizes(policy="full")
    assert (full["weights"], full["optimizer"], full["reference"]) == (12e9, 16e9, 4e9)
    assert sizes(policy="full", init="runs/warm")["reference"] == 8e9
    one = 4 * 16 * 100 * 4096  # bytes of an adapter
    assert sizes(init="runs/warm")["adapters"] == 5 * one
    assert sizes()["optimizers"] == 2 * 2 * one


def test_the_card_of_a_frozen_agent_does_not_call_it_trained(folder: Path) -> None:
    config, model = resolve({"frozen_agents": "analyst_0"}), load_pretrained(str(folder))
    frozen, other = (
        model_card(agent, config, model, "base", 3, None, adapter=True)
        for agent in ("analyst_0", "modeler_0")
    )
    assert "trained with MAPPA for the role `modeler_0`" in other
    assert "it was frozen" in frozen
    assert "trained with MAPPA for" not in frozen


def same_files(a: Path, b: Path) -> bool:
    first, second = load_file(a), load_file(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def without_seconds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if not k.startswith(("time", "throughput"))}


@pytest.mark.slow
def test_a_run_with_a_frozen_agent_is_resumed_measured_and_exported(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: FakeSandbox())
    known = ["--model", str(folder), "--max-tasks", "2", "--max-new-tokens", "16", "--lora-rank", "4"]
    known += ["--episodes-per-step", "4", "--samples-per-task", "2", "--coach", COACH, "--steps", "2"]
    run = RunFolder(tmp_path / "run")
    assert cli.main([*known, "--frozen-agents", "modeler_0", "--out", str(run.path)]) == 0
    one, two = (run.checkpoint_path(step) for step in (1, 2))
    moved = [agent for agent in TEAM if not same_files(one / agent / WEIGHTS, two / agent / WEIGHTS)]
    assert moved == ["data_engineer_0", "analyst_0"]
    lines = run.read_metrics()
    for line in lines:
        assert line["kl/modeler_0"] is line["grad_norm/modeler_0"] is line["lr/modeler_0"] is None
        assert line["score/modeler_0"] is not None
        assert line["length/modeler_0"] > 0
        assert line["grad_norm/analyst_0"] > 0
    credit = [json.loads(line) for line in run.credit_path.read_text().splitlines()]
    assert {item["agent"] for item in credit} == {"data_engineer_0", "analyst_0"}

    kept = shutil.copytree(two, tmp_path / "kept")
    shutil.rmtree(two)
    assert cli.main(["resume", str(run.path)]) == 0
    assert all(same_files(two / agent / WEIGHTS, kept / agent / WEIGHTS) for agent in TEAM)
    assert [*map(without_seconds, run.read_metrics())] == [*map(without_seconds, lines)]

    assert cli.main(["eval", str(run.path), "--episodes", "1"]) == 0
    assert cli.main(["export", str(run.path), "--format", "hf", "--out", str(tmp_path / "hf")]) == 0
    assert sorted(item.name for item in (tmp_path / "hf").iterdir()) == sorted(TEAM)

    config = run.config_path
    config.write_text(config.read_text().replace('frozen_agents = "modeler_0"', 'frozen_agents = ""'))
    shutil.rmtree(two)
    capsys.readouterr()
    assert cli.main(["resume", str(run.path)]) == 2
    assert "Were frozen_agents or shared_policy changed" in capsys.readouterr().err
