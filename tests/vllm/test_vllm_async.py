"""vLLM in processes of its own, on the CPU, with weights sent as files; all else is as on GPUs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from test_vllm_engine import assert_fresh
from tiny import STOP
from vllm_bench import AGENTS, Bench, children, requests

from mappa_envs.errors import DataError, UnavailableError
from mappa_train.engine import vllm_transfer
from mappa_train.engine.base import StreamEngine
from mappa_train.engine.vllm_async import AsyncVllmEngine
from mappa_train.engine.vllm_setup import why_no_own_processes, why_not
from mappa_train.engine.vllm_weights import SyncError
from mappa_train.types import Generation, GenerationRequest

WHY_NOT = why_not() or why_no_own_processes()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}"),
]

TWO = AGENTS[:2]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder, TWO, AsyncVllmEngine, gpus=[(), ()], backend="file")
    with closing(bench.engine):
        bench.sync()
        yield bench


@pytest.fixture
def bench(started: Bench) -> Bench:
    """The two engines, with fresh weights and nothing under way."""
    started.learn(seed=1)
    assert unfinished(started) == 0
    return started


def unfinished(bench: Bench) -> int:
    """Requests that are under way, here or in a process of vLLM's."""
    return len(bench.engine._running) + inside(bench)


def inside(bench: Bench) -> int:
    """Those that vLLM has taken."""
    return sum(remote.engine.get_num_unfinished_requests() for remote in bench.engine._remotes)


def test_every_agent_samples_from_its_own_fresh_weights(bench: Bench) -> None:
    assert isinstance(bench.engine, StreamEngine)
    asked = requests(8, agents=TWO, length=128)
    first = bench.sample(asked)
    assert_fresh(bench, asked, first)
    bench.learn(seed=2)
    second = bench.sample(asked)
    assert_fresh(bench, asked, second)
    assert [answer.policy_version for answer in second] == [bench.version] * 8
    assert any(not torch.equal(a.token_ids, b.token_ids) for a, b in zip(first, second, strict=True))
    assert list(Path("/dev/shm").glob("mappa-weights-*")) == []


def test_a_request_repeats_in_whatever_company(bench: Bench) -> None:
    asked = requests(12, agents=TWO)
    together = bench.sample(asked)
    (again,) = bench.sample([asked[7]])
    assert torch.equal(again.token_ids, together[7].token_ids)
    stopped = [answer for answer in together if not answer.truncated]
    assert stopped
    assert all(answer.token_ids[-1] == STOP for answer in stopped)


