r"""Problems in the manner of the AIME, of our own: the answer is an integer from 0 to 999.

>>> problem = template_named("power_mod").draw(random.Random(0), level=1)
>>> problem.prompt, problem.answer
('Find the remainder when $17^{41}$ is divided by $35$.', 12)

A template has a text with its numbers left out, a way to draw them for each of three levels, a formula for
the answer, and a second, slow way to it that the tests hold against the first. `read_prompt` finds template
and numbers in a prompt again: all that the scripted expert needs.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mappa_envs.mathchat import brute, formulas

LEVELS = (1, 2, 3)
MAX_ANSWER = 999
_MAX_DRAWS = 1000
_SLOT = re.compile(r"<([a-z])>")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A drawn problem. `numbers` are what fills the template's text."""

    prompt: str
    answer: int
    numbers: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Template:
    """One kind of problem.

    `text` has slots such as `<a>`; `choose(rng, level)` gives their numbers, None to have it try again.
    `solve` is the formula, `brute` the enumeration; both take the numbers by name.
    """

    name: str
    text: str
    choose: Callable[[random.Random, int], dict[str, int] | None]

    @property
    def solve(self) -> Callable[..., int]:
        found: Callable[..., int] = getattr(formulas, self.name)
        return found

    @property
    def brute(self) -> Callable[..., int]:
        found: Callable[..., int] = getattr(brute, self.name)
        return found

    def draw(self, rng: random.Random, level: int) -> Problem:
        """A problem of level 1, 2 or 3 whose answer is from 0 to 999."""
        for _ in range(_MAX_DRAWS):
            numbers = self.choose(rng, level)
            if numbers is not None and 0 <= (answer := self.solve(**numbers)) <= MAX_ANSWER:
                return Problem(prompt=self.fill(numbers), answer=answer, numbers=numbers)
        raise AssertionError(f"template {self.name} finds no numbers for level {level}")

    def fill(self, numbers: Mapping[str, int]) -> str:
        """The prompt with these numbers."""
        return _SLOT.sub(lambda slot: str(numbers[slot[1]]), self.text)

    def read(self, prompt: str) -> dict[str, int] | None:
        """The numbers of a prompt of this template; None for any other text."""
        pieces, seen = [], set()
        for i, piece in enumerate(_SLOT.split(self.text)):
            if i % 2 == 0:
                pieces.append(re.escape(piece))
            else:
                pieces.append(f"(?P={piece})" if piece in seen else rf"(?P<{piece}>\d+)")
                seen.add(piece)
        found = re.search("".join(pieces), prompt)
        return None if found is None else {name: int(text) for name, text in found.groupdict().items()}


def read_prompt(text: str) -> tuple[Template, dict[str, int]] | None:
    """The template and the numbers of the problem that stands somewhere in a text."""
    for template in TEMPLATES:
        if (numbers := template.read(text)) is not None:
            return template, numbers
    return None


def template_named(name: str) -> Template:
    """The template of that name. Raises `KeyError`."""
    return {template.name: template for template in TEMPLATES}[name]


