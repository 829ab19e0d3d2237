"""How good is a team? The scripted expert on the test split: no model, no torch, no coach, half a minute.

python examples/evaluate_team.py --tasks 2

A policy gets the agent's name and its prompt as chat messages, and returns the agent's whole message. It
may be a coroutine function (for a server that many episodes ask at once), or one policy for each agent.
"""

import argparse

from rich import print as show

import mappa_envs
from mappa_envs.testing.expert import expert_action

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tasks", type=int, help="how many tasks; default: all of the split, once each")
options = parser.parse_args()

env = mappa_envs.make("dsbench-v0", tasks="embedded", split="test", coach=None)


def policy(agent: str, messages: list[dict[str, str]]) -> str:
    """The expert writes code for a task; find out from the prompt which one it is."""
    prompt = "\n".join(message["content"] for message in messages)
    task = next(task for task in env.tasks if task.prompt.strip() in prompt)
    return expert_action(agent, task)


result = mappa_envs.evaluate(env, policy, episodes=options.tasks, num_concurrent=4, seed=0)
env.close()
show(result.table)
