"""Functions that hostile input may hang or bloat, run in helper processes that can be killed.

    >>> pool = HelperPool("mappa_envs.dsbench.grader_helper", memory_mb=4096)
    >>> pool.call("judge_here", {"answers": "answers.csv"}, data=b"id,price", timeout_s=20.0)

The function is `module.function(data, **arguments)`. It gets bytes and JSON values and returns a JSON value;
nothing is unpickled on either side, so a helper that was taken over can lie but not run code here.

A helper is a fresh interpreter that stays for the next call. The standard library's pools and those built
on them do not fit: a spawned worker runs the caller's script again, a forked one copies its threads and its
GPU, and both send pickles back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from types import ModuleType
from typing import Any

from mappa_envs.blocking import settle
from mappa_envs.errors import MappaError, SandboxError

START_TIMEOUT_S = 120.0
"""For the interpreter and its imports, on a loaded machine. It does not count towards a call."""

MAX_ANSWER_BYTES = 1 << 24
ORPHAN_CHECK_S = 30.0
_SIZES = struct.Struct("!II")
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
"""Of the environment: no key of a coach's provider belongs beside hostile input."""


class HelperTimeout(MappaError, TimeoutError):
    """The function was not done in time; its process was killed."""


class HelperOutOfMemory(MappaError, MemoryError):
    """The function needed more memory than its process may have."""


class HelperFailed(SandboxError):
    """The helper could not start, died or raised. The message holds its traceback, if there is one."""


class HelperPool:
    """Runs the functions of one module in up to `size` helper processes, each started when it is needed.

    `memory_mb` bounds the address space of each (on Linux only). Any thread and any event loop may call. In
    a forked copy of the process, the pool starts helpers of its own. Helpers end with their owner.
    """

    def __init__(self, module: str, *, memory_mb: int, size: int = 2) -> None:
        self._module, self._memory_mb, self._size = module, memory_mb, size
        self._idle: list[_Helper] = []
        self._slots = threading.BoundedSemaphore(size)
        renew = weakref.WeakMethod(self._renew)
        os.register_at_fork(after_in_child=lambda: (method := renew()) and method())
        self._end = weakref.finalize(self, _kill_all, self._idle)

    def call(
        self, function: str, arguments: Mapping[str, Any], *, data: bytes = b"", timeout_s: float
    ) -> Any:
        """Run the function and wait. `timeout_s` is wall time and starts when a helper has the call.

        Raises `HelperTimeout`, `HelperOutOfMemory` or `HelperFailed`; the helper is replaced then.
        """
        with self._slots:
            helper = self._take()
            try:
                result = helper.ask(function, arguments, data, timeout_s)
            except BaseException:
                helper.kill()
                raise
            self._idle.append(helper)
        return result

    async def acall(
        self, function: str, arguments: Mapping[str, Any], *, data: bytes = b"", timeout_s: float
    ) -> Any:
        """`call` for an event loop. If it is cancelled, the call in the helper goes on to its end."""
        done: Future[Any] = Future()
        work = partial(self.call, function, arguments, data=data, timeout_s=timeout_s)
        # Not the loop's executor: a few slow calls would hold up all others, and its threads the exit.
        threading.Thread(target=settle, args=(done, work), name="mappa-helper-call", daemon=True).start()
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Kill the helpers that wait for work. A later call starts another."""
        _kill_all(self._idle)

    def _take(self) -> _Helper:
        with contextlib.suppress(IndexError):
            while True:
                helper = self._idle.pop()
                if helper.process.poll() is None:
                    return helper
                helper.kill()
        return _Helper(self._module, self._memory_mb)

    def _renew(self) -> None:
        """In a forked copy: the helpers belong to the original, and a lock may be held for ever."""
        self._slots = threading.BoundedSemaphore(self._size)
        while self._idle:
            self._idle.pop().disown()


class _Helper:
    """One helper process, ready for calls; one call at a time."""

    def __init__(self, module: str, memory_mb: int) -> None:
        try:
            self._channel, self.process = _start(module, memory_mb)
        except OSError as error:
            raise HelperFailed(f"the helper for {module} could not be started: {error}") from error
        try:
            self._receive(time.monotonic() + START_TIMEOUT_S)
        except OSError as error:
            self.kill()
            raise HelperFailed(f"the helper for {module} did not start: {error}") from error
        except BaseException:
            self.kill()
            raise

    def ask(self, function: str, arguments: Mapping[str, Any], data: bytes, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        request = {"function": function, "arguments": dict(arguments), "timeout_s": timeout_s}
        text = json.dumps(request).encode()
        try:
            self._channel.settimeout(timeout_s)
            self._channel.sendall(_SIZES.pack(len(text), len(data)) + text)
            self._channel.sendall(data)
            answer = self._receive(deadline)
        except TimeoutError:
            raise HelperTimeout(f"{function} took longer than {timeout_s:g} s") from None
        except OSError as error:
            raise self._obituary(function, timeout_s) from error
        if "out_of_memory" in answer:
            raise HelperOutOfMemory(f"{function} needed more memory than it may have")
        if "error" in answer:
            raise HelperFailed(f"{function} failed in its helper process:\n{answer['error']}")
        return answer["result"]

    def _obituary(self, function: str, timeout_s: float) -> MappaError:
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(1)
        if status == -signal.SIGPROF:
            return HelperTimeout(f"{function} took more than {timeout_s:g} s of processor time")
        return HelperFailed(f"{function}: the helper process is gone, with exit status {status}")

    def _receive(self, deadline: float) -> dict[str, Any]:
        size, _ = _SIZES.unpack(_read(self._channel, _SIZES.size, deadline))
        if size > MAX_ANSWER_BYTES:
            raise HelperFailed(f"an answer of {size} bytes; the limit is {MAX_ANSWER_BYTES}")
        try:
            answer = json.loads(_read(self._channel, size, deadline))
        except (ValueError, RecursionError) as error:
            raise HelperFailed(f"the helper process answered no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise HelperFailed("the helper process answered no JSON object")
        return answer

    def kill(self) -> None:
        self._channel.close()
        self.process.kill()
        self.process.wait()

    def disown(self) -> None:
        """Forget a process that is not this one's child, without a word from `Popen`."""
        self._channel.close()
        self.process.returncode = 0


