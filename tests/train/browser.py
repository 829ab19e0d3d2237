"""Debian's chromium without a window, driven through its DevTools pipe: what a page does and looks like."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WAIT_S = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# The pipes of the protocol are descriptors 3 and 4.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab. `events` are all messages of the browser that answered nothing, oldest first."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """One command of the DevTools protocol and its result."""
        answer = self._ask(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": dict(params)}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                return answer

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], WAIT_S)[0], f"no word from the browser for {WAIT_S} s"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has gone"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        if "id" not in found:
            self.events.append(found)
            if found["method"] == "Page.javascriptDialogOpening":  # it would block everything else
                self._answer_dialog()
        return found

    def _answer_dialog(self) -> None:
        message = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
        os.write(self._write, json.dumps(message | {"sessionId": self._session}).encode() + b"\0")

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of one kind so far."""
        return [event["params"] for event in self.events if event["method"] == method]

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState == 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page; its policy does not bind us."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until an expression holds."""
        deadline = time.monotonic() + WAIT_S
        while not self._holds(expression):
            assert time.monotonic() < deadline, f"waited in vain for: {expression}"
            time.sleep(0.05)

    def _holds(self, expression: str) -> bool:
        """Not between two pages, of which the old one is gone and the new one is not there yet."""
        answer = self._ask("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        return bool(answer.get("result", {}).get("result", {}).get("value"))

    def screen(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """The size of the window, and the user's taste."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot_of(self, selector: str) -> bytes:
        """A PNG of the place of an element, with all that is painted over it."""
        place = self.value(
            f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect();"
            " return {x: r.x, y: r.y, width: r.width, height: r.height, scale: 1}; })()"
        )
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=place)["data"])

    def screenshot(self, whole: bool = False) -> bytes:
        """A PNG of what is on the screen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in a folder; ended with the block."""
    assert CHROMIUM
    to_browser, our_write = os.pipe()
    our_read, from_browser = os.pipe()
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
    command = [CHROMIUM, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), *command],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(our_write, our_read)
    finally:
        os.close(our_write)
        os.close(our_read)
        process.terminate()
        process.wait(WAIT_S)
