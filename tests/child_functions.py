"""What the helper processes of `test_child.py` run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def echo(data: bytes, **arguments: object) -> dict[str, object]:
    return {"size": len(data), "start": data[:8].decode(), "arguments": arguments, "pid": os.getpid()}


def nap(data: bytes, *, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def wait_for_file(data: bytes, *, began: str, go_on: str) -> None:
    Path(began).touch()
    while not Path(go_on).exists():
        time.sleep(0.01)


def spin(data: bytes) -> None:
    while True:
        pass


def hold_the_interpreter(data: bytes) -> int:
    """One operation in C that no signal handler of Python can interrupt."""
    return (7 ** (10**8)).bit_length()


def swell(data: bytes) -> int:
    return len(bytearray(1 << 40))


def fail(data: bytes) -> None:
    raise KeyError("no such thing")


def leave(data: bytes, *, code: int) -> None:
    os._exit(code)


def chatter(data: bytes) -> str:
    print("noise on the standard output", flush=True)
    return sys.stdin.read()


def huge_answer(data: bytes) -> str:
    return "x" * (1 << 25)


def environment(data: bytes) -> list[str]:
    return sorted(os.environ)
