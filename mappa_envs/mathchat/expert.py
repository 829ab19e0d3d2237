r"""A scripted expert: for any role of the MathChat team, a message that does the role's job.

>>> result = mappa_envs.evaluate(make("mathchat-v0", tasks=template_tasks, split=None), MathExpert())
>>> result.table.overall.success_rate
1.0

It reads only what an agent may read: the prompt. Where that holds a problem of one of our templates, the
solver lists the given numbers, the code executor sends the template's enumeration (`brute`) for the numbers
that it was handed, and the verifier boxes what the program printed. So a teammate's mistake is passed on, as
in any team whose members do their own job. On any other problem it says that it has no method, and gives no
answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

from mappa_envs.errors import ConfigError
from mappa_envs.mathchat.templates import Template, read_prompt

SEATS = ("problem_solver", "code_executor", "verifier")
NO_METHOD = "I have no method for this problem."

_OUTPUT = re.compile(r"^(?:Output(?: of its code)?:|The program printed)\s*(-?\d+)\.?\s*$", re.MULTILINE)
_PLAN = re.compile(r"Everything is given \(([^()]*)\)")


class MathExpert:
    """`policy(agent, messages)`, as `mappa_envs.evaluate` calls it."""

    def __call__(self, agent: str, messages: Sequence[dict[str, str]]) -> str:
        said = "\n".join(message["content"] for message in messages if message["role"] != "system")
        return expert_action(agent, said)


def expert_action(role_name: str, prompt: str) -> str:
    """The message of one role (`problem_solver_0`, …) on its prompt. Raises `ConfigError`."""
    seat = role_name.rsplit("_", 1)[0]
    if seat not in SEATS:
        raise ConfigError(f"the scripted expert knows no role {role_name!r}; it plays {', '.join(SEATS)}")
    printed = _OUTPUT.findall(prompt)
    if seat == "verifier":
        return f"The computed result stands. \\boxed{{{printed[-1]}}}" if printed else NO_METHOD
    if seat == "code_executor" and printed:
        return f"The program printed {printed[-1]}"
    found = read_prompt(prompt)
    if found is None:
        return NO_METHOD
    template, numbers = found
    if seat == "problem_solver":
        return plan(numbers)
    return f"I enumerate.\n\n```python\n{program(template, _handed(prompt, numbers))}```\n"


def plan(numbers: Mapping[str, int]) -> str:
    """The solver's message for these numbers."""
    given = ", ".join(f"{name} = {value}" for name, value in numbers.items())
    return f"Everything is given ({given}): enumerate all cases by a program and print the result."


def program(template: Template, numbers: Mapping[str, int]) -> str:
    """The executor's program: the enumeration, then a last line that prints its result."""
    arguments = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return f"{inspect.getsource(template.brute)}\nprint({template.name}({arguments}))\n"


def _handed(prompt: str, numbers: dict[str, int]) -> dict[str, int]:
    """The numbers of the solver's plan; those of the problem where it lists no such ones."""
    plans = _PLAN.findall(prompt)
    listed = {name: int(value) for name, value in re.findall(r"(\w+) = (-?\d+)", plans[-1] if plans else "")}
    return listed if listed.keys() == numbers.keys() else numbers
