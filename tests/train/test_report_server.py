"""`view`: who gets the page, what else there is (nothing), and when it is made anew."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_fakes import make_line, make_rollout, make_run

from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_train import cli
from mappa_train.checkpoint import RunFolder
from mappa_train.report import server
from mappa_train.report.server import Pages, open_server, run_command


@contextmanager
def serving(run: RunFolder) -> Iterator[int]:
    """The port at which a run is served."""
    with open_server(Pages(run.path), None) as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield opened.server_port
        finally:
            opened.shutdown()
            thread.join()


def ask(port: int, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_page_is_served_and_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    with serving(run) as port:
        for path in ("/", "/still", "/report.html", "/?a=1"):
            answer, body = ask(port, path)
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "First step against last step" in body
        for path in (
            "/x/report.html",
            "/config.toml",
            "/../run/config.toml",
            "//etc/passwd",
            "/%2e%2e/x",
            "*",
        ):
            answer, body = ask(port, path)
            assert (answer.status, body) == (404, "there is nothing here\n")
        assert ask(port, "/", "HEAD")[1] == ""
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(port, "/", method)[0].status == 501


def test_an_address_that_is_none_is_nothing(tmp_path: Path) -> None:
    with (
        serving(make_run(tmp_path / "run", steps=1)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        connection.sendall(b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.0 404")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9000", 200),
        ("127.0.0.1:1", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("evil.example:8420", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil.example@localhost.x", 403),
        ("0.0.0.0", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_this_machine_s_own_names_are_answered(tmp_path: Path, host: str, status: int) -> None:
    with serving(make_run(tmp_path / "run", steps=1)) as port:
        answer, body = ask(port, host=host)
    assert answer.status == status
    assert ("<html" in body) == (status == 200)


def test_nobody_outside_can_frame_or_embed_it(tmp_path: Path) -> None:
    with serving(make_run(tmp_path / "run", steps=1)) as port:
        headers = ask(port)[0].headers
    assert "script-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]
    assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    with open_server(Pages(make_run(tmp_path / "run", steps=1).path), None) as opened:
        assert opened.server_address[0] == "127.0.0.1"


def test_the_start_loads_itself_again_until_the_run_is_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    run.set_steps(3)
    with serving(run) as port:
        answer, body = ask(port)
        assert answer.headers["Refresh"] == str(server.RELOAD_S)
        assert '<a href="still#episodes">' in body
        assert "loads itself again every" in body
        answer, still = ask(port, "/still")
        assert "Refresh" not in answer.headers
        assert "loads itself again" not in still
        assert '<a href="/">Overview</a><a href="#episodes">' in still
        run.append_episodes(3, [make_rollout(17)])
        run.append_metrics(make_line(3))
        answer, body = ask(port)
        assert "Refresh" not in answer.headers
        assert "loads itself again" not in body
        assert "The run has made all its steps." in body
        assert 'id="e17"' in body
        assert 'id="e17"' in ask(port, "/still")[1]


@pytest.mark.parametrize(
    ("spent", "budget", "ends"), [(1.0, 1.0, True), (None, 1.0, False), (1.0, 1.5, False), (1.0, 0, False)]
)
def test_a_run_whose_coach_has_spent_the_budget_is_over_until_that_is_raised(
    tmp_path: Path, spent: float | None, budget: float, ends: bool
) -> None:
    run = make_run(tmp_path / "run", steps=1, coach="llm:x", coach_budget_usd=budget)
    run.set_steps(5)
    # The steps alone cost less, or more, than the budget: trying out and repeated steps are not among them.
    line = make_line(2, budget_spent=spent) | {"coach/cost_usd": 0.1 if ends else 9.0, "stop/budget": 1}
    run.append_metrics(line)
    with serving(run) as port:
        answer, body = ask(port)
    assert ("Refresh" in answer.headers, "loads itself again" in body) == (not ends, not ends)
    assert ("The run ended early: the coach" in body) == ends
    assert "all its steps" not in body


def test_the_page_is_made_once_for_one_state_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", steps=1)
    made: list[object] = []
    monkeypatch.setattr(server, "render", lambda data, place: made.append(place) or "page")
    pages = Pages(run.path)
    for _ in range(3):
        assert pages.get("/") == (b"page", False)
    assert len(made) == 1
    (run.path / "eval-test-step-1.json").write_text("{}")
    pages.get("/")
    assert len(made) == 2
    assert pages.get("/other") is None


def test_a_file_that_goes_away_meanwhile_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    # A link to nothing is what a file looks like that is deleted between the listing and the look at it.
    (run.path / "eval-test-step-1.json").symlink_to(tmp_path / "gone")
    with serving(run) as port:
        answer, body = ask(port)
    assert answer.status == 200
    assert "<h2>Evaluation" not in body


def test_a_file_that_cannot_be_looked_at_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    path = run.path / "eval-val-step-000002.json"
    path.symlink_to(path)
    with serving(run) as port:
        assert ask(port)[0].status == 200


def test_a_file_damaged_meanwhile_is_said_in_the_browser(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with serving(run) as port:
        run.metrics_path.write_text('{"step": "\x1b[31m<b>"}\n')
        answer, body = ask(port)
    assert answer.status == 500
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "metrics.jsonl, line 1" in body
    assert "\x1b" not in body


def test_a_taken_port_is_an_error_only_if_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(make_run(tmp_path / "run", steps=1).path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"--port {taken}: cannot be had"):
            open_server(pages, taken)
        monkeypatch.setattr(server, "PORT", taken)
        with open_server(pages, None) as opened:
            assert opened.server_port not in (0, taken)


def test_the_browser_is_used_where_there_is_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    run = make_run(tmp_path / "run", steps=1)
    said: list[str] = []
    opened: list[str] = []
    monkeypatch.setattr(server._Server, "serve_forever", interrupted)
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    options = SimpleNamespace(once=False, port=None)
    for name in ("WAYLAND_DISPLAY", "BROWSER", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert run_command(run.path, options, said.append) == 0
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert run_command(run.path, options, said.append) == 0
    assert len(opened) == 1
    assert said[2] == f"run is at {opened[0]} until Ctrl-C"
    assert said[3] == "stopped"


def test_a_damaged_run_is_told_before_it_is_served(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.metrics_path.write_text("nonsense\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 1"):
        run_command(run.path, SimpleNamespace(once=False, port=None), print)


@pytest.mark.parametrize("settings", ["steps = [", 'steps = "many"'])
def test_damaged_settings_are_told_before_it_is_served(tmp_path: Path, settings: str) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.config_path.write_text(settings)
    with pytest.raises(ConfigError, match=r"not valid TOML|--steps many: must be a whole number"):
        run_command(run.path, SimpleNamespace(once=False, port=None), print)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "²"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", "any", "--port", port]) == 2
    assert "must be a whole number from 1 to 65535" in capsys.readouterr().err
