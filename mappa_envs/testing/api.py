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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test as pettingzoo_api_test
from pettingzoo.test import seed_test as pettingzoo_seed_test

from mappa_envs.pipeline import PipelineEnv
from mappa_envs.types import Episode

MakeEnv = Callable[[], PipelineEnv]


def api_test(env: PipelineEnv | MakeEnv, *, num_episodes: int = 3) -> None:
    """Run every check; `num_episodes` seeds for each of ours.

    Given a function that makes environments, PettingZoo's `seed_test` runs, too, which needs two of them.
    An environment that is given is left open.
    """
    subject = env if isinstance(env, PipelineEnv) else env()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # PettingZoo warns about everything that is no array, which text is not.
        warnings.simplefilter("ignore")
        pettingzoo_api_test(subject, num_cycles=50)
        if not isinstance(env, PipelineEnv):
            pettingzoo_seed_test(env, num_cycles=50)
    for seed in range(num_episodes):
        check_promises(subject, seed)
    if subject is not env:
        subject.close()


def check_promises(env: PipelineEnv, seed: int) -> None:
    """Purity, sums of rewards, the record's round trip through JSON, and determinism, on one episode."""
    infos = play(env, seed)
    first = env.episode
    assert Episode.from_json(first.to_json()) == first, "an episode changed through JSON"
    assert play(env, seed) == infos, "the same seed and actions gave other infos"
    assert without_times(env.episode) == without_times(first), "an episode is not reproducible"


def play(env: PipelineEnv, seed: int) -> list[str]:
    """One episode of sampled actions, checked at every step; the infos as JSON."""
    env.reset(seed=seed)
    for number, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + number)
    totals: dict[str, float] = defaultdict(float)
    infos = []
    for agent in env.agent_iter():
        _check_observe(env)
        _, reward, terminated, truncated, info = env.last()
        totals[agent] += reward
        infos.append(json.dumps(info))
        env.step(None if terminated or truncated else env.action_space(agent).sample())
    _check_sums(env.episode, totals)
    return infos


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


def _check_observe(env: PipelineEnv) -> None:
    before, selected = env.episode, env.agent_selection
    for agent in env.possible_agents:
        first, second = env.observe(agent), env.observe(agent)
        assert data_equivalence(first, second), f"observe({agent!r}) is not pure"
        assert env.observation_space(agent).contains(first), f"observe({agent!r}) is outside its space"
    assert env.state_space.contains(env.state()), "state() is outside its space"
    assert env.episode == before, "observe() or state() changed the episode"
    assert env.agent_selection == selected, "observe() or state() changed whose turn it is"


def _check_sums(episode: Episode, totals: dict[str, Any]) -> None:
    for agent, total in totals.items():
        wanted = sum(turn.final_score or 0.0 for turn in episode.turns if turn.agent == agent) / 10
        assert math.isclose(total, wanted, abs_tol=1e-9), f"rewards of {agent} sum to {total}, not {wanted}"
