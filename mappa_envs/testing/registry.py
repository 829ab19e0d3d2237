"""Planted faults of all environments: what a coach is to find out, with the answer known beforehand.

    >>> fault = planted_faults("mathchat-v0")[0]
    >>> team = FaultyTeam("mathchat-v0", task, [fault])
    >>> team("problem_solver_0", messages)  # the scripted expert's message, but for the guilty agent's

An episode that a `FaultyTeam` plays has one guilty agent for each fault: a fair coach blames its turns and
nobody else's, wherever the damage shows. Kinds of your own are added by `register_fault`, the expert of
another environment by `register_expert`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mappa_envs.errors import ConfigError, DataError
from mappa_envs.registry import make
from mappa_envs.types import Task

if TYPE_CHECKING:
    from mappa_envs.pipeline import PipelineEnv

SEVERITIES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""The scale of `PlantedFault.severity` in the package's own kinds; 0.1 also where a fault does no damage."""

Messages = Sequence[dict[str, str]]
Expert = Callable[[str, Messages, Task], str]
"""`expert(agent, messages, task)` → the agent's whole message."""


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """One kind of fault.

    name : unique over all environments, for example "dsbench/no_test_table".
    env_id : whose team it is planted in.
    agent : who plants it, the only guilty one.
    severity : in (0, 1], how much of the outcome it destroys when alone; 1 = all of it.
    injection : it tries to talk the coach into a score.
    description : what the agent does.
    message : `message(agent, messages, task)` → the agent's whole message with the fault in it, as an answer
        to the prompt `messages`; None for a task in which the fault makes no sense. Called for `agent` alone,
        once for each of its actions.

    Raises `ConfigError` on a severity out of range.
    """

    name: str
    env_id: str
    agent: str
    severity: float
    injection: bool = False
    description: str
    message: Callable[[str, Messages, Task], str | None]

    def __post_init__(self) -> None:
        if not 0 < self.severity <= 1:
            raise ConfigError(f"fault {self.name!r}: severity must be in (0, 1], got {self.severity}")

    def fits(self, task: Task) -> bool:
        """Whether it makes sense for the task."""
        asked = [{"role": "user", "content": task.prompt}]
        return self.message(self.agent, asked, task) is not None


class ExpertTeam:
    """`policy(agent, messages)` for every seat and task: the scripted expert, which reads off the task.

    >>> env = gymnasium.make("mappa_envs:mappa/dsbench-v0", seat="modeler_0", others=ExpertTeam("dsbench-v0"))

    env : an environment, or the id of one that `make` makes on its embedded tasks. Raises `ConfigError` where
    it has no scripted expert; a call raises `DataError` on a prompt of another task.
    """

    def __init__(self, env: PipelineEnv | str) -> None:
        made = make(env, split=None, coach=None) if isinstance(env, str) else env
        self.env_id = made.env_id
        self._tasks = sorted(made.tasks, key=lambda task: len(task.prompt), reverse=True)
        _expert_of(self.env_id)

    def __call__(self, agent: str, messages: Messages) -> str:
        asked = "\n".join(message["content"] for message in messages)
        # The longest one: a short prompt may stand within another.
        task = next((task for task in self._tasks if task.prompt.strip() in asked), None)
        if task is None:
            raise DataError(
                f"the prompt of {agent} holds none of the {len(self._tasks)} tasks of {self.env_id}"
            )
        return expert_message(self.env_id, agent, messages, task)


class FaultyTeam:
    """`policy(agent, messages)` for every seat: the scripted expert, but for the agents that plant `faults`.

    env : the environment or its id; faults : one or two, of different agents. Raises `ConfigError` where they
    belong to another environment or make no sense for the task, or the environment has no scripted expert.
    """

    def __init__(self, env: PipelineEnv | str, task: Task, faults: Sequence[PlantedFault]) -> None:
        self.env_id = env if isinstance(env, str) else env.env_id
        self.task, self.faults = task, {fault.agent: fault for fault in faults}
        if len(faults) not in (1, 2) or len(self.faults) != len(faults):
            names = ", ".join(fault.name for fault in faults) or "none"
            raise ConfigError(f"faults: one is needed, or two of different agents, got {names}")
        _expert_of(self.env_id)
        for fault in faults:
            if fault.env_id != self.env_id:
                raise ConfigError(f"fault {fault.name!r} belongs to {fault.env_id}, not to {self.env_id}")
            if not fault.fits(task):
                raise ConfigError(f"fault {fault.name!r} makes no sense for task {task.task_id!r}")

    def __call__(self, agent: str, messages: Messages) -> str:
        if (fault := self.faults.get(agent)) is None:
            return expert_message(self.env_id, agent, messages, self.task)
        said = fault.message(agent, messages, self.task)
        if said is None:
            raise ConfigError(f"fault {fault.name!r} has no message for a later prompt of {agent}")
        return said


def register_fault(fault: PlantedFault) -> None:
    """Make a kind of fault known to `planted_faults`. Raises `ConfigError` on a name that is taken."""
    if fault.name in _FAULTS:
        raise ConfigError(f"there is a fault {fault.name!r} already")
    _FAULTS[fault.name] = fault


def planted_faults(env_id: str | None = None) -> tuple[PlantedFault, ...]:
    """The faults of an environment, or all, in the order of their registration; the package's own first."""
    return tuple(fault for fault in _FAULTS.values() if env_id in (None, fault.env_id))


def register_expert(env_id: str, expert: Expert) -> None:
    """Give an environment its scripted expert. Raises `ConfigError` where it has one."""
    if env_id in _EXPERTS:
        raise ConfigError(f"{env_id} has a scripted expert already")
    _EXPERTS[env_id] = expert


def expert_message(env_id: str, agent: str, messages: Messages, task: Task) -> str:
    """The scripted expert's whole message. Raises `ConfigError` on an environment or agent without one."""
    return _expert_of(env_id)(agent, messages, task)


def _expert_of(env_id: str) -> Expert:
    if env_id not in _EXPERTS:
        raise ConfigError(f"{env_id!r} has no scripted expert; known: {', '.join(sorted(_EXPERTS))}")
    return _EXPERTS[env_id]


# The modules of the package's own kinds fill these; `mappa_envs.testing` imports them all.
_FAULTS: dict[str, PlantedFault] = {}
_EXPERTS: dict[str, Expert] = {}
