"""Coached actions as data for other trainers: what goes in, in which order, and who can read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_fakes import AGENTS, make_episode, make_rollout, make_run, make_turn
from test_report import EVIL

from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_envs.types import CoachScore, Episode, Message, StopReason, Turn
from mappa_train import cli
from mappa_train.checkpoint import RunFolder
from mappa_train.export import export
from mappa_train.settings import resolve

WRITER, CHECKER = AGENTS
PROMPT = [{"role": "system", "content": "You write."}, {"role": "user", "content": "Task."}]


def act(action: str, score: float | None, correction: str | None = None, agent: str = WRITER) -> Turn:
    turn = make_turn(0, agent, score, action=action)
    verdict = CoachScore(score=score or 0.0, reason="so", correction=correction)
    return replace(turn, score=verdict if score is not None or correction else None)


def write_run(path: Path, turns: list[Turn], **fields: Any) -> RunFolder:
    """One episode for each turn."""
    run = RunFolder.create(resolve({"out": str(path)}))
    episodes = [make_episode(turns=(turn,), **fields) for turn in turns]
    run.append_episodes(1, [make_rollout(k, episode) for k, episode in enumerate(episodes)])
    return run


def rows(folder: Path, agent: str = WRITER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{agent}.jsonl").read_text().splitlines()]


def test_sft_has_good_actions_and_corrections_of_the_others(tmp_path: Path) -> None:
    turns = [
        act("good", 7.0, correction="even better"),
        act("bad", 3.0, correction="mended"),
        act("bad, no help", 3.0),
        act("unscored", None),
        act("good", 9.0),  # the same once more
        act("bad, no words", 3.0, correction="  "),
    ]
    done = export(write_run(tmp_path / "run", turns).path, "sft")
    assert done.rows == {WRITER: 2}
    assert done.folder == tmp_path / "run" / "export-sft"
    first, second = rows(done.folder)
    assert first["messages"] == [*PROMPT, {"role": "assistant", "content": "good"}]
    assert second["messages"][-1] == {"role": "assistant", "content": "mended"}
    known = {name: first[name] for name in ("agent", "task_id", "score", "source", "run", "step", "episode")}
    assert known == {
        "agent": WRITER,
        "task_id": "iris",
        "score": 7.0,
        "source": "action",
        "run": "run",
        "step": 1,
        "episode": 0,
    }
    assert (second["score"], second["source"]) == (3.0, "correction")


OPEN = "```python\nimport pandas as pd\nx ="


def test_a_cut_action_is_not_shown_as_good(tmp_path: Path) -> None:
    turns = [
        replace(act("cut", 9.0), truncated=True),
        replace(act("cut, but mended", 9.0, correction="mended"), truncated=True),
        replace(act("whole", 8.0), truncated=False),
        replace(act("whole, worse", 7.0), truncated=False),
        replace(act(OPEN + " 1", 9.0), truncated=False),  # it says so itself
        act(OPEN, 9.0),  # not on record
    ]
    run = write_run(tmp_path / "run", turns).path
    said = [row["messages"][-1]["content"] for row in rows(export(run, "sft").folder)]
    assert said == ["mended", "whole", "whole, worse", OPEN + " 1"]
    pairs = rows(export(run, "dpo").folder)
    assert [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in pairs] == [
        (OPEN + " 1", "whole, worse"),
        ("mended", "cut, but mended"),
    ]
    alone = write_run(tmp_path / "alone", turns[:1]).path
    with pytest.raises(DataError, match="was not cut by the length limit"):
        export(alone, "sft")


def test_what_was_cut_is_of_no_concern_to_older_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0)])
    text = run.episodes_path.read_text()
    assert text.count('"truncated":null,') == 1
    run.episodes_path.write_text(text.replace('"truncated":null,', ""))
    assert export(run.path, "sft").rows == {WRITER: 1}


def test_min_score_decides_what_is_good(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 2.0), act("b", 5.0), act("c", 8.0)]).path
    assert export(run, "sft", min_score=2, out=tmp_path / "all").rows == {WRITER: 3}
    assert export(run, "sft", min_score=8, out=tmp_path / "best").rows == {WRITER: 1}
    assert export(run, "dpo", min_score=8, out=tmp_path / "pairs").rows == {WRITER: 1}
    with pytest.raises(DataError, match="no action has a score of 9 or more"):
        export(run, "sft", min_score=9)
    with pytest.raises(DataError, match="better one at least 9"):
        export(run, "dpo", min_score=9)
    with pytest.raises(ConfigError, match="--min-score 70"):
        export(run, "sft", min_score=70)


def test_dpo_pairs_the_best_with_the_worst_of_one_prompt(tmp_path: Path) -> None:
    turns = [act(f"action {score}", float(score)) for score in (4, 9, 2, 7, 5)]
    turns.append(replace(act("elsewhere", 1.0), messages=(Message(role="user", content="Another task."),)))
    turns.append(act("another agent", 10.0, agent=CHECKER))
    done = export(write_run(tmp_path / "run", turns).path, "dpo")
    assert done.rows == {CHECKER: 0, WRITER: 2}
    assert not (done.folder / f"{CHECKER}.jsonl").exists()
    pairs = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows(done.folder)]
    assert pairs == [("action 9", "action 2"), ("action 7", "action 4")]
    first = rows(done.folder)[0]
    assert first["prompt"] == PROMPT
    assert first["chosen"] == [{"role": "assistant", "content": "action 9"}]
    assert (first["chosen_score"], first["rejected_score"], first["source"]) == (9.0, 2.0, "scores")


def test_an_action_is_not_preferred_to_itself(tmp_path: Path) -> None:
    same = [act("same", 2.0), act("same", 8.0)]
    with pytest.raises(DataError, match="no two whole actions"):
        export(write_run(tmp_path / "one", same).path, "dpo")
    with pytest.raises(DataError, match="no two whole actions"):
        export(write_run(tmp_path / "even", [act("a", 5.0), act("b", 5.0)]).path, "dpo")
    done = export(write_run(tmp_path / "run", [*same, act("other", 6.0)]).path, "dpo")
    (row,) = rows(done.folder)
    assert (row["chosen_score"], row["rejected_score"]) == (6.0, 5.0)  # the mean of 2 and 8


def test_dpo_prefers_a_correction_to_its_action(tmp_path: Path) -> None:
    turns = [
        act("bad", 3.0, correction="mended"),
        act("told nothing new", 3.0, correction="told nothing new"),
    ]
    done = export(write_run(tmp_path / "run", turns).path, "dpo")
    (row,) = rows(done.folder)
    assert row["chosen"][0]["content"] == "mended"
    assert row["rejected"][0]["content"] == "bad"
    assert (row["chosen_score"], row["rejected_score"], row["source"]) == (10.0, 3.0, "correction")


def test_the_final_score_counts(tmp_path: Path) -> None:
    lowered = replace(act("refuted later", 9.0), final_score=4.0)
    with pytest.raises(DataError, match="nothing to export"):
        export(write_run(tmp_path / "run", [lowered]).path, "sft")


def test_test_tasks_are_exported_only_if_asked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0)], split="test").path
    with pytest.raises(DataError, match="no episodes of train tasks; there are some of test"):
        export(run, "sft")
    done = export(run, "sft", split="test")
    assert done.rows == {WRITER: 1}
    assert json.loads((done.folder / "metadata.json").read_text())["split"] == "test"


def test_episodes_whose_sandbox_failed_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0)], stop_reason=StopReason.INFRA).path
    with pytest.raises(DataError, match="no episodes"):
        export(run, "sft")


def test_the_same_run_gives_the_same_bytes_and_replaces_old_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0), act("b", 2.0, agent=CHECKER)]).path
    export(run, "sft", min_score=1)
    first = {path.name: path.read_bytes() for path in (run / "export-sft").iterdir()}
    export(run, "sft", min_score=1)
    assert {path.name: path.read_bytes() for path in (run / "export-sft").iterdir()} == first
    export(run, "sft")
    assert sorted(path.name for path in (run / "export-sft").iterdir()) == [
        "metadata.json",
        f"{WRITER}.jsonl",
    ]


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    action = EVIL + '"}\n{"messages": []}\r\n\u2028\x00 <|im_end|> ünï'
    run = write_run(tmp_path / "run", [act(action, 9.0)]).path
    (row,) = rows(export(run, "sft").folder)
    assert row["messages"][-1]["content"] == action


def test_an_agents_name_is_no_path(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0, agent="../../evil")]).path
    with pytest.raises(DataError, match="not the name of a file"):
        export(run, "sft")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_damaged_line_is_named_and_a_half_written_one_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0)])
    with run.episodes_path.open("a") as file:
        file.write('{"step": 1, "index": 1, "epi')
    assert export(run.path, "sft").rows == {WRITER: 1}
    with run.episodes_path.open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="line 2: no episode"):
        export(run.path, "sft")


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999"])
def test_a_score_that_is_no_number_is_damage_with_its_place(tmp_path: Path, number: str, kind: str) -> None:
    run = write_run(tmp_path / "run", [act("a", 9.0), act("b", 3.0)])
    text = run.episodes_path.read_text()
    assert text.count('"final_score":3.0') == 1
    run.episodes_path.write_text(text.replace('"final_score":3.0', f'"final_score":{number}'))
    where = r"episodes\.jsonl, line 2: no episode: turns\.0\.final_score: .*finite number"
    with pytest.raises(DataError, match=where):
        export(run.path, kind)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("export run", "required: --format"),
        ("export run --format onnx", "--format onnx: unknown; the formats are sft, dpo, hf"),
        ("export run --format hf", "there is no checkpoint yet"),
        ("export run --format hf --step best", "--step best: no checkpoint was measured on val tasks"),
        ("export run --format hf --step 3", "--step 3: no such checkpoint"),
        ("export run --format hf --min-score 0", "--min-score: does nothing with --format hf"),
        ("export run --format dpo --merged", "--merged: does nothing with --format dpo"),
        ("export run --format sft", "it has no episodes yet"),
        ("export run --format sft --min-score x", "invalid float"),
        ("export run --format sft --split tset", "invalid choice"),
        ("export nowhere --format sft", "no such run folder"),
        ("coach", "required: fit, RUN, --out"),
        ("coach fti run --out c.json", "invalid choice"),
        ("coach fit run", "required: --out"),
        ("coach fit run --out run", "must be a new file"),
        ("coach fit run --out no/c.json", "folder that exists"),
        ("coach fit run --out c.json", "it has no episodes yet"),
        ("coach fit run run --out c.json", "given twice"),
        ("coach fit run other --out c.json", "coach is 'fake', but 'rubric'"),
        ("coach fit mended --out c.json", "calibrated already"),
        ("--coach-calibration none.json", "cannot be read"),
        ("--debias role", "choose one of off, task_role"),
    ],
)
def test_bad_input_is_one_message(
    line: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, settings in (("run", {}), ("other", {"coach": "fake"}), ("mended", {"coach_calibration": "c"})):
        RunFolder.create(resolve({"out": name, **settings}))
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "c.json").exists()


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", steps=1)
    assert cli.main(["export", str(run.path), "--format", "sft", "--out", str(tmp_path / "data")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        f"{CHECKER}: 1 row(s) in {tmp_path / 'data' / CHECKER}.jsonl",
        f"{WRITER}: 0 row(s), no file",
        f"metadata: {tmp_path / 'data' / 'metadata.json'}",
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    (tmp_path / "file").write_text("")
    for out in (run.path, tmp_path / "dangling"):
        with pytest.raises(ConfigError, match="--out"):
            export(run.path, "sft", out=out)
    for out in (tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(UnavailableError, match="cannot be written") as caught:
            export(run.path, "sft", out=out)
        assert "--out" in str(caught.value)


def log_of(num_tasks: int) -> list[Episode]:
    return [
        make_episode(
            (k % 7.0, 10 - k % 7.0), outcome=k % 7 / 6, env_id="dsbench-v0", task_id=f"t{k % num_tasks}"
        )
        for k in range(42)
    ]


def test_coach_fit_writes_a_calibration_and_shows_the_bias(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(resolve({"out": str(tmp_path / "run")}))
    run.append_episodes(1, [make_rollout(k, episode) for k, episode in enumerate(log_of(6))])
    hidden = [replace(episode, split="test", outcome=0.0) for episode in log_of(6)]
    run.append_episodes(2, [make_rollout(k, episode) for k, episode in enumerate(hidden)])
    out = tmp_path / "c.json"
    assert cli.main(["coach", "fit", str(run.path), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "84 scored actions of 42 episodes on 6 tasks" in shown  # nothing of the test tasks
    assert "Bias" in shown
    assert WRITER in shown
    assert f"--coach-calibration {out}" in shown
    table = json.loads(out.read_text())
    assert table["origin"] == {
        "env": "dsbench-v0",
        "coach": "rubric",
        "ground_truth": "final",
        "scoring": "inline",
    }
    assert table["fit"]["after"][WRITER]["value"] > 0.9
