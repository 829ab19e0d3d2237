"""Scores that come at once, at the end, or in hindsight: the same rewards, and nothing left running."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from team_fakes import DATA, GOOD, MODEL, SUBMIT, MakeEnv, inspect_list, write

from mappa_envs.adapters.gymnasium import SeatEnv
from mappa_envs.coach.base import CoachRequest, EpisodeRequest
from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.errors import CoachError, ConfigError
from mappa_envs.evaluation import evaluate
from mappa_envs.scoring import Scoring, Verdict, enter
from mappa_envs.testing import FakeCoach, FakeSandbox, check_promises, without_times
from mappa_envs.types import CoachScore, Episode, Message, ScoreRevision, StopReason, ToolResult, Turn

LATE: tuple[Scoring, ...] = ("deferred", "hindsight")
ACTIONS = (DATA, MODEL, SUBMIT)


class GatedCoach:
    """Answers action i when `gates[i]` opens; keeps what it began, answered and lost to a cancellation."""

    reads_scores = False

    def __init__(self, num_actions: int = 3) -> None:
        self.gates = [asyncio.Event() for _ in range(num_actions)]
        self.begun: list[int] = []
        self.all_begun = asyncio.Event()
        self.answered: list[int] = []
        self.cancelled: list[int] = []

    async def score(self, request: CoachRequest) -> CoachScore:
        index = request.turn.index
        self.begun.append(index)
        if len(self.begun) == len(self.gates):
            self.all_begun.set()
        try:
            await self.gates[index].wait()
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        self.answered.append(index)
        caps = (ScoreRevision(turn=0, score=3.0, reason="seen again", cap=True),) if index == 2 else ()
        return CoachScore(score=5.0 + index, reason="x", revisions=caps)

    def open(self) -> None:
        for gate in self.gates:
            gate.set()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it, and fail on tasks that outlive it and on exceptions that nobody looked at."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await asyncio.wait_for(coroutine, 100)
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())
    assert not complaints


async def begin(env: DSBenchEnv, actions: Sequence[str] = ACTIONS) -> None:
    """Play without waiting for scores, and let the coach begin."""
    await env.areset(seed=0)
    for action in actions:
        await env.astep(action, wait_for_scores=False)
    await asyncio.sleep(0)


def play(env: DSBenchEnv, actions: Sequence[str] = ACTIONS) -> dict[str, float]:
    """What each agent got through `last()`."""
    env.reset(seed=0)
    todo, totals = iter(actions), dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        totals[agent] += reward
        env.step(None if terminated or truncated else next(todo))
    return totals


def finals(episode: Episode) -> list[float | None]:
    return [turn.final_score for turn in episode.turns]


# The same scores, whenever they come.


def run_python(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
    """Code that opens a file makes it; code that loads one raises."""
    code = "\n".join(blocks)
    for name in re.findall(r'open\("(.+?)"', code):
        files[name] = GOOD.encode() if name == "submission.csv" else b"data"
    failed = "load(" in code
    return ToolResult(exit_code=int(failed), exception="ValueError" if failed else None)


def unusable(script: str, files: dict[str, bytes]) -> Any:
    """As `inspect_list`, but nobody can read X_test.pkl."""
    found = inspect_list(script, files)
    return {**found, "status": "unverifiable"} if '"path": "X_test.pkl"' in script else found


def code(*lines: str) -> str:
    return "I work.\n```python\n" + "\n".join(lines) + "\n```"


TABLES = code('open("X_train.pkl", "wb")', 'open("y_train.pkl", "wb")', 'open("X_test.pkl", "wb")')
FIT, USE = code('open("model.pkl", "wb")'), code('load("X_test.pkl")')


@pytest.mark.parametrize(
    ("actions", "lowered"),
    [
        ([TABLES, "I pass.", FIT, code('open("submission.csv", "w")')], []),
        (["No code.", USE, "I pass.", USE, "I pass."], []),
        ([TABLES, "I pass.", FIT, USE, "I pass."], [0]),
    ],
)
def test_the_rubric_gives_the_same_scores_inline_and_deferred(
    make_env: MakeEnv, actions: Sequence[str], lowered: Sequence[int]
) -> None:
    episodes = []
    for scoring in ("inline", "deferred"):
        sandbox = FakeSandbox(script=run_python, inspector=unusable)
        env = make_env(coach="rubric", sandbox=sandbox, scoring=scoring)
        totals = play(env, actions)
        episodes.append(without_times(env.episode))
        for agent, total in totals.items():
            mine = [turn.final_score or 0 for turn in env.episode.turns if turn.agent == agent]
            assert total == pytest.approx(sum(mine) / 10)
    assert episodes[0].to_json() == episodes[1].to_json()
    changed = [turn for turn in episodes[1].turns if turn.score and turn.score.score != turn.final_score]
    assert [turn.index for turn in changed] == lowered


def test_answers_in_any_order_give_the_inline_record(make_env: MakeEnv) -> None:
    async def check() -> None:
        records = []
        for order in ((0, 1, 2), (2, 1, 0)):
            coach = GatedCoach()
            env = make_env(coach=coach, scoring="deferred")
            await begin(env)
            for index in order:
                coach.gates[index].set()
                await asyncio.sleep(0.002)
            assert await env.scores() == (3.0, 6.0, 7.0)
            assert coach.answered == list(order)
            records.append(without_times(env.episode).to_json())
        coach = GatedCoach()
        coach.open()
        inline = make_env(coach=coach)
        await begin(inline)
        assert await inline.scores() == (3.0, 6.0, 7.0)
        assert records == [without_times(inline.episode).to_json()] * 2

    run(check())


class Independent(FakeCoach):
    reads_scores = False


def requests_of(env: DSBenchEnv) -> list[CoachRequest]:
    """What the coach was asked, without times."""
    play(env, [write("X_train.pkl"), *ACTIONS])
    assert isinstance(env.coach, FakeCoach)
    return [
        replace(
            request,
            turn=replace(request.turn, sandbox_s=0.0),
            episode=without_times(request.episode),
        )
        for request in env.coach.requests
    ]


def test_a_request_is_the_same_in_every_mode(make_env: MakeEnv) -> None:
    seen = [requests_of(make_env(coach=Independent(), scoring=scoring)) for scoring in ("inline", *LATE)]
    assert len(seen[0]) == 4
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1].before["X_train.pkl"].written_by == 0
    assert all(turn.pending for request in seen[0] for turn in request.episode.turns)


def test_a_coach_that_reads_scores_finds_the_same_ones_inline_and_deferred(make_env: MakeEnv) -> None:
    seen = []
    for scoring in ("inline", "deferred"):
        coach = FakeCoach(verdict_on, fail_on=[1])
        seen.append(requests_of(make_env(coach=coach, scoring=scoring)))
    assert seen[0] == seen[1]
    assert [[turn.final_score for turn in request.episode.turns] for request in seen[1]] == [
        [],
        [2.0],
        [2.0, None],
        [1.0, None, 4.0],
    ]


def verdict_on(request: CoachRequest) -> CoachScore:
    """Action 2 halves what action 0 has."""
    again: tuple[ScoreRevision, ...] = ()
    if request.turn.index == 2:
        again = (ScoreRevision(turn=0, score=(request.episode.turns[0].final_score or 9) / 2, reason="half"),)
    return CoachScore(score=2.0 + request.turn.index, reason="x", revisions=again)


@pytest.mark.parametrize("scoring", LATE)
def test_our_promises_hold_in_every_mode(make_env: MakeEnv, scoring: Scoring) -> None:
    check_promises(make_env(scoring=scoring), 0)


# What agents see meanwhile.


@pytest.mark.parametrize("scoring", LATE)
def test_rewards_are_0_and_pending_until_the_last_step_pays_all(make_env: MakeEnv, scoring: Scoring) -> None:
    env = make_env(coach=FakeCoach(lambda request: 2.0 + request.turn.index), scoring=scoring)
    env.reset(seed=0)
    for action in (write("X_train.pkl"), DATA, MODEL):
        env.step(action)
        assert set(env.rewards.values()) == {0.0}
        assert env.infos["data_engineer_0"]["pending"]
        assert not env.infos["data_engineer_0"]["unscored"]
        assert not env.infos["analyst_0"]["pending"]
    assert "score still to come" in env.state()["transcript"]
    env.step(SUBMIT)
    assert env.rewards == pytest.approx({"data_engineer_0": 0.5, "modeler_0": 0.4, "analyst_0": 0.5})
    assert not any(info["pending"] for info in env.infos.values())
    corrections = env.infos["data_engineer_0"]["corrections"]
    assert corrections == [(0, pytest.approx(0.2)), (1, pytest.approx(0.3))]
    assert env.infos["analyst_0"]["corrections"] == []


def test_the_sandbox_is_given_back_before_the_coach_answers(make_env: MakeEnv) -> None:
    async def check() -> None:
        coach = GatedCoach()
        env = make_env(coach=coach, scoring="deferred")
        await begin(env)
        sandbox: Any = env._sandbox
        assert coach.answered == []
        assert sandbox.workspaces[0].closed
        assert set(env.terminations.values()) == {True}
        assert env.infos["modeler_0"]["pending"]
        coach.open()
        await env.scores()

    run(check())


def test_waiting_for_scores_may_be_given_up_and_taken_up_again(make_env: MakeEnv) -> None:
    async def check() -> None:
        coach = GatedCoach()
        env = make_env(coach=coach, scoring="deferred")
        await begin(env)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.scores(), 0.01)
        coach.open()
        first, second = await asyncio.gather(env.scores(), env.scores())
        assert first == second == (3.0, 6.0, 7.0)
        assert env.infos["data_engineer_0"]["corrections"] == [(0, pytest.approx(0.3))]
        assert await env.scores() == first
        assert coach.begun == [0, 1, 2]
        assert env.rewards == pytest.approx({"data_engineer_0": 0.3, "modeler_0": 0.6, "analyst_0": 0.7})

    run(check())


def test_scores_are_for_finished_episodes(make_env: MakeEnv) -> None:
    async def check() -> None:
        env = make_env(scoring="deferred")
        await begin(env, [DATA])
        with pytest.raises(RuntimeError, match="finished"):
            await env.scores()
        await env.aclose()

    run(check())


def test_a_cut_episode_is_paid_too(make_env: MakeEnv) -> None:
    for scoring in LATE:
        env = make_env(coach=FakeCoach(8.0), scoring=scoring)
        env.reset(seed=0)
        env.step(DATA)
        env.step(MODEL)
        env.cut(StopReason.CONTEXT)
        assert env.rewards == pytest.approx({"data_engineer_0": 0.8, "modeler_0": 0.8, "analyst_0": 0.0})
        assert env.infos["modeler_0"]["corrections"] == [(1, pytest.approx(0.8))]
        env.reset(seed=0)
        env.cut(StopReason.CONTEXT)
        assert finals(env.episode) == []


# What goes wrong.


@pytest.mark.parametrize("scoring", LATE)
def test_a_coach_error_leaves_that_turn_alone_unscored(make_env: MakeEnv, scoring: Scoring) -> None:
    env = make_env(coach=FakeCoach(8.0, fail_on=[1]), scoring=scoring)
    totals = play(env)
    assert finals(env.episode) == [8.0, None, 8.0]
    assert env.episode.turns[1].unscored_reason
    assert list(totals.values()) == pytest.approx([0.8, 0.0, 0.8])


@pytest.mark.parametrize("scoring", LATE)
def test_nothing_is_pending_when_no_turn_got_a_score(make_env: MakeEnv, scoring: Scoring) -> None:
    env = make_env(coach=FakeCoach(fail_on=range(9)), scoring=scoring)
    env.reset(seed=0)
    for action in ACTIONS:
        env.step(action)
    assert finals(env.episode) == [None] * 3
    for info in env.infos.values():
        assert (info["pending"], info["unscored"], info["corrections"]) == (False, True, [])


def test_a_bug_of_the_coach_comes_out_of_the_step_that_waits(make_env: MakeEnv) -> None:
    def broken(request: CoachRequest) -> float:
        raise KeyError("a bug of the coach")

    async def check() -> None:
        for scoring in LATE:
            env = make_env(coach=FakeCoach(broken), scoring=scoring)
            await begin(env, [DATA, MODEL])
            with pytest.raises(KeyError, match="a bug"):
                await env.astep(SUBMIT)
            with pytest.raises(KeyError, match="a bug"):
                await env.scores()
            await begin(env)
            del env  # nobody asks for these scores

    run(check())


def test_a_sandbox_fault_stops_the_coach(make_env: MakeEnv) -> None:
    async def check() -> None:
        coach = GatedCoach()
        coach.gates[0].set()
        env = make_env(coach=coach, scoring="deferred")
        await begin(env, [DATA, MODEL])
        await env.astep(write("crash"))
        assert env.episode.stop_reason is StopReason.INFRA
        assert (coach.answered, coach.cancelled) == ([0], [1])
        assert await env.scores() == (None, None, None)
        assert all(turn.unscored_reason for turn in env.episode.turns)
        assert not any(env.rewards.values())
        assert not any(info["pending"] for info in env.infos.values())

    run(check())


@pytest.mark.parametrize("num_actions", [1, 3])
def test_reset_and_close_stop_the_coach(make_env: MakeEnv, num_actions: int) -> None:
    async def check() -> None:
        coach = GatedCoach()
        env = make_env(coach=coach, scoring="deferred")
        await begin(env, ACTIONS[:num_actions])
        await env.areset(seed=1)
        assert coach.cancelled == list(range(num_actions))
        assert env.episode.turns == ()
        await begin(env, ACTIONS[:num_actions])
        await env.aclose()
        assert coach.cancelled == 2 * list(range(num_actions))
        assert all(turn.unscored_reason for turn in env.episode.turns)
        # A coach that had no chance to begin is no trouble, either.
        await env.areset(seed=0)
        await env.astep(DATA)
        await env.aclose()

    run(check())


def test_a_hanging_coach_can_be_interrupted(make_env: MakeEnv) -> None:
    async def check() -> None:
        coach = GatedCoach()
        env = make_env(coach=coach, scoring="deferred")
        await begin(env, ACTIONS[:2])
        last = asyncio.create_task(env.astep(SUBMIT))
        await coach.all_begun.wait()
        last.cancel()
        await asyncio.wait([last])
        assert last.cancelled()
        assert coach.cancelled == []
        await env.aclose()
        assert coach.cancelled == [0, 1, 2]

    run(check())


def test_another_event_loop_is_named(make_env: MakeEnv) -> None:
    env = make_env(coach=GatedCoach(), scoring="deferred")
    asyncio.run(begin(env))
    with pytest.raises(RuntimeError, match="in one loop"):
        asyncio.run(env.scores())
    env.close()


@pytest.mark.slow
def test_the_end_of_a_process_does_not_wait_for_a_coach() -> None:
    script = """
