from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
import torch

from mappa_train import beside, interrupts
from mappa_train.asking import Barrier
from mappa_train.beside import run_beside
from mappa_train.engine.fake import FakeBatchEngine
from mappa_train.types import Generation, GenerationRequest


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A shell may start what runs in its background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Caller:
    """Does here what the work asks for there."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Future[int] | None] = queue.SimpleQueue()

    async def where(self) -> int:
        answer: Future[int] = Future()
        self.jobs.put(answer)
        return await asyncio.wrap_future(answer)

    def serve(self, until: Future[object]) -> None:
        until.add_done_callback(lambda _: self.jobs.put(None))
        while (job := self.jobs.get()) is not None:
            job.set_result(threading.get_ident())


def interrupt() -> None:
    """As Ctrl-C does: in the main thread, whoever calls."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def wait(until: Future[object]) -> None:
    until.exception()


def test_the_work_runs_elsewhere_and_what_it_asks_for_here() -> None:
    caller = Caller()

    async def work() -> tuple[int, int]:
        return threading.get_ident(), await caller.where()

    there, here = run_beside(work, caller.serve)
    assert there != here == threading.get_ident()


def test_its_error_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_beside(work, wait)


def test_an_error_here_cancels_it_and_waits_for_its_end() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    def fail(until: Future[object]) -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        run_beside(work, fail)
    # Where it was cancelled before it began, there is nothing to end.
    assert ended in ([True], [])
    assert not any(thread.name == "mappa-rollout" for thread in threading.enumerate())


def test_an_interrupt_cancels_it_and_is_raised_when_it_has_ended() -> None:
    caller, notes = Caller(), list[str]()

    async def work() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            await caller.where()  # it is still served
            notes.append("ended")

    with pytest.raises(KeyboardInterrupt):
        run_beside(work, caller.serve)
    assert notes == ["ended"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any second signal is a second interrupt, which waits for hardly anything."""
    monkeypatch.setattr(interrupts, "SAME_S", 0.0)
    monkeypatch.setattr(beside, "GIVE_UP_S", 0.05)


def end_of(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(20)


@pytest.mark.usefixtures("impatient")
def test_a_second_interrupt_does_not_wait() -> None:
    release = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupt()
            await asyncio.to_thread(release.wait, 20)

    def interrupted(until: Future[object]) -> None:
        interrupt()
        wait(until)

    with pytest.raises(KeyboardInterrupt):
        run_beside(work, interrupted)
    assert any(thread.name == "mappa-rollout" for thread in threading.enumerate())
    release.set()
    end_of("mappa-rollout")


@pytest.mark.usefixtures("impatient")
def test_a_second_interrupt_ends_a_batch_that_is_being_sampled() -> None:
    request = GenerationRequest(
        agent="writer_0", prompt_ids=torch.ones(3, dtype=torch.int64), key=(0, 1, 0, 0)
    )

    class Deaf(FakeBatchEngine):
        """Hears nothing but signals."""

        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            interrupt()
            interrupt()
            raise AssertionError("it went on")

    asker = Barrier(Deaf(lambda request: "text"), ["writer_0"], num_places=1)
    with pytest.raises(KeyboardInterrupt):
        run_beside(lambda: asker.ask(request), asker.serve)
    end_of("mappa-rollout")
