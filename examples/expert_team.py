"""One episode of `dsbench-v0` with scripted experts: no model, no torch, a few seconds.

python examples/expert_team.py
"""

import mappa_envs
from mappa_envs.testing import ExpertTeam

env = mappa_envs.make("dsbench-v0", split="test")
expert = ExpertTeam(env)
env.reset(seed=0)
for agent in env.agent_iter():
    _, _, terminated, truncated, info = env.last()
    env.step(None if terminated or truncated else expert(agent, info["messages"]))

for turn in env.episode.turns:
    print(f"{turn.agent}: score {turn.final_score:g} ({turn.score.reason})")
print(f"{env.episode.task_id}: success {env.episode.success}, outcome {env.episode.outcome:.2f}")
env.close()
