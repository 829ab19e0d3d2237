"""mathchat-v0: who acts when and sees what, the outcome, the kit, the expert in a real sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from mathchat_fakes import MakeEnv

import mappa_envs
from mappa_envs.actions import extract_code
from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.mathchat.env import MathChatEnv
from mappa_envs.mathchat.expert import NO_METHOD, MathExpert, expert_action, plan
from mappa_envs.mathchat.tasks import MathTask, load_tasks
from mappa_envs.mathchat.templates import TEMPLATES
from mappa_envs.testing import FakeCoach, FakeSandbox, api_test
from mappa_envs.types import Episode, Role

CODE = "```python\n42\n```"


def play(env: MathChatEnv, *actions: str) -> Episode:
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return env.episode


def test_the_order_of_turns(make_env: MakeEnv) -> None:
    episode = play(make_env(), "I add.", CODE, "It printed 42.", r"\boxed{42}")
    assert [turn.agent for turn in episode.turns] == [
        "problem_solver_0",
        "code_executor_0",
        "code_executor_0",
        "verifier_0",
    ]
    assert episode.stop_reason == "done"


def test_code_in_the_last_message_of_a_role_hands_over(make_env: MakeEnv) -> None:
    episode = play(make_env(), "I add.", CODE, CODE, r"\boxed{42}")
    assert [turn.handed_over for turn in episode.turns] == [True, False, True, True]
    assert episode.success


@pytest.mark.parametrize(
    ("last", "outcome", "code"),
    [
        (r"So \boxed{042}.", 1.0, "right"),
        (r"So \boxed{43}.", 0.0, "wrong"),
        ("I am not sure.", 0.0, "no_answer"),
        (CODE, 0.0, "no_answer"),
        (r"<think>\boxed{42}</think>\boxed{41}", 0.0, "wrong"),
    ],
)
def test_the_last_message_of_the_verifier_is_graded(
    make_env: MakeEnv, last: str, outcome: float, code: str
) -> None:
    episode = play(make_env(), r"\boxed{42}", r"\boxed{42}", last)
    assert (episode.outcome, episode.grade_code) == (outcome, code)
    assert episode.success == bool(outcome)
    assert episode.metrics == {"correct": outcome, "answered": float(code != "no_answer")}
    assert Episode.from_json(episode.to_json()) == episode


def test_a_cut_before_the_verifier_is_no_answer(make_env: MakeEnv) -> None:
    episode = play(make_env(max_turns=2), r"\boxed{42}", r"\boxed{42}")
    assert (episode.stop_reason, episode.outcome, episode.grade_code) == ("max_turns", 0.0, "no_answer")


def test_who_sees_what(make_env: MakeEnv) -> None:
    for visibility, sees_solver in (("full", True), ("previous", False)):
        env = make_env(visibility=visibility)
        play(env, "<think>secret</think>ADD THEM", f"EXECUTED\n{CODE}", f"AGAIN\n{CODE}")
        prompt = env.observe("verifier_0")["prompt"]
        assert ("ADD THEM" in prompt) == sees_solver
        assert "AGAIN" in prompt
        assert "Output of its code:\n42" in prompt
        assert "secret" not in prompt
        assert "What is 20 + 22?" in prompt


def test_limits_are_told(make_env: MakeEnv) -> None:
    env = make_env(max_actions=(1, 3, 1), max_tokens=777)
    env.reset(seed=0)
    prompt = env.observe("code_executor_0")["prompt"]
    assert "up to 3 messages" in prompt
    assert "777 tokens" in prompt
    assert "one message" in env.observe("verifier_0")["prompt"]


def test_an_executor_sees_its_own_failure(make_env: MakeEnv) -> None:
    env = make_env()
    play(env, "I add.", "```python\nraise ValueError\n```")
    assert "[failed: exit code 1]" in env.observe("code_executor_0")["prompt"]


def test_golds_are_in_no_prompt_and_no_repr(make_env: MakeEnv, task: MathTask) -> None:
    env = make_env(tasks=[MathTask(task_id="t", task_type="x", split="train", prompt="?", golds=("87654",))])
    play(env, "?", CODE, CODE)
    assert all("87654" not in str(env.observe(agent)) for agent in env.possible_agents)
    assert "87654" not in str(env.state())
    assert "42" not in repr(task)


def example(env: MathChatEnv) -> str:
    """The answer that a starter prompt shows to the agent to act."""
    messages = env.infos[env.agent_selection]["messages"]
    return str(next(message["content"] for message in messages if message["role"] == "assistant"))


def test_a_starter_prompt_shows_an_answer_to_copy(make_env: MakeEnv) -> None:
    env = make_env(prompt_style="starter")
    env.reset(seed=0)
    assert example(env) == "Given: 20, 22. A program computes the answer from that."
    env.step(example(env))
    assert extract_code(example(env)) == ("answer = 20 + 22\nprint(answer)",)
    env.step(CODE)
    assert example(env) == "The program printed 42."
    env.step(example(env))
    assert example(env) == r"The answer is \boxed{42}."
    env.step(example(env))
    assert env.episode.success


def test_a_starter_prompt_shows_a_failure(make_env: MakeEnv) -> None:
    env = make_env(prompt_style="starter")
    play(env, "I add.", "```python\nraise ValueError\n```")
    assert "Output: ValueError\n[failed: exit code 1]" in env.observe("code_executor_0")["prompt"]
    assert extract_code(example(env)) == ("answer = 20 + 22\nprint(answer)",)


@pytest.mark.parametrize(
    ("problem", "program"),
    [
        ("Calculate -68 - -61 + 9.", "answer = -68 - -61 + 9"),
        ("State 2 * (3 + 4) =", "answer = 2 * (3 + 4)"),
        ("Solve for i: 5*i + 14 = 44", "a, b, c = 5, 14, 44\nanswer = a + b + c"),
        ("Take $x^3 - 12x^2$.", "a, b, c = 3, 12, 2\nanswer = a + b + c"),
        ("How many triangles have perimeter $25$?", "a = 25\nanswer = a + 1"),
        ("How far is the moon?", "answer = 0"),
        ("Add 007 + 1 and 12.50.", "a, b = 1, 12.50\nanswer = a + b"),
        ("(1 + 2 is open, 3 is not", "a, b, c = 1, 2, 3\nanswer = a + b + c"),
    ],
)
def test_a_starter_program_computes_with_the_given_numbers(
    make_env: MakeEnv, task: MathTask, problem: str, program: str
) -> None:
    env = make_env(tasks=[replace(task, prompt=problem)], prompt_style="starter")
    play(env, "I add.")
    code = extract_code(example(env))
    assert code == (f"{program}\nprint(answer)",)
    compile(code[0], "starter", "exec")


def test_a_team_of_one(make_env: MakeEnv) -> None:
    solo = Role(name="solver_0", title="Solver", duty="Answer.", max_actions=2)
    episode = play(make_env(team=[solo]), CODE, r"\boxed{42}")
    assert episode.success


def test_senseless_arguments(make_env: MakeEnv) -> None:
    for arguments in (
        {"max_actions": (1, 2)},
        {"prompt_style": "long"},
        {"max_tokens": 0},
        {"level": 1},
        {"tasks": "nowhere.json"},
        {"tasks": "embedded", "split": "dev"},
    ):
        with pytest.raises(ConfigError):
            make_env(**arguments)
    with pytest.raises(ConfigError, match="start_role"):
        make_env().reset(seed=0, options={"start_role": "verifier_0"})


def test_ground_truth_is_off_unless_asked_for(make_env: MakeEnv) -> None:
    scores = []
    for options in ({}, {"ground_truth": "final"}):
        episode = play(make_env(coach="rubric", **options), "I add.", CODE, "It is 42.", r"\boxed{42}")
        scores.append([turn.final_score for turn in episode.turns])
    assert None not in scores[0] + scores[1]
    assert scores[0][-1] < 10.0 == scores[1][-1]


def test_the_kit_passes() -> None:
    api_test(lambda: mappa_envs.make("mathchat-v0", sandbox=FakeSandbox(), coach=FakeCoach(5.0)))


def test_evaluation(make_env: MakeEnv) -> None:
    env = make_env(coach=None)
    result = mappa_envs.evaluate(env, lambda agent, messages: r"\boxed{42}", episodes=3)
    assert result.table.overall.success_rate == 1.0
    assert result.table.overall.figures == {"correct": 1.0, "answered": 1.0}


def test_registry() -> None:
    assert "mathchat-v0" in mappa_envs.list_envs()


def test_the_expert_knows_only_templates() -> None:
    assert expert_action("problem_solver_0", "How far is the moon?") == NO_METHOD
    assert expert_action("verifier_0", "How far is the moon?") == NO_METHOD
    with pytest.raises(ConfigError, match="modeler_0"):
        expert_action("modeler_0", "?")


def test_the_executor_computes_what_it_was_handed() -> None:
    problem = "Find the remainder when $17^{41}$ is divided by $35$."
    said = plan({"a": 17, "b": 40, "m": 35})
    assert "(a=17, b=40, m=35)" in expert_action("code_executor_0", f"{problem}\n{said}")
    for useless in ("", "Everything is given (a = 17).", "Everything is given (x = 1, b = 40, m = 35)."):
        assert "(a=17, b=41, m=35)" in expert_action("code_executor_0", f"{problem}\n{useless}")


@pytest.fixture(scope="module")
def real() -> Iterator[MathChatEnv]:
    names = [template.name for template in TEMPLATES]
    tasks = [task for task in load_tasks("embedded", "test") if task.task_type in names]
    env = cast(MathChatEnv, mappa_envs.make("mathchat-v0", tasks=tasks, split=None))
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield env
    env.close()


@pytest.mark.parametrize("name", [template.name for template in TEMPLATES])
def test_the_expert_solves_every_template(real: MathChatEnv, name: str) -> None:
    task = [task for task in real.tasks if task.task_type == name][-1]
    expert = MathExpert()
    real.reset(seed=0, options={"task_id": task.task_id})
    while real.episode.stop_reason is None:
        agent = real.agent_selection
        real.step(expert(agent, real.infos[agent]["messages"]))
    assert real.episode.success
    assert [turn.final_score is not None for turn in real.episode.turns] == [True] * 4


SUMMARY = "So it is what the program says."
SILENT = "```python\n\n```"


@pytest.mark.parametrize("style", ["full", "starter"])
@pytest.mark.parametrize(
    ("visit", "shown"),
    [
        ((CODE, SUMMARY), "42"),  # the last message only sums up
        ((CODE, SILENT), "42"),  # … or its code prints nothing
        (("```python\n41\n```", CODE), "42"),
        ((SUMMARY,), None),
    ],
)
def test_a_hand_over_carries_the_last_output(
    make_env: MakeEnv, style: str, visit: tuple[str, ...], shown: str | None
) -> None:
    env = make_env(prompt_style=style)
    play(env, "I add.", *visit)
    assert env.agent_selection == "verifier_0"
    prompt = env.observe("verifier_0")["prompt"]
    assert ("Output" in prompt) == (shown is not None)
    assert shown is None or shown in prompt.partition("Output")[2]
    assert "41" not in prompt
    assert env.observe("verifier_0")["prompt"] == prompt
