"""`view`: the page at an address of this machine while the run goes on, made anew when there is more to show.

Nobody else reaches it: it listens on 127.0.0.1 only, answers under the names of this machine only (a web site
whose own name is made to point here gets nothing), and gives out the page and nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mappa_envs.errors import MappaError, UnavailableError
from mappa_train.checkpoint import RunFolder
from mappa_train.report.page import Place, render, write_report
from mappa_train.report.reading import RunData, stamps

PORT = 8420
RELOAD_S = 15
"""Seconds after which the start of the page loads itself again, until the run has come to its end."""
_HOSTS = frozenset(("127.0.0.1", "localhost"))
_PLACES = {"/": Place(links="still"), "/still": Place(start="/")}
_LIVE = f'<p class="soft">Live: loads itself again every {RELOAD_S} s.</p>'
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `view` takes besides the run."""
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help=f"serve the page here; default: {PORT}, or a free one where that is taken",
    )
    parser.add_argument(
        "--once", action="store_true", help="write report.html anew and stop, without serving it"
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1 to 65535")
    return int(text)


def run_command(run: Path, options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """The command `view`: serve until Ctrl-C, or rewrite the file with `--once`."""
    if options.once:
        say(f"report: {write_report(run)}")
        return 0
    pages = Pages(run)
    pages.get("/")  # a damaged file is told here, not in the browser
    with open_server(pages, options.port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        say(f"{run.name} is at {address} until Ctrl-C")
        if _has_screen():
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")
    return 0


def _has_screen() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in names)


class Pages:
    """The page of a run as served, made anew when its files have changed. Threads may share it."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._seen: object = None
        self._data: RunData | None = None
        self._made: dict[str, bytes] = {}

    def get(self, path: str) -> tuple[bytes, bool] | None:
        """The page at a path, and whether the run goes on; None where there is none. Raises `MappaError`."""
        if path == "/report.html":  # the name of the file, by which its places are known: report.html#e417
            path = "/still"
        if path not in _PLACES:
            return None
        with self._lock:
            seen = self._state()
            if self._data is None or seen != self._seen:
                self._data, self._made, self._seen = RunData(self._run), {}, seen
            if path not in self._made:
                end = self._data.end
                note = f'<p class="soft">{end}</p>' if end else _LIVE if path == "/" else ""
                self._made[path] = render(self._data, replace(_PLACES[path], note=note)).encode()
            return self._made[path], not self._data.end

    def _state(self) -> object:
        """Changes whenever the page would: after a step, an evaluation, another number of steps."""
        folder = RunFolder(self._run)
        paths = [folder.metrics_path, folder.config_path, *sorted(self._run.glob("eval-*.json"))]
        return stamps(paths)


def open_server(pages: Pages, port: int | None) -> ThreadingHTTPServer:
    """A server that listens already. Raises `UnavailableError` if the port cannot be had."""

    class Handler(_Handler):
        served = pages

    for number in (PORT, 0) if port is None else (port,):
        try:
            return _Server(("127.0.0.1", number), Handler)
        except OSError as error:
            reason = error.strerror
    raise UnavailableError(f"--port {port}: cannot be had ({reason}); choose another, or none")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nobody's error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    served: Pages
    timeout = 10
    server_version, sys_version = "mappa", ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not _is_ours(self.headers.get_all("Host", [])):
            self._send(HTTPStatus.FORBIDDEN, b"this is not the address that `view` printed\n")
            return
        try:
            path = urlsplit(self.path).path
        except ValueError:  # such as http://[
            path = ""
        try:
            found = self.served.get(path)
        except MappaError as error:
            words = "".join(char if char.isprintable() else "?" for char in str(error))
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"error: {words}\n".encode())
            return
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n")
            return
        page, goes_on = found
        is_live = goes_on and path == "/"
        self._send(HTTPStatus.OK, page, "text/html", {"Refresh": str(RELOAD_S)} if is_live else {})

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in (headers | _HEADERS | (extra or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nothing to read about."""


def _is_ours(hosts: list[str]) -> bool:
    """Whether a request asked for this machine by its own name; the port may be a tunnel's."""
    try:
        return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in _HOSTS
    except ValueError:
        return False
