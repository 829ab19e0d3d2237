"""What each command takes on the command line. Nothing here imports torch."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

from mappa_envs.errors import ConfigError
from mappa_train.config import COACH_OPTIONS, Config, did_you_mean, field_types
from mappa_train.files import user_path
from mappa_train.launch import OF_MACHINES
from mappa_train.settings import PRESETS

_EPILOG = """commands (default: train):
  train              start a run
  sft                warm start: imitate the scripted expert, or given actions, before learning (--init)
  resume RUN         continue a run from its newest checkpoint
  eval RUN           measure a checkpoint on tasks that were not trained on
  view RUN           the report in the browser, while the run goes on, too
  export RUN         actions as data for fine-tuning (--format sft or dpo), or the weights (hf)
  coach fit RUN ...  calibrate a coach on the outcomes of runs
  doctor             what works on this machine, and what to do about the rest

`python -m mappa_train COMMAND --help` tells more."""


_SFT_SETTINGS = (
    *("env", "tasks", "split", "max_tasks", "model", "policy", "lora_rank", "lora_alpha", "sandbox", "seed"),
    "shared_policy",
    *("max_actions", "prompt_style", "visibility", "handover", "max_new_tokens", "token_budget", "out"),
    *("lr", "weight_decay", "max_grad_norm", "epochs", "gradient_checkpointing"),
)


_OF_FITTING = ("out", "seed", "lr", "weight_decay", "max_grad_norm", "epochs")
"""Those of them that say how a warm start is learned and where it goes: a run from it need not share them."""


class Parser(argparse.ArgumentParser):
    """Raises `ConfigError` on bad input instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see: {self.prog} --help")


def parse(arguments: list[str]) -> tuple[str, argparse.Namespace]:
    """The command and its options; a command line without one trains. Raises `ConfigError`."""
    if bad := [item for item in arguments if "\0" in item or item.encode(errors="ignore").decode() != item]:
        raise ConfigError(f"{bad[0]!r}: must be UTF-8 text without a NUL character")
    command = "train"
    if arguments and not arguments[0].startswith("-"):
        command = arguments.pop(0)
        if command not in COMMANDS:
            hint = did_you_mean(command, COMMANDS)
            raise ConfigError(f"unknown command {command!r}{hint}; the commands are {', '.join(COMMANDS)}")
    parser = make_parser(command)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        known = [flag for action in parser._actions for flag in action.option_strings]
        hint = did_you_mean(rest[0].split("=")[0], known)
        what = "unknown flag" if rest[0].startswith("-") else "unexpected argument"
        if command == "resume" and _is_setting(rest[0]):
            flag = rest[0].split("=")[0]
            raise ConfigError(
                f"{what} {flag}: a run goes on with the settings that it has; change its config.toml, or "
                f"begin a new one from its weights: --init {options.run} {flag} …"
            )
        raise ConfigError(f"{what} {rest[0]}{hint}; see: {parser.prog} --help")
    return command, options


def _is_setting(word: str) -> bool:
    return word.startswith("--") and word[2:].split("=")[0].replace("-", "_") in field_types()


def make_parser(command: str) -> Parser:
    """The parser of one of `COMMANDS`."""
    if command == "train":
        return _train_parser()
    description, add_arguments = _COMMANDS[command]
    parser = Parser(prog=f"python -m mappa_train {command}", description=description, allow_abbrev=False)
    add_arguments(parser)
    return parser


def _train_parser() -> Parser:
    parser = Parser(
        prog="python -m mappa_train",
        description="Train a team of language-model agents with a coach that scores every action.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--preset", help="start from a preset: " + ", ".join(_presets()))
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file of settings, as config.toml of a run"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show settings and plan; train nothing, write nothing"
    )
    _add_settings(parser, lambda name: True)
    return parser


def _add_sft(parser: Parser) -> None:
    parser.add_argument(
        "--data",
        type=_existing,
        action="append",
        default=[],
        metavar="PATH",
        help="imitate these actions, not the expert's: a file or folder of `export`; may be repeated",
    )
    _add_some_settings(parser, lambda name: name in _SFT_SETTINGS)


def learn_from(warm_start: Path, options: argparse.Namespace) -> str:
    """The command for a run that begins from a warm start made with these options."""
    given = {name: value for name, value in vars(options).items() if name in _SFT_SETTINGS}
    words = ["python", "-m", "mappa_train"]
    for name, value in given.items():
        if name not in _OF_FITTING:
            words += ["--" + name.replace("_", "-"), value]
    return shlex.join([*words, "--init", str(warm_start)])


def _add_resume(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="train up to step N instead of the number that the run was begun with",
    )
    parser.add_argument(
        "--learners-per-agent",
        type=count,
        metavar="N",
        help="go on in so many processes, instead of the number that the run was begun with",
    )
    others = set(OF_MACHINES) - {"learners_per_agent"}
    _add_settings(parser, lambda name: name in others, without="Left out, it is as when the run began.")


