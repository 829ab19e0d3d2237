"""Embedded tasks: templates against brute force, splits, levels, overlaps; with and without reasoning_gym."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_envs.errors import ConfigError, DataError
from mappa_envs.mathchat import tasks as tasks_module
from mappa_envs.mathchat.generators import GENERATORS, SEED_DISTANCE
from mappa_envs.mathchat.overlaps import find_overlaps, normalized
from mappa_envs.mathchat.tasks import QUOTA, SPLITS, MathTask, load_tasks, split_of
from mappa_envs.mathchat.templates import LEVELS, MAX_ANSWER, TEMPLATES, read_prompt

NAMES = [template.name for template in TEMPLATES]


@pytest.fixture
def reload_embedded() -> Iterator[None]:
    tasks_module._embedded.cache_clear()
    yield
    tasks_module._embedded.cache_clear()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_the_formula_agrees_with_brute_force(template, level: int) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(f"test {template.name}")
    for _ in range(12):
        problem = template.draw(rng, level)
        assert template.brute(**problem.numbers) == problem.answer
        assert 0 <= problem.answer <= MAX_ANSWER


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), template=st.sampled_from(TEMPLATES), level=st.sampled_from(LEVELS))
def test_a_prompt_is_read_back(seed: int, template, level: int) -> None:  # type: ignore[no-untyped-def]
    problem = template.draw(random.Random(seed), level)
    assert read_prompt(f"# Problem\n{problem.prompt}\n\nmore") == (template, dict(problem.numbers))


@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_answers_are_hard_to_guess(template) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(0)
    answers = Counter(template.draw(rng, 3).answer for _ in range(100))
    assert answers.most_common(1)[0][1] <= 20


def test_there_are_enough_kinds() -> None:
    assert len(TEMPLATES) >= 12
    assert len(GENERATORS) >= 10
    assert set(NAMES).isdisjoint(generator.name for generator in GENERATORS)


def test_generators_have_integer_answers_and_seeds_far_apart() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `math` is not installed")
    seen: dict[str, str] = {}
    for generator in GENERATORS:
        for level in generator.levels:
            drawn = list(islice(generator.stream(level), 15))
            assert len(drawn) == 15
            assert drawn == list(islice(generator.stream(level), 15))
            assert len({question for question, _ in drawn}) >= 12
            for question, _ in drawn:
                assert seen.setdefault(question, generator.name) == generator.name
    assert SEED_DISTANCE > 1000 * tasks_module._MAX_TRIES


def test_embedded_tasks_by_split_and_level() -> None:
    every = load_tasks("embedded")
    assert len({task.task_id for task in every}) == len(every)
    assert sorted(task.task_id for split in SPLITS for task in load_tasks("embedded", split)) == sorted(
        task.task_id for task in every
    )
    for name in NAMES:
        mine = [task for task in every if task.task_type == name]
        assert {task.split for task in mine} == set(SPLITS)
        assert {task.level for task in mine} == set(LEVELS)
    counts = Counter((task.task_type, task.level, task.split) for task in every)
    assert all(count <= QUOTA[split] for (_, _, split), count in counts.items())
    full = sum(count == QUOTA[split] for (_, _, split), count in counts.items())
    assert full > 0.8 * len(counts)
    assert all(task.level == 2 for task in load_tasks("embedded", "val", level=2))


def test_embedded_splits_are_disjoint() -> None:
    every = load_tasks("embedded")
    assert all(task.split == split_of(task.prompt) for task in every)
    assert [pair.message for pair in find_overlaps(every) if pair.kind == "exact"] == []
    leaks = [pair for pair in find_overlaps(every) if pair.leaks and pair.similarity > 0.99]
    assert leaks == []


def test_the_templates_serve_alone_without_reasoning_gym(
    reload_embedded: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with caplog.at_level(logging.WARNING):
        alone = load_tasks("embedded")
    assert {task.task_type for task in alone} == set(NAMES)
    assert '-e ".[math]"' in caplog.text


def test_templates_are_the_same_with_and_without_reasoning_gym(
    reload_embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [task for task in load_tasks("embedded") if task.task_type in NAMES]
    tasks_module._embedded.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert load_tasks("embedded") == before


def test_senseless_requests() -> None:
    with pytest.raises(ConfigError, match="dev"):
        load_tasks("embedded", "dev")
    with pytest.raises(ConfigError, match="gsm8k"):
        load_tasks("no-such-thing")
    with pytest.raises(DataError, match="level 9"):
        load_tasks("embedded", level=9)


def task(task_id: str, prompt: str, split: str = "train") -> MathTask:
    return MathTask(task_id=task_id, task_type="x", split=split, prompt=prompt, golds=("1",))


LONG = "Let $ABC$ be a triangle with sides $13$, $14$ and $15$. Find the area of the circle inscribed in it."


def test_overlaps_exact_and_near() -> None:
    found = find_overlaps(
        [
            task("a", LONG),
            task("b", LONG.replace("$", "").replace("Find", "\n find"), "test"),
            task("c", LONG + " Give it exactly. [asy] draw((0,0)--(3,4)); [/asy]", "val"),
            task("d", LONG.replace("13", "5")),
            task("e", "Compute $\\dfrac{1{,}000}{2}$."),
            task("f", "compute $\\frac{1000}{2}$"),
            task("g", "Something else with $13$, $14$ and $15$."),
        ]
    )
    pairs = {(pair.first.task_id, pair.second.task_id): pair for pair in found}
    assert set(pairs) == {("a", "b"), ("a", "c"), ("b", "c"), ("e", "f")}
    assert pairs["a", "b"].kind == "exact"
    assert pairs["a", "c"].kind == "near"
    assert pairs["a", "b"].leaks
    assert not pairs["e", "f"].leaks
    assert found[-1] is pairs["e", "f"]
    assert "splits train and test" in pairs["a", "b"].message


def test_time_is_linear_in_an_inlined_picture() -> None:
    prompt = f"See data:image/{'x' * 200_000} and a.png, [asy] dot(O); [/asy]b.png 2"
    start = time.process_time()
    assert normalized(prompt).endswith("x and 2")
    assert time.process_time() - start < 10


def test_the_order_of_words_does_not_change_the_split() -> None:
    assert split_of("Sides of length $3$, $4$ and $5$") == split_of("sides of length 5, 3 and 4.")
    shares = Counter(split_of(f"Problem {number}") for number in range(2000))
    assert 0.55 < shares["train"] / 2000 < 0.65
