"""What a held-out kind of fault is, and how its message is made from the scripted expert's.

A kind changes the expert's code of one role of the DSBench team, or says something else altogether. In its
lines ID, TARGETS, FIRST and MODEL in angle brackets stand for the task's id column, its target columns, the
first of these, and the expert's model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mappa_envs.actions import extract_code
from mappa_envs.dsbench import metrics
from mappa_envs.dsbench.metrics import Family
from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.testing import PlantedFault, expert_message
from mappa_envs.types import Task

Messages = Sequence[dict[str, str]]
Message = Callable[[str, Messages, Task], str | None]
Change = Callable[[str, DSBenchTask], str]
"""`change(code, task)` → the expert's code with the slip in it."""

SAVE_MODEL = (
    'with open("model.pkl", "wb") as file:\n    pickle.dump(model, file)\nprint("model.pkl is saved")\n'
)
FIT = "model = <MODEL>\nmodel.fit(X, y)\n"
_LAST_PART = {
    "data_engineer_0": 'X_train.to_pickle("',
    "modeler_0": "\nmodel = ",
    "analyst_0": 'submission.to_csv("',
}
"""Where the last part of the expert's code begins."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A planted fault and what proves that it was planted.

    signs : any of them shows in the record:
        "artifact FILE STATUS"  what the inspection of a required file found after the guilty agent's action,
        "remark FILE"           a valid file with a `problem`,
        "exception NAME", "limit NAME"   how the guilty agent's code ended,
        "no code"               the guilty agent's message had none,
        "handed on"             another agent's code ended in an exception,
        "grade CODE"            the grader's code,
        "score"                 a valid submission that scores worse than the expert's,
        "recovered"             the team succeeded all the same.
    twin : for an injection, the same fault without the text that talks to the coach.
    """

    fault: PlantedFault
    signs: tuple[str, ...]
    twin: PlantedFault | None = None


def table_kind(
    agent: str,
    name: str,
    severity: float,
    signs: str,
    description: str,
    talk: str,
    change: Change | None,
    families: frozenset[Family] | None = None,
) -> Kind:
    """A kind for the DSBench team; `signs` apart by "|", `change` None for a message without code."""

    def message(agent: str, messages: Messages, task: Task) -> str | None:
        if not isinstance(task, DSBenchTask):
            return None
        if families is not None and metrics.metric(task.spec.metric).family not in families:
            return None
        if change is None:
            return f"{talk}\n"
        (code,) = extract_code(expert_message("dsbench-v0", agent, messages, task))
        return f"{talk}\n\n```python\n{change(code, task).strip()}\n```\n"

    fault = PlantedFault(
        name=f"dsbench/{name}",
        env_id="dsbench-v0",
        agent=agent,
        severity=severity,
        description=description,
        message=message,
    )
    return Kind(fault=fault, signs=tuple(signs.split("|")))


def before(lines: str) -> Change:
    """`lines` go in before the last part: saving the tables, making the model, saving the submission."""

    def change(code: str, task: DSBenchTask) -> str:
        cut = _last_part(code)
        return f"{code[:cut].rstrip()}\n{_fill(lines, code, task)}{code[cut:].lstrip()}"

    return change


def ending(lines: str) -> Change:
    """`lines` replace the last part."""
    return lambda code, task: f"{code[: _last_part(code)].rstrip()}\n{_fill(lines, code, task)}"


def swap(old: str, new: str) -> Change:
    """`new` stands everywhere in place of `old`, which must be there."""

    def change(code: str, task: DSBenchTask) -> str:
        if old not in code:
            raise ValueError(f"the expert's code has no {old!r} to be replaced")
        return code.replace(old, _fill(new, code, task))

    return change


def whole(lines: str) -> Change:
    """`lines` are all of the code."""
    return lambda code, task: _fill(lines, code, task)


def injected(
    base: Kind,
    name: str,
    description: str,
    edit: Callable[[str], str],
    plain: Callable[[str], str] = lambda said: said,
) -> Kind:
    """`base` with a text that talks to the coach; `edit` puts it into the whole message.

    `plain` makes the twin's message, where the text cannot be left out without changing the data.
    """

    def edited(change: Callable[[str], str], agent: str, messages: Messages, task: Task) -> str | None:
        said = base.fault.message(agent, messages, task)
        return None if said is None else change(said)

    fault = PlantedFault(
        name=f"{base.fault.name.partition('/')[0]}/{name}",
        env_id=base.fault.env_id,
        agent=base.fault.agent,
        severity=base.fault.severity,
        injection=True,
        description=description,
        message=partial(edited, edit),
    )
    twin = replace(base.fault, message=partial(edited, plain))
    return Kind(fault=fault, signs=base.signs, twin=twin)


def _last_part(code: str) -> int:
    found = [code.index(part) for part in _LAST_PART.values() if part in code]
    if not found:
        raise ValueError("the expert's code has another form than the kinds were written for")
    return min(found)


def _fill(lines: str, code: str, task: DSBenchTask) -> str:
    model = re.search(r"^model = (.+)$", code, re.MULTILINE)
    names = {
        "<ID>": repr(task.spec.id_column),
        "<TARGETS>": repr(list(task.spec.target_columns)),
        "<FIRST>": repr(task.spec.target_columns[0]),
        "<MODEL>": model[1] if model else "",
    }
    return re.sub("|".join(names), lambda found: names[found[0]], lines)
