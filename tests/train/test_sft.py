"""Warm start: who learns what from which actions; and where learning begins and what it stays close to."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import AGENTS, make_config, make_model, make_policies, make_samples, weights

from mappa_envs.coach import FakeCoach, register_coach
from mappa_envs.errors import ConfigError, DataError
from mappa_train import cli
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.learner import Learner
from mappa_train.manifest import verify_files
from mappa_train.packing import Sample
from mappa_train.policies import FullPolicies
from mappa_train.settings import resolve
from mappa_train.sft import Pace, fit, mean_loss, read_examples
from mappa_train.start import copy_start, find_start
from mappa_train.team import WEIGHTS, save_weights
from mappa_train.tokens import ChatTokenizer

TEAM = ("data_engineer_0", "modeler_0", "analyst_0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def some_samples(folder: Path) -> list[Sample]:
    tokenizer = ChatTokenizer(folder)
    return [
        Sample(
            prompt=tokenizer.encode([{"role": "user", "content": f"w{k} w{k + 1}"}]),
            response=tokenizer.encode_action(f"w{k + 2} w{k + 3} w{k + 4}"),
        )
        for k in range(5)
    ]


def test_an_action_ends_with_the_stop_token(folder: Path) -> None:
    tokenizer = ChatTokenizer(folder)
    ids = tokenizer.encode_action("w1 <end> w2")
    assert int(ids[-1]) in tokenizer.stop_ids
    assert not {*ids[:-1].tolist()} & set(tokenizer.stop_ids)
    assert tokenizer.decode(ids) == "w1 w2"


def test_fitting_lowers_the_loss_of_one_agent_alone(folder: Path) -> None:
    policies, samples = make_policies(folder), some_samples(folder)
    others = weights(policies, AGENTS[1])
    before = mean_loss(policies, AGENTS[0], samples, 64)
    fit(policies, AGENTS[0], samples, make_config(epochs=8, lr=1e-2))
    after = mean_loss(policies, AGENTS[0], samples, 64)
    assert before is not None
    assert after is not None
    assert after < 0.7 * before
    assert torch.equal(weights(policies, AGENTS[1]), others)


def test_fitting_repeats_itself_and_ignores_the_token_budget(folder: Path) -> None:
    """Packs are only how the batch is computed: the update is that of the whole batch."""
    found = []
    for budget in (64, 64, 4096):
        policies = make_policies(folder)
        fit(policies, AGENTS[0], some_samples(folder), make_config(epochs=2, lr=1e-3, token_budget=budget))
        found.append(weights(policies, AGENTS[0]))
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], atol=2e-4, rtol=0)


@pytest.mark.parametrize("policy", ["lora", "full"])
def test_the_start_is_the_reference(folder: Path, policy: str) -> None:
    """KL is 0 where learning begins, and grows from there; the reference stays where it is."""
    policies = make_policies(folder) if policy == "lora" else FullPolicies(folder, AGENTS)
    fit(policies, AGENTS[0], some_samples(folder), make_config(epochs=2, lr=1e-2))
    policies.freeze_reference()
    learner = Learner(policies, make_config(lr=1e-2, policy=policy))
    first, _ = learner.update(make_samples(policies, [0.1, 0.9, 0.4, 0.6]))
    assert {agent: update.kl for agent, update in first.items()} == dict.fromkeys(AGENTS, 0.0)
    second, _ = learner.update(make_samples(policies, [0.1, 0.9, 0.4, 0.6], version=1))
    assert all(update.kl != 0 for update in second.values())


def row(content: str = "x", role: str = "user", action: str = "x", agent: str = "a_0") -> str:
    chat = [{"role": role, "content": content}, {"role": "assistant", "content": action}]
    return json.dumps({"agent": agent, "messages": chat})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "needs `agent`"),
        ('{"agent": "writer_0"}', "needs `agent`"),
        ('{"agent": "writer_0", "messages": [{"role": "user"}]}', "needs `agent`"),
        ('{"agent": "a_0", "messages": [{"role": "user", "content": "x"}]}', "the last of the messages"),
        ("[" * 100_000, "needs `agent`"),
        (row(content="\ud800"), "surrogate"),
        (row().replace('"content": "x"', '"content": null'), "content must be a text"),
        (row(role="system<end>"), "must be one of assistant, system, tool, user"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f"{row()}\n\n{line}\n")
    with pytest.raises(DataError, match=words) as error:
        read_examples(path)
    assert "line 3" in str(error.value)


def test_a_line_ends_at_its_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    chat = [{"role": "user", "content": "a\u2028b"}, {"role": "assistant", "content": "c\x85d"}]
    text = json.dumps({"agent": "a_0", "messages": chat}, ensure_ascii=False)
    path.write_bytes(f"\ufeff{text}\r\n{row()}\r\n".encode())
    first, second = read_examples(path)
    assert (first.messages[0]["content"], first.action, second.action) == ("a\u2028b", "c\x85d", "x")
    assert second.where.endswith("line 2")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(agent="stranger_0")], "stranger_0, who is not in the team"),
        ([row(agent="modeler_0")], "nothing to learn from for data_engineer_0"),
        (
            [row(agent=agent, action="w1 " * 20_000) for agent in TEAM],
            "line 1: the action of data_engineer_0",
        ),
    ],
)
def test_data_that_cannot_be_learned_from_leave_no_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str], words: str
) -> None:
    data, out = tmp_path / "some.jsonl", tmp_path / "warm"
    data.write_text("\n".join(rows))
    given = ["--data", str(data), "--model", str(folder), "--lora-rank", "4", "--out", str(out)]
    assert cli.main(["sft", *given]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_the_pace_is_told_at_the_end_of_each_pass(folder: Path) -> None:
    policies, samples, said = make_policies(folder), some_samples(folder), list[str]()
    total = 2 * sum(len(sample.prompt) + len(sample.response) for sample in samples)
    fit(policies, AGENTS[0], samples, make_config(epochs=2), Pace(total, said.append))
    assert f"{total} tokens" in said[0]
    assert said[1].startswith(f"{AGENTS[0]}, pass 1 of 2: {total // 2}/{total} tokens, ")
    assert said[2].startswith(f"{AGENTS[0]}, pass 2 of 2: {total}/{total} tokens, ")
    assert said[2].endswith("about 0s left")


def test_a_folder_of_exported_actions_is_read(tmp_path: Path) -> None:
    for agent in AGENTS:
        chat = [{"role": role, "content": f"{role} of {agent}"} for role in ("system", "user", "assistant")]
        row = {"messages": chat, "agent": agent, "score": 9.0, "source": "action"}
        (tmp_path / f"{agent}.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "metadata.json").write_text("{}")
    found = read_examples(tmp_path)
    assert [item.agent for item in found] == sorted(AGENTS)
    assert found[0].action == f"assistant of {found[0].agent}"
    assert [message["role"] for message in found[0].messages] == ["system", "user"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl file"):
        read_examples(tmp_path / "empty")


def made(folder: Path, out: Path, **changes: Any) -> tuple[Config, RunFolder]:
    config = resolve({"model": str(folder), "out": str(out), "lora_rank": 4, "lora_alpha": 8} | changes)
    return config, RunFolder.create(config)


def test_a_start_is_found_checked_and_copied(folder: Path, tmp_path: Path) -> None:
    _, warm = made(folder, tmp_path / "warm")
    policies = make_policies(folder)
    save_weights(warm, 0, policies, {})
    for given in (warm.path, warm.checkpoint_path(0)):
        config, run = made(folder, tmp_path / f"run-{given.name}", init=str(given))
        start = find_start(config, AGENTS)
        assert start == warm.checkpoint_path(0)
        assert start is not None
        copy_start(start, AGENTS, run)
        for agent in AGENTS:
            kept = load_file(run.start_path / agent / WEIGHTS)
            assert all(torch.equal(kept[name], value) for name, value in policies.state(agent).items())
    assert find_start(resolve({}), AGENTS) is None


@pytest.mark.parametrize(
    ("changes", "agents", "words"),
    [
        ({"lora_rank": 8}, AGENTS, "--lora-rank 4"),
        ({"policy": "full"}, AGENTS, "--policy lora"),
        ({"model": "smollm2-135m"}, AGENTS, "--model"),
        ({}, ("stranger_0",), "no weights of stranger_0"),
    ],
)
def test_a_start_that_does_not_fit_is_named(
    folder: Path, tmp_path: Path, changes: dict[str, Any], agents: tuple[str, ...], words: str
) -> None:
    _, warm = made(folder, tmp_path / "warm")
    save_weights(warm, 0, make_policies(folder), {})
    known: dict[str, Any] = {"model": str(folder), "init": str(warm.path)}
    if changes.get("policy") != "full":
        known |= {"lora_rank": 4, "lora_alpha": 8}
    with pytest.raises(ConfigError, match=words):
        find_start(resolve(known | changes), agents)


def test_a_start_without_a_checkpoint_is_named(folder: Path, tmp_path: Path) -> None:
    _, empty = made(folder, tmp_path / "empty")
    with pytest.raises(ConfigError, match="no checkpoint to begin from"):
        find_start(resolve({"init": str(empty.path)}), AGENTS)
    with pytest.raises(ConfigError, match=r"--init .*: there is no such run folder"):
        find_start(resolve({"init": str(tmp_path / "nowhere")}), AGENTS)


def test_a_damaged_start_is_refused(folder: Path, tmp_path: Path) -> None:
    _, warm = made(folder, tmp_path / "warm")
    save_weights(warm, 0, make_policies(folder), {})
    config, run = made(folder, tmp_path / "run", init=str(warm.path))
    copy_start(warm.checkpoint_path(0), AGENTS, run)
    assert verify_files(run.start_path, "") == list(AGENTS)
    for kept in (warm.checkpoint_path(0), run.start_path):
        weights_file = kept / AGENTS[0] / WEIGHTS
        content = bytearray(weights_file.read_bytes())
        content[-1] ^= 1
        weights_file.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        verify_files(run.start_path, "begin again")
    with pytest.raises(DataError, match="damaged or missing; --init"):
        find_start(config, AGENTS)


@pytest.mark.slow
def test_learning_begins_at_a_warm_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/export.md, with the real sandbox and expert and a tiny model."""
    register_coach("words", lambda: FakeCoach(lambda request: len(request.turn.action) * 37 % 101 / 10))
    same = ["--model", str(folder), "--max-tasks", "2", "--max-new-tokens", "16", "--lora-rank", "4"]
    warm, run = tmp_path / "warm", tmp_path / "run"
    assert cli.main(["sft", *same, "--epochs", "3", "--lr", "1e-2", "--out", str(warm)]) == 0
    said = capsys.readouterr()
    assert f"python -m mappa_train {shlex.join(same)} --init {warm}\n" in said.out
    assert f"run {warm}: {folder} on " in said.err
    assert "100 % of the actions are longer" in said.out
    figures = json.loads((warm / "sft.json").read_text())
    assert sorted(figures) == ["analyst_0", "data_engineer_0", "modeler_0"]
    assert all(agent["after"] < agent["before"] for agent in figures.values())
    assert all(agent["val_after"] is not None for agent in figures.values())

    short = ["--episodes-per-step", "4", "--steps", "2", "--samples-per-task", "2", "--coach", "words"]
    assert cli.main([*same, *short, "--init", str(warm), "--out", str(run)]) == 0
    shutil.rmtree(warm)
    lines = RunFolder.open(run).read_metrics()
    assert [lines[0][f"kl/{agent}"] for agent in figures] == [0, 0, 0]
    assert all(lines[1][f"kl/{agent}"] != 0 for agent in figures)
    started, trained = (
        load_file(path / "modeler_0" / WEIGHTS) for path in (run / "start", run / "checkpoints/step-000002")
    )
    assert any(bool(value.abs().sum()) for name, value in started.items() if "lora_B" in name)
    assert any(not torch.equal(started[name], trained[name]) for name in started)

    shutil.rmtree(run / "checkpoints/step-000002")
    assert cli.main(["resume", str(run)]) == 0
    again = load_file(run / "checkpoints/step-000002/modeler_0" / WEIGHTS)
    assert all(torch.equal(again[name], value) for name, value in trained.items())
    assert cli.main(["resume", str(run)]) == 0


