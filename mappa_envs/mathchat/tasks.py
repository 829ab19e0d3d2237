r"""MathChat tasks: the record, and where tasks come from.

>>> task = load_tasks("embedded", split="val", level=1)[0]
>>> task.prompt, task.golds
('Find the remainder when $14^{48}$ is divided by $37$.', ('1',))
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import Random

from mappa_envs.errors import ConfigError, DataError, UnavailableError
from mappa_envs.mathchat.generators import GENERATORS
from mappa_envs.mathchat.overlaps import normalized
from mappa_envs.mathchat.templates import LEVELS, TEMPLATES, Template
from mappa_envs.types import Task

SPLITS = ("train", "val", "test")
QUOTA = {"train": 12, "val": 2, "test": 3}
"""Embedded tasks of each kind and level, at most: some kinds have fewer different problems."""

_MAX_TRIES = 25 * sum(QUOTA.values())
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MathTask(Task):
    """A problem with its accepted answers, which are in no prompt and in no workspace.

    `level`: how hard, from 1; None = not known. Embedded tasks have 1, 2 and 3.
    """

    golds: tuple[str, ...] = field(repr=False)
    level: int | None = None


def load_tasks(
    source: str = "embedded", split: str | None = None, *, level: int | None = None
) -> list[MathTask]:
    """All tasks of a source, or those of one split and level.

    Parameters
    ----------
    source : "embedded", "aime", "amc", "math500" or "gsm8k" (from the Hugging Face hub), or the path of a
        JSON or JSON-lines file (see `files`).
    split : "train", "val", "test" or None for all.
    level : only tasks of this level.

    Raises `ConfigError` on an unknown source or split, `DataError` on a file that cannot be used or where no
    task is left, `UnavailableError` where the hub or its package cannot be had.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    tasks = _load_source(source)
    chosen = [task for task in tasks if split in (None, task.split) and level in (None, task.level)]
    if not chosen:
        have = Counter((task.split, task.level) for task in tasks)
        listed = ", ".join(
            f"{count} of {name}, level {at}" for (name, at), count in sorted(have.items(), key=str)
        )
        raise DataError(
            f"{source}: no task of split {split!r} and level {level}; there are {listed or 'none'}"
        )
    return chosen


def split_of(prompt: str) -> str:
    """The split in which a problem belongs: 6 of 10 train, 2 val, 2 test, by its words and numbers alone.

    Their order does not count. So no problem can stand in two splits, however it was drawn and whatever else
    is loaded, nor can one that has the same numbers in other places.
    """
    number = int.from_bytes(hashlib.sha256(_key(prompt).encode()).digest()[:8], "big") % 10
    return "train" if number < 6 else "val" if number < 8 else "test"


def _key(prompt: str) -> str:
    return " ".join(sorted(normalized(prompt).split()))


def _load_source(source: str) -> list[MathTask]:
    from mappa_envs.mathchat import files, hub

    if source == "embedded":
        return list(_embedded())
    if source in hub.SOURCES:
        return hub.load(source)
    path = Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"unknown tasks {source!r}: {path.absolute()} is not a file; known: 'embedded', "
            f"{', '.join(map(repr, hub.SOURCES))} or the path of a JSON or JSON-lines file"
        )
    return files.load_file(path)


@lru_cache(maxsize=1)
def _embedded() -> tuple[MathTask, ...]:
    tasks: list[MathTask] = []
    seen: set[str] = set()
    for template in TEMPLATES:
        for level in LEVELS:
            tasks += _pick(template.name, level, _draws(template, level), seen)
    try:
        for generator in GENERATORS:
            for level in generator.levels:
                tasks += _pick(generator.name, level, generator.stream(level), seen)
    except UnavailableError as error:
        _log.warning("the embedded tasks are the %d of the templates alone: %s", len(tasks), error)
    return tuple(tasks)


def _draws(template: Template, level: int) -> Iterator[tuple[str, int]]:
    rng = Random(f"{template.name} {level}")
    while True:
        problem = template.draw(rng, level)
        yield problem.prompt, problem.answer


def _pick(kind: str, level: int, stream: Iterable[tuple[str, int]], seen: set[str]) -> list[MathTask]:
    """Different problems of a stream, each for its own split, until every quota is full."""
    left, picked = dict(QUOTA), []
    for prompt, answer in islice(stream, _MAX_TRIES):
        key, split = _key(prompt), split_of(prompt)
        if key in seen or not left[split]:
            continue
        seen.add(key)
        left[split] -= 1
        picked.append(
            MathTask(
                task_id=f"{kind}-{level}-{split}-{QUOTA[split] - left[split]:02d}",
                task_type=kind,
                split=split,
                prompt=prompt,
                golds=(str(answer),),
                level=level,
            )
        )
        if not any(left.values()):
            break
    return picked
