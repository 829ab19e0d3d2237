"""A team of your own: five roles, one of which sends the work back. No model, no torch, a second.

python examples/five_role_team.py
"""

from typing import Any

from mappa_envs.coach import CoachRequest, FakeCoach
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Episode, Message, Outcome, Role, Task
from mappa_envs.view import View

SUMS = {"17 + 25": "42", "8 + 6": "14", "40 + 3": "43"}
TASKS = [Task(task_id=text, task_type="sum", split="train", prompt=text) for text in SUMS]


def after_check(episode: Episode) -> str:
    return "solver_0" if "wrong" in episode.turns[-1].action else "writer_0"


TEAM = [
    Role(name="reader_0", title="Reader", duty="Repeat the sum."),
    Role(name="solver_0", title="Solver", duty="Work it out."),
    Role(name="checker_0", title="Checker", duty="Say right or wrong.", next=after_check),
    Role(name="writer_0", title="Writer", duty="Write a sentence with the result."),
    Role(name="signer_0", title="Signer", duty="Repeat the sentence and sign it."),
]


class SumEnv(PipelineEnv):
    env_id = "sums-v0"

    def build_messages(self, view: View) -> list[Message]:
        said = [f"{view.title(turn.agent)}: {turn.action}" for turn in view.handovers]
        duty = Message(role="system", content=f"You are the {view.role.title}. {view.role.duty}")
        return [duty, Message(role="user", content="\n".join([view.task.prompt, *said]))]

    async def grade(self, workspace: Any, task: Task, episode: Episode) -> Outcome:
        right = any(SUMS[task.task_id] in turn.action for turn in episode.turns[-1:])
        return Outcome(value=float(right), success=right, code="ok" if right else "wrong")


def judge(request: CoachRequest) -> float:
    """The coach: it sees one action with all its evidence, and scores it from 0 to 10."""
    needed = {"reader_0": "+", "checker_0": ""}.get(request.role.name, SUMS[request.task.task_id])
    return 10 if needed in request.turn.action else 0


def make_env(team: list[Role] = TEAM, **options: Any) -> SumEnv:
    return SumEnv(team, TASKS, **{"coach": FakeCoach(judge), "sandbox": FakeSandbox(), **options})


if __name__ == "__main__":
    env = make_env(render_mode="human")
    env.reset(seed=0, options={"task_id": "17 + 25"})
    # What the agents say: the solver forgets to carry, and the checker notices.
    for action in ("17 + 25 = ?", "32", "That is wrong.", "42", "right", "It is 42.", "It is 42. (signed)"):
        env.step(action)
