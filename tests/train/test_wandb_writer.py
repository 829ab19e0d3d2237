"""What goes to Weights & Biases; with the real package, offline, where it is installed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from run_fakes import make_run

from mappa_envs.errors import UnavailableError
from mappa_train import wandb_writer
from mappa_train.settings import resolve
from mappa_train.wandb_writer import WandbWriter, check_wandb


def test_a_missing_package_is_said_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_writer, "find_spec", lambda name: None)
    check_wandb(resolve({}))
    with pytest.raises(
        UnavailableError, match="--wandb team: needs wandb, not installed here; pip install wandb"
    ):
        check_wandb(resolve({"wandb": "team"}))


@pytest.mark.slow
def test_a_resumed_run_goes_on_under_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = make_run(tmp_path / "run", wandb="team", coach="llm:x/y", coach_base_url="http://me:secret@here/v1")
    seen = []
    for step in (1, 2):
        if step > 1:
            time.sleep(1.1)  # wandb names the folder of a run by the second
        writer = WandbWriter(run.config(), run)
        seen.append((wandb.run.id, wandb.run.project, wandb.run.name))
        assert "coach_base_url" not in dict(wandb.run.config)
        assert wandb.run.config["steps"] == 3
        writer.write({"step": step, "score/mean": 4.5, "clipfrac/a": None})
        writer.close()
    assert seen[0] == seen[1]
    assert seen[0][1:] == ("team", "run")
    # One file of records for each of the two, which name the figures as they are.
    files = [path.read_bytes() for path in (run.path / "wandb").glob("offline-run-*/*.wandb")]
    assert [b"score/mean" in content for content in files] == [True, True]
    assert not any(word in content for content in files for word in (b"clipfrac/a", b"secret"))
