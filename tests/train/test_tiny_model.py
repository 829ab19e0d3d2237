from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from mappa_envs.actions import extract_code
from mappa_envs.errors import UnavailableError
from mappa_train import cli, model, tiny_model
from mappa_train.checkpoint import RunFolder
from mappa_train.files import file_sha256
from mappa_train.model import load_pretrained
from mappa_train.policies import FullPolicies, LoRAPolicies, load_model
from mappa_train.tokens import ChatTokenizer

WEIGHTS = "model.safetensors"
MADE = "8470e35c344a86d605c7f031c552e711ac2bdbabd23af2f5ffe1969c3694df0c"
"""Digest of revision 1. Where it must change: raise `tiny_model.REVISION`, or caches keep the old model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model.make(made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


def test_it_is_made_alike_every_time_and_of_numbers_that_bf16_holds(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    tiny_model.make(tmp_path / "again")
    assert torch.equal(torch.get_rng_state(), state)
    assert file_sha256(tmp_path / "again" / WEIGHTS) == file_sha256(folder / WEIGHTS)
    weights = load_file(folder / WEIGHTS)
    assert all(torch.equal(value, value.bfloat16().float()) for value in weights.values())
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].numpy().tobytes())
    assert (tiny_model.REVISION, digest.hexdigest()) == (1, MADE)


def test_it_is_kept_in_the_cache_and_made_again_where_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path))
    monkeypatch.setattr(model, "probe_hub", lambda hub_id: pytest.fail("the network was asked"))
    assert model.find_cached("tiny") is None
    first = load_pretrained("tiny")
    assert (first.source, first.sha256) == ("made", file_sha256(first.folder / WEIGHTS))
    assert "learns nothing" in first.description
    assert first.folder.parent == tmp_path / "models"
    assert [item.name for item in first.folder.parent.iterdir()] == [first.folder.name]
    monkeypatch.setattr(tiny_model, "make", lambda folder: pytest.fail("made twice"))
    assert load_pretrained("tiny") == model.find_cached("tiny") == first
    monkeypatch.undo()
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path))
    (first.folder / WEIGHTS).write_bytes(b"torn")
    assert load_pretrained("tiny") == first
    assert file_sha256(first.folder / WEIGHTS) == first.sha256
    monkeypatch.setenv("MAPPA_CACHE", str(first.folder / WEIGHTS))
    with pytest.raises(UnavailableError, match="set MAPPA_CACHE to a folder of yours"):
        load_pretrained("tiny")


@given(st.text() | st.lists(st.sampled_from(["é", "\r\n", "  ", "```py\n", tiny_model.PROGRAM])).map("".join))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back_as_it_was(tokenizer: ChatTokenizer, text: str) -> None:
    ids = tokenizer.encode_action(text)
    assert ids[-1] in tokenizer.stop_ids
    assert tokenizer.decode(ids) == text


def test_the_chat_template_has_all_roles_and_no_forged_turns(tokenizer: ChatTokenizer) -> None:
    said = {"system": "Be brief.", "user": "2 + 2?", "assistant": "4", "tool": f"4{tiny_model.END}\nok"}
    ids = tokenizer.encode([{"role": role, "content": content} for role, content in said.items()])
    assert ids.tolist().count(int(ids[0])) == 5, "four turns, and the one to be written"
    assert ids.tolist().count(tokenizer.stop_ids[0]) == 4
    assert tokenizer.decode(ids) == (
        "system\nBe brief.\nuser\n2 + 2?\nassistant\n4\ntool\n4 \nok\nassistant\n"
    )


def test_the_favoured_tokens_end_messages_and_run_programs(folder: Path, tokenizer: ChatTokenizer) -> None:
    """Each about once in a hundred tokens at the default temperature; the rest is left to chance."""
    prompt = tokenizer.encode([{"role": "user", "content": "Read train.csv and save a model."}])
    with torch.no_grad():
        logits = load_model(folder, torch.float32, torch.device("cpu"))(input_ids=prompt[None]).logits[0]
    chances = (logits[-20:] / 0.5).softmax(-1)
    program = tokenizer.encode_action(tiny_model.PROGRAM)
    assert len(program) == 2
    for token in program.tolist():
        assert bool(((chances[:, token] > 0.003) & (chances[:, token] < 0.1)).all())
    assert float(chances.max()) < 0.2
    assert extract_code(f"noise{tokenizer.decode(program)}noise") == ("print('hello')",)


def test_it_is_a_model_that_both_kinds_of_policies_take(folder: Path) -> None:
    agents = ("a_0", "b_0")
    assert LoRAPolicies(folder, agents, rank=4, alpha=8, seed=0).agents == agents
    assert FullPolicies(folder, agents).agents == agents


@pytest.mark.slow
def test_it_checks_a_whole_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real sandbox, coach and tasks: train, resume, eval and export."""
    monkeypatch.setenv("MAPPA_CACHE", str(tmp_path / "cache"))
    run = RunFolder(tmp_path / "run")
    less = [
        "--episodes-per-step",
        "6",
        "--samples-per-task",
        "3",
        "--max-tasks",
        "2",
        "--max-new-tokens",
        "64",
    ]
    assert cli.main(["--model", "tiny", "--steps", "1", *less, "--out", str(run.path)]) == 0
    assert cli.main(["resume", str(run.path), "--steps", "2"]) == 0
    assert cli.main(["eval", str(run.path), "--episodes", "2"]) == 0
    assert cli.main(["export", str(run.path), "--format", "hf"]) == 0
    assert cli.main(["--dry-run", "--model", "tiny"]) == 0
    assert "# memory:   about" in capsys.readouterr().out
    lines = run.read_metrics()
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["episodes"] == 6 and line["unscored"] == 0 for line in lines)
    assert all(line["tokens/trained"] > 0 for line in lines)
    assert 0 < lines[0]["tool/use"] < 1
    assert (run.path / "eval-test-step-2.json").is_file()
    assert (run.path / "export-hf/step-000002/modeler_0/adapter_model.safetensors").is_file()

    settings_text = run.config_path.read_text()
    assert 'model_source = "made"' in settings_text
    known = load_pretrained("tiny").sha256
    run.config_path.write_text(settings_text.replace(known, "0" * 64))
    assert cli.main(["resume", str(run.path), "--steps", "3"]) == 2
    assert "the run began from other weights (made, sha256 000000000000" in capsys.readouterr().err
