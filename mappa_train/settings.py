"""The settings of a run from all their sources; senseless values fail here.

Order of precedence: command line, then `--config FILE`, then `--preset`, then the defaults. The
resolved tree is written to `config.toml` in the run folder.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from mappa_envs.errors import ConfigError
from mappa_envs.sandbox import KINDS, check_kind
from mappa_train.algorithms import Algorithm, find_algorithm
from mappa_train.config import Config, did_you_mean, field_types
from mappa_train.router import check_router

PRESETS = Path(__file__).parent / "presets"
_ADDRESS = re.compile(r"(\[[^][/?#@\s]+\]|[^][:/?#@\s]+):([0-9]{1,5})")
OF_WORKERS = ("ray_address", "placement", "worker_timeout_s")
"""Settings that do nothing without rollout workers."""


def _check(config: Config) -> None:
    hints = field_types()
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        flag = "--" + item.name.replace("_", "-")
        choices = get_args(hints[item.name])
        if item.name == "engine" and value.startswith("openai:"):
            raise ConfigError(
                "--engine openai:…: a server's weights cannot be trained from here; measure its models with "
                "`python -m mappa_train eval --env … --engine openai:URL --model NAME`"
            )
        if choices and value not in choices:
            raise ConfigError(
                f"{flag} {value}: choose one of {', '.join(choices)}{did_you_mean(value, choices)}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{flag} {value}: must be a finite number")
        if "low" in item.metadata and value < item.metadata["low"]:
            raise ConfigError(f"{flag} {value}: must be at least {item.metadata['low']:g}")
        if "above" in item.metadata and value <= item.metadata["above"]:
            raise ConfigError(f"{flag} {value}: must be greater than {item.metadata['above']:g}")
        if "high" in item.metadata and value > item.metadata["high"]:
            raise ConfigError(f"{flag} {value}: must be at most {item.metadata['high']:g}")
    _check_sandbox(config.sandbox)
    _check_url(config.coach_base_url)
    _check_learning(config)
    check_router(config)
    _check_evaluation(config)
    _check_workers(config)
    _check_learners(config)
    _check_vllm_gpus(config)
    if config.deterministic == "on" and config.engine == "vllm":
        raise ConfigError(
            "--deterministic on: with --engine vllm batches depend on timing; take --engine transformers"
        )
    if config.engine == "transformers":  # what `auto` means depends on the machine: `engine.choice`
        refuse_time_limits(config)


def refuse_time_limits(config: Config) -> None:
    """Raise `ConfigError` for time limits: they would undo the exact repetition of a turn barrier."""
    for name in ("action_timeout_s", "episode_timeout_s"):
        if value := getattr(config, name):
            flag, here = "--" + name.replace("_", "-"), " here" if config.engine == "auto" else ""
            raise ConfigError(
                f"{flag} {value:g}: with --engine {config.engine} a run{here} repeats exactly, whatever the "
                "time; bound actions by --max-new-tokens and --max-actions, or take --engine vllm"
            )


def _check_learners(config: Config) -> None:
    """Raise `ConfigError` for settings of learners that would do nothing, or leave some idle."""
    if config.learners_per_agent == 1 and config.shard != Config.shard:
        raise ConfigError(f"--shard {config.shard}: needs --learners-per-agent 2 or more; leave it out")
    check_shares(config, config.episodes_per_step)  # how many tasks there are is known at the start


def check_shares(config: Config, num_tasks: int) -> None:
    """Raise `ConfigError` for more learners than a step on so many tasks has shares to deal out."""
    ranks, units = config.learners_per_agent, config.episodes_per_step
    what, more = "episode(s)", "--episodes-per-step"
    if find_algorithm(config.algorithm).compares:
        units = -(-config.episodes_per_step // config.samples_per_task)
        if num_tasks < units:  # one that is drawn twice is dealt out once
            units, more = num_tasks, "tasks (--tasks, --max-tasks)"
        what = f"task(s) (--algorithm {config.algorithm} keeps those together)"
    if ranks > units:
        raise ConfigError(
            f"--learners-per-agent {ranks}: a step has {units} {what}, so some would be idle; give fewer, or "
            f"more {more}"
        )


def _check_workers(config: Config) -> None:
    """Settings of rollout workers that would do nothing without any."""
    _check_address(config.ray_address)
    for name in OF_WORKERS:
        value = getattr(config, name)
        if not config.num_rollout_workers and value != getattr(Config(), name):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} {value}: needs --num-rollout-workers 1 or more; add that, or leave it out"
            )


def _check_vllm_gpus(config: Config) -> None:
    """Raise `ConfigError` for settings of vLLM's GPUs that would do nothing beside others, or cannot."""
    asked = {
        f"--engine-gpus {config.engine_gpus}": config.engine_gpus > 0,
        "--engine-sleep on": config.engine_sleep == "on",
    }
    for flag in (flag for flag, is_asked in asked.items() if is_asked):
        if config.engine == "transformers":
            raise ConfigError(f"{flag}: is for --engine vllm; take that, or leave it out")
        if config.deterministic == "on":
            raise ConfigError(f"{flag}: is for vLLM, which --deterministic on does without; leave one out")
        for name in ("learners_per_agent", "num_rollout_workers"):
            value = getattr(config, name)
            if value != getattr(Config, name):
                other = "--" + name.replace("_", "-")
                raise ConfigError(
                    f"{flag}: not with {other} {value}, whose engines are their own; leave one out"
                )
    if config.engine_sleep == "on" and config.engine_gpus:
        raise ConfigError(
            f"--engine-sleep on: with --engine-gpus {config.engine_gpus} the learner needs none of vLLM's "
            "memory; leave one out"
        )
    if config.engine_sleep == "on" and config.policy == "full":
        why = "with --policy full each agent has an engine, and in one process vLLM lets only one sleep"
        if config.shared_policy == "on":
            why = "is for --policy lora alone"
        raise ConfigError(
            f"--engine-sleep on: {why}; leave it out, or give vLLM GPUs of its own with --engine-gpus"
        )


