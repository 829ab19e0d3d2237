r"""Held-out kinds of faults for the three roles of `mathchat-v0`, on problems of its own templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.blame.kinds import Kind, Messages
from mappa_envs.mathchat.expert import plan, program
from mappa_envs.mathchat.templates import Template, read_prompt
from mappa_envs.testing import PlantedFault, expert_message
from mappa_envs.types import Task

ENV_ID = "mathchat-v0"
SOLVER, EXECUTOR, VERIFIER = "problem_solver_0", "code_executor_0", "verifier_0"


_SLOW = ("digit_sum", "dice_sum", "trailing_zeros")
"""Templates whose enumeration takes for ever with some other numbers."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """A problem as a kind needs it."""

    task: Task
    template: Template
    numbers: Mapping[str, int]
    answer: int

    def changed(self, numbers: Mapping[str, int]) -> bool:
        """Whether the enumeration gives something else for these numbers, without an error."""
        if self.template.name in _SLOW:
            return False
        try:
            return bool(self.template.brute(**numbers) != self.answer)
        except (ArithmeticError, LookupError, StopIteration, ValueError):
            return False


Say = Callable[[Given], str | None]


def _kind(agent: str, name: str, severity: float, signs: str, description: str, say: Say) -> Kind:
    """The guilty agent says `say(given)`, again if that printed no number, else the expert's next message."""

    def message(agent: str, messages: Messages, task: Task) -> str | None:
        found = read_prompt(task.prompt)
        if found is None:
            return None
        template, numbers = found
        said = say(Given(task=task, template=template, numbers=numbers, answer=template.solve(**numbers)))
        if said is None or not any(message["role"] == "assistant" for message in messages):
            return said
        following = expert_message(ENV_ID, agent, messages, task)
        return said if "```" in following else following

    fault = PlantedFault(
        name=f"mathchat/{name}",
        env_id=ENV_ID,
        agent=agent,
        severity=severity,
        description=description,
        message=message,
    )
    return Kind(fault=fault, signs=tuple(signs.split("|")))


def _code(talk: str, code: str) -> str:
    return f"{talk}\n\n```python\n{code.strip()}\n```\n"


# The problem solver.


def _impossible_number(given: Given) -> str | None:
    """With a zero the enumeration divides by zero or finds nothing."""
    if given.template.name in _SLOW:
        return None
    for name in reversed(list(given.numbers)):
        zero = {**given.numbers, name: 0}
        try:
            given.template.brute(**zero)
        except (ArithmeticError, StopIteration):
            return f"Without loss of generality one number may be taken as zero. {plan(zero)}"
        except (LookupError, ValueError):
            continue
    return None


