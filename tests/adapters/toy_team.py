"""Three roles on a task without files: who says "good" gets 8, a later "blame" lowers the first turn to 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mappa_envs.coach.base import CoachRequest
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sandbox.base import Workspace
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import CoachScore, Episode, Message, Outcome, Role, ScoreRevision, Task
from mappa_envs.view import View

TEAM = [Role(name=f"{name}_0", title=name, duty="Say good.") for name in ("first", "second", "third")]
TASKS = [
    Task(task_id=word, task_type="toy", split="train", prompt=f"Say {word}.") for word in ("red", "blue")
]


class ToyEnv(PipelineEnv):
    env_id = "toy-v0"

    def build_messages(self, view: View) -> Sequence[Message]:
        said = [f"{turn.agent}: {turn.action}" for turn in view.handovers]
        return [Message(role="user", content="\n".join([view.task.prompt, view.role.duty, *said]))]

    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        good = all(turn.action == "good" for turn in episode.turns)
        return Outcome(value=float(good), success=good, code="ok")


def judge(request: CoachRequest) -> CoachScore:
    action = request.turn.action
    blamed = [ScoreRevision(turn=0, score=2.0, reason="it was wrong")] if action == "blame" else []
    return CoachScore(score=8.0 if action == "good" else 4.0, reason=action, revisions=tuple(blamed))


def make_toy(**options: Any) -> ToyEnv:
    settings: dict[str, Any] = {"coach": FakeCoach(judge), "sandbox": FakeSandbox(), **options}
    return ToyEnv(settings.pop("team", TEAM), settings.pop("tasks", TASKS), **settings)