def _add_eval(parser: Parser) -> None:
    from mappa_train import served

    parser.add_argument("run", metavar="RUN", nargs="?", help="the run folder; none with --engine")
    add_step(parser)
    parser.add_argument(
        "--split", default="test", help="the tasks to measure on: train, val or test (default)"
    )
    parser.add_argument("--episodes", type=count, default=64, metavar="N", help="how many; default 64")
    parser.add_argument(
        "--json",
        type=_new_file,
        metavar="FILE",
        help="write the figures here, too; they are always in RUN",
    )
    served.add_arguments(parser)
    _add_some_settings(parser, lambda name: name in served.SETTINGS)


def _add_view(parser: Parser) -> None:
    from mappa_train.report import server

    parser.add_argument("run", metavar="RUN", help="the run folder")
    server.add_arguments(parser)


def _add_export(parser: Parser) -> None:
    from mappa_train import export

    parser.add_argument("run", metavar="RUN", help="the run folder")
    export.add_arguments(parser)


def _add_coach(parser: Parser) -> None:
    from mappa_train import coach_fit

    coach_fit.add_arguments(parser)


def _add_doctor(parser: Parser) -> None:
    _add_some_settings(parser, lambda name: name == "coach" or name.removeprefix("coach_") in COACH_OPTIONS)


_COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "sft": (
        "Fine-tune every agent on the scripted expert's actions, or on those of --data: where a run can "
        "begin (--init). Give both commands the same model, prompt and length settings.",
        _add_sft,
    ),
    "resume": ("Continue a run from its newest checkpoint.", _add_resume),
    "eval": (
        "Measure a checkpoint of a run: whole pipelines, without learning and without a coach. The figures "
        "are printed, written to RUN/eval-<split>-step-<N>.json and shown in RUN/report.html.",
        _add_eval,
    ),
    "view": (
        "Serve a run's report at an address of this machine, also while the run goes on, and open it in the "
        "browser where there is one.",
        _add_view,
    ),
    "export": (
        "Write a run's actions as training data for other tools, or its agents' weights.",
        _add_export,
    ),
    "coach": (
        "Fit a calibration of the runs' coach: what its scores proved to be worth in outcomes. Tables show "
        "its bias, and the correlation with the outcome before and after.",
        _add_coach,
    ),
    "doctor": (
        "Try out what a run needs: sandbox, model, coach, GPU, disk. Exit 1 if something is amiss.",
        _add_doctor,
    ),
}
"""What each command but `train` says of itself, and who adds its arguments."""
COMMANDS = ("train", *_COMMANDS)


def add_step(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--step`, as `keeping.pick_step` takes it."""
    parser.add_argument(
        "--step",
        metavar="N",
        help="the checkpoint of this step, or `best`: the best on val tasks; default: the newest",
    )


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1")
    return int(text)


def given_path(text: str) -> Path:
    """`user_path` for argparse, which shows the words of its own kind of error alone."""
    try:
        return user_path(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _new_file(text: str) -> Path:
    path = given_path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: must be a file in a folder that exists")
    return path


def _existing(text: str) -> Path:
    path = given_path(text)
    if not os.path.exists(path):
        raise argparse.ArgumentTypeError(f"{text}: there is no such file or folder")
    return path


def _add_some_settings(parser: Parser, chosen: Callable[[str], bool]) -> None:
    """Settings of a command that takes neither a preset nor a file of them."""
    parser.set_defaults(preset=None, config=None)
    _add_settings(parser, chosen)


def _add_settings(parser: Parser, chosen: Callable[[str], bool], *, without: str = "") -> None:
    """A flag for each setting that is `chosen`; `without` says what holds otherwise, if not its default."""
    types = field_types()
    for item in dataclasses.fields(Config):
        if not chosen(item.name):
            continue
        choices = get_args(types[item.name])
        metavar = "{" + ",".join(choices) + "}" if choices else types[item.name].__name__.upper()
        words = item.metadata["help"]
        otherwise = without or f"Default: {'none' if item.default == '' else repr(item.default)}."
        if not without and item.default == "" and "default" in words.lower():  # it says what "" stands for
            otherwise = ""
        text = f"{words} {otherwise}".strip().replace("%", "%%")
        switch: dict[str, Any] = {}
        if choices == ("off", "on") and not without:  # a RUN beside it would be taken for its value
            switch = {"nargs": "?", "const": "on"}
        # Values stay texts here: `resolve` parses and checks those of every source alike.
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            metavar=metavar,
            help=text,
            default=argparse.SUPPRESS,
            **switch,
        )


def _presets() -> list[str]:
    return sorted(item.stem for item in PRESETS.glob("*.toml"))
