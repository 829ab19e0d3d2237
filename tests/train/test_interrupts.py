from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from mappa_train import interrupts
from mappa_train.interrupts import finish_first


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A shell may start what runs in its background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def work(num_signals: int, lived: list[str], error: Exception | None = None) -> None:
    """Sends so many signals to itself, and notes which of them it lived to tell of."""
    with finish_first("first this"):
        for k in range(num_signals):
            signal.raise_signal(signal.SIGINT)
            lived.append(f"signal {k}")
        if error is not None:
            raise error
        lived.append("the end")


def test_an_interruption_waits_for_the_end_of_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    lived: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(1, lived)
    assert lived == ["signal 0", "the end"]
    assert capfd.readouterr().err == "first this\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SAME_S", 0.0)
    lived: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(2, lived)
    assert lived == ["signal 0"]


def test_two_signals_in_quick_succession_are_one_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SAME_S", 600.0)  # however long this machine takes between the two
    lived: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(2, lived)
    assert lived == ["signal 0", "signal 1", "the end"]


def test_an_error_goes_before_an_interruption_that_waits() -> None:
    with pytest.raises(ValueError, match="no"):
        work(1, [], ValueError("no"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_and_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as under nohup
    try:
        with finish_first("first this"):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    lived: list[str] = []
    thread = threading.Thread(target=work, args=(0, lived))
    thread.start()
    thread.join()
    assert lived == ["the end"]
