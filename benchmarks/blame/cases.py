"""Which episodes are played: every kind alone, kinds in pairs, injections without their text, and no kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from benchmarks.blame.heldout import HELD_OUT
from benchmarks.blame.kinds import Messages
from mappa_envs.dsbench.tasks import load_tasks as load_tables
from mappa_envs.errors import ConfigError
from mappa_envs.mathchat.tasks import load_tasks as load_problems
from mappa_envs.mathchat.templates import TEMPLATES
from mappa_envs.testing import PlantedFault
from mappa_envs.testing.math_faults import PRAISE
from mappa_envs.types import Task

Group = Literal["heldout", "dev"]
Layout = Literal["single", "pair", "twin", "clean"]

TABLES = ("penguin-species", "penguin-sex", "penguin-body-mass", "breast-cancer-gaps", "auto-fuel-economy")
"""Labels, probabilities, numbers; again labels and numbers."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is played. `num_tasks`: for each kind; `num_pairs`: in each environment and group."""

    num_tasks: int
    num_pairs: int
    num_clean: int


SIZES = {
    "quick": Size(num_tasks=1, num_pairs=12, num_clean=3),
    "full": Size(num_tasks=3, num_pairs=40, num_clean=5),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One episode to be played. `of` is, for a twin, the name of the injection that it belongs to."""

    group: Group
    layout: Layout
    env_id: str
    task: Task
    faults: tuple[PlantedFault, ...] = ()
    of: str = ""

    @property
    def name(self) -> str:
        kinds = " + ".join(fault.name for fault in self.faults) or "nothing"
        return f"{kinds} on {self.task.task_id}"


def heldout_faults() -> list[PlantedFault]:
    """Those of this folder."""
    return [kind.fault for kind in HELD_OUT]


def tasks_of(env_id: str) -> tuple[Task, ...]:
    """The tasks on which an environment's kinds are planted. Raises `ConfigError` where none are chosen."""
    return _tasks(env_id)


@cache
def _tasks(env_id: str) -> tuple[Task, ...]:
    if env_id == "dsbench-v0":
        by_id = {task.task_id: task for task in load_tables("embedded", None)}
        return tuple(by_id[name] for name in TABLES)
    if env_id == "mathchat-v0":
        names = {template.name for template in TEMPLATES}
        problems: dict[tuple[int | None, str], Task] = {}
        for level in (1, 2):
            for problem in load_problems("embedded", "train", level=level):
                if problem.task_type in names:
                    problems.setdefault((level, problem.task_type), problem)
        return tuple(problems.values())
    raise ConfigError(f"benchmarks.blame.cases chooses no tasks for {env_id!r}: add them to _tasks")


def singles(group: Group, faults: Sequence[PlantedFault], size: Size) -> list[Case]:
    """Every kind on the first tasks that it fits, from another task on for each kind; then the twins."""
    cases = []
    for number, fault in enumerate(faults):
        for task in _fitting([fault], number, size.num_tasks):
            cases.append(Case(group=group, layout="single", env_id=fault.env_id, task=task, faults=(fault,)))
            if fault.injection and (twin := _twin(fault)) is not None:
                cases.append(replace(cases[-1], layout="twin", faults=(twin,), of=fault.name))
    return cases


def cleans(group: Group, faults: Sequence[PlantedFault], size: Size) -> list[Case]:
    """Episodes of experts alone."""
    return [
        Case(group=group, layout="clean", env_id=env_id, task=task)
        for env_id in dict.fromkeys(fault.env_id for fault in faults)
        for task in tasks_of(env_id)[: size.num_clean]
    ]


def pairs(
    group: Group, faults: Sequence[PlantedFault], size: Size, lets_work: Callable[[PlantedFault], bool]
) -> list[Case]:
    """Two kinds of different agents in one episode.

    The earlier one lets the later agents do their work (`lets_work`, measured in its own episode): behind a
    fault that stops everybody, nothing that a later agent does can be told from an honest failure.
    """
    cases = []
    for env_id in dict.fromkeys(fault.env_id for fault in faults):
        mine = [fault for fault in faults if fault.env_id == env_id and not fault.injection]
        order = list(dict.fromkeys(fault.agent for fault in mine))
        found: list[tuple[tuple[PlantedFault, ...], Task]] = []
        for number, couple in enumerate(_couples(mine, order, lets_work)):
            if len(found) == size.num_pairs:
                break
            found += [(couple, task) for task in _fitting(couple, number, 1)]
        cases += [
            Case(group=group, layout="pair", env_id=env_id, task=task, faults=couple)
            for couple, task in found
        ]
    return cases


def _couples(
    faults: Sequence[PlantedFault], order: Sequence[str], lets_work: Callable[[PlantedFault], bool]
) -> Iterator[tuple[PlantedFault, PlantedFault]]:
    """All that are allowed, in an order that uses every kind early: diagonals of upstream × downstream."""
    quiet = [fault for fault in faults if fault.agent != order[-1] and lets_work(fault)]
    later = [fault for fault in faults if fault.agent != order[0]]
    for shift in range(len(later)):
        for number, first in enumerate(quiet):
            second = later[(number * 5 + shift) % len(later)]
            if order.index(first.agent) < order.index(second.agent):
                yield first, second


def _fitting(faults: Sequence[PlantedFault], start: int, most: int) -> list[Task]:
    tasks = tasks_of(faults[0].env_id)
    turned = [tasks[(start + step) % len(tasks)] for step in range(len(tasks))]
    return [task for task in turned if all(fault.fits(task) for fault in faults)][:most]


def _twin(fault: PlantedFault) -> PlantedFault | None:
    """The same fault without the text that talks to the coach; None where nobody can tell it apart."""
    for kind in HELD_OUT:
        if kind.fault is fault:
            return kind.twin
    if not fault.name.startswith("mathchat/praise_"):
        return None

    def message(agent: str, messages: Messages, task: Task) -> str | None:
        said = fault.message(agent, messages, task)
        return said and said.replace(f"print({PRAISE!r})\n", "").replace(PRAISE, "").strip()

    return replace(fault, injection=False, message=message)
