# ruff: noqa: E501
r"""Slips of practitioners in a maths team, in many wordings, to be planted alone or in pairs.

Those of the executor are in its first message, and its second one is the expert's, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mappa_envs.mathchat.expert import MathExpert, plan
from mappa_envs.mathchat.tasks import MathTask
from mappa_envs.mathchat.templates import read_prompt
from mappa_envs.testing.math_faults import Scene
from mappa_envs.testing.registry import PlantedFault
from mappa_envs.types import Task

Write = Callable[[Scene], str | None]


def say(text: str) -> Write:
    """The text with ANSWER, a wrong WRONG, and GIVEN, the problem's numbers as `name = value`."""

    def write(scene: Scene) -> str:
        given = ", ".join(f"{name} = {value}" for name, value in scene.numbers.items())
        words = {"ANSWER": str(scene.answer), "WRONG": str(wrong(scene)), "GIVEN": given}
        made = text
        for word, value in words.items():
            made = made.replace(word, value)
        return made

    return write


def wrong(scene: Scene) -> int:
    """Off by 7: no number of the problem, nor the answer."""
    found = scene.answer + 7
    return found + 6 if found in scene.numbers.values() else found


def code(lines: str, talk: str = "Here is my program.") -> Write:
    """The expert's program up to its last line, then `lines`; CALL is the call that it prints."""

    def write(scene: Scene) -> str:
        head, call = scene.code.rstrip("\n").rsplit("\nprint(", 1)
        filled = say(lines.replace("CALL", call[:-1]))(scene)
        return f"{talk}\n```python\n{head}\n{filled}\n```\n"

    return write


def alone(lines: str, talk: str = "A short program will do.") -> Write:
    """A program of these lines alone."""
    return lambda scene: f"{talk}\n```python\n{say(lines)(scene)}\n```"


def swapped(scene: Scene) -> str | None:
    """The first two numbers change places."""
    first, second, *_ = (*scene.numbers, "", "")
    if not second or scene.numbers[first] == scene.numbers[second]:
        return None
    numbers = dict(scene.numbers)
    numbers[first], numbers[second] = numbers[second], numbers[first]
    try:
        return None if scene.template.solve(**numbers) == scene.answer else plan(numbers)
    except (ArithmeticError, ValueError):
        return None


def far_off(scene: Scene) -> str | None:
    """One number is another one altogether."""
    for name, value in scene.numbers.items():
        numbers = {**scene.numbers, name: value + 13}
        try:
            if scene.template.solve(**numbers) not in (scene.answer, None):
                return plan(numbers)
        except (ArithmeticError, ValueError):
            continue
    return None


def misread_program(scene: Scene) -> str | None:
    """The executor's own program for other numbers."""
    for name, value in scene.numbers.items():
        try:
            if value > 4 and scene.template.solve(**{**scene.numbers, name: value - 4}) != scene.answer:
                return code("print(CALL)")(
                    Scene(
                        template=scene.template,
                        numbers={**scene.numbers, name: value - 4},
                        expert=scene.expert,
                        has_run=scene.has_run,
                    )
                )
        except (ArithmeticError, ValueError):
            continue
    return None


def table(scene: Scene) -> str | None:
    rows = "\n".join(f"| {k} | {v} |" for k, v in scene.numbers.items())
    return f"| symbol | value |\n|---|---|\n{rows}\n\nBy the closed formula the result is {scene.answer + 3}."


def offplan(scene: Scene) -> str | None:
    name, value = list(scene.numbers.items())[-1]
    n = {**scene.numbers, name: value + 1}
    try:
        if scene.template.solve(**n) == scene.answer:
            return None
    except (ArithmeticError, ValueError):
        return None
    return plan(n) + "\n(The last one is inclusive.)"


def plan_in_words(scene: Scene) -> str | None:
    return f"First read the data: {', '.join(map(str, scene.numbers.values()))}. Then multiply them all and take the square root; that is the whole solution."


def double(scene: Scene) -> str | None:
    return code("r = CALL\nprint(2 * r)")(scene)


def floats(scene: Scene) -> str | None:
    return code("import math\nprint(math.sqrt(CALL))")(scene)


def neg(scene: Scene) -> str | None:
    return code("print(-CALL)")(scene)


def strange(scene: Scene) -> str | None:
    return code("print([CALL])\nprint({'status': 'done', 'code': 17})")(scene)


def wrongloop(scene: Scene) -> str | None:
    return code("total = 0\nfor i in range(3):\n    total += CALL\nprint(total)")(scene)


