"""A pool of places plays any number of episodes; what waits for its coach waits outside, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from rollout_fakes import TEAM, TwoEnv, make_plans

from mappa_envs.coach import CoachRequest
from mappa_envs.testing import FakeCoach, FakeSandbox, without_times
from mappa_envs.types import CoachScore
from mappa_train.engine.fake import CharTokenizer, FakeBatchEngine, FakeStreamEngine, Pace, random_words
from mappa_train.rollout import RolloutLimits, collect
from mappa_train.types import EpisodeRollout, Generation, GenerationRequest


class Recorder(FakeBatchEngine):
    """Keeps which prompts shared a batch."""

    def __init__(self) -> None:
        super().__init__(random_words(seed=0))
        self.batches: list[list[tuple[int, str]]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append([(request.key[2], request.agent) for request in requests])
        return super().generate(requests)


def run(
    num_episodes: int,
    num_places: int,
    engine: FakeBatchEngine | FakeStreamEngine,
    *,
    env: TwoEnv | None = None,
    starts: Sequence[str | None] = (None,),
    **options: Any,
) -> list[EpisodeRollout]:
    rollouts, _ = collect(
        make_plans([starts[k % len(starts)] for k in range(num_episodes)]),
        env=env or TwoEnv(sandbox=FakeSandbox(), coach=FakeCoach(), scoring="deferred"),
        engine=engine,
        tokenizer=CharTokenizer(),  # type: ignore[arg-type]
        seed=7,
        step=3,
        max_prompt_tokens=10**6,
        policy_version=0,
        limits=RolloutLimits(concurrent_episodes=num_places),
        **options,
    )
    return rollouts


def records(rollouts: Sequence[EpisodeRollout]) -> list[str]:
    return [without_times(rollout.episode).to_json() for rollout in rollouts]


def test_the_size_of_the_pool_changes_no_episode() -> None:
    """An action depends on its request alone here, so all that is left to differ is the pool's doing."""
    wide = run(11, 11, FakeBatchEngine(random_words(seed=0)))
    narrow = run(11, 3, FakeBatchEngine(random_words(seed=0)))
    stream = run(11, 4, FakeStreamEngine(random_words(seed=0)))
    assert records(narrow) == records(wide) == records(stream)
    assert [rollout.index for rollout in narrow] == list(range(11))
    assert [[len(a.generation.token_ids) for a in r.actions] for r in narrow] == [
        [len(a.generation.token_ids) for a in r.actions] for r in wide
    ]


def test_what_shares_a_batch_does_not_depend_on_timing() -> None:
    """Places are filled again before anything is sampled, whoever was done first."""
    starts = (None, TEAM[1], None, None, TEAM[1])
    quiet, jittery = Recorder(), Recorder()
    run(14, 4, quiet, starts=starts)
    delays = [(0.0, 0.02), (0.01, 0.0, 0.0), (0.0,), (0.015, 0.005)]
    late = TwoEnv(delays, sandbox=FakeSandbox(), coach=FakeCoach(), scoring="deferred")
    run(14, 4, jittery, starts=starts, env=late)
    assert quiet.batches == jittery.batches
    assert max(len(batch) for batch in quiet.batches) <= 4


def test_no_more_episodes_than_places_hold_a_workspace() -> None:
    sandbox, most = FakeSandbox(), 0

    def look(request: GenerationRequest) -> str:
        nonlocal most
        most = max(most, sum(not workspace.closed for workspace in sandbox.workspaces))
        return "done"

    env = TwoEnv(sandbox=sandbox, coach=FakeCoach(), scoring="deferred")
    run(20, 3, FakeStreamEngine(look, Pace(action_s=0.001)), env=env)
    assert most == 3
    assert len(sandbox.workspaces) == 20
    assert all(workspace.closed for workspace in sandbox.workspaces)


class Gate:
    """A coach that answers nothing before it is opened; `episodes` are those that it was asked about."""

    reads_scores = False

    def __init__(self) -> None:
        self.episodes: set[int] = set()
        self.opened = asyncio.Event()

    async def score(self, request: CoachRequest) -> CoachScore:
        self.episodes.add(request.episode.seed)
        await self.opened.wait()
        return CoachScore(score=5.0, reason="late")


def test_waiting_for_the_coach_takes_no_place_but_as_many_only_as_there_are_places() -> None:
    """2 places: 2 episodes wait outside, 2 are over and wait for room there, and nobody begins a fifth."""
    coach, begun = Gate(), list[int]()

    def reply(request: GenerationRequest) -> str:
        begun.append(request.key[2])
        if len(begun) == 8:  # two actions each: what is to come now must wait for the coach
            asyncio.get_running_loop().call_later(0.1, open_up)
        return "done"

    before: list[int] = []

    def open_up() -> None:
        before.extend(sorted(set(begun)))
        coach.opened.set()

    env = TwoEnv(sandbox=FakeSandbox(), coach=coach, scoring="deferred")
    rollouts = run(9, 2, FakeStreamEngine(reply), env=env)
    assert before == [0, 1, 2, 3]
    assert [turn.final_score for rollout in rollouts for turn in rollout.episode.turns] == [5.0] * 18


def test_a_sample_of_another_policy_version_ends_the_rollout() -> None:
    engine = FakeStreamEngine(random_words(seed=0))
    engine.sync(4)  # the rollout is for version 0
    with pytest.raises(RuntimeError, match="policy version 4, not 0: its weights were not synced"):
        run(3, 3, engine)
