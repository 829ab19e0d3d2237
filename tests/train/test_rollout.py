"""Episodes side by side: which prompts are sampled together depends on the episodes alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from rollout_fakes import TASKS, TEAM, TwoEnv, make_plans, toy
from torch import Tensor

from mappa_envs.coach import Coach, CoachRequest
from mappa_envs.errors import SandboxError
from mappa_envs.scoring import Scoring
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import CoachScore, StopReason, ToolResult
from mappa_train.rollout import EpisodePlan, collect, plan_step
from mappa_train.types import EpisodeRollout, Generation, GenerationRequest


class Letters:
    """A tokenizer of code points; what was sampled decodes to a message with code."""

    stop_ids = (0,)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> Tensor:
        return torch.tensor([ord(letter) for letter in "".join(m["content"] for m in messages)])

    def decode(self, ids: Tensor) -> str:
        return f"I work.\n```python\nprint({ids.tolist()})\n```"


class FakeEngine:
    """Answers from the key and the prompt; keeps the batches."""

    def __init__(self, fail: Callable[[int], None] = lambda call: None) -> None:
        self.batches: list[list[GenerationRequest]] = []
        self.fail = fail
        self.cancelled = 0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append(list(requests))
        self.fail(len(self.batches))
        return [
            Generation(
                token_ids=torch.tensor([*request.key, int(request.prompt_ids.sum()) % 97]),
                logprobs=torch.zeros(5),
                truncated=False,
                policy_version=0,
            )
            for request in requests
        ]

    def sync(self, version: int) -> None: ...

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None: ...


def run(
    plans: Sequence[EpisodePlan],
    engine: FakeEngine,
    delays: Sequence[Sequence[float]] = ((0.0,),),
    script: Callable[..., ToolResult] | None = None,
    coach: Coach | None = None,
    scoring: Scoring = "deferred",
    sandbox: FakeSandbox | None = None,
    **options: Any,
) -> list[EpisodeRollout]:
    settings: dict[str, Any] = {
        "sandbox": sandbox or FakeSandbox(script=script),
        "coach": coach or FakeCoach(lambda request: len(request.turn.action) % 11),
        "scoring": scoring,
    }
    rollouts, _ = collect(
        plans,
        env=TwoEnv(delays, **settings),
        engine=engine,
        tokenizer=Letters(),
        seed=7,
        step=3,
        **{"max_prompt_tokens": 10**6, "policy_version": 0, **options},  # type: ignore[arg-type]
    )
    return rollouts


def facts(rollouts: Sequence[EpisodeRollout]) -> list[Any]:
    """Everything of the rollouts but times."""
    return [
        (
            r.index,
            r.episode.task_id,
            r.episode.start_role,
            [(t.agent, t.action, t.final_score) for t in r.episode.turns],
            [(a.agent, a.turn, a.prompt_ids.tolist(), a.generation.token_ids.tolist()) for a in r.actions],
        )
        for r in rollouts
    ]


def test_prompts_are_sampled_by_agent_when_all_wait() -> None:
    engine = FakeEngine()
    run(make_plans([None] * 4), engine)
    assert [[r.agent for r in batch] for batch in engine.batches] == [[TEAM[0]] * 4, [TEAM[1]] * 4]
    assert [[r.key for r in batch] for batch in engine.batches] == [
        [(7, 3, k, turn) for k in range(4)] for turn in (0, 1)
    ]


def test_a_later_agent_waits_for_the_earlier_ones() -> None:
    """Two episodes start at the checker; they are sampled with the others' checkers, in one batch."""
    engine = FakeEngine()
    run(make_plans([None, TEAM[1], None, TEAM[1]]), engine)
    assert [[(r.agent, r.key[2]) for r in batch] for batch in engine.batches] == [
        [(TEAM[0], 0), (TEAM[0], 2)],
        [(TEAM[1], k) for k in range(4)],
    ]


def test_delays_of_environments_change_nothing() -> None:
    plans = make_plans([None, TEAM[1], None, None])
    quiet, jittery = FakeEngine(), FakeEngine()
    a = run(plans, quiet)
    b = run(plans, jittery, delays=[(0.03, 0.0), (0.0, 0.02), (0.01, 0.0, 0.02), (0.0,)])
    assert facts(a) == facts(b)
    keys = [[[r.key for r in batch] for batch in engine.batches] for engine in (quiet, jittery)]
    assert keys[0] == keys[1]