@pytest.mark.slow
def test_tasks_of_ones_own_need_no_val_among_them(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, warm = tmp_path / "tasks" / "houses", tmp_path / "warm"
    task.mkdir(parents=True)
    (task / "task.toml").write_text('metric = "rmse"\nid = "id"\ntargets = ["price"]\n')
    (task / "train.csv").write_text("id,rooms,price\n1,3,100\n2,2,90\n3,4,120\n")
    (task / "test.csv").write_text("id,rooms\n4,3\n5,2\n")
    (task / "answers.csv").write_text("id,price\n4,95\n5,80\n")
    same = ["--model", str(folder), "--max-new-tokens", "16", "--lora-rank", "4"]
    assert cli.main(["sft", *same, "--tasks", str(task.parent), "--epochs", "1", "--out", str(warm)]) == 0
    assert "nothing is measured beside what is learned" in caplog.text
    figures = json.loads((warm / "sft.json").read_text())
    assert {agent["val_after"] for agent in figures.values()} == {None}
    assert all(agent["num_examples"] == 1 for agent in figures.values())


def test_a_warm_start_is_not_resumed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, warm = made(folder, tmp_path / "warm")
    save_weights(warm, 0, make_policies(folder), {})
    assert cli.main(["resume", str(warm.path)]) == 2
    assert "--init" in capsys.readouterr().err
