"""Who acts with which weights, and which weights learn: `--frozen-agents` and `--shared-policy`.

A policy is a set of weights with a name: that of its agent, or `SHARED` where all agents have one. Policies,
learner and engines look weights up by the name of the policy; files, metrics and episodes are by agent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mappa_envs.errors import ConfigError
from mappa_train.config import Config, did_you_mean

SHARED = "shared_policy"
"""The name of the policy of all agents."""


class PolicyRouter:
    """From agents to policies.

    `policy_of` maps each of `agents` to its policy, `names` are all policies, `trained` those that learn; in
    the order of the team.
    """

    def __init__(self, agents: Sequence[str], frozen: Collection[str] = (), *, shared: bool = False) -> None:
        self.agents = tuple(agents)
        self.policy_of: Mapping[str, str] = {agent: SHARED if shared else agent for agent in agents}
        self.names = tuple(dict.fromkeys(self.policy_of.values()))
        self.trained = tuple(name for name in self.names if name not in frozen)

    def actors(self, policy: str) -> tuple[str, ...]:
        """The agents that act with a policy."""
        return tuple(agent for agent, name in self.policy_of.items() if name == policy)


def frozen_names(config: Config) -> tuple[str, ...]:
    """The names in `--frozen-agents`, as they stand there."""
    return tuple(name.strip() for name in config.frozen_agents.split(",")) if config.frozen_agents else ()


def check_router(config: Config) -> None:
    """What can be said before the team is known. Raises `ConfigError`."""
    names, flag = frozen_names(config), f"--frozen-agents {config.frozen_agents}"
    if "" in names:
        raise ConfigError(f"{flag}: a name is empty; give names of agents, apart by commas")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{flag}: names {twice} twice; once is enough")
    if names and config.shared_policy == "on":
        raise ConfigError(
            f"{flag}: with --shared-policy on every agent acts with the weights that learn; leave one out"
        )


def check_frozen(config: Config, agents: Sequence[str]) -> None:
    """Raise `ConfigError` where the frozen agents are not all of the team, or are all of it."""
    names, flag = frozen_names(config), f"--frozen-agents {config.frozen_agents}"
    if unknown := next((name for name in names if name not in agents), None):
        hint = did_you_mean(unknown, agents)
        raise ConfigError(
            f"{flag}: {unknown} is no agent of {config.env}{hint}; there are {', '.join(agents)}"
        )
    if names and set(names) == set(agents):
        raise ConfigError(f"{flag}: nobody is left who learns; leave one out")


def up_to_last_learner(config: Config, agents: Sequence[str]) -> Sequence[str]:
    """The team without the frozen agents at its end."""
    frozen = frozen_names(config)
    return agents[: 1 + max(k for k, agent in enumerate(agents) if agent not in frozen)]


def count_policies(config: Config, num_agents: int) -> tuple[int, int]:
    """How many policies a team of `num_agents` has, and how many of them learn."""
    count = 1 if config.shared_policy == "on" else num_agents
    return count, count - len(frozen_names(config))


def check_trained(saved: Collection[str], trained: Collection[str]) -> None:
    """Raise `ConfigError` if the optimizers of a checkpoint are not those of the policies that learn."""
    if set(saved) != set(trained):
        raise ConfigError(
            f"the checkpoint has the optimizers of {', '.join(saved)}, and by its settings the run trains "
            f"{', '.join(trained)}. Were frozen_agents or shared_policy changed in its config.toml? Change "
            "them back, or begin a new run from its weights with --init"
        )
