"""`api_test`: does an environment keep the promises of PettingZoo and ours?

    >>> api_test(lambda: make("dsbench-v0", sandbox=FakeSandbox(), coach=FakeCoach()))
    >>> api_test(make("dsbench-v0", sandbox=FakeSandbox(), coach=FakeCoach()))

It draws random actions, so give it a quick sandbox and a quick coach. Raises `AssertionError`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test as pettingzoo_api_test
from pettingzoo.test import seed_test as pettingzoo_seed_test

from mappa_envs.blocking import wait_for
from mappa_envs.coach import CoachRequest, FakeCoach
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sandbox.base import Sandbox, Workspace
from mappa_envs.scoring import Scoring
from mappa_envs.types import CoachScore, Episode, ScoreRevision, StopReason, ToolResult

MakeEnv = Callable[[], PipelineEnv]

TEXTS = (
    "",
    "café ∑ 你好 🙂",
    "a\x00b\x1b[31mred\r\n\u202etxet",
    "half a pair: \ud800",
    "<think>no end ```python\nprint(1)",
    "<|im_end|></s>",
    "```python\nprint('unclosed')",
    "long " * 20_000,
)
"""Messages that a model may write, and that an environment must take."""


def api_test(env: PipelineEnv | MakeEnv, *, num_episodes: int = 3) -> None:
    """Run every check; `num_episodes` seeds for each of ours.

    Given a function that makes environments, PettingZoo's `seed_test` runs, too, which needs two of them.
    An environment that is given is left open. The checks of rewards, of scores that come at the end, of
    unscored actions and of clean-up play in the same sandbox with coaches of their own.
    """
    subject = env if isinstance(env, PipelineEnv) else env()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # PettingZoo warns about everything that is no array, which text is not.
        warnings.simplefilter("ignore")
        pettingzoo_api_test(subject, num_cycles=50)
        if not isinstance(env, PipelineEnv):
            pettingzoo_seed_test(env, num_cycles=50)
    check_text(subject)
    check_clean_up(subject)
    for seed in range(num_episodes):
        check_promises(subject, seed)
        check_rewards(subject, seed)
        check_unscored(subject, seed)
        check_async_twin(subject, seed)
    check_late_scores(subject, seed=0)
    if subject is not env:
        subject.close()


def check_promises(env: PipelineEnv, seed: int) -> None:
    """Purity, sums of rewards, the record's round trip through JSON, and determinism, on one episode."""
    played = play(env, seed)
    first = env.episode
    assert Episode.from_json(first.to_json()) == first, "an episode changed through JSON"
    tasks = [_task(env) for _ in range(3)]
    assert play(env, seed).infos == played.infos, "the same seed and actions gave other infos"
    assert without_times(env.episode) == without_times(first), "an episode is not reproducible"
    assert [_task(env) for _ in range(3)] == tasks, "resets after the same seed drew other tasks"


def check_text(env: PipelineEnv) -> None:
    """Every text is an action, and an episode of the strangest ones stays a record that JSON can carry."""
    for agent in env.possible_agents:
        space = env.action_space(agent)
        assert space is env.action_space(agent), f"action_space({agent!r}) is another object each time"
        for text in (*TEXTS, space.sample()):
            assert space.contains(text), f"the action space of {agent} does not contain {text[:40]!r}"
        for other in (None, 3, b"bytes", ["list"]):
            assert not space.contains(other), f"the action space of {agent} contains {other!r}"
    for start in range(len(TEXTS)):
        env.reset(seed=start)
        while env.episode.stop_reason is None:
            env.step(TEXTS[(start + len(env.episode.turns)) % len(TEXTS)])
            for agent in env.possible_agents:
                env.observe(agent)["prompt"].encode()
        assert Episode.from_json(env.episode.to_json()) == env.episode, "strange text broke the record"


def check_rewards(env: PipelineEnv, seed: int) -> None:
    """Rewards and the corrections of earlier turns reach their agents, also one that acts once."""
    mine = env.sibling(FakeCoach(_changing_its_mind))
    played = play(mine, seed)
    _check_ends(mine.episode, played)
    for turn in mine.episode.turns:
        assert turn.final_score is not None, f"turn {turn.index} of {turn.agent} has no score"


def check_late_scores(env: PipelineEnv, seed: int) -> None:
    """With scores that come at the end the same rewards are paid; deferred, the record is the same, too."""
    inline = _sibling(env, "inline")
    play(inline, seed)
    for scoring in ("deferred", "hindsight"):
        mine = _sibling(env, scoring)
        played = play(mine, seed)
        _check_ends(mine.episode, played)
        if scoring == "deferred":
            assert without_times(mine.episode) == without_times(inline.episode), "deferred scores differ"
        mine, wanted = _sibling(env, scoring), mine.episode
        wait_for(_play_on(mine, wanted))
        assert without_times(mine.episode) == without_times(wanted), "scores() gave other scores"


