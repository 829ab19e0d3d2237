r"""What the three roles are told, in two styles.

"full" is for models of a billion parameters and more. "starter" is for a very small model with little
context: the problem, then an answer of the right form that seems given already, to be written again, better.
That is made of what stands in the prompt, and so it is right only where the problem states its arithmetic. A
role of another name has no example, unless it is the last, which gives the answer: it is told its duty.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal, get_args

from mappa_envs.actions import handover_text
from mappa_envs.types import Message, Turn
from mappa_envs.view import View, head_and_tail, own_messages, tail, tool_text

PromptStyle = Literal["full", "starter"]
STYLES: tuple[str, ...] = get_args(PromptStyle)

DUTIES = {
    "problem_solver": (
        "Work out a solution step by step. State what has to be computed, and what you already know of the "
        "answer. Your teammates compute and check."
    ),
    "code_executor": (
        "Find the answer by computation: one complete Python program in a ```python block that prints it. "
        "It is run at once and you see its output. Prefer exact arithmetic, and enumeration where it is "
        "feasible. Each message runs in a fresh interpreter with numpy, scipy and sympy, without network. If "
        "it fails or prints nothing, mend it; if the result contradicts the solution so far, say which is "
        "right. "
        "A message without code hands over. Your teammates get your last message and the last output of your "
        "code: name the result in it."
    ),
    "verifier": (
        "Check the work before you against the problem: is it what was asked, and do reasoning and computed "
        r"result agree? Correct what is wrong. End with the one final answer in \boxed{}, for example "
        r"\boxed{42}. Only your last box counts."
    ),
}

_MAX_CHARS = 8000
_ASK = {
    "problem_solver": "How is it solved?",
    "code_executor": "Write Python that prints the answer.",
    "verifier": r"What is the answer? Write \boxed{answer}.",
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")
_GIVEN = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?:\.\d+)?(?!\d)")
_ARITHMETIC = re.compile(
    r"(?<![\w.^}])[-(]{0,9}\d+(?:\.\d+)?"
    r"(?:[ )]{0,9}[-+*/]{1,2} ?[-(]{0,9}\d+(?:\.\d+)?)+"
    r"\){0,9}(?!\.?\d| ?[\w^{*])"
)
"""Numbers alone: "3 - 12" is none in "x^3 - 12x^2"."""
_MOST_GIVEN = 6


def build(view: View, style: PromptStyle, max_tokens: int) -> list[Message]:
    """The prompt of the role. Pure."""
    return _starter(view) if style == "starter" else _full(view, max_tokens)


def _full(view: View, max_tokens: int) -> list[Message]:
    role = view.role
    chain = " → ".join(member.title for member in view.team)
    count = "one message" if role.max_actions == 1 else f"up to {role.max_actions} messages"
    system = (
        f"You are the {role.title} of a team that solves a mathematical problem: {chain}. The team succeeds "
        f"only if the last member's final answer is right.\n\nYour duty: {role.duty}\n\n"
        f"You can send {count}, each of at most {max_tokens} tokens, thinking included; what is longer is "
        "cut off. Be brief."
    )
    parts = [f"# Problem\n{view.task.prompt.strip()}"]
    for turn in view.handovers:
        text = head_and_tail(handover_text(turn.action), _MAX_CHARS) or "(an empty message)"
        parts.append(f"# Message of the {view.title(turn.agent)}\n{text}{_output(turn)}")
    first = [Message(role="system", content=system), Message(role="user", content="\n\n".join(parts))]
    return first + own_messages(view)


def _output(turn: Turn) -> str:
    return "" if turn.tool is None else f"\n\nOutput of its code:\n{tail(tool_text(turn.tool), 2000)}"


def _starter(view: View) -> list[Message]:
    seat = view.role.name.rsplit("_", 1)[0]
    ask = [view.task.prompt.strip()]
    tools = [turn.tool for turn in (*view.handovers, *view.own) if turn.tool]
    for turn in view.handovers:
        if said := " ".join(handover_text(turn.action).replace("`", "").split())[-150:]:
            ask.append(f"{view.title(turn.agent)}: {said}")
    if tools:
        ask.append(f"Output: {tail(tool_text(tools[-1]), 200)}")
    system = Message(role="system", content=f"You are the {view.role.title}. Answer in a few words or lines.")
    if seat not in _ASK and view.role.name == view.team[-1].name:
        seat = "verifier"
    if seat not in _ASK:
        return [system, Message(role="user", content="\n".join([*ask, view.role.duty]))]
    return [
        system,
        Message(role="user", content="\n".join([*ask, _ASK[seat]])),
        Message(role="assistant", content=_example(view, seat, tools[-1].stdout if tools else "")),
        Message(role="user", content="Good. Write it again, the same or better."),
    ]


def _example(view: View, seat: str, output: str) -> str:
    """An answer of the right form."""
    printed = _NUMBER.findall(output[-200:])
    given = [number for number in _GIVEN.findall(view.task.prompt) if len(number) < 16][:_MOST_GIVEN]
    if seat == "problem_solver":
        return f"Given: {', '.join(given) or 'no number'}. A program computes the answer from that."
    if seat == "code_executor" and view.own and printed:
        return f"The program printed {printed[-1]}."
    if seat == "code_executor":
        return f"```python\n{_program(view.task.prompt, given)}\nprint(answer)\n```"
    return f"The answer is \\boxed{{{printed[-1] if printed else 0}}}."


def _program(problem: str, given: Sequence[str]) -> str:
    """The problem's arithmetic, if it states any; else the sum of its numbers, to be turned into more."""
    stated = max(_ARITHMETIC.findall(problem), key=len, default="")
    if _is_expression(stated):
        return f"answer = {stated}"
    if not given:
        return "answer = 0"
    names = "abcdef"[: len(given)]
    terms = names if len(names) > 1 else [*names, "1"]
    return f"{', '.join(names)} = {', '.join(given)}\nanswer = {' + '.join(terms)}"


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True
