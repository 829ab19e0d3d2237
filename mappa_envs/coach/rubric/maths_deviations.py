"""Where a plan departs from the problem: numbers that it changed or dropped, words that it turned around.

None of it is proof, since a plan may derive numbers and leave conditions out. With a wrong answer, though, a
departure that the program repeats is where it came from: the program did as it was told.
"""

from __future__ import annotations

import re
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
    if len(dropped) == 1 and given - planned == set(dropped) and len(given) > 2:
        return f"its plan leaves out {dropped[0]}"
    return _turned(plan.prose.lower(), problem.lower())


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:3]))


def _turned(prose: str, problem: str) -> str:
    for pair in _OPPOSITES:
        for asked, other in (pair, pair[::-1]):
            if _has(asked, problem) and not _has(other, problem):
                found = re.search(rf"\b(?:{other})\b", prose)
                if found and not _has(asked, prose):
                    return f"its plan says {found[0]!r}, which the problem does not"
    return ""


def _has(words: str, text: str) -> bool:
    return re.search(rf"\b(?:{words})\b", text) is not None
