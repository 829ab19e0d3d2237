"""The turn engine, on a sandbox and a coach that are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from team_fakes import DATA, MODEL, SUBMIT, MakeEnv, inspect_list, run_list, write

from mappa_envs.coach.base import CoachRequest
from mappa_envs.dsbench.env import DSBenchEnv, dsbench_team
from mappa_envs.errors import CoachError, ConfigError
from mappa_envs.testing import FakeCoach, FakeSandbox, api_test, check_promises, without_times
from mappa_envs.types import CoachScore, Episode, Outcome, Role, ScoreRevision, StopReason


def play(env: DSBenchEnv, actions: Sequence[str], **options: Any) -> Episode:
    env.reset(seed=0, options=options)
    for action in actions:
        env.step(action)
    return env.episode


def test_pettingzoo_and_our_promises(make_env: MakeEnv) -> None:
    api_test(make_env)


def test_a_perfect_episode(make_env: MakeEnv) -> None:
    episode = play(make_env(), [DATA, MODEL, SUBMIT])
    assert [turn.agent for turn in episode.turns] == ["data_engineer_0", "modeler_0", "analyst_0"]
    assert (episode.outcome, episode.success, episode.grade_code) == (1.0, True, "ok")
    assert episode.metrics["rmse"] == 0.0
    assert episode.metrics["relative"] == 1.0
    assert episode.stop_reason is StopReason.DONE
    assert Episode.from_json(episode.to_json()) == episode


def test_natural_end_terminates_all(make_env: MakeEnv) -> None:
    env = make_env()
    play(env, [DATA, MODEL, SUBMIT])
    assert set(env.terminations.values()) == {True}
    assert set(env.truncations.values()) == {False}


def test_max_turns_truncates_all(make_env: MakeEnv) -> None:
    env = make_env(max_turns=2)
    episode = play(env, [DATA, MODEL])
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert set(env.truncations.values()) == {True}
    assert (episode.outcome, episode.grade_code) == (0.0, "no_file")


def test_a_time_limit_truncates_all(make_env: MakeEnv) -> None:
    env = make_env(time_limit_s=1e-9, ground_truth="final")
    episode = play(env, [DATA])
    assert episode.stop_reason is StopReason.TIME
    assert set(env.truncations.values()) == {True}
    assert episode.grade_code == "no_file"
    assert play(make_env(time_limit_s=1e9), [DATA, MODEL, SUBMIT]).stop_reason is StopReason.DONE


def test_a_role_goes_on_until_its_files_are_valid(make_env: MakeEnv) -> None:
    episode = play(
        make_env(), [write("X_train.pkl"), write("X_test.pkl", "y_train.pkl"), "I pass.", "I pass."]
    )
    assert [turn.handed_over for turn in episode.turns] == [False, True, True, True]
    assert [a.written_by for a in episode.turns[1].artifacts] == [0, 1, 1]


def test_handover_by_message_ignores_artifacts(make_env: MakeEnv) -> None:
    episode = play(make_env(handover="message", max_actions=(2, 1, 1)), [DATA, DATA, MODEL, SUBMIT])
    assert [turn.agent for turn in episode.turns[:3]] == ["data_engineer_0", "data_engineer_0", "modeler_0"]
    assert episode.success


def test_a_deleted_artifact_is_seen(make_env: MakeEnv) -> None:
    env = make_env()
    coach = env.coach
    assert isinstance(coach, FakeCoach)
    play(env, [DATA, write("-X_test.pkl", "model.pkl")])
    request = coach.requests[1]
    assert request.before["X_test.pkl"].status == "valid"
    assert (request.after["X_test.pkl"].status, request.after["X_test.pkl"].written_by) == ("missing", 1)


def test_files_are_inspected_only_when_touched(make_env: MakeEnv) -> None:
    env = make_env()
    calls = []
    inspect = env.inspect

    async def counted(*arguments: Any) -> Any:
        calls.append(1)
        return await inspect(*arguments)

    env.inspect = counted  # type: ignore[method-assign]
    play(env, [write("notes.txt"), DATA, "No code."])
    assert len(calls) == 1


def test_a_folder_in_place_of_a_file_is_seen(make_env: MakeEnv) -> None:
    def inspector(script: str, files: dict[str, bytes]) -> Any:
        found = inspect_list(script, files)
        path = script.split('"path": "')[1].split('"')[0]
        if any(name.startswith(f"{path}/") for name in files):
            found = {"status": "invalid", "problem": f"{path} is not a regular file"}
        return found

    env = make_env(sandbox=FakeSandbox(script=run_list, inspector=inspector))
    play(env, [write("X_train.pkl/part")])
    found = env.episode.turns[0].artifacts[0]
    assert (found.status, found.written_by) == ("invalid", 0)
    prompt = env.observe("data_engineer_0")["prompt"]
    assert "- X_train.pkl (invalid: X_train.pkl is not a regular file)" in prompt
    env.step(write("-X_train.pkl/part"))
    assert env.episode.turns[1].artifacts[0].status == "missing"


def test_the_outcome_reaches_the_coach_at_the_end_only(make_env: MakeEnv) -> None:
    for ground_truth, shown in (("final", [False, False, True]), ("off", [False] * 3)):
        coach = FakeCoach()
        play(make_env(coach=coach, ground_truth=ground_truth), [DATA, MODEL, SUBMIT])
        assert [request.outcome is not None for request in coach.requests] == shown


def verdicts(request: CoachRequest) -> CoachScore:
    """The analyst proves the data engineer guilty and the modeler better."""
    revisions: tuple[ScoreRevision, ...] = ()
    if request.role.name == "analyst_0":
        revisions = (
            ScoreRevision(turn=0, score=1.0, reason="leak"),
            ScoreRevision(turn=1, score=9.5, reason="good"),
            ScoreRevision(turn=0, score=2.0, reason="on second thought"),
        )
    return CoachScore(score=6.0, reason="x", revisions=revisions)


def test_revisions_move_rewards(make_env: MakeEnv) -> None:
    env = make_env(coach=FakeCoach(verdicts))
    env.reset(seed=0)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for action in (DATA, MODEL, SUBMIT):
        env.step(action)
        for agent, reward in env.rewards.items():
            totals[agent] += reward
    assert [turn.final_score for turn in env.episode.turns] == [2.0, 9.5, 6.0]
    assert [turn.score.score for turn in env.episode.turns if turn.score] == [6.0, 6.0, 6.0]
    assert env.infos["modeler_0"]["corrections"] == [(1, pytest.approx(0.35))]
    assert len(env.infos["data_engineer_0"]["corrections"]) == 2
    assert list(totals.values()) == pytest.approx([0.2, 0.95, 0.6])
    check_promises(env, 0)


def test_a_revision_of_the_future_is_no_verdict(make_env: MakeEnv) -> None:
    bad = CoachScore(score=6.0, reason="x", revisions=(ScoreRevision(turn=0, score=1.0, reason=""),))
    episode = play(make_env(coach=FakeCoach(lambda request: bad)), [DATA])
    assert episode.turns[0].score is None
    assert "turn 0" in (episode.turns[0].unscored_reason or "")


def test_unscored(make_env: MakeEnv) -> None:
    env = make_env(coach=FakeCoach(8.0, fail_on=[1]))
    episode = play(env, [DATA, MODEL])
    assert [turn.final_score for turn in episode.turns] == [8.0, None]
    assert "fail" in (episode.turns[1].unscored_reason or "")
    assert env.rewards["modeler_0"] == 0.0
    assert env.infos["modeler_0"]["unscored"]
    assert not env.infos["data_engineer_0"]["unscored"]


def test_a_sandbox_fault_is_nobodys_fault(make_env: MakeEnv) -> None:
    env = make_env()
    episode = play(env, [DATA, write("crash")])
    assert episode.stop_reason is StopReason.INFRA
    assert episode.outcome is None
    assert set(env.truncations.values()) == {True}
    assert env.rewards["modeler_0"] == 0.0
    assert "worker is gone" not in str(env.infos) + str(env.observe("modeler_0"))
    assert Episode.from_json(episode.to_json()) == episode
    env.reset(seed=0)
    assert env.episode.turns == ()


def test_start_in_the_middle(make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lay(workspace: Any, task: Any, upstream: Sequence[str]) -> None:
        assert list(upstream) == ["data_engineer_0", "modeler_0"]
        await workspace.run("X_train.pkl\ny_train.pkl\nX_test.pkl\nmodel.pkl")

    monkeypatch.setattr("mappa_envs.testing.expert.lay_artifacts", lay)
    env = make_env()
    env.reset(seed=0, options={"start_role": "analyst_0"})
    assert env.agent_selection == "analyst_0"
    assert "model.pkl" in env.infos["analyst_0"]["messages"][1]["content"]
    env.step(SUBMIT)
    assert env.episode.success
    assert env.episode.start_role == "analyst_0"


def test_visibility(make_env: MakeEnv) -> None:
    actions = ["<think>secret</think>Tables are ready.<|im_end|>", "The model is ready."]
    for visibility, sees in (("full", True), ("previous", False)):
        env = make_env(visibility=visibility)
        play(env, actions)
        prompt = env.observe("analyst_0")["prompt"]
        assert ("Tables are ready." in prompt) is sees
        assert "The model is ready." in prompt
        assert "secret" not in prompt
        assert "<|im_end|>" not in prompt


def test_own_output_comes_back(make_env: MakeEnv) -> None:
    env = make_env()
    play(env, [write("X_train.pkl", "!")])
    messages = env.infos["data_engineer_0"]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "boom" in messages[-1]["content"]
    assert env.observe("data_engineer_0")["actions_left"] == 3


def test_a_team_may_loop_back(make_env: MakeEnv) -> None:
    def again(episode: Episode) -> str | None:
        return "modeler_0" if len(episode.turns) < 4 else None

    team = dsbench_team()
    team[2] = Role(name="analyst_0", title="Analyst", duty="check", max_actions=1, next=again)
    episode = play(make_env(team=team), [DATA, MODEL, "Try again.", MODEL, "Fine."])
    assert [turn.agent for turn in episode.turns][2:] == ["analyst_0", "modeler_0", "analyst_0"]
    assert episode.stop_reason is StopReason.DONE


def test_sync_inside_a_running_loop_and_async_twin(make_env: MakeEnv) -> None:
    async def both() -> tuple[Episode, Episode]:
        sync, twin = make_env(), make_env()
        await twin.areset(seed=0)
        for action in (DATA, MODEL, SUBMIT):
            await twin.astep(action)
        await twin.aclose()
        return play(sync, [DATA, MODEL, SUBMIT]), twin.episode

    one, two = asyncio.run(both())
    assert without_times(one) == without_times(two)


def test_cut(make_env: MakeEnv) -> None:
    env = make_env()
    play(env, [DATA])
    env.cut(StopReason.CONTEXT)
    assert env.episode.stop_reason is StopReason.CONTEXT
    assert set(env.truncations.values()) == {True}
    for _ in list(env.agents):
        env.step(None)
    assert env.agents == []


def test_bad_input_is_named(make_env: MakeEnv) -> None:
    env = make_env()
    with pytest.raises(RuntimeError, match="reset"):
        env.step("x")
    with pytest.raises(RuntimeError, match="reset"):
        env.last()
    wrong: Any
    for wrong in ("a", -1, 1.5, True):
        with pytest.raises(ConfigError, match=f"seed .*{wrong}"):
            env.reset(seed=wrong)
    wrong = "dsbench"
    with pytest.raises(ConfigError, match=r"options .*'dsbench'"):
        env.reset(options=wrong)
    env.reset(seed=0, options={"unknown": 1})
    with pytest.raises(TypeError, match=r"data_engineer_0.*int"):
        env.step(3)
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"task_id": "nope"})
    with pytest.raises(ConfigError, match="start_role"):
        env.reset(options={"start_role": "nobody"})
    for option in ({"visibility": "some"}, {"handover": ""}, {"max_turns": 0}, {"max_actions": (0, 1, 1)}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            make_env(**option)
    for number in ("3", 2.5, float("nan"), True):
        with pytest.raises(ConfigError, match=r"max_turns .*whole number"):
            make_env(max_turns=number)
    for limit_s in (0, -1.0, float("nan"), "3", True):
        with pytest.raises(ConfigError, match=r"time_limit_s .*None"):
            make_env(time_limit_s=limit_s)


class CoachOfOnesOwn:
    async def score(self, request: CoachRequest) -> CoachScore:
        return CoachScore(score=5.0, reason="own")


def role(required: Any) -> Role:
    return Role(name="analyst_0", title="Analyst", duty="Predict.", required=required)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_actions": 2}, r"max_actions: one number for each .* such as \(4, 4, 4\), is needed, got 2"),
        ({"max_actions": (1, 2)}, r"max_actions: one number .* got \(1, 2\)"),
        (
            {"max_actions": (1,), "team": dsbench_team()},
            r"max_actions: \(1,\) .* give each Role its max_actions",
        ),
        ({"team": ["a", "b"]}, r"team: each member must be a Role\(.*\), got 'a'"),
        ({"team": 5}, "team: a list of Role is needed, got 5"),
        ({"team": []}, "team: needs at least one role"),
        (
            {"team": [role("submission.csv")]},
            r"required of analyst_0 must be a tuple .* \('submission.csv',\), got 'submission.csv'",
        ),
        ({"team": [role(None)]}, "required of analyst_0 must be a tuple .* got None"),
        ({"team": [role((1,))]}, r"required of analyst_0 must be a tuple .* got \(1,\)"),
        ({"coach": lambda request: 5}, r"coach: <function .* has no method score\(\)"),
        ({"coach": CoachOfOnesOwn}, r"coach: CoachOfOnesOwn is a class; give .*: CoachOfOnesOwn\("),
        ({"sandbox": "none"}, "sandbox: unknown kind 'none'; known: auto"),
        ({"sandbox": None}, "sandbox: a Sandbox or a kind such as 'auto' is needed, got None"),
        ({"sandbox": FakeSandbox}, "sandbox: a Sandbox or a kind .*FakeSandbox"),
        ({"packages": "lightgbm"}, r"packages must be a list of names, such as \['lightgbm'\]"),
        ({"packages": ["lightgbm"]}, "packages belong to the given sandbox"),
        ({"tasks": 5}, "tasks: a list of Task is needed, got 5"),
        ({"tasks": ["tiny"]}, "tasks: each must be a Task, .* got 'tiny'"),
        ({"tasks": []}, "tasks: there are none"),
    ],
)
def test_a_wrong_type_is_named_before_there_is_an_environment(
    make_env: MakeEnv, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env(**options)


def test_what_goes_together_is_taken(make_env: MakeEnv) -> None:
    assert make_env(coach=CoachOfOnesOwn(), max_actions=[2, 1, 3]).rules.max_turns == 6
    assert make_env(team=[role(["submission.csv"])]).rules.required == ("submission.csv",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": 1.5}, "value must be"),
        ({"value": float("nan")}, "value must be"),
        ({"metrics": {"r2": float("nan")}}, "r2 must be finite"),
        ({"metrics": {"mae": 3, "rmse": float("inf")}}, "rmse must be finite"),
    ],
)
def test_an_outcome_that_no_record_can_carry_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Outcome(**{"value": 0.5, "success": True, "code": "ok", **fields})


def test_a_role_without_files_is_told_of_none(make_env: MakeEnv) -> None:
    planner = Role(name="planner_0", title="Planner", duty="Say what to do.")
    env = make_env(team=[planner, *dsbench_team()])
    env.reset(seed=0)
    assert env.observe("planner_0")["prompt"].endswith("# Now\nYou can send up to one message.")
    assert "Leave behind: model.pkl." in env.observe("modeler_0")["prompt"]


def test_strange_characters_stay_in_the_record(make_env: MakeEnv) -> None:
    episode = play(make_env(), ["a\ud800\0é", write("!")])
    assert Episode.from_json(episode.to_json()) == episode
    assert episode.turns[0].action == "a\ufffd\0é"


def test_workspaces_are_closed(make_env: MakeEnv) -> None:
    env = make_env()
    sandbox: Any = env._sandbox
    play(env, [DATA, MODEL, SUBMIT])
    play(env, [DATA])
    env.close()
    assert [workspace.closed for workspace in sandbox.workspaces] == [True, True]
    assert not sandbox.closed


def test_coach_error_is_the_only_one_that_leaves_unscored(make_env: MakeEnv) -> None:
    def broken(request: CoachRequest) -> float:
        raise KeyError("a bug of the coach")

    with pytest.raises(KeyError):
        play(make_env(coach=FakeCoach(broken)), [DATA])
    assert issubclass(CoachError, RuntimeError)


def test_state_and_render(make_env: MakeEnv, capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env(render_mode="ansi")
    play(env, [DATA])
    assert env.state_space.contains(env.state())
    assert "X_test.pkl" in env.state()["files"]
    assert "data_engineer_0" in (env.render() or "")
    play(make_env(render_mode="human"), [DATA])
    assert "data_engineer_0" in capsys.readouterr().out
