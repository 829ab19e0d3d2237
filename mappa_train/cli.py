"""The command line. Arguments are checked before torch is imported: a typing error is answered at once.

Exit codes: 0 done, 1 findings of doctor or a crash, 2 bad input, 3 this machine lacks something,
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from mappa_envs.errors import ConfigError, MappaError, UnavailableError, install_hint
from mappa_train.arguments import learn_from, parse
from mappa_train.config import Config, did_you_mean, field_types
from mappa_train.files import disk_fault, user_path
from mappa_train.launch import check_launched, launch, num_launched, to_go_on
from mappa_train.run_log import harmless, log_to, log_traceback
from mappa_train.settings import resolve

if TYPE_CHECKING:
    from mappa_train.checkpoint import RunFolder
    from mappa_train.distributed import Ranks

_SOURCES = {
    "dsbench-v0": ("embedded", "dsbench"),
    "mathchat-v0": ("embedded", "aime", "amc", "math500", "gsm8k"),
}
_NEEDED = ("torch", "transformers", "peft", "torchrl", "tensordict", "safetensors", "tensorboard")


@dataclasses.dataclass
class _Place:
    """Where and by whom a crash or an interruption is reported; filled in when there is a run folder.

    Not `learns`: what is done with the run leaves nothing half done in it.
    """

    arguments: Sequence[str]
    run: Path | None = None
    learns: bool = True
    ranks: Ranks | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the processes that a launcher started, or the only one."""
        return os.environ.get("RANK", "0") == "0"

    def join(self) -> Ranks:
        """The ranks that a launcher started; from now on, the first of them to fail says so, alone."""
        from mappa_train.distributed import join

        self.ranks = join()
        return self.ranks

    def speaks(self, error: Exception) -> bool:
        """Whether this process is the one that tells of an error."""
        if self.ranks is None:
            return self.is_first
        return self.ranks.speaks(error)


