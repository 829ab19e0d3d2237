"""From a run to a better coach and to data for others: tiny model, sandbox that runs nothing, real TRL."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from test_train_loop import Interrupts, assert_same, final_weights, settings, taste, without_seconds
from tiny import make_model

from mappa_envs import coach
from mappa_envs.coach import CoachRequest, FakeCoach
from mappa_envs.errors import ConfigError
from mappa_envs.sandbox.base import Workspace
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import CoachScore, Episode, Outcome, Task
from mappa_train import cli, team, trainer
from mappa_train.checkpoint import RunFolder
from mappa_train.plan import make_env
from mappa_train.progress import SilentProgress

pytestmark = pytest.mark.slow
LEARNED = {"coach": "partial"}


def judge(request: CoachRequest) -> CoachScore:
    return CoachScore(score=taste(request), reason="a matter of taste", correction="w1 w2 w3")


async def grade(workspace: Workspace, task: Task, episode: Episode) -> Outcome:
    """An outcome that depends on the words alone, since this sandbox runs nothing."""
    text = "".join(turn.action for turn in episode.turns)
    value = hashlib.sha256(text.encode()).digest()[0] / 255
    return Outcome(value=value, success=value > 0.5, code="ok")


@pytest.fixture
def tiny_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: Any, **shared: Any) -> Any:
        env = make_env(*args, **shared)
        monkeypatch.setattr(env, "grade", grade)
        return env

    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: FakeSandbox())
    monkeypatch.setattr(team, "make_env", make)
    monkeypatch.setitem(coach._FACTORIES, "partial", lambda: FakeCoach(judge))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def train(folder: Path, out: Path, **changes: Any) -> RunFolder:
    config = settings(folder, out, **(LEARNED | changes))
    run = RunFolder.create(config)
    trainer.train(config, run, SilentProgress())
    return run


def test_from_a_run_to_a_calibrated_coach_and_to_data(
    folder: Path, tmp_path: Path, tiny_world: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(folder, tmp_path / "first")
    for line in first.read_metrics():
        assert {"coach/outcome_corr", "coach/alarm", "coach/drift/modeler_0"} <= set(line)
        assert line["coach/outcome_corr"] is not None
    out = tmp_path / "c.json"
    assert cli.main(["coach", "fit", str(first.path), "--out", str(out)]) == 0
    learned: dict[str, Any] = {"coach_calibration": str(out), "debias": "task_role"}
    with pytest.raises(ConfigError, match="fitted for coach 'partial', not 'rubric'"):
        make_env(settings(folder, tmp_path / "other", **learned))

    whole = train(folder, tmp_path / "whole", **learned)
    turns = [
        turn
        for line in whole.episodes_path.read_text().splitlines()
        for turn in Episode.from_json(json.dumps(json.loads(line)["episode"])).turns
    ]
    assert all(turn.score and "(Raw score " in turn.score.reason for turn in turns)
    raw = [float(turn.score.reason.split("Raw score ")[1].split(",")[0]) for turn in turns if turn.score]
    assert [turn.final_score for turn in turns] != raw

    cut_settings = settings(folder, tmp_path / "cut", **LEARNED, **learned)
    cut = RunFolder.create(cut_settings)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(cut_settings, cut, Interrupts(1))
    out.unlink()  # the run has its own copy
    trainer.train(cut.config(), cut, SilentProgress(), resume=True)
    assert_same(final_weights(cut, 2), final_weights(whole, 2))
    for a, b in zip(cut.read_metrics(), whole.read_metrics(), strict=True):
        assert without_seconds(a) == without_seconds(b)

    for kind in ("sft", "dpo"):
        assert cli.main(["export", str(first.path), "--format", kind]) == 0
    check_with_trl(folder, first.path, tmp_path)


def check_with_trl(folder: Path, run: Path, scratch: Path) -> None:
    """The files load with `datasets`, and TRL's trainers make batches of them."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
    from trl.data_utils import is_conversational, maybe_apply_chat_template

    tokenizer = AutoTokenizer.from_pretrained(folder, pad_token="<unk>")
    common: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none", "max_length": 4096}
    common |= {"output_dir": str(scratch / "trl"), "per_device_train_batch_size": 2, "max_steps": 1}
    for kind, keys in (("sft", {"messages"}), ("dpo", {"prompt", "chosen", "rejected"})):
        files = sorted((run / f"export-{kind}").glob("*.jsonl"))
        assert len(files) == 3
        names = [str(path) for path in files]
        rows = load_dataset("json", data_files=names, cache_dir=str(scratch / "cache"), split="train")
        counts = json.loads((run / f"export-{kind}" / "metadata.json").read_text())["rows"]
        assert len(rows) == sum(counts.values())
        assert set(rows.column_names) >= keys | {"agent", "task_id", "run"}
        assert is_conversational(rows[0])
        plain = maybe_apply_chat_template(rows[0], tokenizer)
        assert all(isinstance(plain[key], str) for key in keys - {"messages"} or {"text"})
        if kind == "sft":
            trl: Any = SFTTrainer(
                str(folder), SFTConfig(**common), train_dataset=rows, processing_class=tokenizer
            )
        else:
            trl = DPOTrainer(
                str(folder), args=DPOConfig(**common), train_dataset=rows, processing_class=tokenizer
            )
        batch = next(iter(trl.get_train_dataloader()))
        assert batch["input_ids"].numel() > 0
        assert trl.train().global_step == 1