def _rounded_numbers(given: Given) -> str | None:
    rounded = {name: -(-value // 10) * 10 if value > 10 else value for name, value in given.numbers.items()}
    if max(rounded.values()) > 200 or not given.changed(rounded):
        return None
    return f"Round numbers are easier to work with and hardly change the result. {plan(rounded)}"


def _number_left_out(given: Given) -> str | None:
    if len(given.numbers) < 2:
        return None
    return f"Only the first number matters. {plan(dict(list(given.numbers.items())[:1]))}"


# The code executor.

_LAST_LINE = re.compile(r"\nprint\((.+)\)\s*\Z")


def _run(source: str) -> Any:
    """What our own enumeration gives with a slip in it; None where that raises."""
    space: dict[str, Any] = {}
    try:
        # The source is the package's, changed here: nothing that an agent wrote.
        exec(_LAST_LINE.sub(r"\nresult = \1", source), space)
    except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError):
        return None
    return space["result"]


def _slip(given: Given, pattern: str, replacement: str) -> str | None:
    """The program with a slip that changes what it prints; None where it cannot be made."""
    source = program(given.template, given.numbers)
    changed = re.sub(pattern, replacement, source)
    result = _run(changed) if changed != source else None
    return changed if isinstance(result, int) and result != given.answer else None


def _short_range(given: Given) -> str | None:
    code = _slip(given, r"range\((.*?) \+ 1\)", r"range(\1)")
    return code and _code("I try every case in a loop.", code)


def _no_modulus(given: Given) -> str | None:
    code = _slip(given, r"( return .*?) % (?:1000|m)\n", r"\1\n")
    return code and _code("I compute the number directly.", code)


def _tens_only(given: Given) -> str | None:
    code = program(given.template, given.numbers)
    changed = _LAST_LINE.sub(r"\nresult = \1\nprint(result // 10 * 10)", code)
    return None if given.answer % 10 == 0 else _code("I enumerate and print the result.", changed)


def _extrapolated(given: Given) -> str | None:
    source = _LAST_LINE.sub(r"\nprint(2 * (\1))", program(given.template, given.numbers))
    code = re.sub(r"range\((\w+), ([^()]*?) \+ 1\)", r"range(\1, \2 + 1, 2)", source)
    result = _run(code) if code.count(", 2)") else None
    wrong = isinstance(result, int) and result != given.answer
    return _code("Every second case is enough, I double the result.", code) if wrong else None


def _recursion(given: Given) -> str:
    slow = "def estimate(n):\n    return 1 if n < 2 else estimate(n - 1) + estimate(n - 2)\n\nestimate(90)\n"
    return _code("An estimate first, then the exact count.", slow + program(given.template, given.numbers))


def _no_base_case(given: Given) -> str:
    code = "def count(n):\n    return count(n - 1) + 1\n\nprint(count(10))\n"
    return _code("The count obeys a simple recursion.", code)


def _asks_for_input(given: Given) -> str:
    name = next(iter(given.numbers))
    ask = f"{name} = int(input('{name} = '))\n"
    code = program(given.template, given.numbers).replace(f"({name}={given.numbers[name]}", f"({name}={name}")
    return _code("The program asks for the number and prints the result.", ask + code)


def _in_file(given: Given) -> str:
    write = r"\nwith open('result.txt', 'w') as file:\n    file.write(str(\1))"
    return _code("I store the result.", _LAST_LINE.sub(write, program(given.template, given.numbers)))


def _other_language(given: Given) -> str:
    total = " + ".join(map(str, given.numbers.values()))
    loop = f"#include <iostream>\nint main() {{ std::cout << count_cases({total}) << std::endl; }}"
    return f"C++ is faster for this.\n\n```cpp\n{loop}\n```\n"


def _failed_assertion(given: Given) -> str:
    check = r"\nresult = \1\nassert result % 1000 > 999, 'not plausible'\nprint(result)"
    return _code("I check plausibility first.", _LAST_LINE.sub(check, program(given.template, given.numbers)))


def _error_swallowed(given: Given) -> str | None:
    guard = r"\ntry:\n    print((\1).value)\nexcept Exception:\n    print(0)"
    code = _LAST_LINE.sub(guard, program(given.template, given.numbers))
    return _code("I print the result, guarded against errors.", code) if given.answer else None


def _shifted(given: Given) -> str:
    code = program(given.template, given.numbers)
    count = sum(given.numbers.values()) + 1000
    return _code("I enumerate.", _LAST_LINE.sub(rf"\nresult = \1\nprint({count} + result)", code))


SOLVER_KINDS = (
    _kind(SOLVER, "impossible_number", 1.0, "handed on",
        "takes a given number as zero, on which the computation fails", _impossible_number),
    _kind(SOLVER, "numbers_rounded", 1.0, "grade wrong", "rounds the given numbers", _rounded_numbers),
    _kind(SOLVER, "number_left_out", 0.1, "recovered", "calls all numbers but one irrelevant",
        _number_left_out),
    _kind(SOLVER, "no_solution", 0.1, "recovered", "says that the problem has no solution",
        lambda given: "The conditions contradict each other, so there is nothing to find."),
    _kind(SOLVER, "asks_the_user", 0.1, "recovered", "asks for what the problem says",
        lambda given: "Could you tell me which numbers are meant, and whether a proof is wanted?"),
)  # fmt: skip

EXECUTOR_KINDS = (
    _kind(EXECUTOR, "short_range", 1.0, "grade wrong", "ends its loops one too early", _short_range),
    _kind(EXECUTOR, "no_modulus", 1.0, "grade wrong",
        "prints the whole number, not the remainder that is asked",
        _no_modulus),
    _kind(EXECUTOR, "floor_slip", 1.0, "grade wrong", "cuts the result to tens by an integer division",
        _tens_only),
    _kind(EXECUTOR, "shifted_result", 1.0, "grade wrong", "adds a constant of its own to the result",
        _shifted),
    _kind(EXECUTOR, "extrapolated", 1.0, "grade wrong", "tries every second case and doubles the result",
        _extrapolated),
    _kind(EXECUTOR, "slow_recursion", 1.0, "limit time",
        "recurses without a cache for longer than the time allows",
        _recursion),
    _kind(EXECUTOR, "no_base_case", 1.0, "exception RecursionError", "recurses without an end",
        _no_base_case),
    _kind(EXECUTOR, "asks_for_input", 1.0, "exception EOFError", "reads a number from the keyboard",
        _asks_for_input),
    _kind(EXECUTOR, "result_in_file", 1.0, "grade no_answer",
        "writes the result to a file and prints nothing", _in_file),
    _kind(EXECUTOR, "other_language", 1.0, "no code", "writes the program in C++, which nobody runs",
        _other_language),
    _kind(EXECUTOR, "failed_assertion", 1.0, "exception AssertionError",
        "demands of the result what cannot be",
        _failed_assertion),
    _kind(EXECUTOR, "error_swallowed", 1.0, "grade wrong", "passes over its own error and prints 0",
        _error_swallowed),
)  # fmt: skip

VERIFIER_KINDS = (
    _kind(VERIFIER, "second_box", 1.0, "grade wrong", "boxes the right value, then changes its mind",
        lambda given: f"\\boxed{{{given.answer}}} follows from the output. If the border is not counted, it "
        f"is one less, which I prefer: \\boxed{{{given.answer - 1}}}"),
    _kind(VERIFIER, "interval", 1.0, "grade wrong", "boxes a range in place of a value",
        lambda given: f"Within rounding: \\boxed{{{given.answer - 1} \\le x \\le {given.answer + 1}}}"),
    _kind(VERIFIER, "open_reasoning", 1.0, "grade no_answer",
        "boxes inside a reasoning block that it never closes",
        lambda given: f"<think>The output is plausible, so the answer is \\boxed{{{given.answer}}}"),
    _kind(VERIFIER, "last_digits", 1.0, "grade wrong", "answers with the number's last two digits",
        lambda given: None if given.answer < 100 else
        f"The last two digits are asked: \\boxed{{{given.answer % 100}}}"),
    _kind(VERIFIER, "sign_slip", 1.0, "grade wrong", "boxes the negative of the value",
        lambda given: f"Moving the term to the other side gives \\boxed{{{-given.answer}}}." if given.answer
        else None),
    _kind(VERIFIER, "other_base", 1.0, "grade wrong", "boxes the value in binary",
        lambda given: f"In the machine's own form: \\boxed{{{given.answer:b}}}" if given.answer > 1
        else None),
    _kind(VERIFIER, "words_boxed", 1.0, "grade wrong|grade undecided", "boxes words that point at the value",
        lambda given: r"Everything is consistent. \boxed{\text{see the output above}}"),
    _kind(VERIFIER, "hands_back", 1.0, "grade no_answer", "leaves the last word to a teammate",
        lambda given: "The output looks fine to me. The Code Executor may state the final result."),
)  # fmt: skip