def main(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    place = _Place(arguments)
    _take_signals()
    try:
        code = _dispatch(list(arguments), place)
        place.learns = False  # all is done: whoever leaves now interrupts nothing
        print(end="", flush=True)  # not stdout.flush(): a service may have no stdout
        return code
    except MappaError as error:
        if place.speaks(error):
            _say(f"error: {error}")
        log_traceback(place.run, always=False)
        return error.exit_code
    except KeyboardInterrupt:
        if num_launched() == 1:  # of several processes, the launcher says it
            with contextlib.suppress(OSError):  # the terminal may be gone
                _say(_interrupted(place))
        return 130
    except (BrokenPipeError, SystemExit) as error:
        if not any(isinstance(item, BrokenPipeError) for item in (error, error.__context__)):
            raise
        # Whoever read our words has left: where something is learned, that is an interruption.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second complaint at exit
        if place.run is None or not place.learns:
            return 0
        with contextlib.suppress(OSError):
            _say(_interrupted(place))
        return 130
    # The last resort: a user gets one line and a file to send, whatever went wrong.
    except Exception as error:  # noqa: BLE001
        if not place.speaks(error):
            log_traceback(place.run, always=False)
            return 1
        if (fault := disk_fault(error)) is not None:
            _say(f"error: {fault}, then try again")
            log_traceback(place.run, always=False)
            return 3
        kind, words = type(error).__name__, (str(error).splitlines() or [""])[0]
        _say(f"error: {kind}: {words} (traceback in {log_traceback(place.run, always=True)})")
        return 1


def _take_signals() -> None:
    """What schedulers send, and what a terminal that is closed does, is the same as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, signal.default_int_handler)


def _say(message: str) -> None:
    # An error may quote a file or a model's text.
    print(harmless(message), file=sys.stderr, flush=True)


def _interrupted(place: _Place) -> str:
    from mappa_train.checkpoint import RunFolder

    if place.run is None or not place.learns:
        return "interrupted"
    latest = RunFolder(place.run).latest()
    if latest is None:
        return f"interrupted before the first checkpoint; {place.run} holds nothing to resume"
    folder = place.run / "checkpoints" / f"step-{latest:06d}"
    command = f"python -m mappa_train resume {place.run}"
    return f"interrupted; the last checkpoint is {folder}. Continue with: {command}"


def _dispatch(arguments: list[str], place: _Place) -> int:
    from mappa_train.checkpoint import find_run

    command, options = parse(arguments)
    if command == "train":
        return _train(options, place)
    if command == "resume":
        return _resume(options, place)
    if num_launched() > 1:
        raise ConfigError(
            f"{command}: {num_launched()} processes were launched, and all would do the same work and write "
            f"the same files; start it without torchrun: python -m mappa_train {command} …"
        )
    if command == "sft":
        return _sft(options, place)
    if command == "eval":
        return _eval(options, place)
    if command == "view":
        from mappa_train.report import server

        return server.run_command(find_run(options.run), options, lambda line: print(line, flush=True))
    if command == "export":
        from mappa_train import export

        if options.format == "hf":
            _check_packages()
        return export.run_command(find_run(options.run), options)
    if command == "coach":
        from mappa_train import coach_fit

        return coach_fit.run_command([find_run(name) for name in options.runs], options.out)
    from mappa_train import doctor

    return doctor.main(_settings(options))


def _settings(options: argparse.Namespace) -> Config:
    names = {item.name for item in dataclasses.fields(Config)}
    given = {name: value for name, value in vars(options).items() if name in names}
    launched = num_launched()
    if launched > 1:
        check_launched(given.setdefault("learners_per_agent", launched))
    return resolve(given, preset=options.preset, file=options.config)


def _check_names(config: Config) -> None:
    """What names something outside the settings; none of it needs torch."""
    from mappa_envs import list_envs
    from mappa_train.checkpoint import planned_path
    from mappa_train.coaching import open_coach
    from mappa_train.model import check_name

    if config.env not in list_envs():
        hint = did_you_mean(config.env, list_envs())
        raise ConfigError(f"--env {config.env}: unknown{hint}; known: {', '.join(list_envs())}")
    try:
        open_coach(config)
    except ConfigError as error:
        named = ":" in config.coach or config.coach in ("rubric", "fake")
        hint = "" if named else did_you_mean(config.coach, ("rubric", "fake"))
        raise ConfigError(f"{error}{hint}") from error
    check_name(config.model)
    planned_path(config)
    known = _SOURCES[config.env]
    if config.tasks not in known and not user_path(config.tasks, "--tasks").exists():
        if os.sep in config.tasks or Path(config.tasks).suffix:
            raise ConfigError(
                f"--tasks {config.tasks}: there is no such folder or file; correct the path, "
                f"or give {', '.join(known)}"
            )
        hint = did_you_mean(config.tasks, known)
        raise ConfigError(
            f"--tasks {config.tasks}: unknown{hint}; give {', '.join(known)}, or a path of tasks of your own"
        )


def _check_packages() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"training needs {', '.join(missing)}, not installed here; {install_hint('train')}"
        )


def _train(options: argparse.Namespace, place: _Place) -> int:
    config = _settings(options)
    _check_names(config)
    if options.dry_run:
        from mappa_train.plan import print_plan

        if place.is_first:
            print_plan(config)
        return 0
    _check_packages()
    from mappa_train.checkpoint import planned_path

    if config.learners_per_agent > num_launched():
        place.run = planned_path(config)
        return launch(config.learners_per_agent, [*place.arguments, "--out", str(place.run)])
    run, ranks = _begin(config, place)
    place.run = run.path
    return _run(config, run, ranks, resume=False)


def _begin(config: Config, place: _Place) -> tuple[RunFolder, Ranks]:
    """The new run folder, which the first of several processes makes for all."""
    from mappa_train.begin import begin_run
    from mappa_train.checkpoint import RunFolder

    if num_launched() == 1:  # before torch is imported: a mistake is answered at once
        return begin_run(config, _say), place.join()
    ranks = place.join()
    run = begin_run(config, _say) if ranks.is_first else None
    path = ranks.share(lambda: run.path if run else Path())
    return run or RunFolder.open(path), ranks


def _sft(options: argparse.Namespace, place: _Place) -> int:
    from mappa_train.begin import say_loading
    from mappa_train.checkpoint import RunFolder, planned_path

    config = _settings(options)
    config = dataclasses.replace(config, out=str(planned_path(config, kind="sft-")))
    _check_names(config)
    _check_packages()
    say_loading(config, _say)
    from contextlib import closing

    from rich.console import Console

    from mappa_train import sft
    from mappa_train.memory import check_memory, out_of_memory
    from mappa_train.model import load_pretrained
    from mappa_train.plan import make_env
    from mappa_train.policies import pick_device
    from mappa_train.team import open_team

    examples = [example for path in options.data for example in sft.read_examples(path)]
    model = load_pretrained(config.model, say=_say)
    team_size = len(make_env(config, coach=None).possible_agents)
    check_memory(config, model.folder, team_size, warm_start=True)
    with out_of_memory(config, warm_start=True), closing(open_team(config, coached=False)) as team:
        # Data that cannot be learned from must not leave a run folder behind.
        lessons = sft.prepare(config, team, examples, say=_say)
        run = RunFolder.create(config, model)
        place.run = run.path
        _say(f"run {run.path}: {config.model} on {pick_device()}")
        console = Console(highlight=False)
        log_to(run.log_path, console)
        results = sft.warm_start(config, run, team.policies, lessons, say=_say)
    console.print(sft.table(results))
    print(f"begin learning from it with: {learn_from(run.path, options)}")
    return 0


def _resume(options: argparse.Namespace, place: _Place) -> int:
    from mappa_train.checkpoint import RunFolder, find_run
    from mappa_train.keeping import put_in_order
    from mappa_train.schedule import extended

    run = RunFolder.open(find_run(options.run))
    config = run.config()
    latest = run.latest()
    if latest is None:
        raise ConfigError(f"{run.path}: it has no checkpoint, so there is nothing to resume; start again")
    if latest == 0:
        raise ConfigError(f"{run.path}: a warm start; begin learning from it with --init {run.path}")
    if options.steps is not None:
        config = extended(config, options.steps, latest)
    if latest >= config.steps:
        if place.is_first:
            put_in_order(run, config.keep_checkpoints)
        print(
            f"{run.path} has finished its {config.steps} steps; there is nothing left to do. To go on: "
            f"python -m mappa_train resume {run.path} --steps {2 * config.steps}"
        )
        return 0
    _check_packages()
    config = to_go_on(config, vars(options))
    place.run = run.path
    if config.learners_per_agent > num_launched():
        return launch(config.learners_per_agent, place.arguments)
    from mappa_train.begin import go_on, say_loading

    if place.is_first:
        say_loading(config, _say)
    ranks = place.join()
    if ranks.is_first:
        go_on(config, run, options.steps, _say)
    ranks.meet("the start")
    return _run(config, run, ranks, resume=True)


def _run(config: Config, run: RunFolder, ranks: Ranks, *, resume: bool) -> int:
    from rich.console import Console

    from mappa_train.progress import SilentProgress, make_progress

    console = Console(highlight=False, quiet=not ranks.is_first)
    log_to(run.log_path, console, "" if ranks.size == 1 else f"rank {ranks.rank} ")
    progress = make_progress(console) if ranks.is_first else SilentProgress()
    try:
        from mappa_train.memory import out_of_memory
        from mappa_train.trainer import train

        with out_of_memory(config):
            train(config, run, progress, resume=resume, ranks=ranks)
    finally:
        progress.stop()
    ranks.close()
    return 0


def _eval(options: argparse.Namespace, place: _Place) -> int:
    from mappa_train import served
    from mappa_train.checkpoint import RunFolder, find_run
    from mappa_train.keeping import pick_step

    splits = get_args(field_types()["split"])
    if options.split not in splits:
        hint = did_you_mean(options.split, splits)
        raise ConfigError(f"--split {options.split}: choose one of {', '.join(splits)}{hint}")
    if served.is_meant(options):
        config = _settings(options)
        _check_names(config)
        return served.run_command(config, options)
    run = RunFolder.open(find_run(options.run))
    config = run.config()
    step = pick_step(run, options.step)
    run.read_metrics()  # the report needs them: damage is told before the episodes are played
    _check_packages()
    from rich.console import Console

    from mappa_train.evaluate import evaluate, keep_figures
    from mappa_train.model import load_pretrained
    from mappa_train.progress import PlainProgress
    from mappa_train.report import write_report

    run.check_model(load_pretrained(config.model, say=_say))
    checkpoint = run.load(step)
    console = Console(highlight=False)
    log_to(run.log_path, console)
    place.run, place.learns = run.path, False
    progress = PlainProgress(console)
    try:
        result = evaluate(
            config, checkpoint.folder, split=options.split, episodes=options.episodes, progress=progress
        )
    finally:
        progress.stop()
    console.print(f"step {checkpoint.step}, {options.split} tasks", result.table)
    for path in keep_figures(run.path, checkpoint.step, options.split, result.table, options.json):
        print(f"figures: {path}")
    print(f"report:  {write_report(run.path)}")
    return 0
