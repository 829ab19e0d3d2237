"""What holds vLLM's own processes together, without vLLM: their end, answers, a start that fails, a sync."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from mappa_envs.errors import UnavailableError
from mappa_train.engine import vllm_async
from mappa_train.engine.vllm_transfer import Remote
from mappa_train.engine.vllm_weights import bring_in

ROOT = Path(__file__).parents[2]

FAMILY = """
import ctypes, multiprocessing, os, sys, time
from pathlib import Path
from mappa_train.engine import vllm_owner

spawn = multiprocessing.get_context("spawn")

def say(name):
    print(name, os.getpid(), flush=True)

def forbidden(process):
    raise PermissionError("no pidfd_open here")

def worker(owner, how):
    if how == "polls":
        os.pidfd_open = forbidden
        vllm_owner._LOOK_S = 0.05
    say("worker")
    while how == "late" and not Path("go").exists():
        time.sleep(0.01)
    vllm_owner.end_with(owner)

def core(owner, how):
    say("core")
    spawn.Process(target=worker, args=(owner, how)).start()
    time.sleep(600)

def owner(how):
    say("owner")
    spawn.Process(target=core, args=(os.getpid(), how)).start()
    time.sleep(600)

if __name__ == "__main__":
    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    say("reaper")
    spawn.Process(target=owner, args=(sys.argv[1],)).start()
    while True:
        os.wait()
"""


@pytest.mark.parametrize(
    ("killed", "how"),
    [(["owner"], "waits"), (["owner"], "polls"), (["owner"], "late"), (["core", "owner"], "late")],
)
def test_processes_end_with_their_owner_and_leave_the_one_that_inherits_them(
    killed: list[str], how: str, tmp_path: Path
) -> None:
    """A worker may begin to watch its owner only when that, and the core between them, have ended."""
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    reaper = subprocess.Popen(
        [sys.executable, script, how], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    assert reaper.stdout is not None
    with reaper:
        pairs = [reaper.stdout.readline().split() for _ in range(4)]
        family = {name: psutil.Process(int(pid)) for name, pid in pairs}
        for name in killed:
            family[name].kill()
        psutil.wait_procs([family[name] for name in killed], timeout=120)
        (tmp_path / "go").touch()
        _, alive = psutil.wait_procs([family[name] for name in ("core", "worker")], timeout=120)
        for process in alive:
            process.kill()
        assert alive == []
        reaper.terminate()
    assert reaper.returncode == -signal.SIGTERM  # and not killed before that


class JustInTime(concurrent.futures.Future[int]):
    """Is done right after the wait for it has ended."""

    def result(self, timeout: float | None = None) -> int:
        if self.done():
            return super().result(timeout)
        self.set_result(7)
        raise TimeoutError


def test_an_answer_in_the_moment_when_the_wait_ends_is_an_answer() -> None:
    remote = Remote(SimpleNamespace(vllm_config=None, errored=True), loop=None)  # type: ignore[arg-type]
    assert remote._watch(JustInTime()) == 7


def test_what_goes_wrong_in_an_engines_processes_is_an_error_that_a_run_ends_with() -> None:
    async def fail() -> None:
        raise Exception("Call to resume_scheduler method failed: CUDA out of memory")  # so vLLM tells it

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    remote = Remote(SimpleNamespace(vllm_config=None, errored=False, resume_generation=fail), loop)
    try:
        with pytest.raises(UnavailableError, match="method failed: CUDA out of memory"):
            remote.resume()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("forgets", [True, False])
def test_a_sync_loads_forgets_and_verifies_agent_by_agent(forgets: bool) -> None:
    told: list[str] = []

    class Engine:
        def __init__(self, agent: str) -> None:
            self.agent = agent

        def reset_prefix_cache(self) -> bool:
            told.append(f"{self.agent} forgets")
            return forgets

    def load(agent: str, version: int, model: str) -> None:
        told.append(f"{agent} loads {model} as {version}")

    def check(agent: str, engine: Engine, model: str, ask: object, adapter: str) -> float:
        told.append(f"{agent} answers by {adapter} as {model} of {engine.agent}")
        return 0.0

    policies: Any = SimpleNamespace(
        sampler=lambda agent: f"the model of {agent}", release_sampler=lambda: told.append("released")
    )
    weights: Any = SimpleNamespace(
        engines={agent: Engine(agent) for agent in "ab"}, load=load, adapter=lambda agent: f"adapter {agent}"
    )
    probe: Any = SimpleNamespace(check=check)
    each = [
        "{0} loads the model of {0} as 7",
        "{0} forgets",
        "{0} answers by adapter {0} as the model of {0} of {0}",
    ]
    if not forgets:
        with pytest.raises(RuntimeError, match="a: vLLM did not forget the prompts of the old weights"):
            bring_in(weights, policies, probe, 7, lambda *asked: None)
        assert told == [line.format("a") for line in each[:2]]
        return
    bring_in(weights, policies, probe, 7, lambda *asked: None)
    assert told == [*(line.format(agent) for agent in "ab" for line in each), "released"]


def test_a_start_that_fails_says_so_and_ends_what_has_started_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[float] = []

    def start(*args: Any, gpus: tuple[int, ...], **options: Any) -> Any:
        if gpus == (1,):
            return SimpleNamespace(
                vllm_config=None, output_handler=None, shutdown=lambda timeout: ended.append(timeout)
            )
        os.write(2, b"no memory on GPU 2\n")
        raise RuntimeError("Engine core initialization failed.")

    monkeypatch.setattr(vllm_async, "prepare", lambda **options: None)
    monkeypatch.setattr(vllm_async, "start_own_processes", start)
    policies: Any = SimpleNamespace(names=("a", "b"), sampler=lambda policy: None)
    sampling: Any = SimpleNamespace(context_tokens=512)
    engine = vllm_async.AsyncVllmEngine(
        policies, Path(), sampling, probe_ids=torch.tensor([1]), gpus=[(1,), (2,)], backend="file"
    )
    with closing(engine), caplog.at_level(logging.ERROR):
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"^vLLM did not start: Engine core .*; run\.log has"):
                engine.sync(1)
        assert not engine._starting  # closing now ends the first one in order, and does not kill it
    assert ended == [vllm_async.END_S]
    assert caplog.text.count("its processes wrote:\nno memory on GPU 2") == 1
