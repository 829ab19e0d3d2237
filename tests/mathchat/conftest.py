"""Small tasks, and an environment on fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from mathchat_fakes import MakeEnv

from mappa_envs.mathchat.env import MathChatEnv
from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import ToolResult


def run_print(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
    """The make-believe language prints its own text; "raise" raises."""
    if "raise" in blocks[0]:
        return ToolResult(stderr="ValueError", exit_code=1, exception="ValueError")
    return ToolResult(stdout=blocks[0] + "\n")


@pytest.fixture
def task() -> MathTask:
    return MathTask(
        task_id="sum", task_type="addition", split="train", prompt="What is 20 + 22?", golds=("42",), level=1
    )


@pytest.fixture
def make_env(task: MathTask) -> MakeEnv:
    def make(**options: Any) -> MathChatEnv:
        sandbox = FakeSandbox(script=run_print)
        return MathChatEnv(**{"tasks": [task], "coach": FakeCoach(5.0), "sandbox": sandbox, **options})

    return make
