"""Models of a server are measured through real HTTP; none of it needs a run folder, weights or torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from coach_server import Asked, CoachServer, Reply, failing

from mappa_envs.blocking import wait_for
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import PromptTooLong, UnavailableError
from mappa_envs.testing import FakeSandbox, expert_action
from mappa_envs.types import StopReason
from mappa_train import served
from mappa_train.cli import main
from mappa_train.plan import make_env
from mappa_train.served import ServedPolicy, measure
from mappa_train.settings import resolve

TEAM = ("data_engineer_0", "modeler_0", "analyst_0")
EVAL = ("eval", "--env", "dsbench-v0", "--engine")


@pytest.fixture
def server() -> Iterator[CoachServer]:
    made = CoachServer()
    made.default = Reply(text="I have nothing to add.")
    yield made
    made.stop()


def policy(server: CoachServer, **models: str) -> ServedPolicy:
    return ServedPolicy(server.url, models, max_new_tokens=7, temperature=0.3)


def said(server: CoachServer, text: str = "Hello") -> str:
    return wait_for(policy(server, modeler_0="tiny")("modeler_0", [{"role": "user", "content": text}]))


def test_a_request_says_what_the_settings_say(server: CoachServer) -> None:
    assert said(server) == "I have nothing to add."
    (asked,) = server.asked
    known = {"model": "tiny", "max_tokens": 7, "temperature": 0.3, "top_p": 1.0}
    assert {name: asked[name] for name in known} == known
    assert asked["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_busy_server_is_asked_again(server: CoachServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import tenacity

    monkeypatch.setattr(tenacity, "wait_random_exponential", lambda max: tenacity.wait_none())
    server.script = [failing(503), failing(429)]
    assert said(server) == "I have nothing to add."
    assert len(server.asked) == 3


def test_a_prompt_that_the_model_does_not_take_is_told_apart(server: CoachServer) -> None:
    server.default = failing(
        400, "This model's maximum context length is 10 tokens. Please reduce the length"
    )
    with pytest.raises(PromptTooLong, match="tiny: the prompt of modeler_0"):
        said(server)


def test_an_unknown_model_is_found_at_once(server: CoachServer) -> None:
    server.default = failing(404, "The model `tiny` does not exist")
    with pytest.raises(UnavailableError, match=r"no answer of tiny for modeler_0 .*does not exist.*names"):
        wait_for(policy(server, modeler_0="tiny").check())


def test_the_check_asks_every_model_for_one_token(server: CoachServer) -> None:
    wait_for(policy(server, data_engineer_0="a", modeler_0="b", analyst_0="a").check())
    assert sorted((asked["model"], asked["max_tokens"]) for asked in server.asked) == [("a", 1), ("b", 1)]


def test_no_key_leaves_with_an_error(server: CoachServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "verysecret123")
    server.default = failing(401, "Incorrect API key provided: verysecret123")
    with pytest.raises(UnavailableError, match="check OPENAI_API_KEY") as error:
        said(server)
    assert "verysecret123" not in str(error.value)
    assert server.keys == ["Bearer verysecret123"]


def test_every_agent_asks_its_own_model(server: CoachServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "open_sandbox", lambda *_, **__: FakeSandbox(inspector=_missing))
    config = resolve({"max_tasks": "2"})
    options: dict[str, Any] = {"model": "base", "served_models": "modeler_0=mo,analyst_0=an"}
    result = measure(config, f"openai:{server.url}", **options, split="train", episodes=3)
    assert [episode.stop_reason for episode in result.episodes] == [StopReason.DONE] * 3
    assert {turn.action for episode in result.episodes for turn in episode.turns} == {
        "I have nothing to add."
    }
    asked = [asked["model"] for asked in server.asked]
    assert sorted(asked) == ["an"] * 4 + ["base"] * 4 + ["mo"] * 4  # three episodes and the check


def test_a_context_limit_ends_the_episode_alone(server: CoachServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "open_sandbox", lambda *_, **__: FakeSandbox(inspector=_missing))
    full = failing(400, "This model's maximum context length is 10 tokens")
    server.default = lambda asked: (
        full if asked["model"] == "an" and asked["max_tokens"] > 1 else Reply(text="-")
    )
    config = resolve({"max_tasks": "1"})
    options: dict[str, Any] = {"model": "base", "served_models": "analyst_0=an"}
    result = measure(config, f"openai:{server.url}", **options, split="train", episodes=2)
    assert [episode.stop_reason for episode in result.episodes] == [StopReason.CONTEXT] * 2
    assert [len(episode.turns) for episode in result.episodes] == [2, 2]


def _missing(script: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"status": "missing", "kind": "", "shape": None, "nan_share": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "give a run folder, or --engine openai:URL"),
        (["eval", "runs/x", "--env", "dsbench-v0"], "--env: is for --engine"),
        (["eval", "runs/x", "--engine", "openai:http://localhost:1/v1"], "leave runs/x out"),
        ([*EVAL, "openai:http://localhost:1/v1", "--step", "3"], "leave --step 3 out"),
        ([*EVAL, "vllm"], "takes openai:URL"),
        (["eval", "runs/x", "--engine", "vllm"], "measured with the engine that it was trained with"),
        (
            [*EVAL, "openai:http://localhost:1/v1", "--served-models", "modeler_0=a,modeler_0=b"],
            "names modeler_0 twice",
        ),
        ([*EVAL, "openai:localhost"], "takes openai:URL"),
        ([*EVAL, "openai:http://me:pw@localhost/v1", "--model", "x"], "no keys or passwords"),
        ([*EVAL, "openai:http://localhost:99999999/v1"], "no address of a server"),
        ([*EVAL, "openai:http://localhost:1/v1"], "--model: none for data_engineer_0, modeler_0, analyst_0"),
        ([*EVAL, "openai:http://localhost:1/v1", "--served-models", "modeler=x"], "did you mean modeler_0"),
        (
            [*EVAL, "openai:http://localhost:1/v1", "--model", "x", "--served-models", "modeler_0=m,"
             "data_engineer_0=d,analyst_0=a"],
            "--served-models names one for every agent",
        ),
        (["--engine", "openai:http://localhost:1/v1"], "cannot be trained from here"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "pw" not in shown


def test_a_server_that_is_not_there_ends_with_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVAL, "openai:http://127.0.0.1:9/v1", "--model", "tiny"]) == 3
    assert "http://127.0.0.1:9/v1: no answer of tiny" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_measures_a_team_that_is_served(server: CoachServer, tmp_path: Path) -> None:
    """The server answers as the scripted expert, so every episode is a success, in the real sandbox."""
    tasks = make_env(resolve({}), "test", coach=None).tasks

    def expert(asked: Asked) -> Reply:
        prompt = "\n".join(message["content"] for message in asked["messages"])
        found = [task for task in tasks if isinstance(task, DSBenchTask) and task.prompt in prompt]
        return Reply(text=expert_action(asked["model"], found[0]) if found else "Hello")

    server.default = expert
    names = ",".join(f"{agent}={agent}" for agent in TEAM)
    arguments = [*EVAL, f"openai:{server.url}", "--served-models", names, "--episodes", "4"]
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "mappa_train", *arguments, "--json", str(out)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["split"] == "test"
    assert figures["overall"]["num_episodes"] == 4
    assert figures["overall"]["success_rate"] == 1.0
    assert "success" in done.stdout