def _start(module: str, memory_mb: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    try:
        return ours, subprocess.Popen(
            [sys.executable, "-P", "-m", "mappa_envs.child", module, str(memory_mb)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env=_environment(),
            # Out of the terminal's process group: an interrupt is for the owner to handle.
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


def _kill_all(helpers: list[_Helper]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            helpers.pop().kill()


def _environment() -> dict[str, str]:
    here = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**here, **threads, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _read(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    """Exactly `size` bytes. Raises `TimeoutError`, `ConnectionError` at the end of the stream."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        got = channel.recv_into(view)
        if got == 0:
            raise ConnectionError("it closed its end")
        view = view[got:]
    return data


def _serve(module: str, memory_mb: int) -> None:
    """The helper's side: answer calls until the owner is gone."""
    _limit(memory_mb)
    owner = os.getppid()
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    functions = importlib.import_module(module)
    _write(channel, b"{}")
    with contextlib.suppress(ConnectionError):
        while _is_called(channel, owner):
            _write(channel, _answer(functions, channel))


def _limit(memory_mb: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return  # others count libraries that all processes share, and refuse the limit
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = memory_mb << 20
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


def _is_called(channel: socket.socket, owner: int) -> bool:
    # A process that the owner forked holds a copy of the other end: no end of stream when the owner dies.
    while not select.select([channel], [], [], ORPHAN_CHECK_S)[0]:
        if os.getppid() != owner:
            return False
    return True


def _answer(functions: ModuleType, channel: socket.socket) -> bytes:
    try:
        text_size, data_size = _SIZES.unpack(_read(channel, _SIZES.size, None))
        request = json.loads(_read(channel, text_size, None))
        data = bytes(_read(channel, data_size, None))
        # The owner's clock is the limit; this one kills an endless loop whose owner is gone.
        signal.setitimer(signal.ITIMER_PROF, request["timeout_s"] + 1)
        result = getattr(functions, request["function"])(data, **request["arguments"])
        return json.dumps({"result": result}).encode()
    except MemoryError:
        return b'{"out_of_memory": true}'
    except ConnectionError:
        raise
    except Exception:  # noqa: BLE001  (told to the caller)
        return json.dumps({"error": traceback.format_exc(limit=-8)[-8192:]}).encode()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _write(channel: socket.socket, answer: bytes) -> None:
    channel.sendall(_SIZES.pack(len(answer), 0) + answer)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