async def _play_on(env: PipelineEnv, wanted: Episode) -> None:
    """The same actions, waiting for scores only when all is over."""
    await env.areset(seed=wanted.seed)
    for turn in wanted.turns:
        await env.astep(turn.action, wait_for_scores=False)
    scores = await env.scores()
    assert scores == tuple(turn.final_score for turn in env.episode.turns), "scores() tells other scores"
    rewards = dict(env.rewards)
    assert (await env.scores(), env.rewards) == (scores, rewards), "calling scores() twice changes something"
    assert not any(info["pending"] for info in env.infos.values()), "scores are pending after scores()"
    _check_sums(env.episode, rewards)


def _sibling(env: PipelineEnv, scoring: Scoring) -> PipelineEnv:
    mine = env.sibling(FakeCoach(_changing_its_mind))
    mine.rules = replace(mine.rules, scoring=scoring)
    return mine


def check_unscored(env: PipelineEnv, seed: int) -> None:
    """A coach without a verdict leaves actions unscored, which is no score of 0, and the outcome as it is."""
    mine = env.sibling(FakeCoach(fail_on=range(10_000)))
    played = play(mine, seed)
    for turn in mine.episode.turns:
        assert turn.final_score is None, f"turn {turn.index} has a score without a verdict"
        assert turn.unscored_reason, f"turn {turn.index} does not say why it is unscored"
    assert not any(played.totals.values()), f"unscored actions gave rewards: {dict(played.totals)}"
    for agent in {turn.agent for turn in mine.episode.turns}:
        assert mine.infos.get(agent, played.last_infos[agent])["unscored"], (
            f"infos hide that {agent} is unscored"
        )
    assert mine.episode.outcome is not None, "an episode without scores was not graded"


def check_clean_up(env: PipelineEnv) -> None:
    """A workspace is closed when its episode ends, when the next one begins, and by `close`."""
    mine = env.sibling(FakeCoach())
    watched = _Watched(mine._open_sandbox())
    mine._sandbox = watched
    play(mine, 0)
    assert watched.open_ones() == 0, "the workspace outlives its episode"
    mine.reset(seed=1)
    mine.reset(seed=2)
    assert watched.open_ones() == 1, "reset() left the workspace of the last episode open"
    mine.close()
    mine.close()
    assert watched.open_ones() == 0, "close() left a workspace open"
    mine.reset(seed=3)
    assert watched.open_ones() == 1, "reset() after close() opened no workspace"
    mine.close()
    assert not watched.closed, "close() closed a sandbox that belongs to somebody else"


def check_async_twin(env: PipelineEnv, seed: int) -> None:
    """`areset` and `astep` do what `reset` and `step` do."""
    one, two = env.sibling(FakeCoach(_changing_its_mind)), env.sibling(FakeCoach(_changing_its_mind))
    one.reset(seed=seed)
    wanted = [_shown(one)]
    actions = []
    while one.episode.stop_reason is None:
        actions.append(one.action_space(one.agent_selection).sample())
        one.step(actions[-1])
        wanted.append(_shown(one))

    async def replay() -> list[str]:
        await two.areset(seed=seed)
        seen = [_shown(two)]
        for action in actions:
            await two.astep(action)
            seen.append(_shown(two))
        await two.aclose()
        return seen

    assert wait_for(replay()) == wanted, "areset() and astep() show something else than reset() and step()"
    assert without_times(one.episode) == without_times(two.episode), "the async twin wrote another record"


@dataclass
class Played:
    """What the agents of one episode got through `last()`; `infos` are JSON, in order."""

    infos: list[str] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last_infos: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    dead_steps: list[str] = field(default_factory=list)


def play(env: PipelineEnv, seed: int) -> Played:
    """One episode of sampled actions, checked at every step."""
    env.reset(seed=seed)
    for number, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + number)
    played = Played()
    for agent in env.agent_iter():
        _check_observe(env)
        _, reward, terminated, truncated, info = env.last()
        played.totals[agent] += reward
        played.infos.append(json.dumps(info))
        played.last_infos[agent] = info
        if terminated or truncated:
            played.dead_steps.append(agent)
            env.step(None)
        else:
            env.step(env.action_space(agent).sample())
            _check_step(env, agent)
    _check_sums(env.episode, played.totals)
    return played


def without_times(episode: Episode) -> Episode:
    """The episode with every measured time set to 0."""
    turns = tuple(
        replace(
            turn,
            sandbox_s=0.0,
            coach_s=0.0,
            tool=turn.tool and replace(turn.tool, duration_s=0.0),
            score=turn.score and replace(turn.score, latency_s=0.0),
        )
        for turn in episode.turns
    )
    return replace(episode, turns=turns)


