"""One set of weights for all agents: `--shared-policy`."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_memory import BIG
from tiny import (
    AGENTS,
    STOP,
    alone,
    make_config,
    make_model,
    make_policies,
    make_requests,
    make_samples,
    weights,
)

from mappa_envs.coach import FakeCoach, register_coach
from mappa_envs.errors import ConfigError
from mappa_envs.testing import FakeSandbox
from mappa_train import cli, team
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.engine import choice
from mappa_train.engine.transformers import TransformersEngine
from mappa_train.learner import Learner
from mappa_train.memory import memory_plan
from mappa_train.model import load_pretrained
from mappa_train.model_card import model_card
from mappa_train.packing import Sample
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.router import SHARED, PolicyRouter, count_policies
from mappa_train.settings import resolve
from mappa_train.sft import Lesson, mean_loss, warm_start
from mappa_train.start import find_start
from mappa_train.team import WEIGHTS, load_weights, save_weights
from mappa_train.tokens import ChatTokenizer

OTHERS = ("reinforce_pp_baseline", "rloo", "ppo_clip", "outcome")
ALGORITHMS = ("grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS))
BOTH = ("lora", pytest.param("full", marks=pytest.mark.slow))
COACH = "words_of_shared_policy"
RETS = (0.9, 0.2, 0.1, 0.8, 0.5, 0.4, 0.7, 0.3)
TEAM = ("data_engineer_0", "modeler_0", "analyst_0")


@pytest.fixture(scope="module", autouse=True)
def coach() -> None:
    """Scores that depend on the words alone."""
    register_coach(COACH, lambda: FakeCoach(lambda request: len(request.turn.action) * 37 % 101 / 10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def made(
    folder: Path, policy: str = "lora", agents: tuple[str, ...] = AGENTS, *, shared: bool = True
) -> LoRAPolicies | FullPolicies:
    if policy == "full":
        return FullPolicies(folder, agents, shared=shared)
    return LoRAPolicies(folder, agents, rank=4, alpha=8, seed=0, shared=shared)


def sampled(folder: Path, version: int = 0) -> Any:
    """Actions of both agents, from the model as it is before learning."""
    return make_samples(make_policies(folder), RETS, version=version)


def test_agents_have_policies_of_their_own_unless_they_share_one() -> None:
    own, frozen, shared = (
        PolicyRouter(AGENTS),
        PolicyRouter(AGENTS, AGENTS[1:]),
        PolicyRouter(AGENTS, shared=True),
    )
    assert own.policy_of == {agent: agent for agent in AGENTS}
    assert own.names == own.trained == AGENTS
    assert (frozen.names, frozen.trained) == (AGENTS, AGENTS[:1])
    assert (shared.names, shared.trained, shared.actors(SHARED)) == ((SHARED,), (SHARED,), AGENTS)


def test_a_shared_policy_has_no_frozen_agents() -> None:
    with pytest.raises(ConfigError, match="--frozen-agents analyst_0: with --shared-policy on"):
        resolve({"frozen_agents": "analyst_0", "shared_policy": "on"})


def test_adapters_of_their_own_are_what_the_seed_gives_one_after_the_other(folder: Path) -> None:
    """The numbers that a run without the setting has always begun with; a shared one has the first."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    from mappa_train.policies import load_model

    torch.manual_seed(0)
    plain = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model: Any = get_peft_model(
        load_model(folder, torch.bfloat16, torch.device("cpu")), plain, adapter_name=AGENTS[0]
    )
    model.add_adapter(AGENTS[1], plain)
    own, shared = made(folder, shared=False), made(folder)
    for agent in AGENTS:
        drawn = get_peft_model_state_dict(model, adapter_name=agent)
        assert all(torch.equal(own.state(agent)[name], value) for name, value in drawn.items())
    assert torch.equal(weights(shared, SHARED), weights(own, AGENTS[0]))


@pytest.mark.parametrize("policy", BOTH)
def test_it_learns_what_one_agent_with_all_actions_would(folder: Path, policy: str) -> None:
    """Bit for bit, over two updates of several minibatches."""
    found = []
    for names in (AGENTS, ("one",)):
        policies = made(folder, policy, names, shared=len(names) > 1)
        learner = Learner(policies, make_config(lr=1e-3, minibatches=2))
        for version in range(2):
            samples = sampled(folder, version)
            if len(names) == 1:
                samples = [replace(s, action=replace(s.action, agent="one")) for s in samples]
            torch.manual_seed(version)
            learner.update(samples)
        found.append(weights(policies, policies.names[0]))
    assert torch.equal(*found)
    assert not torch.equal(found[0], weights(made(folder, policy), SHARED))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_it(folder: Path, algorithm: str) -> None:
    policies = made(folder)
    before = weights(policies, SHARED)
    updates, _ = Learner(policies, make_config(algorithm=algorithm, lr=1e-2)).update(sampled(folder))
    assert list(updates) == list(AGENTS)
    assert not torch.equal(weights(policies, SHARED), before)


