"""Where a plan departs from the problem: numbers that it changed or dropped, words that it turned around.

None of it is proof, since a plan may derive numbers and leave conditions out. With a wrong answer, though, a
departure that the program repeats is where it came from: the program did as it was told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from mappa_envs.actions import extract_code
from mappa_envs.coach.rubric.maths_facts import Facts, numbers_of

_OPPOSITES = (
    (r"smallest|least|lowest|minim\w*|fewest", r"largest|greatest|highest|maxim\w*|most"),
    (r"at least|or more|no fewer", r"at most|up to|or fewer|no more"),
    (r"odd", r"even"),
    (r"sums?|adds? up|added", r"products?|multiplied|multiply"),
    (r"ordered|in order|sequences?|permutations?", r"unordered|combinations?|regardless of order"),
    (r"with replacement|repetition allowed|may repeat", r"without replacement|distinct|different|no two"),
    (r"increasing|rising", r"decreasing|falling"),
    (r"inclusive|including", r"exclusive|excluding"),
    (r"positive", r"negative|non-negative"),
    (r"rows?", r"columns?"),
    (r"before", r"after"),
)  # fmt: skip

_ASSIGNED = re.compile(r"(?<![\w.])([A-Za-z]\w{0,12})\s*=\s*(\d{1,18})(?![\d.\w])")
_NUMBER = re.compile(r"\d{1,18}")


def departs(plan: Facts, program: Facts, problem: str) -> str:
    """How a plan that the program follows departs from the problem, in words; "" where it is not seen to."""
    given = {one for one in numbers_of(problem) if one > 1}
    planned, used = numbers_of(plan.prose), numbers_of("\n".join(extract_code(program.turn.action)))
    # A program may write a bound as one more or less, but not with a number that is there for another reason.
    bounds = used - given - planned
    dropped = sorted(given - planned - used - {one + step for one in bounds for step in (-1, 1)})
    changed = sorted(one for one in (planned & used) - given if one > 1)
    if dropped and changed and 2 * (len(given & planned) + len(changed)) >= len(given):
        return f"its plan has {_some(changed)} in place of {_some(dropped)}"
    # A plan need not name every number: only the one that it alone leaves out stands out.
    alone = len(dropped) == 1 and given - planned == set(dropped) and len(given) > 2
    if alone and not _is_reduced(program.printed, dropped[0], problem):
        return f"its plan leaves out {dropped[0]}"
    return replaces_a_number(plan, program, problem) or turns_around(plan, problem)


def replaces_a_number(plan: Facts, program: Facts | None, problem: str) -> str:
    """What a list of `name = value` has in place of the problem's numbers, in words; "" for nothing.

    One value of several is none of the problem's, and the program, where there is one, has it, too, and lacks
    one that the problem gives. Or the values are the problem's, but in other places.
    """
    listed, given = _ASSIGNED.findall(plan.prose), _NUMBER.findall(problem)
    code = "" if program is None else "\n".join(extract_code(program.turn.action))
    foreign = {value for _, value in listed if value not in given}
    used = Counter(_NUMBER.findall(code or plan.prose))
    if len(listed) > 1 and len(foreign) == 1 and foreign <= used.keys():
        # A 2 that stands once more in the problem may be an exponent.
        lacking = [one for one in Counter(given) - used if int(one) > (2 if one in used else 1)]
        return f"its plan has {', '.join(foreign)} in place of one of {_some(lacking)}" if lacking else ""
    values = [value for _, value in listed]
    if program is None or foreign or not set(listed) <= set(_ASSIGNED.findall(code)):
        return ""
    moved = len(set(values)) > 1 and not Counter(values) - Counter(given) and not _in_order(values, given)
    return f"its plan has {', '.join(values[:4])} in other places than the problem" if moved else ""


def is_contradicted(plan: Facts, program: Facts, problem: str) -> bool:
    """Whether a list of `name = value` has a number in place of one that the program took up all the same."""
    listed, given = _ASSIGNED.findall(plan.prose), Counter(_NUMBER.findall(problem))
    used = {int(one) for one in _NUMBER.findall("\n".join(extract_code(program.turn.action)))}
    foreign = {int(value) for _, value in listed if value not in given}
    lacking = [int(value) for value in given - Counter(_NUMBER.findall(plan.prose))]
    # A program may write a bound as one more or less.
    taken = any(used & {value - 1, value, value + 1} for value in lacking if value > 1)
    return len(listed) > 1 and len(foreign) == 1 and not foreign & used and taken


def _is_reduced(value: str | None, modulus: int, problem: str) -> bool:
    """Whether a value may be the remainder that the problem asks for, though the modulus stands nowhere."""
    if not re.search(rf"divided by \$?{modulus}\b", problem):
        return False
    return value is None or not re.fullmatch(r"\d{1,18}", value) or int(value) < modulus


def _in_order(values: Sequence[str], given: Sequence[str]) -> bool:
    """Whether the values stand in this order among those that are given."""
    rest = iter(given)
    return all(value in rest for value in values)


def _some(numbers: Sequence[int | str]) -> str:
    return ", ".join(map(str, numbers[:3]))


def turns_around(plan: Facts, problem: str) -> str:
    """Which word of a plan is the opposite of one in the problem, in words; "" for none."""
    prose, problem = plan.prose.lower(), problem.lower()
    for pair in _OPPOSITES:
        for asked, other in (pair, pair[::-1]):
            if _has(asked, problem) and not _has(other, problem):
                found = re.search(rf"\b(?:{other})\b", prose)
                if found and not _has(asked, prose):
                    return f"its plan says {found[0]!r}, which the problem does not"
    return ""


def _has(words: str, text: str) -> bool:
    return re.search(rf"\b(?:{words})\b", text) is not None
