"""The rubric on ordinary programs that work: nobody is blamed, and no score is low."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from honest_models import ANALYSTS, MODELERS
from honest_tables import ENGINEERS, TEAMS, Team

from mappa_envs.coach.rubric.checks import check
from mappa_envs.coach.rubric.faults import BLAMED, facts_of
from mappa_envs.coach.rubric.reader import read
from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import SandboxUnavailable
from mappa_envs.testing import expert_action
from mappa_envs.types import Episode

TASKS = {task.task_id: task for task in load_tasks("embedded", None)}


def test_every_program_is_in_a_team() -> None:
    for place, programs in enumerate((ENGINEERS, MODELERS, ANALYSTS)):
        assert {team.names[place] for team in TEAMS} - {""} == set(programs)
    assert len(ENGINEERS) + len(MODELERS) + len(ANALYSTS) > 60


@pytest.mark.parametrize("team", TEAMS, ids=lambda team: "-".join(team.names))
def test_no_mistake_is_read_for_certain(team: Team) -> None:
    facts = facts_of(TASKS[team.task_id])

    found = [one for code in team.code.values() for one in check(read([code], facts), facts)]
    assert [one for one in found if one.certain and one.severity >= BLAMED] == []


@pytest.fixture(params=[1, 2], ids=["at_once", "then_hands_over"])
def env_and_teams(request: pytest.FixtureRequest) -> Iterator[tuple[DSBenchEnv, Sequence[Team]]]:
    """The analyst's program is judged with the outcome at hand, or, with two actions, before it is known."""
    tasks = [TASKS[name] for name in dict.fromkeys(team.task_id for team in TEAMS)]
    env = DSBenchEnv(tasks, None, max_actions=(1, 1, request.param), sandbox="namespace")
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield env, TEAMS[request.param - 1 :: 2]
    env.close()


@pytest.mark.slow
def test_nobody_is_blamed_for_what_worked(env_and_teams: tuple[DSBenchEnv, Sequence[Team]]) -> None:
    env, teams = env_and_teams
    wrong = []
    for team in teams:
        episode = play(env, team)
        relative = episode.metrics.get("relative") or 0.0
        blamed = any(turn.score and turn.score.blame for turn in episode.turns)
        if relative < 0.8 or blamed or min(turn.final_score or 0 for turn in episode.turns) < 7:
            said = [(turn.score, turn.tool.stderr[-200:] if turn.tool else "") for turn in episode.turns]
            wrong.append((team.names, relative, said))
    assert wrong == []


def play(env: DSBenchEnv, team: Team) -> Episode:
    task = TASKS[team.task_id]
    env.reset(seed=0, options={"task_id": team.task_id})
    while env.episode.stop_reason is None:
        agent = env.agent_selection
        code = team.code.get(agent.rsplit("_", 1)[0])
        if any(turn.agent == agent for turn in env.episode.turns):
            env.step("I hand over.")
        else:
            env.step(f"```python\n{code}```" if code else expert_action(agent, task))
    return env.episode