def test_figures_are_of_each_agents_own_actions(folder: Path) -> None:
    policies = made(folder)
    learner = Learner(policies, make_config(lr=1e-2))
    said: list[tuple[int, int]] = []
    learner.update(sampled(folder), lambda done, total: said.append((done, total)))
    assert set(said) == {(0, len(AGENTS))}
    samples = sampled(folder, 1)
    updates, stats = learner.update(samples)
    for agent in AGENTS:
        mine = [s for s in samples if s.action.agent == agent]
        lengths = [len(s.action.generation.token_ids) for s in mine]
        assert (updates[agent].num_actions, updates[agent].num_tokens) == (len(mine), sum(lengths))
        credits = [credit for credit in stats.actions if credit.agent == agent]
        kl = sum(credit.kl * credit.num_tokens for credit in credits) / sum(lengths)
        assert updates[agent].kl == pytest.approx(kl, rel=1e-4)
    first, second = (updates[agent] for agent in AGENTS)
    assert first.kl != second.kl
    assert first.entropy != second.entropy
    policys = [(u.loss, u.grad_norm, u.clipfrac, u.lr) for u in (first, second)]
    assert policys[0] == policys[1]
    assert policys[0][1] is not None


def test_an_agent_that_did_not_act_has_no_kl(folder: Path) -> None:
    samples = [s for s in sampled(folder) if s.action.agent == AGENTS[0]]
    updates, _ = Learner(made(folder), make_config()).update(samples)
    idle = updates[AGENTS[1]]
    assert (idle.num_tokens, idle.kl, idle.entropy) == (0, None, None)
    assert idle.grad_norm == updates[AGENTS[0]].grad_norm is not None


@pytest.mark.parametrize("policy", BOTH)
def test_all_agents_sample_from_what_was_learned(folder: Path, policy: str) -> None:
    policies = made(folder, policy)
    Learner(policies, make_config(lr=1e-2)).update(sampled(folder))
    engine = TransformersEngine(policies, (STOP,), max_new_tokens=8, temperature=1.0)
    requests = make_requests(4)
    model = policies.sampler(SHARED)
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        wanted = alone(model, request.prompt_ids, answer.token_ids)
        torch.testing.assert_close(answer.logprobs, wanted, atol=1e-4, rtol=0)


def saved(folder: Path, path: Path, policies: Any, **settings: Any) -> RunFolder:
    known = {"model": str(folder), "out": str(path), "lora_rank": 4, "lora_alpha": 8}
    run = RunFolder.create(resolve(known | settings))
    save_weights(run, 1, policies, {})
    return run


def test_a_checkpoint_has_it_for_each_agent_and_restores_it(folder: Path, tmp_path: Path) -> None:
    policies = made(folder)
    learner = Learner(policies, make_config(lr=1e-2))
    learner.update(sampled(folder))
    run = saved(folder, tmp_path / "run", policies, shared_policy="on")
    files = [run.checkpoint_path(1) / agent / WEIGHTS for agent in AGENTS]
    assert files[0].read_bytes() == files[1].read_bytes()

    again = made(folder)
    load_weights(run.checkpoint_path(1), again)
    resumed = Learner(again, make_config(lr=1e-2))
    resumed.load_state(copy.deepcopy(learner.state()))  # as through a file
    for its in (learner, resumed):
        its.update(sampled(folder, 1))
    assert torch.equal(weights(again, SHARED), weights(policies, SHARED))

    apart = made(folder, shared=False)
    load_weights(run.checkpoint_path(1), apart)
    assert torch.equal(weights(apart, AGENTS[0]), weights(apart, AGENTS[1]))
    with pytest.raises(ConfigError, match=r"optimizers of shared_policy, .* trains writer_0, checker_0"):
        Learner(apart, make_config()).load_state(learner.state())


def test_weights_of_several_agents_are_none_of_a_shared_policy(folder: Path, tmp_path: Path) -> None:
    run = saved(folder, tmp_path / "apart", made(folder, shared=False))
    with pytest.raises(ConfigError, match="checker_0 has weights of its own there"):
        load_weights(run.checkpoint_path(1), made(folder))
    known: dict[str, Any] = {"model": str(folder), "lora_rank": 4, "lora_alpha": 8, "init": str(run.path)}
    with pytest.raises(ConfigError, match=r"--init .*: each agent has weights of its own there"):
        find_start(resolve(known | {"shared_policy": "on"}), AGENTS)
    shared = saved(folder, tmp_path / "shared", made(folder), shared_policy="on")
    for choice_here in ("on", "off"):
        config = resolve(known | {"init": str(shared.path), "shared_policy": choice_here})
        assert find_start(config, AGENTS) == shared.checkpoint_path(1)


