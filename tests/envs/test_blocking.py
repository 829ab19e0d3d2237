"""Waiting for coroutines from ordinary code, and calling plain functions from coroutines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from hangs import soon

from mappa_envs import blocking
from mappa_envs.blocking import CallThread, wait_for


async def value() -> int:
    await asyncio.sleep(0)
    return 7


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def fail_in_a_task(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail(error))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("stop"), LookupError("no")])
@pytest.mark.parametrize("failing", [fail, fail_in_a_task])
def test_whatever_a_coroutine_raises_reaches_the_caller_and_the_loop_lives_on(
    error: BaseException, failing: Any
) -> None:
    with pytest.raises((type(error), ExceptionGroup)) as caught:
        soon(lambda: wait_for(failing(error)))
    assert error in (caught.value, *getattr(caught.value, "exceptions", ()))
    assert soon(lambda: wait_for(value())) == 7


def test_a_caller_that_waits_already_is_not_left_alone() -> None:
    release = threading.Event()

    async def patient() -> int:
        await asyncio.to_thread(release.wait)
        return 5

    done: Future[int] = Future()
    threading.Thread(target=lambda: done.set_result(wait_for(patient())), daemon=True).start()
    with pytest.raises(SystemExit):
        soon(lambda: wait_for(fail_in_a_task(SystemExit(1))))
    release.set()
    assert done.result(100) == 5


def test_a_dead_thread_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = blocking._LoopThread()
    dead.thread = threading.Thread(target=int)
    dead.thread.start()
    dead.thread.join()
    monkeypatch.setattr(blocking, "_current", dead)
    assert soon(lambda: wait_for(value())) == 7


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    code = (
        "import asyncio, os, sys; from mappa_envs.blocking import wait_for\n"
        "wait_for(asyncio.sleep(0))\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(wait_for(asyncio.sleep(0, 5)))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 5


def test_a_coroutine_that_would_wait_for_its_own_loop_is_told_so() -> None:
    async def inner() -> int:
        return wait_for(value())

    with pytest.raises(RuntimeError, match="await areset, astep, aclose or aevaluate"):
        soon(lambda: wait_for(inner()))
    # In a loop of the caller's own there is nothing to be afraid of.
    assert soon(lambda: asyncio.run(inner())) == 7


def test_plain_functions_are_called_in_turn_in_one_thread() -> None:
    calls = CallThread("calls")

    async def all_at_once() -> list[int]:
        return list(await asyncio.gather(*(calls.call(threading.get_ident) for _ in range(5))))

    threads = set(asyncio.run(all_at_once()))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    with pytest.raises(SystemExit):
        soon(lambda: wait_for(calls.call(sys.exit)))
    assert soon(lambda: wait_for(calls.call(lambda: 7))) == 7
    calls.close()


def test_a_slow_call_does_not_hold_up_an_interrupted_process() -> None:
    # A shell that runs the tests in the background has all of them ignore the signal.
    code = (
        "import signal, time; from mappa_envs.blocking import CallThread, wait_for\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def slow(): print('began', flush=True); time.sleep(60)\n"
        "wait_for(CallThread('slow').call(slow))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == b"began\n"
            os.kill(run.pid, signal.SIGINT)
            run.wait(50)
            assert run.returncode != 0
        finally:
            run.kill()


def test_the_loop_ends_with_the_process_and_cancels_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "END_S", 100.0)
    shared, seen = blocking._LoopThread(), []

    async def endless() -> None:
        try:
            seen.append("began")
            await asyncio.sleep(1000)
        finally:
            seen.append("cancelled")

    asyncio.run_coroutine_threadsafe(endless(), shared.loop)
    shared._close()
    assert (seen, shared.thread.is_alive()) == (["began", "cancelled"], False)
    shared._close()
