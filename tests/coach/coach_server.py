"""An OpenAI-compatible server on this machine that answers, fails and misbehaves as it is told."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Asked = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """`body` replaces the whole completion; `sent` cuts it off after so many bytes."""

    text: str | None = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"
    body: bytes | None = None
    sent: int | None = None
    delay_s: float = 0.0
    usage: tuple[int, int] = (100, 10)


def verdict(score: float = 7, **fields: Any) -> str:
    return json.dumps({"reason": "It ran.", "score": score, "blame": {}, **fields})


def failing(status: int, message: str = "no", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "x", "code": "x"}}).encode()
    return Reply(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


class CoachServer:
    """Takes its replies from `script`, in order; when that is used up, from `default`.

    `asked` holds every request's body, `keys` its Authorization header; `stopped` says whether it has gone.
    """

    def __init__(self) -> None:
        self.default: Reply | Callable[[Asked], Reply] = Reply(text=verdict())
        self.script: list[Reply | Callable[[Asked], Reply]] = []
        self.asked: list[Asked] = []
        self.keys: list[str | None] = []
        self.stopped = False
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def stop(self) -> None:
        self.stopped = True
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _next(self, asked: Asked, key: str | None) -> Reply:
        with self._lock:
            self.asked.append(asked)
            self.keys.append(key)
            found = self.script.pop(0) if self.script else self.default
        return found(asked) if callable(found) else found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = server._next(asked, self.headers.get("Authorization"))
                time.sleep(reply.delay_s)
                body = _completion(asked, reply) if reply.body is None else reply.body
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client did not wait
                    self.wfile.write(body[: reply.sent])

            def log_message(self, format: str, *args: Any) -> None:
                """Silent."""

        return Handler


def _completion(asked: Asked, reply: Reply) -> bytes:
    message = {"role": "assistant", "content": reply.text}
    choice = {"index": 0, "finish_reason": reply.finish_reason, "message": message}
    prompt, completion = reply.usage
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
    ).encode()
