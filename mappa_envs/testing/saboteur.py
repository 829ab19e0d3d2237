"""A scripted saboteur: whole messages that plant one known fault, to measure who gets the blame for it.

    >>> fault = fault_named("no_test_table")
    >>> saboteur_action("data_engineer_0", task, fault)
    'I encode text by its order in the training rows, fill gaps and save the tables.\n\n```python\n...'

An episode in which one role follows the saboteur and all others the scripted expert has one guilty agent,
`fault.guilty`: a fair coach blames its turn and nobody else's, wherever the damage shows. The table of faults
is `mappa_envs.testing.FAULTS`; each is the expert's code with the slip of a small model in it. In
`planted_faults("dsbench-v0")` they stand as "dsbench/<name>".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.errors import ConfigError
from mappa_envs.testing.expert import (
    TALK,
    TabularTask,
    expert_action,
    expert_code,
    model_fields,
    seat_of,
)
from mappa_envs.testing.faults import FAULTS, Fault
from mappa_envs.testing.registry import PlantedFault, register_expert, register_fault
from mappa_envs.types import Task

_LAST_PART = {
    "data_engineer": "X_train.to_pickle(",
    "modeler": "model = ",
    "analyst": "submission.to_csv(",
}
"""Where the last part of the expert's code begins."""


class SaboteurPolicy:
    """`policy(agent, task)` is the expert's message, but for the one agent that plants `fault`."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __call__(self, agent: str, task: TabularTask) -> str:
        if seat_of(agent) == self.fault.role:
            return saboteur_action(agent, task, self.fault)
        return expert_action(agent, task)


def saboteur_action(role_name: str, task: TabularTask, fault: Fault) -> str:
    """The message of a role (`data_engineer_0`, …) that plants `fault`.

    Raises `ConfigError` when the fault belongs to another role or makes no sense for the task's metric.
    """
    if seat_of(role_name) != fault.role:
        raise ConfigError(f"fault {fault.name!r} is planted by {fault.role}, not by {role_name!r}")
    if not fits(fault, task):
        raise ConfigError(
            f"fault {fault.name!r} makes no sense for {task.spec.metric} (task {task.task_id}); "
            "see faults_for(task)"
        )
    if not fault.has_code:
        return f"{fault.talk}\n"
    return f"{fault.talk or TALK[fault.role]}\n\n```python\n{_code(fault, role_name, task)}```\n"


def faults_for(task: TabularTask) -> tuple[Fault, ...]:
    """The faults that make sense for the task's metric, in the order of the table."""
    return tuple(fault for fault in FAULTS if fits(fault, task))


def fits(fault: Fault, task: TabularTask) -> bool:
    """Whether the fault can be planted in this task."""
    return fault.families is None or metrics.metric(task.spec.metric).family in fault.families


def fault_named(name: str) -> Fault:
    """The fault of the table. Raises `ConfigError` on an unknown name."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise ConfigError(f"unknown fault {name!r}; known: {', '.join(fault.name for fault in FAULTS)}")


def _code(fault: Fault, role_name: str, task: TabularTask) -> str:
    """The expert's code with the fault in it."""
    code, fields = expert_code(role_name, task), model_fields(task.spec)
    names = {
        "ID": repr(task.spec.id_column),
        "TARGETS": repr(list(task.spec.target_columns)),
        "MODEL": fields["model"],
        "KIND": fields["kind"],
    }

    def fill(lines: str) -> str:
        return re.sub(r"\b(?:ID|TARGETS|MODEL)\b|KIND\b", lambda found: names[found[0]], lines)

    cut = code.index(_LAST_PART[fault.role])
    ending = code[cut:] if fault.ending is None else fill(fault.ending)
    return code[:cut] + fill(fault.before) + ending


def _planted(fault: Fault) -> PlantedFault:
    """The fault for a `FaultyTeam`, which answers every prompt of the guilty agent alike."""

    def message(agent: str, messages: Sequence[dict[str, str]], task: Task) -> str | None:
        if not isinstance(task, DSBenchTask) or not fits(fault, task):
            return None
        return saboteur_action(agent, task, fault)

    return PlantedFault(
        name=f"dsbench/{fault.name}",
        env_id="dsbench-v0",
        agent=fault.guilty,
        severity=fault.severity,
        description=fault.description,
        message=message,
    )


def _expert(agent: str, messages: Sequence[dict[str, str]], task: Task) -> str:
    if not isinstance(task, DSBenchTask):
        raise ConfigError(f"task {task.task_id!r} is a {type(task).__name__}; the expert plays DSBenchTask")
    return expert_action(agent, task)


register_expert("dsbench-v0", _expert)
for kind in FAULTS:
    register_fault(_planted(kind))
