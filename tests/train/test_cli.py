from __future__ import annotations

import errno
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_fakes import AGENTS, make_episode, make_line, make_rollout, make_run
from tiny import make_model

from mappa_envs.dsbench.scores import figures
from mappa_envs.errors import UnavailableError
from mappa_envs.evaluation import EvalResult, EvalTable
from mappa_train import cli, memory, model, run_log
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.memory import Room
from mappa_train.model import LoadedModel
from mappa_train.settings import resolve

LONG = "x" * 300
LOADING = "loading torch and smollm2-135m …\n"
MODEL = LoadedModel(folder=Path("/m"), source="wheel", sha256="ab" * 32, description="a model")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "load_pretrained", lambda name, say=None: MODEL)
    return tmp_path


def set_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = types.ModuleType(f"mappa_train.{name}")
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, f"mappa_train.{name}", module)


def set_trainer(monkeypatch: pytest.MonkeyPatch, train: Callable[..., None]) -> None:
    set_module(monkeypatch, "trainer", train=train)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--lrr 3", "did you mean --lr?"),
        ("trian", "did you mean train?"),
        ("--env dsbench", "did you mean dsbench-v0?"),
        ("--tasks /nope", "there is no such folder or file; correct the path, or give embedded"),
        ("--tasks embeded", "did you mean embedded?"),
        ("--model smollm-135m", "did you mean smollm2-135m?"),
        ("--model tinny", "unknown; did you mean tiny? Give smollm2-135m, tiny, a Hugging Face id"),
        ("--model qwertz", "--model qwertz: unknown; give smollm2-135m"),
        ("--coach rubrik", "did you mean rubric?"),
        ("--sandbox unsafe-local", "isolates nothing"),
        ("--sandbox dcoker", "did you mean docker?"),
        ("--sandbox docker:", "docker:IMAGE"),
        ("--preset gpu", "did you mean single-gpu?"),
        ("--preset ../presets/cpu", "known: cpu"),
        ("--config \0", "NUL character"),
        ("--out a\udcff", r"'a\udcff': must be UTF-8 text"),
        ("--coach llm:x --coach-base-url http://[bad/", "--coach-base-url: no address"),
        ("--init nope", "--init nope: there is no such run folder (also looked in runs/)"),
        (f"--init {LONG}", "cannot be a path (File name too long); give another"),
        (f"--model ./{LONG}", "--model ./xxx"),
        (f"--tasks {LONG}", "--tasks xxx"),
        ("--out ~nobody-here/x", "--out ~nobody-here/x: cannot be a path (Could not determine home"),
        (f"resume {LONG}", "cannot be a path (File name too long)"),
        (f"eval x --json {LONG}", "cannot be a path (File name too long)"),
        ("--steps x", "whole number"),
        ("--lr", "expected one argument"),
        ("--step 3", "did you mean --steps?"),
        ("resume runs/none", "no such run folder"),
        ("resume", "required: RUN"),
        (
            "resume runs/x --lr 1e-4",
            "change its config.toml, or begin a new one from its weights: --init runs/x --lr",
        ),
        ("resume runs/x --lrr 1e-4", "unknown flag --lrr"),
        ("eval x --episodes 0", "whole number from 1"),
        ("eval x --split tset", "did you mean test?"),
        ("sft --data none/at/all", "there is no such file or folder"),
        ("--engine transformers --action-timeout-s 5 --tasks none", "--action-timeout-s 5: with --engine tr"),
        ("eval x --json none/at/all.json", "folder that exists"),
        ("view a b", "unexpected argument b"),
        ("doctor --fix", "unknown flag --fix"),
    ],
)
def test_bad_input_is_one_message_with_a_hint(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not Path("runs").exists()


def test_help_and_mistakes_are_answered_at_once() -> None:
    """Nothing heavy is imported for them, nor on a machine with a GPU."""
    program = (
        "import runpy; from mappa_train import gpu; gpu._has_driver = lambda: True; "
        "runpy.run_module('mappa_train', run_name='__main__')"
    )
    for arguments, code in ((["--help"], 0), (["--init", "nope"], 2)):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", program, *arguments], capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr[-500:]
        imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "mappa_train.cli" in imported
        assert not imported & {"torch", "transformers", "litellm", "pandas"}
        assert "Traceback" not in done.stderr


def test_help_names_one_default_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Default: all learn. --shared-policy" in shown
    assert "http://localhost:8000/v1. Default: none. --coach-timeout-s" in shown
    assert "Default: 'rubric'. --coach-base-url" in shown
    assert "Default: ''" not in shown


def test_what_comes_before_a_run_loads_no_torch() -> None:
    """Commands and settings, and all that a dry run looks at."""
    modules = (
        *("arguments", "begin", "checkpoint", "cli", "coach_fit", "coaching", "config", "engine.choice"),
        *("export", "gpu", "keeping", "launch", "memory", "model", "plan", "report.server", "served"),
        *("settings", "start"),
    )
    lines = "; ".join(f"import mappa_train.{name}" for name in modules)
    probe = (
        f"{lines}; import sys; print([m for m in ('torch', 'transformers', 'litellm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["sft", "eval", "export", "view", "coach", "doctor"])
def test_what_is_for_one_process_refuses_several(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "sft": [],
        "doctor": [],
        "export": ["run", "--format", "hf"],
        "coach": ["fit", "run", "--out", "x"],
    }
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert cli.main([command, *given.get(command, ["run"])]) == 2
    err = capsys.readouterr().err
    assert err.count(f"error: {command}: 2 processes were launched") == 1
    assert "without torchrun" in err


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in shown for name in vars(Config()))
    assert "resume RUN" in shown


def test_a_dry_run_prints_a_config_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--dry-run", "--steps", "3", "--max-tasks=2"]) == 0
    shown = capsys.readouterr().out
    assert not Path("runs").exists()
    assert "# tasks:    2 (" in shown
    assert "data_engineer_0, modeler_0, analyst_0" in shown
    Path("again.toml").write_text(shown)
    assert resolve({}, file=Path("again.toml")) == resolve({"steps": 3, "max_tasks": 2})


def test_a_model_in_a_folder_has_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    for name in (str(folder), "model"):
        assert cli.main(["--dry-run", "--env", "mathchat-v0", "--model", name]) == 0
        shown = capsys.readouterr().out
        assert f"# model:    {name}: the folder {folder}" in shown
        assert "# memory:   of it, in GB: base" in shown


def test_a_plan_that_does_not_fit_is_shown_and_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    folder = str(make_model(tmp_path / "model"))
    monkeypatch.setattr(memory, "measure_room", lambda **_: Room(total=1e12, free=1e6))
    line = ["--env", "mathchat-v0", "--model", folder, "--out", str(tmp_path / "run")]
    assert cli.main([*line, "--dry-run"]) == 3
    shown = capsys.readouterr()
    assert "# memory:   of it, in GB: base" in shown.out
    assert f"# run:      {tmp_path / 'run'}" in shown.out
    assert "only 0.0 GB are free now: wait until" in shown.err
    for command in ([], ["sft"]):
        assert cli.main([*command, *line]) == 3
        assert "only 0.0 GB are free now: wait until" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_a_warm_start_that_runs_out_of_memory_names_its_own_knobs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(config: Config, *, coached: bool) -> None:
        raise MemoryError

    monkeypatch.setattr("mappa_train.team.open_team", no_memory)
    assert cli.main(["sft", "--env", "mathchat-v0"]) == 3
    err = capsys.readouterr().err
    assert "error: out of memory (MemoryError); try" in err
    assert "--token-budget" in err
    assert "--concurrent-episodes" not in err


def test_training_gets_config_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        seen.append((config.steps, run.path, resume))
        run.save(1, {}, {})

    set_trainer(monkeypatch, train)
    assert cli.main(["train", "--steps", "2", "--out", "here"]) == 0
    assert seen == [(2, Path("here"), False)]
    text = Path("here/config.toml").read_text()
    assert 'model_source = "wheel"' in text
    assert cli.main(["--out", "here"]) == 2


def test_a_crash_is_one_line_and_a_traceback_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        raise RuntimeError("shapes \x1b[31m differ\nmore")

    set_trainer(monkeypatch, train)
    assert cli.main(["--out", "here"]) == 1
    err = capsys.readouterr().err
    assert err == f"{LOADING}error: RuntimeError: shapes \ufffd[31m differ (traceback in here/run.log)\n"
    log = Path("here/run.log").read_text()
    assert "Traceback" in log
    assert "\n    raise RuntimeError(" in log
    assert "RuntimeError: shapes \ufffd[31m differ\nmore\n" in log


def test_exit_codes_of_errors_on_purpose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[BaseException] = [
        UnavailableError("no model"),
        OSError(errno.ENOSPC, "No space left"),
        shutil.Error([("a", "b", "[Errno 28] No space left on device")]),
        OSError(errno.EROFS, "Read-only file system", "run3/.lock"),
    ]
    for k, error in enumerate(errors):

        def train(
            config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any, e: Any = error
        ) -> None:
            raise e

        set_trainer(monkeypatch, train)
        assert cli.main(["--out", f"run{k}"]) == 3
    err = capsys.readouterr().err
    assert "error: no model\n" in err
    assert err.count("disk is full") == 2
    assert "error: run3/.lock: Read-only file system; " in err
    assert err.replace(LOADING, "").count("\n") == 4
    assert "Traceback" in Path("run3/run.log").read_text()


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_without_room_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = run_log._File(tmp_path / "run.log")
    handler.setStream(Full()).close()
    handler.handle(logging.makeLogRecord({"msg": "a message"}))
    assert capsys.readouterr().err == ""


def test_a_reader_who_leaves_at_the_end_interrupts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `python -m mappa_train export RUN | true`: the words are still in a buffer when all is done."""

    def done(arguments: list[str], place: cli._Place) -> int:
        place.run = tmp_path
        print("done")
        return 0

    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(cli, "_dispatch", done)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main([]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_stdout_there_is_nothing_to_complain_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `>&-`, and in some services."""
    monkeypatch.setattr(cli, "_dispatch", lambda arguments, place: 0)
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main([]) == 0


@pytest.mark.slow
def test_a_reader_who_leaves_interrupts_the_run() -> None:
    """As in `python -m mappa_train | head -1`: it is neither done (0) nor has it crashed (1)."""
    script = """if True:
        import sys, types
        from mappa_train import cli, model
        def train(config, run, progress, *, resume, ranks):
            (run.checkpoints_path / "step-000001").mkdir(parents=True)
            (run.checkpoints_path / "step-000001" / "manifest.json").touch()
            sys.stdin.readline()
            progress.say("a line")
        model.load_pretrained = lambda name, say=None: model.LoadedModel(
            folder=model.Path("/m"), source="wheel", sha256="ab" * 32, description="a model"
        )
        sys.modules["mappa_train.trainer"] = types.ModuleType("mappa_train.trainer")
        sys.modules["mappa_train.trainer"].train = train
        sys.exit(cli.main(["--out", "here"]))
    """
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        err = process.stderr.read()
    assert process.returncode == 130, err
    loading, interrupted = err.splitlines()
    assert loading.startswith("loading ")
    assert interrupted.startswith("interrupted")
    assert "python -m mappa_train resume here" in interrupted


def test_an_interruption_names_the_way_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        if not resume:
            run.save(1, {}, {})
        raise KeyboardInterrupt

    set_trainer(monkeypatch, train)
    assert cli.main(["--out", "here"]) == 130
    err = capsys.readouterr().err
    assert "here/checkpoints/step-000001" in err
    assert "python -m mappa_train resume here" in err
    assert cli.main(["resume", "here"]) == 130


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_that_end_a_program_are_an_interruption(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = getattr(signal, name)

    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        signal.raise_signal(number)
        raise AssertionError("it goes on")

    set_trainer(monkeypatch, train)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert cli.main(["--out", "here"]) == 130
        signal.signal(number, signal.SIG_IGN)  # as under nohup
        assert cli.main(["--out", "there"]) == 1
    finally:
        signal.signal(number, before)
    err = capsys.readouterr().err
    assert "interrupted before the first checkpoint" in err
    assert "it goes on" in err


def test_an_interruption_before_a_checkpoint_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        raise KeyboardInterrupt

    set_trainer(monkeypatch, train)
    assert cli.main(["--out", "here"]) == 130
    assert "nothing to resume" in capsys.readouterr().err


def test_resuming_checks_what_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(Path("runs/abc"), steps=2)
    assert cli.main(["resume", "abc"]) == 2
    assert "it has no checkpoint" in capsys.readouterr().err
    assert cli.main(["resume", "abd"]) == 2
    assert "did you mean abc?" in capsys.readouterr().err
    run.save(2, {}, {})
    assert cli.main(["resume", "runs/abc"]) == 0
    assert "python -m mappa_train resume runs/abc --steps 4" in capsys.readouterr().out
    assert run.report_path.is_file()
    assert cli.main(["eval", "abc", "--step", "9"]) == 2
    assert "there are those of step 2\n" in capsys.readouterr().err


def test_a_finished_run_is_given_more_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    set_trainer(
        monkeypatch, lambda config, run, progress, *, resume, ranks: seen.append((config.steps, resume))
    )
    make_run(Path("runs/abc"), steps=2).save(2, {}, {})
    for steps, words in (("2", "the run has 2 steps already"), ("x", "whole number from 1")):
        assert cli.main(["resume", "abc", "--steps", steps]) == 2
        assert words in capsys.readouterr().err
    assert cli.main(["resume", "abc", "--steps", "4"]) == 0
    assert seen == [(4, True)]
    assert RunFolder(Path("runs/abc")).config().steps == 4


@pytest.mark.parametrize("settings", [{"schedule": "cosine"}, {"warmup": 0.1}])
def test_a_schedule_over_the_whole_run_allows_no_more_steps(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(Path("runs/abc"), steps=2, **settings)
    run.save(1, {}, {})
    before = run.config_path.read_text()
    assert cli.main(["resume", "abc", "--steps", "4"]) == 2
    assert "the learning rate follows the share of the run" in capsys.readouterr().err
    assert run.config_path.read_text() == before


def test_a_damaged_run_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path("runs/abc"), steps=2)
    (run.save(1, {}, {}) / "manifest.json").write_text("{")
    assert cli.main(["eval", "abc"]) == 2
    assert "manifest.json: damaged" in capsys.readouterr().err
    run.metrics_path.write_text('{"step": 1\n')
    for line in ("view abc", "eval abc --step best"):
        assert cli.main(line.split()) == 2
        err = capsys.readouterr().err
        assert "metrics.jsonl, line 1: damaged" in err
        assert err.count("\n") == 1


def test_other_weights_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(resolve({"out": "here"}), MODEL)
    run.save(1, {}, {})
    other = LoadedModel(folder=Path("/m"), source="hub", sha256="cd" * 32, description="")
    monkeypatch.setattr(model, "load_pretrained", lambda name, say=None: other)
    assert cli.main(["resume", "here"]) == 2
    assert "other weights" in capsys.readouterr().err


def test_a_start_on_other_weights_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter is a policy with its own base alone."""
    team = ("data_engineer_0", "modeler_0", "analyst_0")
    warm = RunFolder.create(resolve({"out": "warm"}), MODEL)
    warm.save(0, {agent: lambda folder: (folder / "weights.safetensors").touch() for agent in team}, {})
    other = LoadedModel(folder=Path("/m"), source="hub", sha256="cd" * 32, description="")
    set_trainer(monkeypatch, lambda *args, **options: None)
    assert cli.main(["--init", "warm", "--out", "here"]) == 0
    monkeypatch.setattr(model, "load_pretrained", lambda name, say=None: other)
    assert cli.main(["--init", "warm/checkpoints/step-000000", "--out", "there"]) == 2
    assert "warm: the run began from other weights" in capsys.readouterr().err
    assert not Path("there").exists()


def test_evaluation_prints_writes_and_shows_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Path("here"), steps=2).save(2, {}, {})
    asked: list[Any] = []

    def evaluate(config: Config, checkpoint: Path, *, split: str, episodes: int, progress: Any) -> Any:
        asked.append((checkpoint.name, split, episodes))
        done = (make_episode(),) * 8
        return EvalResult(episodes=done, table=EvalTable.of(done, figures))

    monkeypatch.setattr("mappa_train.evaluate.evaluate", evaluate)
    assert cli.main(["eval", "here", "--episodes", "8", "--json", "copy.json"]) == 0
    assert asked == [("step-000002", "test", 8)]
    out = capsys.readouterr().out
    assert "100 [68, 100]" in out
    assert "here/eval-test-step-2.json" in out
    assert "copy.json" in out
    written = json.loads(Path("here/eval-test-step-2.json").read_text())
    assert (written["step"], written["split"]) == (2, "test")
    assert written["overall"]["fair_accuracy"] == 0.9
    assert Path("copy.json").read_text() == Path("here/eval-test-step-2.json").read_text()
    assert "Evaluation of step 2 on test tasks" in Path("here/report.html").read_text()


def test_view_once_writes_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path("runs/abc"), steps=2)
    assert cli.main(["view", "abc", "--once"]) == 0
    assert capsys.readouterr().out == f"report: {run.report_path}\n"
    assert "First step against last step" in run.report_path.read_text()


def test_our_warnings_are_shown_and_others_are_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: Config, run: RunFolder, progress: Any, *, resume: bool, ranks: Any) -> None:
        logging.getLogger("mappa_train.x").warning("all [bold]returns[/] are equal")
        logging.getLogger("other").warning("noise\t\x1b]0;title\x07\ud800")
        progress.start(1, AGENTS)
        line = make_line(1, [make_rollout(0)])
        run.append_metrics(line)
        progress.step(line)
        progress.finish(line, line, run.path)

    set_trainer(monkeypatch, train)
    assert cli.main(["--out", "here"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "warning: all [bold]returns[/] are equal\n1 step(s) to go; agents: writer_0, checker_0\nstep 1/1"
    )
    assert "noise" not in shown
    assert "WARNING other: noise\t\ufffd]0;title\ufffd\ufffd\n" in Path("here/run.log").read_text()
    assert json.loads(Path("here/metrics.jsonl").read_text())["step"] == 1
