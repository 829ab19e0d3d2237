"""The baseline of every team: one agent that does it all, on the same tasks. No model, no torch, a second.

python examples/single_agent.py
"""

from five_role_team import TASKS, TEAM, make_env

import mappa_envs
from mappa_envs.types import Role

ALONE = [Role(name="solver_0", title="Solver", duty="Work it out and write a sentence with the result.")]


def policy(agent: str, messages: list[dict[str, str]]) -> str:
    """A scripted solver that forgets to carry, unless a checker said so; all others do well."""
    first, second = map(int, messages[1]["content"].split("\n")[0].split(" + "))
    total = first + second
    if agent == "checker_0":
        return "right" if f"Solver: {total}" in messages[1]["content"] else "wrong"
    if agent == "reader_0":
        return f"{first} + {second}"
    told = "Checker: wrong" in messages[1]["content"]
    forgets = agent == "solver_0" and not told and first % 10 + second % 10 > 9
    return str(total - 10 * forgets)


if __name__ == "__main__":
    for name, team in (("five roles", TEAM), ("one agent", ALONE)):
        result = mappa_envs.evaluate(make_env(team), policy, episodes=len(TASKS))
        turns = sum(len(episode.turns) for episode in result.episodes) / len(TASKS)
        print(f"{name}: success {result.table.overall.success_rate:.0%}, {turns:.1f} actions an episode")
