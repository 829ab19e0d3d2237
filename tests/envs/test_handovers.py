"""What a role hands over: its last message, with the last output of its visit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from team_fakes import MakeEnv

from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Episode, ToolResult, Turn
from mappa_envs.view import handovers_for

PRINTS = Turn(index=0, agent="a_0", messages=(), action="a", tool=ToolResult(stdout="1\n"))
SILENT = replace(PRINTS, tool=ToolResult())
SPEAKS = replace(PRINTS, tool=None)
OTHER = replace(SPEAKS, agent="b_0", handed_over=True)


def handed(*turns: Turn) -> list[ToolResult | None]:
    """The outputs that c_0 sees of turns in this order."""
    numbered = tuple(replace(turn, index=index) for index, turn in enumerate(turns))
    episode = Episode(env_id="x-v0", task_id="x", task_type="x", split="train", seed=0, turns=numbered)
    seen = handovers_for("c_0", episode, "full")
    assert seen[-1:] == handovers_for("c_0", episode, "previous")
    return [turn.tool for turn in seen]


def last(turn: Turn) -> Turn:
    return replace(turn, handed_over=True)


def test_a_summary_comes_with_the_output_that_it_sums_up() -> None:
    failed = replace(PRINTS, tool=ToolResult(stderr="no", exit_code=1))
    stopped = replace(PRINTS, tool=ToolResult(exit_code=-9, limit="time"))
    for turn in (PRINTS, failed, stopped):
        assert handed(turn, last(SPEAKS)) == [turn.tool]
        assert handed(turn, last(SILENT)) == [turn.tool]
        assert handed(PRINTS, last(turn)) == [turn.tool]
    assert handed(SILENT, last(SPEAKS)) == [SILENT.tool]
    assert handed(last(SPEAKS)) == [None]


def test_an_earlier_visit_is_over() -> None:
    assert handed(last(PRINTS), OTHER, last(SPEAKS)) == [None, None]
    # Also where a role hands over to itself.
    assert handed(last(PRINTS), last(SPEAKS)) == [None]


@pytest.mark.parametrize("style", ["full", "starter"])
def test_a_data_science_team_sees_it_too(make_env: MakeEnv, style: str) -> None:
    sandbox = FakeSandbox(script=lambda blocks, files: ToolResult(stdout="7 columns\n"))
    env = make_env(prompt_style=style, sandbox=sandbox, handover="message")
    env.reset(seed=0)
    env.step("```python\nx\n```")
    env.step("The tables are as they should be.")
    assert env.agent_selection == "modeler_0"
    prompt = env.observe("modeler_0")["prompt"]
    assert "The tables are as they should be." in prompt
    assert "7 columns" in prompt
    assert env.observe("modeler_0")["prompt"] == prompt
