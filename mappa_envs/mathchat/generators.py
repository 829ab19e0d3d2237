"""Problems from reasoning_gym's generators, those whose answers are integers and hard to guess.

reasoning_gym is the optional extra `math`. Item i of its data sets uses the seed s + i, so neighbouring seeds
share nearly all items: the seeds here are a million apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mappa_envs.errors import UnavailableError, install_hint

SEED_DISTANCE = 1_000_000
"""Between the seeds of two streams; no stream is read that far."""

_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A data set of reasoning_gym with its settings for the levels 1, 2 and 3, or for some of them."""

    name: str
    levels: Mapping[int, Mapping[str, Any]]

    def stream(self, level: int) -> Iterator[tuple[str, int]]:
        """Question and answer, without end (`SEED_DISTANCE` of them); always the same.

        Items whose answer is no integer are passed over. Raises `UnavailableError` without reasoning_gym.
        """
        try:
            import reasoning_gym
        except ImportError as error:
            raise UnavailableError(f"reasoning_gym is missing ({error}); {install_hint('math')}") from error
        number = 3 * GENERATORS.index(self) + level
        items = reasoning_gym.create_dataset(
            self.name, size=SEED_DISTANCE, seed=number * SEED_DISTANCE, **self.levels[level]
        )
        for index in range(SEED_DISTANCE):
            item = items[index]
            answer = str(item["answer"]).strip().removesuffix(".0")
            if _INTEGER.fullmatch(answer):
                yield item["question"].strip(), int(answer)


GENERATORS = tuple(
    Generator(name=name, levels=dict(enumerate(levels, 1)) if isinstance(levels, tuple) else levels)
    for name, levels in (
        ("lcm", (
            {"max_value": 60},
            {"min_value": 50, "max_value": 500},
            {"min_numbers": 3, "max_numbers": 4, "min_value": 20, "max_value": 200},
        )),
        ("simple_equations", (
            {"max_terms": 2, "max_value": 30},
            {"min_terms": 3, "max_terms": 5},
            {"min_terms": 6, "max_terms": 9, "max_value": 500},
        )),
        ("count_primes", ({"max_n": 200}, {"max_n": 2_000}, {"max_n": 20_000})),
        ("chain_sum", (
            {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 3},
            {"min_terms": 5, "max_terms": 8, "min_digits": 3, "max_digits": 4},
            {"min_terms": 10, "max_terms": 16, "min_digits": 4, "max_digits": 7},
        )),
        ("products", (
            {"min_digits": 2, "max_digits": 2},
            {"min_digits": 3, "max_digits": 4},
            {"min_terms": 3, "max_terms": 3, "min_digits": 3, "max_digits": 5},
        )),
        ("basic_arithmetic", (
            {"min_terms": 3, "max_terms": 3, "max_digits": 2},
            {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 3},
            {"min_terms": 7, "max_terms": 10, "min_digits": 2, "max_digits": 4},
        )),
        ("leg_counting", (
            {"min_animals": 2, "max_animals": 3},
            {"min_animals": 4, "max_animals": 7, "max_instances": 40},
            {"min_animals": 8, "max_animals": 14, "max_instances": 200},
        )),
        ("simple_geometry", (
            {"max_sides": 4},
            {"min_sides": 5, "max_sides": 8},
            {"min_sides": 9, "max_sides": 14},
        )),
        ("gsm_symbolic", {2: {}}),  # has one difficulty only
        ("base_conversion", (
            {"max_base": 10, "max_value": 100},
            {"max_base": 10, "min_value": 100, "max_value": 2_000},
            {"max_base": 10, "min_value": 2_000, "max_value": 100_000},
        )),
    )
)  # fmt: skip
