"""Helper processes: killed in time, replaced, shared by threads and loops, gone with their owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mappa_envs.child import ORPHAN_CHECK_S, HelperFailed, HelperOutOfMemory, HelperPool, HelperTimeout
from mappa_envs.errors import SandboxError

TESTS = Path(__file__).parent
AT_ONCE_S = 0.8 * ORPHAN_CHECK_S
"""Before a helper would look by itself whether its owner is still there."""


@pytest.fixture(scope="module")
def pool() -> Iterator[HelperPool]:
    pool = HelperPool("child_functions", memory_mb=1024, size=1)
    yield pool
    pool.close()


def pid_of(pool: HelperPool) -> int:
    return int(pool.call("echo", {}, timeout_s=60)["pid"])


def until(holds: Callable[[], bool]) -> None:
    """Wait for something, a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" and os.getppid() != pid:
            return True
        time.sleep(0.05)
    return False


def test_values_and_bytes_arrive_and_the_process_stays(pool: HelperPool) -> None:
    data = b"x" * (32 << 20)
    answer = pool.call("echo", {"a": [1, None, "ä"]}, data=data, timeout_s=60)
    assert answer["size"] == len(data)
    assert answer["arguments"] == {"a": [1, None, "ä"]}
    assert answer["pid"] == pid_of(pool) != os.getpid()


@pytest.mark.parametrize("function", ["spin", "hold_the_interpreter"])
def test_a_call_that_takes_too_long_is_killed(pool: HelperPool, function: str) -> None:
    pid = pid_of(pool)
    with pytest.raises(HelperTimeout, match=rf"{function} took longer than 0\.3 s"):
        pool.call(function, {}, timeout_s=0.3)
    assert not Path(f"/proc/{pid}").exists()  # no zombie either
    assert pid_of(pool) != pid


def test_too_much_memory_is_told_apart(pool: HelperPool) -> None:
    with pytest.raises(HelperOutOfMemory, match="swell"):
        pool.call("swell", {}, timeout_s=60)


def test_an_exception_comes_with_its_traceback(pool: HelperPool) -> None:
    with pytest.raises(HelperFailed, match=r"(?s)in fail.*KeyError: 'no such thing'"):
        pool.call("fail", {}, timeout_s=60)
    assert issubclass(HelperFailed, SandboxError)


def test_a_death_is_a_failure_and_the_next_call_works(pool: HelperPool) -> None:
    with pytest.raises(HelperFailed, match="exit status 3"):
        pool.call("leave", {"code": 3}, timeout_s=60)
    assert pid_of(pool) > 0


def test_a_helper_that_died_while_idle_is_replaced(pool: HelperPool) -> None:
    pid = pid_of(pool)
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid, 60)
    assert pid_of(pool) != pid


def test_prints_and_reads_do_not_touch_the_channel(pool: HelperPool) -> None:
    assert pool.call("chatter", {}, timeout_s=60) == ""


def test_an_endless_answer_is_not_taken(pool: HelperPool) -> None:
    with pytest.raises(HelperFailed, match="the limit is"):
        pool.call("huge_answer", {}, timeout_s=60)


def test_keys_of_the_environment_stay_outside(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    pool.close()
    names = pool.call("environment", {}, timeout_s=60)
    assert "SOME_API_KEY" not in names
    assert "PYTHONPATH" in names


def test_a_module_that_is_not_there_fails_at_the_first_call() -> None:
    with pytest.raises(HelperFailed, match=r"no_such_module.*did not start"):
        HelperPool("no_such_module", memory_mb=512).call("echo", {}, timeout_s=60)


def test_threads_and_loops_share_a_pool() -> None:
    pool = HelperPool("child_functions", memory_mb=1024, size=2)

    async def several(first: int) -> list[int]:
        calls = [pool.acall("echo", {"n": first + i}, timeout_s=60) for i in range(8)]
        answers = await asyncio.gather(*calls)
        assert [answer["arguments"]["n"] for answer in answers] == [first + i for i in range(8)]
        return [answer["pid"] for answer in answers]

    with ThreadPoolExecutor(4) as threads:
        pids = [
            pid for part in threads.map(lambda n: asyncio.run(several(n)), range(0, 32, 8)) for pid in part
        ]
    assert len(pids) == 32
    assert 1 <= len(set(pids)) <= 2
    pool.close()


@pytest.mark.slow
def test_time_spent_waiting_for_a_free_helper_does_not_count(pool: HelperPool) -> None:
    async def both() -> list[int]:
        first = asyncio.create_task(pool.acall("nap", {"seconds": 3.0}, timeout_s=60))
        await asyncio.to_thread(until, lambda: not pool._idle)  # the nap has the only helper
        second = await pool.acall("nap", {"seconds": 0.0}, timeout_s=2.5)
        return [await first, second]

    pid = pid_of(pool)
    assert asyncio.run(both()) == [pid, pid]


def test_a_cancelled_call_leaves_a_usable_pool(pool: HelperPool, tmp_path: Path) -> None:
    """It goes on to its end, and the next one waits for that."""
    began, go_on = tmp_path / "began", tmp_path / "go_on"

    async def cancelled() -> None:
        files = {"began": str(began), "go_on": str(go_on)}
        task = asyncio.create_task(pool.acall("wait_for_file", files, timeout_s=60))
        await asyncio.to_thread(until, began.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    pid = pid_of(pool)
    asyncio.run(cancelled())
    go_on.touch()
    assert pid_of(pool) == pid


SCRIPT = """
import os, sys, time
print("script", flush=True)
from mappa_envs.child import HelperPool
pool = HelperPool("child_functions", memory_mb=1024, size=1)
mine = pool.call("echo", {}, timeout_s=60)["pid"]
print(mine, flush=True)
"""


def run_script(rest: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + rest], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_the_callers_script_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "without_guard.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    shown = subprocess.run(
        [sys.executable, "-W", "error", script], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split().count("script") == 1
    assert shown.stderr == ""
    assert wait_until_gone(int(shown.stdout.split()[1]), AT_ONCE_S)


def test_a_forked_copy_has_helpers_of_its_own() -> None:
    shown, _ = run_script(
        "child = os.fork()\n"
        "theirs = pool.call('echo', {}, timeout_s=60)['pid']\n"
        "print('forked' if child == 0 else 'owner', theirs, flush=True)\n"
        "if child: os.waitpid(child, 0)\n"
    ).communicate(timeout=120)
    first = shown.split()[1]
    pids = dict(line.split() for line in shown.splitlines() if " " in line)
    assert pids["owner"] == first
    assert pids["forked"] != first


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_helpers_end_with_an_owner_that_is_killed(busy: bool) -> None:
    hang = "pool.call('spin', {}, timeout_s=1.5)\n" if busy else "time.sleep(600)\n"
    owner = run_script(hang)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "script\n"
    helper = int(owner.stdout.readline())
    if busy:
        time.sleep(0.3)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    # A busy one has used up its own processor time at the latest.
    assert wait_until_gone(helper, 120 if busy else AT_ONCE_S)