def _ints(**bounds: tuple[int, int, int]) -> Callable[[random.Random, int], dict[str, int]]:
    """Draws each number from 2 or its fourth part to its bound for the level."""
    return lambda rng, level: {
        name: rng.randint(max(2, most[level - 1] // 4), most[level - 1]) for name, most in bounds.items()
    }


def _recurrence(rng: random.Random, level: int) -> dict[str, int]:
    sizes = {name: rng.randint(1, 3 + 3 * level) for name in "abpq"}
    return {**sizes, "n": rng.randint(5, (12, 60, 2025)[level - 1])}


def _count_multiples(rng: random.Random, level: int) -> dict[str, int] | None:
    a, b, c = rng.sample(range(2, 8 + 6 * level), 3)
    return None if a % b == 0 or b % a == 0 or a % c == 0 else {
        "n": rng.randint(100, 500 * level), "a": min(a, b), "b": max(a, b), "c": c,
    }  # fmt: skip


def _lcm_pairs(rng: random.Random, level: int) -> dict[str, int]:
    exponents = [rng.randint(0, 1 + level) for _ in range(3)]
    return {
        "n": 2 ** (1 + exponents[0]) * 3 ** exponents[1] * 5 ** min(exponents[2], 2) * rng.choice((1, 7, 11))
    }


def _trailing_zeros(rng: random.Random, level: int) -> dict[str, int]:
    base = 10 if level == 1 else rng.choice((6, 12, 14, 15, 18, 20, 24, 28, 36))
    return {"n": rng.randint(20, (150, 400, 900)[level - 1]), "b": base}


def _lattice_paths(rng: random.Random, level: int) -> dict[str, int]:
    a, b = rng.randint(3, 3 + 3 * level), rng.randint(3, 3 + 3 * level)
    return {"a": a, "b": b, "c": rng.randint(1, a - 1), "d": rng.randint(1, b - 1)}


def _spread_subsets(rng: random.Random, level: int) -> dict[str, int] | None:
    n, k, g = rng.randint(8, 10 + 10 * level), rng.randint(2, 2 + level), rng.randint(2, 1 + level)
    return {"n": n, "k": k, "g": g} if n - (k - 1) * (g - 1) > k else None


def _cycle_colourings(rng: random.Random, level: int) -> dict[str, int]:
    return {"n": rng.randint(3, (8, 16, 60)[level - 1]), "k": rng.randint(3, 4 + 3 * level)}


def _digit_sum(rng: random.Random, level: int) -> dict[str, int]:
    digits = level + rng.randint(0, 1) + (level == 1)
    return {"n": digits, "s": rng.randint(2, 9 * digits - 2)}


def _dice_sum(rng: random.Random, level: int) -> dict[str, int]:
    k, f = rng.randint(2, 2 + level), rng.choice((4, 6, 8, 10, 12))
    return {"k": k, "f": f, "s": rng.randint(k + 1, k * f - 1)}


def _root_powers(rng: random.Random, level: int) -> dict[str, int]:
    r, s, t = rng.sample(range(1, 5 + 3 * level), 3)
    return {"a": r + s + t, "b": r * s + r * t + s * t, "c": r * s * t, "p": rng.randint(2, 1 + 2 * level)}


def _heron(rng: random.Random, level: int) -> dict[str, int] | None:
    most = 15 + 15 * level
    a, b = rng.randint(3, most), rng.randint(3, most)
    for c in rng.sample(range(abs(a - b) + 1, a + b), a + b - abs(a - b) - 1):
        square = (a + b + c) * (b + c - a) * (a + c - b) * (a + b - c)
        if math.isqrt(square) ** 2 == square and square % 16 == 0:
            return dict(zip("abc", sorted((a, b, c)), strict=True))
    return None


def _bounded_solutions(rng: random.Random, level: int) -> dict[str, int] | None:
    k, m = rng.randint(3, 3 + level), rng.randint(2, 3 + 3 * level)
    return {"n": rng.randint(3, k * m - 2), "k": k, "m": m}


def _remainders(rng: random.Random, level: int) -> dict[str, int] | None:
    p, q = rng.randint(3, 6 + 8 * level), rng.randint(3, 6 + 8 * level)
    if p >= q or math.gcd(p, q) > 1 or p * q > 1000:
        return None
    return {"a": rng.randint(1, p - 1), "p": p, "b": rng.randint(1, q - 1), "q": q}


def _trinomial(rng: random.Random, level: int) -> dict[str, int]:
    n = rng.randint(3, 4 + 4 * level)
    return {"n": n, "k": rng.randint(2, 2 * n - 2)}


def _floor_sum(rng: random.Random, level: int) -> dict[str, int] | None:
    n, a, b = rng.randint(10, 60 * level), rng.randint(2, 10 * level), rng.randint(3, 20 * level)
    return {"n": n, "a": a, "b": b} if math.gcd(a, b) == 1 else None


TEMPLATES = tuple(
    Template(name=name, text=text, choose=choose)
    for name, text, choose in (
        (
            "power_mod",
            "Find the remainder when $<a>^{<b>}$ is divided by $<m>$.",
            _ints(a=(20, 99, 999), b=(60, 500, 9999), m=(120, 500, 1000)),
        ),
        (
            "recurrence",
            "A sequence has $x_1 = <a>$, $x_2 = <b>$ and $x_k = <p>x_{k-1} + <q>x_{k-2}$ for every $k > 2$."
            " Find the remainder when $x_{<n>}$ is divided by $1000$.",
            _recurrence,
        ),
        (
            "count_multiples",
            "How many positive integers up to $<n>$ are divisible by $<a>$ or by $<b>$, but not by $<c>$?",
            _count_multiples,
        ),
        (
            "lcm_pairs",
            "Find the number of ordered pairs of positive integers whose least common multiple is $<n>$.",
            _lcm_pairs,
        ),
        (
            "trailing_zeros",
            "With how many zeros does $<n>!$ end when it is written in base $<b>$?",
            _trailing_zeros,
        ),
        (
            "lattice_paths",
            "A path goes from $(0,0)$ to $(<a>,<b>)$ by unit steps to the right or up and does not pass "
            "through $(<c>,<d>)$. Take the number of such paths. Find the remainder when it is divided by "
            "$1000$.",
            _lattice_paths,
        ),
        (
            "spread_subsets",
            r"Take the number of subsets of $\{1, 2, \ldots, <n>\}$ with exactly $<k>$ elements in which any"
            " two elements differ by at least $<g>$. Find the remainder when it is divided by $1000$.",
            _spread_subsets,
        ),
        (
            "cycle_colourings",
            "The $<n>$ labelled corners of a regular polygon are painted with $<k>$ colours so that "
            "neighbouring corners differ; not every colour need be used. Take the number of ways. Find the "
            "remainder when it is divided by $1000$.",
            _cycle_colourings,
        ),
        (
            "digit_sum",
            "How many positive integers with at most $<n>$ digits have digits that add up to $<s>$?",
            _digit_sum,
        ),
        (
            "dice_sum",
            "The faces of <k> fair dice are numbered from $1$ to $<f>$. The probability that a throw of all"
            " of them adds up to $<s>$ is $m/n$ in lowest terms. Find $m+n$.",
            _dice_sum,
        ),
        (
            "root_powers",
            "The polynomial $x^3 - <a>x^2 + <b>x - <c>$ has the roots $r$, $s$ and $t$. Find the remainder "
            "when $r^{<p>} + s^{<p>} + t^{<p>}$ is divided by $1000$.",
            _root_powers,
        ),
        (
            "triangles",
            "How many triangles with integer sides have perimeter $<p>$? Congruent triangles count once.",
            _ints(p=(40, 110, 215)),
        ),
        (
            "heron",
            "A triangle has sides of length $<a>$, $<b>$ and $<c>$. Find its area.",
            _heron,
        ),
        (
            "disc_points",
            r"How many points with integer coordinates satisfy $x^2 + y^2 \le <r>$?",
            _ints(r=(40, 120, 310)),
        ),
        (
            "floor_sum",
            r"Find the remainder when $\sum_{k=1}^{<n>} \lfloor <a>k/<b> \rfloor$ is divided by $1000$.",
            _floor_sum,
        ),
        (
            "fibonacci_mod",
            "With $F_1 = F_2 = 1$ and $F_{k+2} = F_{k+1} + F_k$, find the remainder when $F_{<n>}$ is "
            "divided by $<m>$.",
            _ints(n=(40, 300, 3000), m=(50, 300, 1000)),
        ),
        (
            "bounded_solutions",
            r"Take the number of ways to choose <k> integers $x_i$ in order, each with $0 \le x_i \le <m>$, "
            "whose sum is $<n>$. Find the remainder when it is divided by $1000$.",
            _bounded_solutions,
        ),
        (
            "remainders",
            "Find the least non-negative integer that leaves the remainder $<a>$ when divided by $<p>$ and "
            "the remainder $<b>$ when divided by $<q>$.",
            _remainders,
        ),
        (
            "trinomial",
            "Take the coefficient of $x^{<k>}$ in $(1 + x + x^2)^{<n>}$. Find the remainder when it is "
            "divided by $1000$.",
            _trinomial,
        ),
        (
            "square_divisors",
            r"How many positive divisors of $2^{<a>} \cdot 3^{<b>} \cdot 5^{<c>}$ are perfect squares or "
            "perfect cubes?",
            _ints(a=(6, 9, 12), b=(5, 8, 10), c=(4, 6, 8)),
        ),
        (
            "coprime_pairs",
            "Take the number of pairs of integers $a < b$ from $1$ to $<n>$ without a common divisor above "
            "$1$. Find the remainder when it is divided by $1000$.",
            _ints(n=(30, 90, 300)),
        ),
        (
            "product_pairs",
            r"Take the sum of all products of two different numbers of $\{1, 2, \ldots, <n>\}$. Find the "
            "remainder when it is divided by $1000$.",
            _ints(n=(30, 90, 300)),
        ),
    )
)