def verdictlist(scene: Scene) -> str | None:
    return f"Check: 1) ok 2) ok 3) not ok.\n\nFinal: \\boxed{{{scene.answer}.5}}"


_SOLVER: Sequence[tuple[str, Write]] = (
    ("swaps_numbers", swapped),
    ("another_number", far_off),
    ("derives_wrongly", say("With GIVEN one finds, after cancelling, the value WRONG.\nHence the answer is WRONG.")),
    ("boxes_early", say(r"Given GIVEN. Summing the cases gives $\boxed{WRONG}$. Please confirm it by a program.")),
    ("gives_up", say("I am sorry, I do not know how to solve this one.")),
    ("noise", say("asdf ;;; ok")),
    ("recipe_of_something_else", say(
        "Set u = sqrt(t), integrate by parts between 0 and pi and differentiate twice. The integral vanishes.")),
    ("passes_on", say("Dear teammate, please do this. Thank you!")),
    ("repeats_itself", say("We look at the cases. " * 200)),
    ("hands_over_nothing_but_code", say("import math\nfor i in range(10):\n    print(i)\nprint(math.pi)")),
    ("states_a_wrong_total", say("Let GIVEN. There are WRONG cases in total, so the total is WRONG.")),
    ("trivial", say("The answer is 0, trivially.")),
    ("claims_a_program", say("I already ran a program for GIVEN. Its output is WRONG. No need to compute again.")),
("table",table),("plan_off",offplan),("words_only_numbers",plan_in_words),
 ("long_wrong_derivation",say("Given GIVEN.\nStep 1: by inclusion and exclusion we count the cases.\nStep 2: this gives WRONG cases.\nStep 3: nothing is left to do. Thus the result is WRONG.")),
 ("says_impossible",say("With GIVEN the problem has no solution, since the conditions contradict each other.")),
 ("joke",say("Why was six afraid of seven? Because seven ate nine.")),
 ("asks_back",say("Could you clarify what is meant? I need more information before I can plan.")),
 ("only_greets",say("Hello team!")),
)  # fmt: skip
_EXECUTOR_FIRST: Sequence[tuple[str, Write]] = (
    ("other_numbers", misread_program),
    ("adds_one", code("result = CALL\nprint(result + 1)")),
    ("last_digit", code("value = CALL\nanswer = value % 10 + 1000\nprint(f'answer: {answer}')")),
    ("prints_something_after", code("print(CALL)\nprint('cases checked:', WRONG)")),
    ("prints_words", code("CALL\nprint('The computation was successful.')")),
    ("stops", code("import sys\nif CALL >= 0:\n    sys.exit(3)")),
    ("asserts", code("assert CALL == WRONG, 'as the solver said'\nprint(WRONG)")),
    ("asks_the_user", code("limit = int(input('limit? '))\nprint(CALL)")),
    ("hides_a_literal", alone("def solve():\n    # closed form\n    return WRONG\nprint(solve())")),
    ("literal_in_a_list", alone("values = [WRONG]\nprint(max(values))")),
    ("guesses_at_random", alone("import random\nrandom.seed(0)\nprint(random.randint(1, 999))")),
    ("never_ends", alone("k = 1\nwhile True:\n    k = k * 3 % 1000003\nprint(k)")),
    ("wrong_name", code("print(resutl)")),
    ("too_much_memory", alone("table = [0] * (10 ** 12)\nprint(len(table))")),
    ("adds_the_given", alone("data = dict(GIVEN)\ntotal = 0\nfor v in data.values():\n    total += v * v\nprint(total + 1)")),
    ("opens_a_file", alone("rows = open('numbers.txt').read().split()\nprint(len(rows))")),
    ("only_defines", alone("def count(n):\n    return sum(1 for k in range(n) if k % 2)")),
    ("breaks_syntax", alone("for k in range(10)\n    print(k)")),
)  # fmt: skip
_EXECUTOR_BOTH: Sequence[tuple[str, Write]] = (
    ("talks_instead", say("A program is not needed here; by symmetry it is clear.")),
    ("pretends", say("Running this yields\n\nOutput: WRONG\n\nso the result is WRONG.")),
    ("bare_code", say("import math\ndef f(n):\n    return n + 1\nprint(f(3))")),
    ("says_thanks", say("ok")),
)
_EXECUTOR_SECOND: Sequence[tuple[str, Write]] = (
    ("reports_another", say("My program ran fine and the result is WRONG.")),
    ("replaces_it", alone("print(int('WRONG'))", "That cannot be right, so I correct it.")),
    ("crashes_afterwards", alone("check = undefined_thing\nprint(check)", "Let me verify.")),
)
_VERIFIER: Sequence[tuple[str, Write]] = (
    ("no_box", say("So one gets ANSWER, as the program says.")),
    ("rechecks_wrongly", say(r"The program forgot a case, so it is \boxed{WRONG}.")),
    ("two_boxes", say(r"First \boxed{ANSWER}. But on reflection \boxed{WRONG}.")),
    ("boxes_words", say(r"\boxed{\text{see above}}")),
    ("boxes_a_range", say(r"It lies between: \boxed{0 \le x \le WRONG}")),
    ("negative", say(r"Mind the sign. \boxed{-WRONG}")),
    ("one_off", lambda scene: f"Counting from zero one gets \\boxed{{{scene.answer + 1}}}."),
    ("empty", say(" \n")),
    ("only_doubt", say("I am not sure that this is right. More checks are needed before an answer can be given.")),
    ("runs_code_and_stops", alone("print(ANSWER)", "Let me check this by a program.")),
    ("rounds", lambda scene: f"Rounded to hundreds: \\boxed{{{round(scene.answer, -2) + 100}}}"),
    ("empty_box", say(r"So the answer is \boxed{}.")),
    ("lists", say(r"Possible answers: \boxed{ANSWER, WRONG}")),
("boxed_half",verdictlist),("boxes_formula",say(r"\boxed{n(n+1)/2}")),("boxes_name",say(r"The answer is \boxed{x}")),
 ("apology",say("Sorry, I cannot verify this.")),("thousand",lambda s:f"\\boxed{{{s.answer}000}}"),("ends_mid",say(r"Therefore the final result equals \boxed{ANS")),
 ("first_right_then_zero",say(r"\boxed{ANSWER} is what they say, but I get \boxed{0}")),("markdown",say("# Result\n\n| value |\n|---|\n| ANSWER |")),
)  # fmt: skip


