"""One seat as a Gymnasium environment."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from toy_team import TEAM, make_toy

import mappa_envs
from mappa_envs.adapters.gymnasium import SeatEnv
from mappa_envs.errors import ConfigError, PromptTooLong, SandboxError
from mappa_envs.mathchat.generators import GENERATORS
from mappa_envs.testing import ExpertTeam, FakeCoach, FakeSandbox
from mappa_envs.types import Episode, Role, ToolResult

SLOW = pytest.mark.slow


def good(agent: str, messages: list[dict[str, str]]) -> str:
    return "good"


def make_seat(env_id: str, index: int = 1, **options: Any) -> gymnasium.Env[Any, Any]:
    settings: dict[str, Any] = {"sandbox": FakeSandbox(), "coach": FakeCoach(6.0), **options}
    seat = mappa_envs.make(env_id, **settings).possible_agents[index]
    return gymnasium.make(f"mappa/{env_id}", seat=seat, others=good, **settings)


@pytest.mark.parametrize("index", [pytest.param(0, marks=SLOW), 1, pytest.param(2, marks=SLOW)])
@pytest.mark.parametrize("env_id", mappa_envs.list_envs())
def test_check_env(env_id: str, index: int) -> None:
    env = make_seat(env_id, index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A text has no frames per second.
        warnings.filterwarnings("ignore", message=".*No render fps was declared.*")
        check_env(env.unwrapped)
    assert env.unwrapped.spec is not None
    env.close()


def test_importing_mappa_envs_registers_every_id() -> None:
    probe = "import mappa_envs, gymnasium, sys; print(*[n for n in gymnasium.registry if 'mappa/' in n])"
    probe += "; print(*[m for m in sys.modules if m in ('torch', 'pandas', 'mappa_envs.pipeline')])"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    names, heavy = shown.stdout.split("\n")[:2]
    assert sorted(names.split()) == [f"mappa/{env_id}" for env_id in mappa_envs.list_envs()]
    assert heavy == ""


def test_an_id_may_name_the_package_to_import() -> None:
    probe = "import gymnasium; env = gymnasium.make('mappa_envs:mappa/dsbench-v0', seat='analyst_0', "
    probe += "others=print); print(env.unwrapped.spec.id)"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout == "mappa/dsbench-v0\n"


def test_every_page_names_the_package_in_gymnasiums_id() -> None:
    """With the bare id, `import gymnasium` alone does not find the environment."""
    root = Path(__file__).parents[2]
    kinds = ("*.md", "docs/*.md", "examples/*.*", "mappa_envs/**/*.py")
    texts = [page.read_text("utf-8") for kind in kinds for page in root.glob(kind)]
    shown = [found for text in texts for found in re.findall(r'gymnasium\.make\("([^"]+)"', text)]
    assert len(shown) >= 3
    assert {call.partition("mappa/")[0] for call in shown} == {"mappa_envs:"}


@pytest.mark.parametrize("env_id", mappa_envs.list_envs())
def test_the_scripted_expert_plays_the_others(env_id: str) -> None:
    team = mappa_envs.make(env_id, coach=None, sandbox=FakeSandbox())
    env = SeatEnv(team, team.possible_agents[2], ExpertTeam(team))
    templates = [task for task in team.tasks if task.task_type not in {each.name for each in GENERATORS}]
    env.reset(seed=0, options={"task_id": templates[0].task_id})
    said = [turn.action for turn in env.aec.episode.turns]
    assert len(said) >= 2
    assert "```python" in said[0] + said[1]
    env.close()


def test_the_others_play_around_the_seat() -> None:
    env = SeatEnv(make_toy(), "second_0", good)
    observation, info = env.reset(seed=0)
    assert "first_0: good" in observation["prompt"]
    assert info["messages"][0]["content"] in observation["prompt"]
    observation, reward, terminated, truncated, info = env.step("mine")
    assert (reward, terminated, truncated) == (0.4, True, False)
    assert (info["stop_reason"], info["outcome"], info["success"]) == ("done", 0.0, False)
    assert [turn.action for turn in env.aec.episode.turns] == ["good", "mine", "good"]
    with pytest.raises(RuntimeError, match="reset"):
        env.step("more")


def test_rewards_sum_to_the_final_scores() -> None:
    env = SeatEnv(make_toy(), "first_0", {"second_0": good, "third_0": lambda agent, messages: "blame"})
    env.reset(seed=0)
    _, reward, _, _, info = env.step("good")
    assert reward == pytest.approx(0.2)
    assert info["corrections"] == [(0, pytest.approx(-0.6))]
    assert env.aec.episode.turns[0].final_score == 2.0


def test_a_seat_that_acts_again_is_corrected_in_its_own_step() -> None:
    def back(episode: Episode) -> str | None:
        return "first_0" if len(episode.turns) < 3 else None

    team = [TEAM[0], Role(name="second_0", title="second", duty="Judge.", next=back)]
    env = SeatEnv(make_toy(team=team), "first_0", lambda agent, messages: "blame")
    env.reset(seed=0)
    rewards = []
    over = False
    while not over:
        _, reward, terminated, truncated, info = env.step("good")
        rewards.append(reward)
        over = terminated or truncated
    assert rewards == [pytest.approx(0.2), pytest.approx(0.8)]
    final = [turn.final_score or 0 for turn in env.aec.episode.turns if turn.agent == "first_0"]
    assert sum(rewards) == pytest.approx(sum(final) / 10)
    assert info["corrections"] == [(0, 0.0)]


def test_seeds_and_options() -> None:
    env = SeatEnv(make_toy(), "third_0", good)
    drawn = {env.reset(seed=seed)[0]["prompt"] for seed in range(8)}
    assert len(drawn) == 2
    assert "Say blue." in env.reset(seed=0, options={"task_id": "blue"})[0]["prompt"]
    runs = []
    for _ in range(2):
        env.reset(seed=5)
        runs.append([env.reset()[0]["prompt"] for _ in range(8)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 2


def test_unscored_and_truncated() -> None:
    env = SeatEnv(make_toy(coach=None, max_turns=2), "second_0", good)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("x")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["unscored"]
    assert info["stop_reason"] == "max_turns"


def test_an_episode_without_the_seat_is_passed_over() -> None:
    def sometimes(episode: Episode) -> str | None:
        return "second_0" if episode.task_id == "red" else None

    team = [Role(name="first_0", title="first", duty="", next=sometimes), TEAM[1]]
    env = SeatEnv(make_toy(team=team), "second_0", good)
    skipped = [env.reset(seed=seed)[1]["skipped"] for seed in range(8)]
    assert 0 in skipped
    assert any(skipped)
    assert env.aec.episode.task_id == "red"
    with pytest.raises(RuntimeError, match="second_0 got no turn in 10 episodes"):
        env.reset(options={"task_id": "blue"})


def test_a_prompt_too_long_for_a_teammate_cuts_the_episode() -> None:
    def short(agent: str, messages: list[dict[str, str]]) -> str:
        if agent == "third_0":
            raise PromptTooLong("at most 10 tokens")
        return "good"

    env = SeatEnv(make_toy(scoring="deferred"), "second_0", short)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("good")
    assert (reward, terminated, truncated) == (0.8, False, True)
    assert info["stop_reason"] == "context"
    assert info["corrections"] == [(1, 0.8)]


def test_a_sandbox_that_fails_is_named() -> None:
    def broken(blocks: Any, files: Any) -> ToolResult:
        raise SandboxError("the worker is gone")

    code = "```python\n1\n```"
    env = SeatEnv(make_toy(sandbox=FakeSandbox(script=broken)), "second_0", lambda agent, messages: code)
    with pytest.raises(SandboxError, match="infra"):
        env.reset(seed=0)
    env = SeatEnv(make_toy(sandbox=FakeSandbox(script=broken)), "second_0", good)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(code)
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "infra")


def test_coroutine_policies_and_their_type() -> None:
    async def later(agent: str, messages: list[dict[str, str]]) -> str:
        return f"{agent} says so"

    env = SeatEnv(make_toy(), "third_0", later)
    assert "second_0: second_0 says so" in env.reset(seed=0)[0]["prompt"]
    silent: Any = lambda agent, messages: None  # noqa: E731
    with pytest.raises(TypeError, match="first_0 must return a str, got NoneType"):
        SeatEnv(make_toy(), "third_0", silent).reset(seed=0)


def test_a_team_of_one_needs_no_others() -> None:
    env = SeatEnv(make_toy(team=TEAM[:1]), "first_0")
    env.reset(seed=0)
    assert env.step("good")[1:4] == (0.8, True, False)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match=r"nobody.*first_0, second_0, third_0"):
        SeatEnv(make_toy(), "nobody", good)
    with pytest.raises(ConfigError, match="first_0, third_0 is needed, got first_0"):
        SeatEnv(make_toy(), "second_0", {"first_0": good})
    with pytest.raises(ConfigError, match="got none"):
        SeatEnv(make_toy(), "second_0")
    with pytest.raises(ConfigError, match="data_engineer_0, modeler_0, analyst_0; and others"):
        gymnasium.make("mappa/dsbench-v0")


def test_close_closes_the_workspace() -> None:
    sandbox = FakeSandbox()
    env = make_seat("dsbench-v0", sandbox=sandbox)
    env.reset(seed=0)
    env.close()
    env.close()
    assert sandbox.workspaces
    assert all(workspace.closed for workspace in sandbox.workspaces)


def test_render(capsys: pytest.CaptureFixture[str]) -> None:
    env = SeatEnv(make_toy(render_mode="ansi"), "second_0", good)
    env.reset(seed=0)
    assert "first_0" in (env.render() or "")
    assert capsys.readouterr().out == ""
    human = SeatEnv(make_toy(render_mode="human"), "second_0", good)
    human.reset(seed=0)
    human.step("mine")
    printed = capsys.readouterr().out
    assert [printed.count(f"{name}_0") for name in ("first", "second", "third")] == [1, 1, 1]


def test_vector_environments_take_text() -> None:
    others = {"first_0": good, "third_0": good}
    vector = gymnasium.vector.SyncVectorEnv([lambda: SeatEnv(make_toy(), "second_0", others)] * 2)
    observations, _ = vector.reset(seed=0)
    assert [prompt.count("first_0: good") for prompt in observations["prompt"]] == [1, 1]
    _, rewards, terminated, _, _ = vector.step(("good", "bad"))
    assert data_equivalence(rewards, np.array([0.8, 0.4]))
    assert terminated.all()
