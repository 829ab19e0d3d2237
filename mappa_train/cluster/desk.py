"""The coach stays in the driver: workers hand their requests in at a desk.

So its limits, its budget, its record of costs and its keys are those of one process, however many workers
there are. A desk is a Ray actor, since a driver cannot be called; `CoachRelay` in the driver fetches what
was handed in and brings the verdicts back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import threading
from typing import Any

from mappa_envs.coach.base import Coach, CoachRequest, EpisodeRequest, HindsightCoach
from mappa_envs.coach.calibration import CalibratedCoach
from mappa_envs.coach.fake import FakeCoach
from mappa_envs.coach.rubric import RubricCoach
from mappa_envs.errors import UnavailableError, boundary
from mappa_envs.types import CoachScore

log = logging.getLogger(__name__)

MOST_OPEN = 100_000
"""Requests that may wait at the desk at once: more than episodes ever do, so that Ray holds none back."""

Answered = tuple[int, Any, Exception | None]
Asked = tuple[int, str, CoachRequest | EpisodeRequest]


class Desk:
    """An async Ray actor between workers that ask and the driver that answers."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._open: dict[int, asyncio.Future[tuple[Any, Exception | None]]] = {}
        self._count = 0

    async def ask(self, method: str, request: CoachRequest | EpisodeRequest) -> tuple[Any, Exception | None]:
        """What the coach answered, or what it raised."""
        self._count += 1
        number = self._count
        future: asyncio.Future[tuple[Any, Exception | None]] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        self._asked.put_nowait((number, method, request))
        try:
            return await future
        finally:
            del self._open[number]

    async def take(self) -> list[Asked]:
        """All requests that nobody took yet; waits for the first."""
        taken = [await self._asked.get()]
        while not self._asked.empty():
            taken.append(self._asked.get_nowait())
        return taken

    async def answer(self, answers: list[Answered]) -> None:
        """The verdicts on requests. Whoever asked may be gone."""
        for number, value, error in answers:
            future = self._open.get(number)
            if future is not None and not future.done():
                future.set_result((value, error))


class DeskCoach:
    """In a worker: the driver's coach."""

    def __init__(self, desk: Any, *, reads_scores: bool) -> None:
        self._desk = desk
        self.reads_scores = reads_scores

    async def score(self, request: CoachRequest) -> CoachScore:
        """The verdict on one action. Raises what the coach raised."""
        score: CoachScore = await self._ask("score", request)
        return score

    async def _ask(self, method: str, request: CoachRequest | EpisodeRequest) -> Any:
        from ray.exceptions import RayActorError

        with boundary(UnavailableError, "the desk before the coach is lost; resume", RayActorError):
            value, error = await self._desk.ask.remote(method, request)
        if error is not None:
            raise error
        return value


class DeskHindsightCoach(DeskCoach):
    """The same for a coach that also looks back at whole episodes."""

    async def score_episode(self, request: EpisodeRequest) -> list[CoachScore | None]:
        """One verdict an action. Raises what the coach raised."""
        scores: list[CoachScore | None] = await self._ask("score_episode", request)
        return scores


class CoachRelay:
    """In the driver: answers what workers ask, as many at once as they do; the coach's own limits hold."""

    def __init__(self, coach: Coach) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._coach = coach
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(Desk).options(num_cpus=0, max_concurrency=MOST_OPEN, scheduling_strategy=here)
        self._desk: Any = actor.remote()
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="mappa-coach-desk", daemon=True)
        self._thread.start()

    @property
    def worker_coach(self) -> DeskCoach:
        """What a worker's environments get as their coach."""
        kind = DeskHindsightCoach if isinstance(self._coach, HindsightCoach) else DeskCoach
        return kind(self._desk, reads_scores=bool(getattr(self._coach, "reads_scores", True)))

    def close(self) -> None:
        """Stop answering. Questions under way are cancelled."""
        import ray

        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()
        self._loop.close()
        ray.kill(self._desk)

    def _run(self) -> None:
        from ray.exceptions import RayActorError

        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._serving)
        except* RayActorError:
            # Whoever asks there is told so, and ends the run.
            log.warning("the desk before the coach is lost")

    async def _serve(self) -> None:
        self._answers: asyncio.Queue[Answered] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            while True:
                for number, method, request in await self._desk.take.remote():
                    group.create_task(self._answer(number, method, request))

    async def _answer(self, number: int, method: str, request: CoachRequest | EpisodeRequest) -> None:
        value, failure = await _verdict(self._coach, method, request)
        self._answers.put_nowait((number, value, failure))

    async def _send(self) -> None:
        """What is ready goes out in one call: a call for each verdict would be the driver's bottleneck."""
        while True:
            ready = [await self._answers.get()]
            while not self._answers.empty():
                ready.append(self._answers.get_nowait())
            await self._desk.answer.remote(ready)


def coach_for_workers(coach: Coach | None) -> tuple[Coach | None, CoachRelay | None]:
    """What workers ask, and the relay behind it, to be closed at the end.

    A coach that only computes goes to the workers: it has no limits to keep, and would keep the driver busy.
    """
    inner = coach.coach if isinstance(coach, CalibratedCoach) else coach
    if coach is None or isinstance(inner, RubricCoach | FakeCoach):
        return coach, None
    relay = CoachRelay(coach)
    return relay.worker_coach, relay


async def _verdict(
    coach: Coach, method: str, request: CoachRequest | EpisodeRequest
) -> tuple[Any, Exception | None]:
    """What the coach answers, or what it raises, either of which can travel.

    A verdict that cannot, of a coach of somebody's own, would otherwise end the sending of all others.
    """
    try:
        value = await getattr(coach, method)(request)
        pickle.dumps(value)
    except Exception as error:  # noqa: BLE001  (raised again where it was asked)
        return None, _portable(error)
    return value, None


def _portable(error: Exception) -> Exception:
    """The error itself if it can travel, else one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (a foreign exception class may raise anything here)
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