import asyncio
from mappa_envs import make
from mappa_envs.testing import FakeSandbox
class Hangs:
    async def score(self, request):
        await asyncio.sleep(3600)
for close in (True, False):
    env = make("dsbench-v0", coach=Hangs(), sandbox=FakeSandbox(), scoring="deferred")
    env.reset(seed=0)
    env.step("No code.")
    if close:
        env.close()
print("end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# Hindsight.


class LooksBack:
    """Gives what it is told to give, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[EpisodeRequest] = []

    async def score(self, request: CoachRequest) -> CoachScore:
        raise AssertionError("asked about one action")

    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer)


def scored(score: float, **fields: Any) -> CoachScore:
    return CoachScore(score=score, reason="in hindsight", **fields)


def test_hindsight_is_one_look_at_the_whole_episode(make_env: MakeEnv) -> None:
    coach = LooksBack([scored(2.0, raised=0.25, lowered=0.0), None, scored(9.0)])
    env = make_env(coach=coach, scoring="hindsight")
    totals = play(env)
    (request,) = coach.requests
    assert [states["model.pkl"].status for states in request.states] == [
        "missing",
        "missing",
        "valid",
        "valid",
    ]
    assert request.outcome is not None
    assert request.outcome.value == 1.0
    assert request.episode.stop_reason is StopReason.DONE
    assert all(turn.pending for turn in request.episode.turns)
    assert finals(env.episode) == [2.0, None, 9.0]
    assert env.episode.turns[1].unscored_reason
    assert list(totals.values()) == pytest.approx([0.2, 0.0, 0.9])
    again = Episode.from_json(env.episode.to_json())
    assert again.turns[0].score == coach.answer[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [([scored(5.0)], "1 verdicts on 3 actions"), (CoachError("no answer"), "no answer")],
)
def test_hindsight_that_cannot_be_used_scores_nobody(make_env: MakeEnv, answer: Any, reason: str) -> None:
    env = make_env(coach=LooksBack(answer), scoring="hindsight")
    totals = play(env)
    assert finals(env.episode) == [None] * 3
    assert all(reason in (turn.unscored_reason or "") for turn in env.episode.turns)
    assert not any(totals.values())


def test_revisions_in_hindsight_are_not_looked_at(make_env: MakeEnv) -> None:
    lowered = (ScoreRevision(turn=0, score=0.0, reason="no"),)
    env = make_env(
        coach=LooksBack([scored(5.0), scored(6.0, revisions=lowered), scored(7.0)]), scoring="hindsight"
    )
    play(env)
    assert finals(env.episode) == [5.0, 6.0, 7.0]


def test_the_outcome_is_shown_in_hindsight_where_ground_truth_is_on(make_env: MakeEnv) -> None:
    for ground_truth, shown in (("final", True), ("off", False)):
        coach = FakeCoach()
        play(make_env(coach=coach, scoring="hindsight", ground_truth=ground_truth))
        assert [request.outcome is not None for request in coach.requests] == [False, False, shown]


def test_an_episode_that_was_cut_has_no_action_that_closed_it(make_env: MakeEnv) -> None:
    coach = LooksBack([scored(5.0), scored(5.0)])
    env = make_env(coach=coach, scoring="hindsight")
    env.reset(seed=0)
    env.step(DATA)
    env.step(MODEL)
    env.cut(StopReason.CONTEXT)
    (request,) = coach.requests
    assert request.outcome is not None
    assert request.action(1).outcome is None


def test_a_coach_that_cannot_look_back_is_refused_at_once(make_env: MakeEnv) -> None:
    class NoHindsight:
        async def score(self, request: CoachRequest) -> CoachScore:
            return scored(5.0)

    with pytest.raises(ConfigError, match=r"hindsight.*NoHindsight"):
        make_env(coach=NoHindsight(), scoring="hindsight")
    with pytest.raises(ConfigError, match=r"hindsight.*NoHindsight"):
        make_env(scoring="hindsight").sibling(NoHindsight())

    class OnlyHindsight:
        async def score_episode(self, request: EpisodeRequest) -> list[CoachScore | None]:
            return [scored(5.0)] * len(request.episode.turns)

    with pytest.raises(ConfigError, match=r"deferred.*OnlyHindsight has no score\(\)"):
        make_env(coach=OnlyHindsight(), scoring="deferred")
    env = make_env(coach=OnlyHindsight(), scoring="hindsight")
    play(env)
    assert finals(env.episode) == [5.0, 5.0, 5.0]
    with pytest.raises(ConfigError, match=r"scoring.*later"):
        make_env(scoring="later")


# Records and neighbours.


def turns_of(*scores: float | None) -> tuple[Turn, ...]:
    seen = (Message(role="user", content="Task."),)
    return tuple(
        Turn(index=k, agent=f"a_{k}", messages=seen, action="x", final_score=score)
        for k, score in enumerate(scores)
    )


def test_a_cap_only_lowers_and_scores_nobody() -> None:
    caps = tuple(ScoreRevision(turn=k, score=5.0, reason="cap", cap=True) for k in range(3))
    turns, corrections = enter(turns_of(8.0, 4.0, None, None), 3, Verdict(score=scored(6.0, revisions=caps)))
    assert [turn.final_score for turn in turns] == [5.0, 4.0, None, 6.0]
    assert [(c.turn, c.agent, c.delta) for c in corrections] == [(0, "a_0", pytest.approx(-0.3))]


@pytest.mark.parametrize("name", ["raised", "lowered"])
def test_parts_of_the_outcome_are_shares(name: str) -> None:
    assert getattr(scored(5.0, **{name: 1.0}), name) == 1.0
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=name):
            scored(5.0, **{name: value})


@pytest.mark.parametrize("scoring", LATE)
def test_a_seat_gets_its_sum_with_its_last_step(make_env: MakeEnv, scoring: Scoring) -> None:
    env = make_env(coach=FakeCoach(lambda request: 2.0 + request.turn.index), scoring=scoring)
    others = {"modeler_0": lambda *_: MODEL, "analyst_0": lambda *_: SUBMIT}
    seat = SeatEnv(env, "data_engineer_0", others)
    seat.reset(seed=0)
    _, reward, terminated, _, info = seat.step(write("X_train.pkl"))
    assert (reward, terminated, info["pending"]) == (0.0, False, True)
    _, reward, terminated, _, info = seat.step(DATA)
    assert (reward, terminated, info["pending"]) == (pytest.approx(0.5), True, False)
    assert info["corrections"] == [(0, pytest.approx(0.2)), (1, pytest.approx(0.3))]


@pytest.mark.parametrize("scoring", LATE)
def test_an_evaluation_needs_no_scores(make_env: MakeEnv, scoring: Scoring) -> None:
    script = dict(zip(("data_engineer_0", "modeler_0", "analyst_0"), ACTIONS, strict=True))
    result = evaluate(make_env(scoring=scoring), lambda agent, messages: script[agent], episodes=2)
    assert result.table.overall.num_successes == 2
    assert {turn.unscored_reason for e in result.episodes for turn in e.turns} == {"there is no coach"}


def test_the_synchronous_interface_lets_the_coach_work_meanwhile(make_env: MakeEnv) -> None:
    steps: Iterator[float] = iter((0.01, 0.0, 0.0))

    class Sleeps:
        answered = 0

        async def score(self, request: CoachRequest) -> CoachScore:
            await asyncio.sleep(next(steps))
            Sleeps.answered += 1
            return scored(8.0)

    env = make_env(coach=Sleeps(), scoring="deferred")
    assert list(play(env).values()) == pytest.approx([0.8] * 3)
    assert Sleeps.answered == 3
    env.reset(seed=0)
    env.close()
    env.close()


# Coaches of one's own, which may be wrong.


def coach_returning(returned: Any) -> Any:
    class Odd:
        async def score(self, request: CoachRequest) -> Any:
            return returned() if callable(returned) else returned

        async def score_episode(self, request: EpisodeRequest) -> Any:
            one = returned() if callable(returned) else returned
            return [scored(5.0)] * (len(request.episode.turns) - 1) + [one]

    return Odd()


@pytest.mark.parametrize("scoring", get_args(Scoring))
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (5.0, r"returned float 5\.0"),
        ([scored(5.0)], "returned list"),
        (scored(True), "score bool True"),
        (CoachScore(score=5, reason=None), "reason None"),  # type: ignore[arg-type]
        (scored(5.0, revisions=[]), "revisions list"),
        (scored(5.0, cost_usd=float("nan")), "cost_usd float nan"),
        (scored(5.0, blame={"stranger": 1.0}), "'stranger', who is not in the team"),
        (scored(5.0, blame={"modeler_0": 2.0, "analyst_0": -1.0}), "must not be negative"),
        (scored(5.0, revisions=(1,)), "each is a ScoreRevision"),
    ],
)
def test_what_is_no_verdict_is_refused_and_its_coach_named(
    make_env: MakeEnv, scoring: Scoring, returned: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"Odd\.score.*{words}"):
        play(make_env(coach=coach_returning(returned), scoring=scoring))


@pytest.mark.parametrize("scoring", get_args(Scoring))
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"score": 30}, r"score 30: it must be a number in \[0, 10\]"),
        ({"score": "good"}, "score 'good': it must be a number"),
        (
            {"score": 5.0, "blame": {"modeler_0": 0.5}},
            r"blame \{'modeler_0': 0\.5\}: the shares must sum to 1",
        ),
        ({"score": 5.0, "raised": 2.0}, r"raised 2\.0: it must be a number in \[0, 1\], or None"),
    ],
)
def test_a_score_that_cannot_be_names_the_coach_that_made_it(
    make_env: MakeEnv, scoring: Scoring, fields: dict[str, Any], words: str
) -> None:
    coach = coach_returning(lambda: CoachScore(reason="mine", **fields))
    with pytest.raises(ConfigError, match=rf"^Odd\.score(_episode)? returned a CoachScore with {words}"):
        play(make_env(coach=coach, scoring=scoring))


@pytest.mark.parametrize("scoring", ["inline", "deferred"])
def test_nothing_and_a_plain_method_are_refused(make_env: MakeEnv, scoring: Scoring) -> None:
    class Plain:
        def score(self, request: CoachRequest) -> CoachScore:
            return scored(5.0)

    with pytest.raises(ConfigError, match=r"Odd\.score returned None"):
        play(make_env(coach=coach_returning(None), scoring=scoring))
    with pytest.raises(ConfigError, match=r"Plain\.score is a plain method: write `async def"):
        play(make_env(coach=Plain(), scoring=scoring))


@pytest.mark.parametrize("scoring", get_args(Scoring))
def test_a_cancellation_of_the_coachs_own_making_is_an_error(make_env: MakeEnv, scoring: Scoring) -> None:
    def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match=r"Odd\.score.* raised CancelledError"):
        play(make_env(coach=coach_returning(give_up), scoring=scoring))


@pytest.mark.parametrize("scoring", get_args(Scoring))
def test_texts_of_a_verdict_fit_into_any_record(make_env: MakeEnv, scoring: Scoring) -> None:
    odd = CoachScore(score=5.0, reason="it prints \ud800", correction="\udfff", model="m\ud800")
    env = make_env(coach=coach_returning(odd), scoring=scoring)
    play(env)
    last = Episode.from_json(env.episode.to_json()).turns[-1].score
    assert last is not None
    assert (last.reason, last.correction, last.model) == ("it prints \ufffd", "\ufffd", "m\ufffd")


def test_an_episode_left_before_hindsight_says_why_nothing_is_scored(make_env: MakeEnv) -> None:
    env = make_env(coach=LooksBack([]), scoring="hindsight")
    env.reset(seed=0)
    env.step(DATA)
    assert env.episode.turns[0].pending
    env.close()
    assert "left before" in (env.episode.turns[0].unscored_reason or "")