def test_a_transfer_that_sends_other_weights_is_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.shake(seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(vllm_transfer.FileSender, "send_weights", lambda self: None)
        with pytest.raises(SyncError, match=f"{TWO[0]}.*nats a token"):
            bench.sync()
    with pytest.raises(UnavailableError, match="sync it first"):
        bench.sample(requests(1))
    bench.sync()
    assert_fresh(bench, requests(2), bench.sample(requests(2)))


def test_an_action_of_other_weights_than_the_policys_is_an_error(bench: Bench) -> None:
    bench.engine._remotes[0].name_version(99)
    with pytest.raises(SyncError, match=f"{TWO[0]}: an action was sampled with weights of version 99"):
        bench.sample(requests(1))
    bench.sync()
    assert len(bench.sample(requests(1))) == 1


def test_at_the_deadline_the_tokens_so_far_come_back(bench: Bench) -> None:
    (nothing,) = bench.sample(requests(1), deadline_s=0.0)
    assert (nothing.truncated, len(nothing.token_ids)) == (True, 0)
    whole = bench.sample(requests(4, agents=TWO), deadline_s=600.0)
    assert_fresh(bench, requests(4, agents=TWO), whole)
    cut = bench.sample(requests(40, agents=TWO), deadline_s=0.3)
    late = [k for k, answer in enumerate(cut) if answer.truncated]
    assert_fresh(bench, [requests(40, agents=TWO)[k] for k in late], [cut[k] for k in late])
    settle(bench)


async def begun(bench: Bench, count: int) -> list[asyncio.Task[Any]]:
    """So many requests, in the moment when vLLM has taken some of them."""
    tasks = [asyncio.create_task(bench.engine.agenerate(item)) for item in requests(count, agents=TWO)]

    def wait() -> None:
        while not inside(bench) and not all(task.done() for task in tasks):
            time.sleep(0.001)

    await asyncio.to_thread(wait)
    return tasks


def settle(bench: Bench) -> None:
    """Have vLLM's loop do all that was asked for by now, and find nothing left."""
    for remote in bench.engine._remotes:
        remote.resume()
    assert unfinished(bench) == 0


def test_cancelling_frees_requests_and_the_next_sync_goes_on(bench: Bench) -> None:
    async def cancelled(*, all_at_once: bool) -> list[Any]:
        tasks = await begun(bench, 8)
        with pytest.raises(RuntimeError, match=r"sync while \d requests are under way"):
            bench.sync()
        if all_at_once:
            bench.engine.cancel()
        else:
            for task in tasks:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    for all_at_once in (True, False):
        found = asyncio.run(cancelled(all_at_once=all_at_once))
        # Some may have been done by then.
        assert any(isinstance(item, asyncio.CancelledError) for item in found)
        assert all(isinstance(item, asyncio.CancelledError | Generation) for item in found)
        settle(bench)
        bench.sync()
        assert_fresh(bench, requests(2), bench.sample(requests(2)))


def test_a_prompt_that_cannot_be_answered_is_a_clean_error(bench: Bench) -> None:
    bad = GenerationRequest(agent=AGENTS[0], prompt_ids=torch.tensor([5, -1]), key=(0, 1, 0, 0))
    with pytest.raises(DataError, match="outside the vocabulary"):
        bench.sample([bad])
    assert len(bench.sample(requests(1))) == 1


def test_a_dead_process_is_a_clean_error_for_all_who_wait(bench: Bench) -> None:
    """The last of this module: the engines are of no use afterwards."""
    worker = next(p for p in children() if p not in bench.others and "Worker" in "".join(p.cmdline()))

    async def everything() -> list[Any]:
        tasks = await begun(bench, 40)
        worker.kill()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(everything())
    failed = [item for item in found if isinstance(item, BaseException)]
    assert failed
    assert all(isinstance(item, UnavailableError) and "resume" in str(item) for item in failed)
    with pytest.raises(UnavailableError, match="vLLM has stopped"):
        bench.sample(requests(1))
    with pytest.raises(UnavailableError, match="vLLM has stopped"):
        bench.sync()
    bench.engine._why_dead = None  # where it died between two rollouts, a sync is the first to know
    with pytest.raises(UnavailableError, match=r"vLLM has stopped .*resume"):
        bench.sync()
    bench.engine.close()
    assert [child for child in children() if "VLLM" in "".join(child.cmdline())] == []


def test_a_killed_run_leaves_no_processes_and_nothing_on_the_screen(folder: Path, tmp_path: Path) -> None:
    code = f"""
        import logging, sys
        from pathlib import Path
        logging.basicConfig(filename={str(tmp_path / "run.log")!r}, level=logging.INFO)
        logging.captureWarnings(True)
        from transformers.utils import logging as theirs
        from mappa_train.engine.vllm_async import AsyncVllmEngine
        from vllm_bench import AGENTS, Bench, requests

        theirs.disable_progress_bar()
        bench = Bench(Path({str(folder)!r}), AGENTS[:1], AsyncVllmEngine, gpus=[()], backend="file")
        bench.sync()
        print("ready", flush=True)
        sys.stdin.readline()
        bench.sample(requests(6, agents=AGENTS[:1]))
        print("sampled", flush=True)
        sys.stdin.readline()
    """
    paths = [str(ROOT), str(ROOT / "tests" / "train"), str(Path(__file__).parent)]
    screen = tmp_path / "screen"
    with screen.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    inside = psutil.Process(run.pid).children(recursive=True)
    assert len(inside) >= 2
    # Ctrl-C, as far as vLLM sees it: it is not meant for its processes.
    for process in inside:
        process.send_signal(signal.SIGINT)
    run.stdin.write("\n")
    run.stdin.flush()
    assert run.stdout.readline() == "sampled\n"
    assert screen.read_text() == ""
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(inside, timeout=60)
    assert alive == []
    assert run.stdout.read() == ""
