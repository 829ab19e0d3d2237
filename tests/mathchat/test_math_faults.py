"""Every fault of the table, in a real sandbox: its sign shows, and nobody but the guilty agent deviates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest

from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.mathchat.env import MathChatEnv
from mappa_envs.mathchat.expert import MathExpert
from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.mathchat.templates import LEVELS, TEMPLATES, Template, read_prompt, template_named
from mappa_envs.sandbox import Limits
from mappa_envs.testing import (
    MATH_FAULTS,
    FakeSandbox,
    FaultyTeam,
    MathFault,
    PlantedFault,
    planted_faults,
)
from mappa_envs.testing.math_faults import PRAISE, Scene, math_table
from mappa_envs.types import Episode, ToolResult, Turn

PLANTED = {fault.name: fault for fault in planted_faults("mathchat-v0")}
QUICK = ("misread_number", "mends_what_was_right", "open_box")


def drawn(template: Template, level: int) -> MathTask:
    problem = template.draw(Random(level), level)
    return MathTask(
        task_id=f"{template.name}-{level}", task_type=template.name, split="test", prompt=problem.prompt,
        golds=(str(problem.answer),), level=level,
    )  # fmt: skip


PLAYED = [drawn(template_named("power_mod"), 1), drawn(template_named("heron"), 2)]


@pytest.fixture(scope="module")
def env() -> Iterator[MathChatEnv]:
    env = MathChatEnv(PLAYED, None, coach=None, sandbox="namespace", limits=Limits(time_s=3))
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield env
    env.close()


def play(env: MathChatEnv, task: MathTask, team: FaultyTeam) -> Episode:
    env.reset(seed=0, options={"task_id": task.task_id})
    while env.episode.stop_reason is None:
        env.step(team(env.agent_selection, env.infos[env.agent_selection]["messages"]))
    return env.episode


def planted(fault: MathFault) -> PlantedFault:
    return PLANTED[f"mathchat/{fault.name}"]


@pytest.mark.parametrize("task", PLAYED, ids=lambda task: task.task_type)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.slow)
        for fault in MATH_FAULTS
    ],
)
def test_a_fault_shows_as_documented(env: MathChatEnv, task: MathTask, fault: MathFault) -> None:
    episode = play(env, task, FaultyTeam(env, task, [planted(fault)]))
    guilty = [turn for turn in episode.turns if turn.agent == fault.guilty]
    assert {turn.agent for turn in episode.turns if turn.action != honest(turn)} == {fault.guilty}
    assert shows(episode, guilty, fault.sign, task), [turn.tool for turn in guilty]
    # Either the answer is lost, or the teammates mend it.
    assert episode.outcome == (0.0 if fault.severity == 1.0 else 1.0)
    if fault.injection:
        assert any(PRAISE in turn.action or (turn.tool and PRAISE in turn.tool.stdout) for turn in guilty)


def honest(turn: Turn) -> str:
    asked = [{"role": message.role, "content": message.content} for message in turn.messages]
    return MathExpert()(turn.agent, asked)


def shows(episode: Episode, guilty: list[Turn], sign: str, task: MathTask) -> bool:
    kind, *words = sign.split()
    tools = [turn.tool for turn in guilty if turn.tool]
    if kind == "exception":
        return any([tool.exception] == words for tool in tools)
    if kind == "limit":
        return any([tool.limit] == words for tool in tools)
    if sign == "output none":
        return any(tool.ok and not tool.stdout.strip() for tool in tools)
    if sign == "output wrong":
        return any(tool.ok and tool.stdout.split()[0] != task.golds[0] for tool in tools)
    if sign == "code none":
        return not tools
    if kind == "grade":
        return [episode.grade_code] == words
    return sign == "says" and all(tool.ok for tool in tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [drawn(*case) for case in product(TEMPLATES, LEVELS)], ids=lambda t: t.task_id
)
def test_a_misread_number_changes_the_enumeration(task: MathTask) -> None:
    found = read_prompt(task.prompt)
    assert found is not None
    scene = Scene(template=found[0], numbers=found[1], expert="", has_run=False)
    assert str(scene.answer) == task.golds[0]
    assert scene.misread is not None
    assert scene.template.brute(**scene.misread) != scene.answer


def test_the_table_is_sound() -> None:
    assert max(Counter(fault.name for fault in MATH_FAULTS).values()) == 1
    assert len({fault.description for fault in MATH_FAULTS}) > 0.9 * len(MATH_FAULTS)
    count = Counter(fault.role for fault in MATH_FAULTS)
    assert count["problem_solver"] >= 5
    assert count["code_executor"] >= 10
    assert count["verifier"] >= 5
    assert {fault.severity for fault in MATH_FAULTS} == {0.1, 1.0}


def test_the_table_of_the_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "mathchat.md"
    assert math_table() in page.read_text("utf-8"), "print mappa_envs.testing.math_faults.math_table()"


@pytest.mark.parametrize("style", ["full", "starter"])
def test_a_second_message_is_known_in_both_styles(style: str) -> None:
    task = PLAYED[0]
    printed = ToolResult(stdout=f"{task.golds[0]}\n")
    sandbox = FakeSandbox(script=lambda blocks, files: printed)
    env = MathChatEnv([task], None, coach=None, sandbox=sandbox, prompt_style=style)  # type: ignore[arg-type]
    episode = play(env, task, FaultyTeam(env, task, [PLANTED["mathchat/ignores_output"]]))
    first, second = (turn for turn in episode.turns if turn.agent == "code_executor_0")
    assert first.action == honest(first)
    assert second.action == f"So the result is {int(task.golds[0]) + 10}."
    assert episode.success


def test_a_fault_knows_its_seat() -> None:
    with pytest.raises(ConfigError, match="is planted by code_executor_0, not by 'verifier_0'"):
        PLANTED["mathchat/crash_late"].message("verifier_0", [], PLAYED[0])
