"""How good is a team? The scripted expert on the test split: no model, no torch, no coach, half a minute.

python examples/evaluate_team.py --tasks 2
python examples/evaluate_team.py --env mathchat-v0 --tasks 50

A policy gets the agent's name and its prompt as chat messages, and returns the agent's whole message. It
may be a coroutine function (for a server that many episodes ask at once), or one policy for each agent. The
expert in mathematics solves the problems of this project's own templates, about two thirds of all.
"""

import argparse

from rich import print as show

import mappa_envs
from mappa_envs.testing import ExpertTeam

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--env", default="dsbench-v0", help=", ".join(mappa_envs.list_envs()))
parser.add_argument("--tasks", type=int, help="how many tasks; default: all of the split, once each")
options = parser.parse_args()

env = mappa_envs.make(options.env, tasks="embedded", split="test", coach=None)
result = mappa_envs.evaluate(env, ExpertTeam(env), episodes=options.tasks, num_concurrent=4, seed=0)
env.close()
show(result.table)
