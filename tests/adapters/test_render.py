"""What a person sees of an episode."""

from __future__ import annotations

import pytest
from toy_team import judge, make_toy

from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import StopReason, ToolResult

HEADING = "task blue (toy, train), seed 4"
PARTS = [
    "--- 0 first_0 ---\ngood\n[score 2, at first 8]",
    "--- 1 second_0 ---\n```python\nprint(1)\n```\n[output]\n1\n[score 4]",
    "--- 2 third_0 ---\nblame\n[score 4]",
]
ENDING = "=== done: outcome 0 (ok), success False ==="
ACTIONS = ("good", "```python\nprint(1)\n```", "blame")


def test_ansi_is_the_whole_episode() -> None:
    sandbox = FakeSandbox(script=lambda blocks, files: ToolResult(stdout="1\n"))
    env = make_toy(render_mode="ansi", sandbox=sandbox)
    env.reset(seed=4, options={"task_id": "blue"})
    assert env.render() == HEADING
    for action in ACTIONS:
        env.step(action)
    assert env.render() == "\n".join([HEADING, *PARTS, ENDING])


def test_human_prints_every_turn_once(capsys: pytest.CaptureFixture[str]) -> None:
    sandbox = FakeSandbox(script=lambda blocks, files: ToolResult(stdout="1\n"))
    env = make_toy(render_mode="human", sandbox=sandbox)
    env.reset(seed=4, options={"task_id": "blue"})
    for action in ACTIONS:
        env.step(action)
    # The first turn was printed before the third lowered its score.
    first = PARTS[0].replace("2, at first 8", "8")
    assert capsys.readouterr().out == "\n".join([HEADING, first, *PARTS[1:], ENDING, ""])


def test_text_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\x1b]0;title\x07a\rb\x9b31m\u202eevil\u200b"
    env = make_toy(render_mode="human", coach=None)
    env.reset(seed=0)
    env.step(hostile)
    printed = capsys.readouterr().out
    assert "evil" in printed
    assert not set(printed) & set("\x1b\x07\r\x9b\u202e\u200b")
    assert "[unscored: there is no coach]" in printed
    assert hostile in env.state()["transcript"]


def test_a_fault_of_the_coach_and_a_cut_are_shown() -> None:
    env = make_toy(render_mode="ansi", coach=FakeCoach(judge, fail_on=[0]))
    env.reset(seed=0)
    env.step("good")
    env.cut(StopReason.CONTEXT)
    shown = env.render() or ""
    assert "[unscored: the fake coach was told to fail on turn 0]" in shown
    assert shown.endswith("=== context: outcome 1 (ok), success True ===")


def test_without_a_mode_nothing_is_shown() -> None:
    env = make_toy()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="without a render_mode"):
        assert env.render() is None