def test_a_warm_start_teaches_it_the_actions_of_all(folder: Path, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(folder)
    lessons = {
        agent: Lesson(
            train=[
                Sample(
                    prompt=tokenizer.encode([{"role": "user", "content": f"w{k} w{place}"}]),
                    response=tokenizer.encode_action(f"w{k + 5} w{k + 6}"),
                )
                for k in range(3)
            ],
            val=[],
        )
        for place, agent in enumerate(AGENTS)
    }
    config = resolve(
        {"model": str(folder), "out": str(tmp_path / "warm"), "epochs": 8, "lr": 1e-2, "shared_policy": "on"}
    )
    run, policies, said = RunFolder.create(config), made(folder), list[str]()
    results = warm_start(config, run, policies, lessons, said.append)
    assert list(results) == list(AGENTS)
    for agent in AGENTS:
        assert results[agent].num_examples == 3
        assert results[agent].after < results[agent].before
        assert results[agent].after == mean_loss(policies, SHARED, lessons[agent].train, config.token_budget)
    assert f"{SHARED}: 6 actions, 8 times, in 8 optimizer steps" in said
    files = [load_file(run.checkpoint_path(0) / agent / WEIGHTS) for agent in AGENTS]
    assert all(torch.equal(value, files[1][name]) for name, value in files[0].items())


def test_one_policy_is_what_memory_and_engines_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(**settings: Any) -> dict[str, float]:
        config = make_config(shared_policy="on", **settings)
        return {part.name: part.num_bytes for part in memory_plan(config, BIG, 3, gpu=False).parts}

    full = sizes(policy="full")
    assert (full["weights"], full["optimizer"], full["reference"]) == (4e9, 8e9, 4e9)
    one = 4 * 16 * 100 * 4096  # bytes of an adapter
    assert sizes(init="runs/warm")["adapters"] == 2 * one
    assert count_policies(resolve({"shared_policy": "on"}), 3) == (1, 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    config = Config(engine_gpus=2, policy="full", shared_policy="on")
    assert choice.own_gpus(config, 3) == [(1, 2)]


def test_the_card_says_whose_weights_they_are(folder: Path) -> None:
    config, model = resolve({"shared_policy": "on"}), load_pretrained(str(folder))
    card = model_card("analyst_0", config, model, "base", 3, None, adapter=True)
    assert "for all roles of a team, `analyst_0` among them" in card


def without_seconds(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if not k.startswith(("time", "throughput"))}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lora", "full"])
def test_a_run_is_begun_warm_resumed_measured_and_exported(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
) -> None:
    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: FakeSandbox())
    known = ["--model", str(folder), "--max-tasks", "2", "--max-new-tokens", "16", "--policy", policy]
    known += ["--lora-rank", "4"] if policy == "lora" else []
    run, warm, data = RunFolder(tmp_path / "run"), tmp_path / "warm", tmp_path / "some.jsonl"
    chat = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3 w4"}]
    data.write_text("\n".join(json.dumps({"agent": agent, "messages": chat}) for agent in TEAM))
    lesson = ["--data", str(data), "--epochs", "1", "--out", str(warm)]
    assert cli.main(["sft", *known, *lesson, "--shared-policy"]) == 0
    assert f" --shared-policy on --init {warm}\n" in capsys.readouterr().out
    known += ["--episodes-per-step", "4", "--samples-per-task", "2", "--coach", COACH, "--steps", "2"]
    assert cli.main([*known, "--shared-policy", "--init", str(warm), "--out", str(run.path)]) == 0
    one, two = (run.checkpoint_path(step) for step in (1, 2))
    for step in (one, two):
        assert len({(step / agent / WEIGHTS).read_bytes() for agent in TEAM}) == 1
    assert (one / TEAM[0] / WEIGHTS).read_bytes() != (two / TEAM[0] / WEIGHTS).read_bytes()
    lines = run.read_metrics()
    assert [lines[0][f"kl/{agent}"] for agent in TEAM] == [0, 0, 0]
    assert len({lines[1][f"kl/{agent}"] for agent in TEAM} - {0, None}) == 3
    for line in lines:
        assert len({line[f"grad_norm/{agent}"] for agent in TEAM}) == 1
        assert line["tokens/trained"] == line["tokens/generated"] > 12

    kept = (two / TEAM[0] / WEIGHTS).read_bytes()
    shutil.rmtree(two)
    assert cli.main(["resume", str(run.path)]) == 0
    assert all((two / agent / WEIGHTS).read_bytes() == kept for agent in TEAM)
    assert [*map(without_seconds, run.read_metrics())] == [*map(without_seconds, lines)]

    assert cli.main(["eval", str(run.path), "--episodes", "1"]) == 0
    assert cli.main(["export", str(run.path), "--format", "hf", "--out", str(tmp_path / "hf")]) == 0
    assert sorted(item.name for item in (tmp_path / "hf").iterdir()) == sorted(TEAM)
