"""A team in which three of four seats share one policy. No model, no torch, a second.

python examples/shared_policy_team.py

A policy is a function of the agent's name and its messages, so whatever two seats share (weights, a prompt, a
memory) is the same object under two names.
"""

from typing import Any

import mappa_envs
from mappa_envs.coach import FakeCoach
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Episode, Message, Outcome, Role, Task
from mappa_envs.view import View

TASKS = [Task(task_id=word, task_type="count", split="train", prompt=word) for word in ("one", "three", "e")]
COUNTERS = [
    Role(name=f"counter_{k}", title=f"Counter {k}", duty=f"Count the {c}.") for k, c in enumerate("eno")
]
TEAM = [*COUNTERS, Role(name="adder_0", title="Adder", duty="Add up what the others counted.")]


class CountEnv(PipelineEnv):
    env_id = "counts-v0"

    def build_messages(self, view: View) -> list[Message]:
        counted = " ".join(turn.action for turn in view.handovers)
        duty = Message(role="system", content=view.role.duty)
        return [duty, Message(role="user", content=f"word: {view.task.prompt}\ncounted: {counted}")]

    async def grade(self, workspace: Any, task: Task, episode: Episode) -> Outcome:
        wanted = str(sum(map(task.prompt.count, "eno")))
        right = any(turn.action == wanted for turn in episode.turns[-1:])
        return Outcome(value=float(right), success=right, code="ok" if right else "wrong")


def counter(agent: str, messages: list[dict[str, str]]) -> str:
    """The policy of three seats: which letter is meant stands in the prompt."""
    letter = messages[0]["content"][-2]
    word = messages[1]["content"].split("\n")[0].removeprefix("word: ")
    return str(word.count(letter))


def adder(agent: str, messages: list[dict[str, str]]) -> str:
    return str(sum(map(int, messages[1]["content"].split("counted: ")[1].split())))


def make_env(**options: Any) -> CountEnv:
    return CountEnv(TEAM, TASKS, **{"coach": FakeCoach(), "sandbox": FakeSandbox(), **options})


if __name__ == "__main__":
    policies = {"adder_0": adder, **dict.fromkeys((role.name for role in COUNTERS), counter)}
    table = mappa_envs.evaluate(make_env(), policies).table
    print(f"{table.overall.num_episodes} episodes, success {table.overall.success_rate:.0%}")