def test_rollouts_hold_what_was_sampled_in_plan_order() -> None:
    engine = FakeEngine()
    plans = make_plans([None, TEAM[1], None])[::-1]
    rollouts = run(plans, engine)
    assert [r.index for r in rollouts] == [2, 1, 0]
    assert [r.episode.task_id for r in rollouts] == [plan.task_id for plan in plans]
    asked = {r.key: r for batch in engine.batches for r in batch}
    assert [r.episode.seed for r in rollouts] == [9, 8, 7]
    for rollout in rollouts:
        assert [a.turn for a in rollout.actions] == [t.index for t in rollout.episode.turns]
        for action in rollout.actions:
            request = asked[(7, 3, rollout.index, action.turn)]
            assert torch.equal(action.prompt_ids, request.prompt_ids)
            assert rollout.episode.turns[action.turn].action == Letters().decode(action.generation.token_ids)
    assert sum(len(r.actions) for r in rollouts) == len(asked)


def test_progress_counts_episodes() -> None:
    told: list[tuple[int, int]] = []
    run(make_plans([None] * 3), FakeEngine(), on_done=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def failing(times: int, turn: int = 0) -> Callable[..., ToolResult]:
    """A sandbox that breaks on the first `times` runs of this turn of episode 1."""
    left = [times]

    def script(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
        if f"[7, 3, 1, {turn}," in blocks[0] and left[0]:
            left[0] -= 1
            raise SandboxError("the worker is gone")
        return ToolResult(stdout="done")

    return script


def test_an_episode_whose_sandbox_failed_is_run_again() -> None:
    engine = FakeEngine()
    plans = make_plans([None] * 3)
    rollouts = run(plans, engine, script=failing(2))
    assert [r.episode.stop_reason for r in rollouts] == [StopReason.DONE] * 3
    assert [len(r.actions) for r in rollouts] == [2, 2, 2]
    assert [r.num_reruns for r in rollouts] == [0, 2, 0]
    asked = Counter(r.key for batch in engine.batches for r in batch)
    assert asked == {(7, 3, k, turn): 3 if (k, turn) == (1, 0) else 1 for k in range(3) for turn in (0, 1)}
    assert facts(rollouts) == facts(run(plans, FakeEngine(), script=failing(0)))


class Unsteady(FakeSandbox):
    """Opens no workspace the first `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def open(self, files: Any = None) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise SandboxError("the sandbox process is dead")
        return await super().open(files)


def test_an_episode_that_finds_no_workspace_is_begun_again() -> None:
    (rollout,) = run(make_plans([None]), FakeEngine(), sandbox=Unsteady(2))
    assert (rollout.episode.stop_reason, rollout.num_reruns) == (StopReason.DONE, 2)
    with pytest.raises(SandboxError, match="episode 0: the sandbox failed 3 times: the sandbox process is"):
        run(make_plans([None]), FakeEngine(), sandbox=Unsteady(3))


def test_a_sandbox_that_fails_always_ends_the_run() -> None:
    engine = FakeEngine()
    with pytest.raises(SandboxError, match=r"episode 1: the sandbox failed 3 times: .*the worker is gone"):
        run(make_plans([None] * 3), engine, script=failing(99))
    assert engine.cancelled == 1


def test_an_error_of_the_engine_comes_out_as_it_is() -> None:
    def fail(call: int) -> None:
        if call == 2:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run(make_plans([None] * 3), FakeEngine(fail))


def test_an_engine_that_gives_up_by_itself_is_an_error() -> None:
    def give_up(call: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="the engine gave up a request of"):
        run(make_plans([None] * 3), FakeEngine(give_up))


class AnswersLate:
    """A coach that answers nothing before `open`, which any thread may call."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._is_open.set)

    async def score(self, request: CoachRequest) -> CoachScore:
        self._loop = asyncio.get_running_loop()
        await asyncio.wait_for(self._is_open.wait(), 20)
        return CoachScore(score=request.turn.index + 3.0, reason="late")


def test_nobody_waits_for_an_episode_that_only_waits_for_its_coach() -> None:
    """The coach answers when the engine has the last prompt: that of an episode that had to begin again."""
    coach, told = AnswersLate(), list[int]()
    engine = FakeEngine(lambda call: coach.open() if call == 4 else None)
    rollouts = run(
        make_plans([None] * 3),
        engine,
        script=failing(1, turn=1),
        coach=coach,
        on_done=lambda done, total: told.append(done),
    )
    keys = [[r.key[2:] for r in batch] for batch in engine.batches]
    assert keys[:2] == [[(k, turn) for k in range(3)] for turn in (0, 1)]
    assert keys[2:] == [[(1, 0)], [(1, 1)]]
    assert [[t.final_score for t in r.episode.turns] for r in rollouts] == [[3.0, 4.0]] * 3
    assert told == [1, 2, 3]


@pytest.mark.parametrize("scoring", ["deferred", "hindsight"])
def test_late_scores_are_those_of_inline(scoring: Scoring) -> None:
    plans = make_plans([None, TEAM[1], None])
    late, inline = FakeEngine(), FakeEngine()
    assert facts(run(plans, late, scoring=scoring)) == facts(run(plans, inline, scoring="inline"))
    assert [len(batch) for batch in late.batches] == [len(batch) for batch in inline.batches]


def test_a_bug_of_the_coach_ends_the_run() -> None:
    def broken(request: CoachRequest) -> float:
        raise KeyError("a bug of the coach")

    with pytest.raises(KeyError, match="a bug"):
        run(make_plans([None] * 3), FakeEngine(), coach=FakeCoach(broken))


def plan(step: int = 1, **changes: Any) -> list[EpisodePlan]:
    known: dict[str, Any] = {
        "num_episodes": 12,
        "samples_per_task": 4,
        "tasks": [toy(name) for name in TASKS],
        "team": TEAM,
        "exploring_starts": 0.5,
        "seed": 0,
    }
    return plan_step(step, **(known | changes))


def test_plans_are_a_pure_function() -> None:
    state = torch.get_rng_state()
    first = plan(3)
    plan(1)
    assert plan(3) == first
    assert plan(3, seed=1) != first
    assert torch.equal(torch.get_rng_state(), state)


def test_tasks_come_in_groups_in_a_row() -> None:
    names = [p.task_id for p in plan()]
    assert [names[k : k + 4] for k in (0, 4, 8)] == [[names[k]] * 4 for k in (0, 4, 8)]
    assert len(set(names)) == 3


def test_the_last_group_may_be_smaller_and_the_size_is_capped() -> None:
    sizes = Counter(p.task_id for p in plan(num_episodes=10))
    assert sorted(sizes.values()) == [2, 4, 4]
    assert len({p.task_id for p in plan(num_episodes=3, samples_per_task=8)}) == 1


def test_indices_count_on_over_steps() -> None:
    assert [p.index for step in (1, 2, 3) for p in plan(step)] == list(range(36))


def test_every_pass_sees_all_tasks_in_another_order() -> None:
    walk = [plan(step, num_episodes=1, samples_per_task=1)[0].task_id for step in range(1, 51)]
    passes = [walk[k : k + 5] for k in range(0, 50, 5)]
    assert all(sorted(names) == sorted(TASKS) for names in passes)
    assert len({tuple(names) for names in passes}) > 3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_share_of_exploring_starts(share: float) -> None:
    """Exact but for one episode in every step, and over steps that of each place in a step."""
    steps = [
        [p.start_role is not None for p in plan(step, samples_per_task=12, exploring_starts=share)]
        for step in range(1, 401)
    ]
    assert all(abs(sum(is_drawn) - 12 * share) < 1 for is_drawn in steps)
    for of_a_place in zip(*steps, strict=True):
        assert abs(sum(of_a_place) / 400 - share) <= 4 * (share * (1 - share) / 400) ** 0.5


def test_later_roles_take_turns_in_exploring_starts() -> None:
    """Also within the episodes of each task."""
    team = ("a", "b", "c")
    for step in range(1, 21):
        starts = [p.start_role for p in plan(step, team=team, samples_per_task=6)]
        assert Counter(starts) == {None: 6, "b": 3, "c": 3}
        assert all(set(starts[k : k + 6]) == {None, "b", "c"} for k in (0, 6))
    assert {p.start_role for p in plan(team=("a",))} == {None}


def test_a_prompt_that_no_longer_fits_ends_the_episode() -> None:
    rollouts = run(make_plans([None, None]), FakeEngine(), max_prompt_tokens=3)
    assert [r.episode.stop_reason for r in rollouts] == [StopReason.CONTEXT] * 2
    assert all(r.actions == () for r in rollouts)
