from __future__ import annotations

import dataclasses
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from mappa_envs.errors import ConfigError
from mappa_train import begin, plan
from mappa_train.algorithms.reinforce_pp import ReinforcePP
from mappa_train.arguments import learn_from, make_parser, parse
from mappa_train.config import Config, to_toml
from mappa_train.engine.choice import takes_vllm
from mappa_train.settings import PRESETS, check_shares, parse_value, read_settings, resolve


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    awkward = resolve({"out": 'a "b"\\c\n\x7fé', "lr": "1e-5", "steps": "3"})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(awkward) + "\n[resolved]\nmodel_sha256 = '00'\n")
    assert resolve(read_settings(path)) == awkward


def test_command_line_beats_file_beats_preset_beats_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("steps = 9\nlr = 2e-4\n")
    config = resolve({"lr": "3e-4"}, preset="single-gpu", file=path)
    assert (config.lr, config.steps, config.max_actions, config.beta) == (3e-4, 9, 4, Config().beta)


@pytest.mark.parametrize("preset", sorted(item.stem for item in PRESETS.glob("*.toml")))
def test_presets_resolve_and_name_known_settings_only(preset: str) -> None:
    config = resolve({}, preset=preset)
    settings = tomllib.loads((PRESETS / f"{preset}.toml").read_text())
    assert all(getattr(config, name) == value for name, value in settings.items())


