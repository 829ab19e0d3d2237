"""Every example runs as its docstring says."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from mappa_envs.testing import FakeCoach, api_test

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_expert_team_plays_an_episode() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "expert_team.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "success True" in done.stdout
    assert done.stdout.count("score") == 3


@pytest.mark.slow
def test_the_expert_team_is_evaluated() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "evaluate_team.py", "--tasks", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.count("│") > 2}
    assert rows["episodes"].split("│")[2].strip() == "2"
    assert rows["success rate, %"].split("│")[2].split() == ["100", "[34,", "100]"]
    assert done.stdout.count("successes") >= 1


def run(name: str, *options: str) -> str:
    """What the example prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_expert_in_mathematics_is_evaluated() -> None:
    shown = run("evaluate_team.py", "--env", "mathchat-v0", "--tasks", "6")
    rows = [line.split() for line in shown.splitlines() if "-test-" in line]
    assert len(rows) == 6
    assert all(row[2:] in (["1", "1", "1", "1"], ["0", "0", "0", "0"]) for row in rows), rows


def test_five_roles_loop_back() -> None:
    shown = run("five_role_team.py")
    agents = [line.split()[2] for line in shown.splitlines() if line.startswith("--- ")]
    loop = ["solver_0", "checker_0"]
    assert agents == ["reader_0", *loop, *loop, "writer_0", "signer_0"]
    assert "=== done: outcome 1 (ok), success True ===" in shown


def test_seats_share_a_policy() -> None:
    assert run("shared_policy_team.py") == "3 episodes, success 100%\n"


def test_one_agent_is_the_baseline_of_five() -> None:
    team, alone = run("single_agent.py").splitlines()
    assert team == "five roles: success 100%, 6.3 actions an episode"
    assert alone == "one agent: success 33%, 1.0 actions an episode"


@pytest.mark.parametrize("name", ["five_role_team", "shared_policy_team", "single_agent"])
def test_a_new_team_takes_less_than_60_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("name", ["five_role_team", "shared_policy_team", "reinforce"])
def test_the_teams_of_the_examples_keep_every_promise(name: str) -> None:
    if name == "reinforce":
        pytest.importorskip("torch", reason="the example needs torch")
    api_test(importlib.import_module(name).make_env)


@pytest.mark.usefixtures("importable")
def test_a_team_of_one_keeps_every_promise() -> None:
    single, five = importlib.import_module("single_agent"), importlib.import_module("five_role_team")
    api_test(lambda: five.make_env(single.ALONE, coach=FakeCoach(3.0)))


@pytest.mark.slow
def test_reinforce_learns() -> None:
    pytest.importorskip("torch", reason="the example needs torch")
    first, *_, last, result = run("reinforce.py").splitlines()
    assert all(float(score) < 3 for score in first.split()[5::2])
    assert all(float(score) > 8 for score in last.split()[5::2])
    assert result == "10 tasks, success 100%"


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_blocks_of_the_readme_run(number: int) -> None:
    pytest.importorskip("torchrl", reason="a block needs torchrl")
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (EXAMPLES / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 2
    done = subprocess.run([sys.executable, "-c", blocks[number]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class _Endpoint(BaseHTTPRequestHandler):
    """The chat completions of an OpenAI-compatible server."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cast(Any, self.server).asked.append((self.path, asked))
        message = {"role": "assistant", "content": "I hand over."}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"]}
        body = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def endpoint() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_an_endpoint_plays_every_seat(endpoint: Any) -> None:
    pytest.importorskip("litellm", reason="the example needs litellm")
    url = f"http://127.0.0.1:{endpoint.server_address[1]}/v1"
    shown = run("openai_agent.py", "--model", "openai/tiny", "--base-url", url, "--tasks", "2")
    assert "success" in shown
    paths, asked = zip(*endpoint.asked, strict=True)
    assert set(paths) == {"/v1/chat/completions"}
    assert {request["model"] for request in asked} == {"tiny"}
    assert len(asked) == 6
    assert {message["role"] for request in asked for message in request["messages"]} == {"system", "user"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "last_line"),
    [
        ("README.md", "titanic-age"),
        ("docs/sandbox.md", "(1, 2)\n 0 None None ()"),
        ("docs/coach.md", "1.0\nNone\n[(8.0, None), (1.0, None), (3.0, None)]"),
        ("docs/scoring.md", "analyst_0 0.0\ndata_engineer_0 0."),
        ("docs/dsbench.md", "dsbench/no_test_table data_engineer_0 ["),
        ("docs/mathchat.md", "code_executor_0 0.0 ["),
    ],
)
def test_the_python_blocks_of_a_page_run_as_one_script(page: str, last_line: str, tmp_path: Path) -> None:
    text = (EXAMPLES.parent / page).read_text("utf-8")
    script = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert last_line in done.stdout