def _check_evaluation(config: Config) -> None:
    """Measuring while training: held out means not trained on."""
    if not config.eval_every and config.eval_episodes != Config.eval_episodes:
        raise ConfigError(
            f"--eval-episodes {config.eval_episodes}: does nothing without --eval-every; give that, too"
        )
    if config.eval_every and config.split == "val":
        raise ConfigError(
            f"--eval-every {config.eval_every}: measures on val tasks, and --split val trains on them; "
            "leave one out"
        )


def _check_learning(config: Config) -> None:
    """Settings of the learner that would do nothing beside others, or cannot go with them."""
    if config.env == "mathchat-v0" and config.exploring_starts:
        raise ConfigError(
            f"--exploring-starts {config.exploring_starts:g}: mathchat-v0 has no files to begin in the "
            "middle with; leave it out"
        )
    if config.actions_per_update and config.minibatches > 1:
        raise ConfigError(
            f"--actions-per-update {config.actions_per_update}: decides for --minibatches; leave one out, or "
            "give --actions-per-update 0 where a preset sets it"
        )
    if config.schedule == "constant" and config.min_lr:
        raise ConfigError(f"--min-lr {config.min_lr:g}: is for --schedule cosine; add that, or leave it out")
    if config.min_lr > config.lr:
        raise ConfigError(f"--min-lr {config.min_lr:g}: must be at most --lr {config.lr:g}")
    if config.kl == "loss" and not config.beta:
        raise ConfigError("--kl loss: with --beta 0 there is no penalty; leave it out, or give a --beta")
    if config.scoring == "hindsight" and config.returns != "per_action":
        raise ConfigError(f"--scoring hindsight: needs --returns per_action, not {config.returns}")
    same_task = min(config.samples_per_task, config.episodes_per_step)
    alone = same_task < 2 or config.episodes_per_step % same_task == 1
    if alone and find_algorithm(config.algorithm).compares:
        raise ConfigError(
            f"--samples-per-task {config.samples_per_task}: --algorithm {config.algorithm} compares episodes "
            f"of one task; give 2 or more, and none of --episodes-per-step {config.episodes_per_step} alone"
        )


def _check_address(address: str) -> None:
    """What Ray takes to be another kind of address would come back as another kind of error, or never."""
    found = _ADDRESS.fullmatch(address)
    if address not in ("", "auto") and not (found and 0 < int(found[2]) < 2**16):
        raise ConfigError(
            f"--ray-address {address}: give HOST:PORT, as `ray start --head` shows it, or auto for the "
            "cluster that this machine is in"
        )


