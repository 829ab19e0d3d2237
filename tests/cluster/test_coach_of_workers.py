"""Rollout workers whose requests all go to the driver's LLM coach, at a real server of this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("litellm") is None:  # not imported here: that takes seconds, in every process of pytest's
    pytest.skip("needs the extra coach", allow_module_level=True)

from test_main_job import run_it, settings

from mappa_envs.coach.llm.limits import Pace
from mappa_train.coaching import SPENT
from tests.coach.coach_server import Asked, CoachServer, Reply, verdict

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PRICE = 110e-6
"""Of a verdict in USD: 100 prompt and 10 completion tokens, at a dollar a million."""
AFFORDED = 14


class Counted(CoachServer):
    """Knows how many requests it was answering at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now, self._counting = 0, threading.Lock()
        self.default = self._answer

    def _answer(self, asked: Asked) -> Reply:
        with self._counting:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.1)
        with self._counting:
            self._now -= 1
        return Reply(text=verdict(), usage=(100, 10))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-in-the-driver-only")
    server = Counted()
    yield server
    server.stop()


def test_two_workers_share_one_set_of_limits_and_one_budget(
    cluster: Any, server: Counted, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced = []
    wait = Pace.wait

    async def counted(pace: Pace, num_chars: int) -> None:
        paced.append(pace)
        await wait(pace, num_chars)

    # Observed, not replaced: the limit on requests a minute is kept where this counts, or nowhere.
    monkeypatch.setattr(Pace, "wait", counted)
    config = settings(
        model,
        tmp_path / "run",
        num_rollout_workers=2,
        exploring_starts=0,
        episodes_per_step=4,
        samples_per_task=2,
        coach="llm:openai/some-model",
        coach_base_url=server.url,
        coach_prices="1,1",
        coach_cache="off",
        coach_concurrency=2,
        coach_rpm=1000,
        coach_budget_usd=PRICE * (AFFORDED - 0.5),
    )
    run = run_it(config)
    lines = run.read_metrics()
    assert [bool(line["stop/budget"]) for line in lines] == [False, True]
    assert server.most == 2
    # What is under way when the budget is spent is paid for, too.
    assert AFFORDED <= len(server.asked) < AFFORDED + 2
    assert len(paced) == len(server.asked)
    assert len(set(map(id, paced))) == 1
    assert set(server.keys) == {"Bearer sk-in-the-driver-only"}
    cost = PRICE * len(server.asked)
    assert json.loads((run.path / SPENT).read_text())["cost_usd"] == pytest.approx(cost)
    assert sum(line["coach/cost_usd"] for line in lines) == pytest.approx(cost)
    used = sum(line["coach/prompt_tokens"] for line in lines)
    assert used == 100 * len(server.asked)