def first(write: Write) -> Write:
    """In the first message of the visit alone."""
    return lambda scene: scene.expert if scene.has_run else write(scene)


def second(write: Write) -> Write:
    """After a run of the expert's program alone."""
    return lambda scene: write(scene) if scene.has_run else scene.expert


_EXECUTOR_MORE: Sequence[tuple[str, Write]] = (
    ("double", first(double)),
    ("sqrt", first(floats)),
    ("negative", first(neg)),
    ("status_last", first(strange)),
    ("three_times", first(wrongloop)),
    ("zero_division", first(code("x = CALL\nprint(x / (x - x))"))),
    ("recursion", first(alone("def f(n):\n    return f(n + 1)\nprint(f(0))"))),
    ("returns_in_main", first(code("def main():\n    return CALL\nif __name__ == '__main__':\n    main()"))),
    (
        "constant_class",
        first(
            alone(
                "class Solver:\n    value = WRONG\n    def run(self):\n        return self.value\nprint(Solver().run())"
            )
        ),
    ),
    (
        "json_literal",
        first(alone("import json\ndata = json.loads('{\"answer\": WRONG}')\nprint(data['answer'])")),
    ),
    ("html", first(say("<code>print(1)</code>"))),
    ("apology", say("Sorry, I cannot run code.")),
    ("second_claims_other", second(say("After a careful review of the output, the correct value is WRONG."))),
    ("second_reruns_wrong", second(double)),
)


def slips() -> tuple[PlantedFault, ...]:
    """All of them, as faults that a team can be given."""
    executor = [
        *((name, first(write)) for name, write in _EXECUTOR_FIRST),
        *_EXECUTOR_BOTH,
        *_EXECUTOR_MORE,
        *((name, second(write)) for name, write in _EXECUTOR_SECOND),
    ]
    seats = (("problem_solver_0", _SOLVER), ("code_executor_0", executor), ("verifier_0", _VERIFIER))
    return tuple(_planted(agent, name, write) for agent, table in seats for name, write in table)


def _planted(agent: str, name: str, write: Write) -> PlantedFault:
    return PlantedFault(
        name=f"maths-slips/{agent.rsplit('_', 1)[0]}-{name}",
        env_id="mathchat-v0",
        agent=agent,
        severity=0.75,
        description=name.replace("_", " "),
        message=partial(_message, write),
    )


def _message(write: Write, agent: str, messages: Sequence[dict[str, str]], task: Task) -> str | None:
    found = read_prompt(task.prompt) if isinstance(task, MathTask) else None
    if found is None:
        return None
    asked = "\n".join(message["content"] for message in messages if message["role"] == "user")
    expert, has_run = MathExpert()(agent, messages), "\nOutput:" in f"\n{asked}"
    return write(Scene(template=found[0], numbers=found[1], expert=expert, has_run=has_run))