def test_the_cpu_preset_is_the_defaults() -> None:
    assert resolve({}, preset="cpu") == Config()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("steps", "0", "--steps 0: must be at least 1"),
        ("steps", "2.5", "must be a whole number"),
        ("steps", "many", "must be a whole number"),
        ("lr", "nan", "finite"),
        ("lr", "-1", "at least 0"),
        ("gamma", "1.5", "at most 1"),
        ("temperature", "0", "greater than 0"),
        ("policy", "lorra", "did you mean lora"),
        ("split", "tset", "did you mean test"),
        ("steps", "inf", "must be a whole number"),
    ],
)
def test_senseless_values_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        resolve({name: value})
    assert f"--{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gamma": "0.5", "returns": "per_action"}, "--gamma 0.5: with --returns per_action"),
        ({"gamma": "0.5", "algorithm": "outcome"}, "--gamma 0.5: with --algorithm outcome"),
        ({"gamma": "0.5", "scoring": "hindsight"}, "--gamma 0.5: with --scoring hindsight"),
        ({"lora_rank": "4", "policy": "full"}, "--lora-rank 4: with --policy full"),
        ({"lora_alpha": "4", "policy": "full"}, "--lora-alpha 4: with --policy full"),
        ({"coach_calibration": "x.json", "returns": "outcome"}, "--coach-calibration x.json: with --returns"),
        ({"max_unscored": "0.5", "algorithm": "outcome"}, "--max-unscored 0.5: with --algorithm outcome"),
        ({"clip": "0.3"}, "--clip 0.3: with --minibatches 1 and --epochs 1 every ratio is 1"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(settings)


class Unclipped(ReinforcePP):
    """Has a use of its own for the number."""

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        return log_ratio.exp() * advantages - clip, log_ratio > 0


def test_the_clip_is_set_where_something_can_be_clipped() -> None:
    for more in ({"minibatches": 2}, {"epochs": 2}, {"actions_per_update": 8}):
        assert resolve({"clip": 0.3, **more}).clip == 0.3
    assert resolve({"clip": 0.3, "algorithm": f"{__name__}:Unclipped"}).clip == 0.3


def test_what_a_weaker_source_sets_may_become_idle(tmp_path: Path) -> None:
    config = resolve({"policy": "full"}, preset="single-gpu")
    assert (config.lora_rank, config.lora_alpha) == (Config().lora_rank, Config().lora_alpha)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert resolve({}, file=path) == config
    with pytest.raises(ConfigError, match="--lora-rank 4"):
        resolve({"lora_rank": "4"}, preset="paper-dsbench")


def test_a_preset_of_another_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="--preset paper-mathchat is for mathchat-v0"):
        resolve({"env": "dsbench-v0"}, preset="paper-mathchat")
    assert resolve({"env": "mappa/mathchat-v0"}, preset="paper-mathchat").env == "mathchat-v0"
    assert resolve({"env": "mathchat-v0"}, preset="official-compat").env == "mathchat-v0"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("steps = 0", r"^--steps 0: must be at least 1 \(.*mine\.toml sets steps\)$"),
        ("lr = 'x'", r"mine\.toml: --lr x: must be a number$"),
        ("nope = 1", r"mine\.toml: unknown setting 'nope'"),
        ("schedule = 'cosine'\nmin_lr = 1", r"\(.*mine\.toml sets min_lr\)$"),
    ],
)
def test_what_a_file_sets_wrongly_is_said_of_the_file(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(line)
    with pytest.raises(ConfigError, match=words):
        resolve({}, file=path)


def test_what_the_command_line_sets_is_not_said_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("steps = 3")
    with pytest.raises(ConfigError, match=r"^--steps 0: must be at least 1$"):
        resolve({"steps": 0}, file=path)


def test_unknown_settings_and_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("stepz = 3\n")
    with pytest.raises(ConfigError, match="did you mean steps"):
        resolve({}, file=path)
    path.write_text("steps = \n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve({}, file=path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        resolve({}, file=path)
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="did you mean single-gpu"):
        resolve({}, preset="single_gpu")


def test_a_bool_is_no_number() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse_value("steps", True)


def test_whole_numbers_keep_all_their_digits() -> None:
    for value in ("9007199254740993", 9007199254740993, "0009007199254740993"):
        assert parse_value("steps", value) == 2**53 + 1
    assert [parse_value("steps", value) for value in ("2e3", "4.0", 4.0, " 5 ")] == [2000, 4, 4, 5]


def test_measuring_needs_tasks_that_are_held_out() -> None:
    with pytest.raises(ConfigError, match="--eval-episodes 8: does nothing without --eval-every"):
        resolve({"eval_episodes": 8})
    with pytest.raises(
        ConfigError, match="--eval-every 2: measures on val tasks, and --split val trains on them"
    ):
        resolve({"eval_every": 2, "split": "val"})
    assert resolve({"eval_every": 2, "eval_episodes": 8}).eval_episodes == 8


def test_every_setting_has_a_help_text() -> None:
    assert all(len(item.metadata["help"]) > 20 for item in dataclasses.fields(Config))


def test_an_environment_has_defaults_of_its_own(tmp_path: Path) -> None:
    math = resolve({"env": "mathchat-v0"})
    assert (math.exploring_starts, math.ground_truth) == (0.0, "final")
    assert resolve({"env": "mathchat-v0", "coach": "llm:a/b"}).ground_truth == "off"
    assert resolve({"env": "mappa/mathchat-v0", "ground_truth": "off"}).ground_truth == "off"
    assert (resolve({}).exploring_starts, resolve({}).ground_truth) == (0.5, "final")
    file = tmp_path / "settings.toml"
    file.write_text('env = "mathchat-v0"\nground_truth = "off"\n')
    assert resolve({}, file=file).ground_truth == "off"
    assert resolve({"env": "mathchat-v0"}, preset="cpu").exploring_starts == 0.0
    for name in ("mathchat-v0", "mappa/mathchat-v0"):
        with pytest.raises(ConfigError, match=r"--exploring-starts 0\.25: mathchat-v0"):
            resolve({"env": name, "exploring_starts": 0.25})


def test_whole_weights_have_a_learning_rate_of_their_own(tmp_path: Path) -> None:
    assert (resolve({}).lr, resolve({"policy": "lora"}).lr) == (1e-3, 1e-3)
    full = resolve({"policy": "full"})
    assert full.lr == 1e-5
    assert resolve({"policy": "full", "lr": "1e-3"}).lr == 1e-3
    file = tmp_path / "settings.toml"
    file.write_text("lr = 2e-6\n")
    assert resolve({"policy": "full"}, file=file).lr == 2e-6
    file.write_text(to_toml(full))
    assert resolve({}, file=file) == full


def test_a_learning_rate_of_another_policy_is_not_taken_over(tmp_path: Path) -> None:
    assert resolve({}, preset="single-gpu").lr == 1e-4
    assert resolve({"policy": "full"}, preset="single-gpu").lr == 1e-5
    adapters = resolve({"policy": "lora"}, preset="paper-dsbench")
    assert (adapters.lr, adapters.min_lr) == (1e-3, 0.0)
    file = tmp_path / "settings.toml"
    file.write_text('policy = "full"\nlr = 3e-6\n')
    assert resolve({}, preset="single-gpu", file=file).lr == 3e-6


def test_hindsight_implies_per_action_returns(tmp_path: Path) -> None:
    assert resolve({}).scoring == "deferred"
    assert resolve({"scoring": "hindsight"}).returns == "per_action"
    assert resolve({"scoring": "hindsight"}, preset="paper-dsbench").returns == "per_action"
    assert resolve({"scoring": "deferred"}).returns == resolve({}).returns
    again = tmp_path / "config.toml"
    again.write_text(to_toml(resolve({"scoring": "hindsight"})))
    assert resolve({}, file=again) == resolve({"scoring": "hindsight"})


@pytest.mark.parametrize("settings", [{"returns": "to_go"}, {"returns": "outcome"}, {"algorithm": "outcome"}])
def test_hindsight_refuses_other_returns(settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="per_action"):
        resolve({"scoring": "hindsight", **settings})
    file = tmp_path / "config.toml"
    file.write_text('scoring = "hindsight"\n')
    with pytest.raises(ConfigError, match="per_action"):
        resolve(settings, file=file)


def test_deterministic_refuses_an_engine_that_does_not_repeat() -> None:
    with pytest.raises(ConfigError, match="--deterministic on: with --engine vllm"):
        resolve({"deterministic": "on", "engine": "vllm"})
    assert not takes_vllm(resolve({"deterministic": "on"}))


@pytest.mark.parametrize(
    ("words", "value"), [(["--deterministic"], "on"), (["--deterministic", "off"], "off"), ([], None)]
)
def test_a_switch_needs_no_value(words: list[str], value: str | None) -> None:
    given = vars(make_parser("train").parse_args([*words, "--seed", "1"]))
    assert given.get("deterministic") == value
    assert given["seed"] == "1"


def test_a_run_that_began_with_a_setting_that_does_nothing_goes_on() -> None:
    with pytest.raises(ConfigError, match="--clip"):
        resolve({"clip": 0.3})
    assert resolve({"clip": 0.3}, takes_idle=True).clip == Config.clip


def test_a_weaker_source_may_set_what_a_stronger_one_makes_idle(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 2\nclip = 0.3\n")
    assert resolve({}, file=file).clip == 0.3
    assert resolve({"epochs": 1}, file=file).clip == Config.clip


def test_engines_of_vllm_are_none_of_a_deterministic_run() -> None:
    with pytest.raises(ConfigError, match="--engine-gpus 1: is for vLLM, which --deterministic on"):
        resolve({"deterministic": "on", "engine_gpus": 1})


def test_a_warm_start_names_a_command_with_all_that_its_run_shares() -> None:
    shared = ["--env", "mathchat-v0", "--model", "my model", "--policy", "full", "--max-new-tokens", "512"]
    shared += ["--shared-policy", "on", "--tasks", "own; tasks"]
    fitting = ["--epochs", "3", "--lr", "1e-3", "--seed", "7", "--out", "runs/warm"]
    command, options = parse(["sft", *shared, *fitting])
    assert command == "sft"
    words = shlex.split(learn_from(Path("runs/a warm $start"), options))
    assert words[:3] == ["python", "-m", "mappa_train"]
    _, found = parse(words[3:])
    given = {name: value for name, value in vars(options).items() if name not in ("data", "preset", "config")}
    expected = {name: given[name] for name in given if "--" + name.replace("_", "-") in shared}
    assert len(expected) == 6
    assert {name: value for name, value in vars(found).items() if name in vars(options)} == {
        **expected,
        "preset": None,
        "config": None,
    }
    assert found.init == "runs/a warm $start"


def test_learners_are_no_more_than_the_tasks_that_are_dealt_out() -> None:
    grpo = {"algorithm": "grpo", "learners_per_agent": 2}
    config = resolve(grpo)
    check_shares(config, 2)
    with pytest.raises(
        ConfigError, match=r"per-agent 2: a step has 1 task\(s\) .* more tasks \(--tasks, --max-"
    ):
        check_shares(config, 1)
    check_shares(resolve({"learners_per_agent": 12}), 1)  # its episodes are dealt out one by one


def test_a_start_and_a_resumption_know_how_many_tasks_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = SimpleNamespace(task_type="t")
    env = SimpleNamespace(tasks=[task], possible_agents=("a_0", "b_0"), coach=None)
    for module in (begin, plan):
        monkeypatch.setattr(module, "make_env", lambda config, split=None, **shared: env)
        monkeypatch.setattr(module, "check_engine", lambda config: None)
    config = resolve({"algorithm": "grpo", "learners_per_agent": 2, "out": str(tmp_path / "run")})
    run: Any = SimpleNamespace(lock=lambda: None, config_path=tmp_path / "config.toml")
    with pytest.raises(ConfigError, match="a step has 1 task"):
        plan.plan(config)
    with pytest.raises(ConfigError, match="a step has 1 task"):
        begin.begin_run(config, print)
    with pytest.raises(ConfigError, match=r"a step has 1 task.*/config\.toml"):
        begin.go_on(config, run, None, print)


def test_a_run_that_began_with_more_learners_than_tasks_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('algorithm = "grpo"\nlearners_per_agent = 2\nmax_tasks = 1\n')
    assert resolve({}, file=file, takes_idle=True).max_tasks == 1


@pytest.mark.parametrize("number", ["0x" + "F" * 5000, "9" * 5000, "[0x" + "F" * 5000 + "]"])
def test_a_number_of_thousands_of_digits_is_one_clear_error(tmp_path: Path, number: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"steps = {number}\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML: .*4300 digits"):
        resolve({}, file=file)