def _check_url(url: str) -> None:
    try:
        _ = urlsplit(url).port
    except ValueError as error:  # without the value: it may have a password in it
        raise ConfigError(f"--coach-base-url: no address of a server ({error})") from error


def _fixed_by(
    choice: str, fixed_of: Callable[[str], Mapping[str, Any]], sources: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """What a choice sets beside itself, such as that of the algorithm.

    Raises `ConfigError` where the source of the choice or a stronger one says otherwise.
    """
    chosen = max((k for k, source in enumerate(sources) if choice in source), default=None)
    if chosen is None:
        return {}
    name = sources[chosen][choice]
    fixed = fixed_of(name)
    for source in sources[chosen:]:
        for setting, value in fixed.items():
            if source.get(setting, value) != value:
                flag = "--" + setting.replace("_", "-")
                raise ConfigError(
                    f"{flag} {source[setting]}: --{choice} {name} needs {flag} {value}; leave {flag} out"
                )
    return fixed


def _check_sandbox(kind: str) -> None:
    if kind == "unsafe-local":
        raise ConfigError(
            "--sandbox unsafe-local: it isolates nothing and is for environments used by hand; "
            "training runs what an untrained model writes. Choose auto, namespace or docker"
        )
    try:
        check_kind(kind)
    except ConfigError as error:
        raise ConfigError(f"--sandbox {kind}{did_you_mean(kind, KINDS)}: {error}") from None


def _whole(text: str) -> int:
    """Also of 1e3; through a float, which has 53 bits, only where there is no other way."""
    try:
        return int(text)
    except ValueError:
        number = int(float(text))
        if number != float(text):
            raise
        return number


def parse_value(name: str, value: Any) -> Any:
    """A value of the command line or of a TOML file as the field's type. Raises `ConfigError`."""
    hints = field_types()
    if name not in hints:
        hint = did_you_mean(name, hints)
        raise ConfigError(f"unknown setting {name!r}{hint}; known: {', '.join(hints)}")
    kind = hints[name]
    if kind not in (int, float):
        if "\0" in str(value):
            raise ConfigError(f"--{name.replace('_', '-')}: must not hold a NUL character")
        return str(value)
    try:  # a truth value is a number, and its text is none
        return _whole(str(value)) if kind is int else float(str(value))
    except (ValueError, OverflowError):
        word = "a whole number" if kind is int else "a number"
        raise ConfigError(f"--{name.replace('_', '-')} {value}: must be {word}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises `ConfigError`."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        str(table)  # a hexadecimal number may have more digits than Python shows
        return table
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: cannot be read ({why}); give the path of a TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: it is not UTF-8 text") from error
    except ValueError as error:  # of tomllib, or of a number with thousands of digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file (a preset, `--config`, or a run's config.toml). Raises `ConfigError`."""
    table = read_toml(path)
    try:
        return {name: parse_value(name, value) for name, value in table.items() if name != "resolved"}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def other_defaults(env: str, coach: str, policy: str) -> Mapping[str, Any]:
    """What differs from a field's own default; whatever is set by hand or in a file goes before it."""
    found: dict[str, Any] = {}
    if policy == "full":
        found["lr"] = 1e-5  # an adapter's rate would undo what whole weights know
    if env == "mathchat-v0":
        # No files to start from in the middle. A model that coaches is not shown the answer, as in the paper;
        # the rubric cannot solve a problem, and without the answer it would teach form, right or wrong.
        found |= {"exploring_starts": 0.0, "ground_truth": "final" if coach == "rubric" else "off"}
    return found


def resolve(
    overrides: Mapping[str, Any],
    *,
    preset: str | None = None,
    file: Path | None = None,
    takes_idle: bool = False,
) -> Config:
    """The settings of a run from all their sources, checked. Raises `ConfigError`.

    `takes_idle`: settings that would do nothing are no error, as in a run that began when they were none.
    """
    from_file = {} if file is None else read_settings(file)
    try:
        return _resolve(overrides, preset, from_file, takes_idle)
    except ConfigError as error:
        words = re.findall(r"--([a-z][a-z0-9-]*)", str(error))
        names = dict.fromkeys(word.replace("-", "_") for word in words)
        set_there = [name for name in names if name in from_file and name not in overrides]
        if not set_there:
            raise
        raise ConfigError(f"{error} ({file} sets {' and '.join(set_there)})") from error


def _resolve(
    overrides: Mapping[str, Any], preset: str | None, from_file: dict[str, Any], takes_idle: bool
) -> Config:
    sources: list[dict[str, Any]] = []
    if preset is not None:
        names = sorted(item.stem for item in PRESETS.glob("*.toml"))
        if preset not in names:
            hint = did_you_mean(preset, names)
            raise ConfigError(f"--preset {preset}: unknown; known: {', '.join(names)}{hint}")
        sources.append(read_settings(PRESETS / f"{preset}.toml"))
    if from_file:
        sources.append(from_file)
    sources.append({name: parse_value(name, value) for name, value in overrides.items()})
    policy = str(ChainMap(*reversed(sources)).get("policy", Config.policy))
    for source in sources:
        if source.get("policy", policy) != policy:  # its learning rate was for that one
            source.pop("lr", None)
            source.pop("min_lr", None)
    settings = dict(ChainMap(*reversed(sources)))
    settings["env"] = env = str(settings.get("env", Config.env)).removeprefix("mappa/")
    if preset is not None and (its := sources[0].get("env", env)) != env:
        raise ConfigError(f"--env {env}: --preset {preset} is for {its}; leave one out")
    # A score in hindsight has the consequences of an action in it already.
    hindsight = {"hindsight": {"returns": "per_action"}}
    scoring = _fixed_by("scoring", lambda name: hindsight.get(name, {}), sources)
    algorithm = _fixed_by("algorithm", lambda name: find_algorithm(name).fixed, sources)
    defaults = other_defaults(env, str(settings.get("coach", Config.coach)), policy)
    config = Config(**{**defaults, **settings, **scoring, **algorithm})
    _check(config)
    fixer = "algorithm" if "returns" in algorithm else "scoring" if "returns" in scoring else "returns"
    return _without_idle(config, [] if takes_idle else sources, fixer, algorithm)


def _without_idle(
    config: Config, sources: Sequence[Mapping[str, Any]], fixer: str, fixed: Mapping[str, Any]
) -> Config:
    """Settings that do nothing beside a choice back at their defaults; `fixer` is what decided the returns.

    Those that are `fixed` by the algorithm stay: it would refuse the defaults when the run is resumed.
    Raises `ConfigError` where the source of the choice or a stronger one sets such a one, to no avail: what
    is in none of the `sources` was set by nobody.
    """
    adapter = ("lora_rank", "lora_alpha") if config.policy == "full" else ()
    idle: list[tuple[str, tuple[str, ...], str]]  # a setting, what makes it idle, and why
    idle = [(name, ("policy",), "there is no adapter") for name in adapter]
    if config.returns in ("per_action", "outcome"):
        idle.append(("gamma", (fixer,), "discounts nothing"))
    if config.returns == "outcome":
        why = "nothing is learned from scores"
        idle += [(name, (fixer,), why) for name in ("debias", "coach_calibration", "max_unscored")]
    steps = ("minibatches", "epochs", "actions_per_update")
    is_one_step = config.minibatches == config.epochs == 1 and not config.actions_per_update
    if is_one_step and find_algorithm(config.algorithm).surrogate is Algorithm.surrogate:
        idle.append(("clip", steps, "and --epochs 1 every ratio is 1, and nothing is clipped"))
    default, changes = Config(), {}
    for name, choices, why in idle:
        if name in fixed or getattr(config, name) == getattr(default, name):
            continue
        choice = choices[0]
        chosen = max((k for k, source in enumerate(sources) if source.keys() & set(choices)), default=0)
        if any(name in source for source in sources[chosen:]):
            flag, other = "--" + name.replace("_", "-"), "--" + choice.replace("_", "-")
            raise ConfigError(
                f"{flag} {getattr(config, name)}: with {other} {getattr(config, choice)} {why}; leave it out"
            )
        changes[name] = getattr(default, name)
    return dataclasses.replace(config, **changes)
