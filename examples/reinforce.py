"""REINFORCE in one file: three tiny policies learn from a coach's scores. torch on a CPU, seconds.

python examples/reinforce.py

Each agent must say the digit after the one that it was handed (9 is followed by 0). None knows that at first.
The coach scores every action by what that agent was given, so a teammate's mistake costs nobody else.
"""

import argparse
from typing import Any

import torch
from torch.distributions import Categorical

import mappa_envs
from mappa_envs.coach import CoachRequest, FakeCoach
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.testing import FakeSandbox
from mappa_envs.types import Episode, Message, Outcome, Role, Task
from mappa_envs.view import View

TEAM = [Role(name=f"adder_{k}", title=f"Adder {k}", duty="Say the next digit.") for k in range(3)]
TASKS = [Task(task_id=str(k), task_type="digits", split="train", prompt=str(k)) for k in range(10)]


class DigitsEnv(PipelineEnv):
    env_id = "digits-v0"

    def build_messages(self, view: View) -> list[Message]:
        given = view.handovers[-1].action if view.handovers else view.task.prompt
        return [Message(role="user", content=given)]

    async def grade(self, workspace: Any, task: Task, episode: Episode) -> Outcome:
        wanted = str((int(task.prompt) + len(TEAM)) % 10)
        right = any(turn.action == wanted for turn in episode.turns[-1:])
        return Outcome(value=float(right), success=right, code="ok" if right else "wrong")


def judge(request: CoachRequest) -> float:
    given, said = request.turn.messages[-1].content, request.turn.action
    return 10 if given.isdigit() and said == str((int(given) + 1) % 10) else 0


def make_env() -> DigitsEnv:
    return DigitsEnv(TEAM, TASKS, coach=FakeCoach(judge), sandbox=FakeSandbox(), visibility="previous")


def train(env: DigitsEnv, steps: int, episodes: int, lr: float) -> dict[str, torch.nn.Module]:
    """A policy for each agent: digit seen → logits of the ten digits that it may say."""
    policies = {
        agent: torch.nn.Embedding.from_pretrained(torch.zeros(10, 10), freeze=False)
        for agent in env.possible_agents
    }
    optimizers = {agent: torch.optim.Adam(policy.parameters(), lr=lr) for agent, policy in policies.items()}
    for step in range(1, steps + 1):
        logprobs: dict[str, list[torch.Tensor]] = {agent: [] for agent in policies}
        rewards: dict[str, list[float]] = {agent: [] for agent in policies}
        for _ in range(episodes):
            env.reset()
            while env.episode.stop_reason is None:
                agent = env.agent_selection
                seen = torch.tensor(int(env.infos[agent]["messages"][-1]["content"]))
                said = Categorical(logits=policies[agent](seen))
                action = said.sample()
                logprobs[agent].append(said.log_prob(action))
                env.step(str(action.item()))
                rewards[agent].append(env.rewards[agent])
        for agent, optimizer in optimizers.items():
            gained = torch.tensor(rewards[agent])
            loss = -((gained - gained.mean()) * torch.stack(logprobs[agent])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step in (1, steps) or step % 10 == 0:
            scores = "  ".join(f"{agent} {10 * sum(got) / len(got):4.1f}" for agent, got in rewards.items())
            print(f"step {step:3}: mean score {scores}")
    return policies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40, help="updates of all three agents")
    parser.add_argument("--episodes", type=int, default=64, help="in each step")
    parser.add_argument("--lr", type=float, default=0.3, help="of Adam")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    team = make_env()
    team.reset(seed=options.seed)
    learned = train(team, options.steps, options.episodes, options.lr)

    def greedy(agent: str, messages: list[dict[str, str]]) -> str:
        return str(learned[agent](torch.tensor(int(messages[-1]["content"]))).argmax().item())

    overall = mappa_envs.evaluate(make_env(), greedy).table.overall
    print(f"{overall.num_episodes} tasks, success {overall.success_rate:.0%}")
