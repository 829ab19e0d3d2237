"""When the weights go to whoever plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mappa_train import players
from mappa_train.config import Config
from mappa_train.distributed import ALONE
from mappa_train.players import OwnTeam, RolloutWorkers


class Sleeper:
    """An engine that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def sync(self, version: int) -> None:
        self.told.append(version)

    def sleep(self) -> None:
        self.told.append("sleep")

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def test_weights_that_an_engine_has_are_not_sent_again_unless_it_slept() -> None:
    engine = Sleeper()
    team: Any = SimpleNamespace(engine=engine, playing_engine=lambda: engine)
    mine = OwnTeam(Config(), team, ALONE)
    for version in (0, 1, 1):
        mine.sync(version)
    mine.play([], 2, lambda done, total: None)
    mine.sync(1)
    assert engine.told == [0, 1, "sleep", 1]


def test_weights_that_workers_have_are_not_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(players, "publish", lambda policies, version: version)
    sent: list[Any] = []
    pool: Any = SimpleNamespace(sync=sent.append)
    asked: list[str] = []
    policies: Any = SimpleNamespace(names=("a_0",), state=asked.append)
    first, other = (RolloutWorkers(Config(), policies, has, ALONE) for has in (pool, None))
    for version in (0, 1, 1, 2):
        first.sync(version)
        other.sync(version)
    assert sent == [0, 1, 2]
    assert asked == ["a_0"] * 3  # the other ranks take part in each, and in no other