def _changing_its_mind(request: CoachRequest) -> CoachScore:
    """Another score for each turn; every second verdict also changes that of the turn before."""
    index = request.turn.index
    again = (
        [ScoreRevision(turn=index - 1, score=(index * 7) % 11 % 10, reason="seen again")] if index % 2 else []
    )
    return CoachScore(score=1 + index % 9, reason="a fake score", revisions=tuple(again))


def _task(env: PipelineEnv) -> str:
    env.reset()
    return env.episode.task_id


def _shown(env: PipelineEnv) -> str:
    """All that PettingZoo's dictionaries hold, as JSON."""
    ends = (env.rewards, env._cumulative_rewards, env.terminations, env.truncations, env.infos)
    prompts = [env.observe(agent)["prompt"] for agent in env.possible_agents]
    return json.dumps([env.agents, env.agent_selection, *ends, prompts])


def _check_observe(env: PipelineEnv) -> None:
    before, selected = env.episode, env.agent_selection
    for agent in env.possible_agents:
        first, second = env.observe(agent), env.observe(agent)
        assert data_equivalence(first, second), f"observe({agent!r}) is not pure"
        assert env.observation_space(agent).contains(first), f"observe({agent!r}) is outside its space"
    assert env.state_space.contains(env.state()), "state() is outside its space"
    assert env.episode == before, "observe() or state() changed the episode"
    assert env.agent_selection == selected, "observe() or state() changed whose turn it is"


def _check_step(env: PipelineEnv, agent: str) -> None:
    """The rewards of a step are the acting agent's score and the corrections that `infos` list, no more."""
    wanted = dict.fromkeys(env.agents, 0.0)
    wanted[agent] = (env.episode.turns[-1].final_score or 0.0) / 10
    for name in env.agents:
        for turn, delta in env.infos[name]["corrections"]:
            corrected = env.episode.turns[turn].agent
            assert corrected == name, f"infos of {name} list the correction of a turn of {corrected}"
            wanted[name] += delta
    waits = env.coach is not None and env.rules.scoring != "inline" and env.episode.stop_reason is None
    acted = {turn.agent for turn in env.episode.turns}
    for name in env.agents:
        assert env.infos[name]["pending"] is (waits and name in acted), f"infos of {name}: wrong 'pending'"
    for name, reward in env.rewards.items():
        assert math.isclose(reward, wanted[name], abs_tol=1e-9), f"{name} got {reward}, not {wanted[name]}"


def _check_ends(episode: Episode, played: Played) -> None:
    acted = [turn.agent for turn in episode.turns]
    for agent in set(acted):
        assert agent in played.dead_steps, f"{agent} had no last step in which to get its last reward"
    once = [
        agent for agent in set(acted) if acted.count(agent) == 1 and episode.stop_reason != StopReason.INFRA
    ]
    for agent in once:
        score = episode.turns[acted.index(agent)].final_score or 0.0
        got = played.totals[agent]
        assert math.isclose(got, score / 10, abs_tol=1e-9), (
            f"{agent} acted once and got {got}, not {score / 10}"
        )


def _check_sums(episode: Episode, totals: Mapping[str, float]) -> None:
    for agent, total in totals.items():
        wanted = sum(turn.final_score or 0.0 for turn in episode.turns if turn.agent == agent) / 10
        assert math.isclose(total, wanted, abs_tol=1e-9), f"rewards of {agent} sum to {total}, not {wanted}"


class _Watched(Sandbox):
    """Hands out workspaces of another sandbox and keeps an eye on them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.limits = sandbox.limits
        self.closed = False
        self._inner = sandbox
        self._workspaces: list[_WatchedWorkspace] = []

    def open_ones(self) -> int:
        """How many workspaces are open."""
        return sum(not workspace.closed for workspace in self._workspaces)

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> Workspace:
        self._workspaces.append(_WatchedWorkspace(await self._inner.open(files)))
        return self._workspaces[-1]

    async def close(self) -> None:
        self.closed = True


class _WatchedWorkspace(Workspace):
    def __init__(self, inner: Workspace) -> None:
        self._inner = inner

    async def run(self, blocks: str | Sequence[str]) -> ToolResult:
        return await self._inner.run(blocks)

    async def inspect(self, script: str, *, time_s: float = 20.0) -> Any:
        return await self._inner.inspect(script, time_s=time_s)

    async def read(self, path: str, max_bytes: int) -> bytes:
        return await self._inner.read(path, max_bytes)

    async def close(self) -> None:
        await self._inner.close()
        self.closed = True
