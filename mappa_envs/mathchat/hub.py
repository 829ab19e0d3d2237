"""Problems from the Hugging Face hub, by name; needs the package `datasets`, and the hub or its cache.

| name | train | val | test |
|---|---|---|---|
| aime | AIME 1983–2021 | AIME 2022–2024 | AIME 2025 |
| amc | – | – | AMC 12 2022–2023 |
| math500 | – | – | MATH-500 |
| gsm8k | 8 of 10 of its training part | the others | its test part |

Nothing of these is shipped: the statements belong to others, and the card of AIME 1983–2024 asks not to train
on it. A problem of train or val that also stands in test is left out, with a logged line.
"""

from __future__ import annotations

import logging
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mappa_envs.errors import UnavailableError
from mappa_envs.mathchat.files import read_records
from mappa_envs.mathchat.overlaps import find_overlaps
from mappa_envs.mathchat.tasks import MathTask, split_of

PROBE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a data set on the hub; `split` is what its problems are for."""

    path: str
    part: str
    split: str
    config: str | None = None


SOURCES: dict[str, tuple[Part, ...]] = {
    "aime": (
        Part(path="di-zhang-fdu/AIME_1983_2024", part="train", split="train"),
        Part(path="math-ai/aime25", part="test", split="test"),
    ),
    "amc": (Part(path="AI-MO/aimo-validation-amc", part="train", split="test"),),
    "math500": (Part(path="HuggingFaceH4/MATH-500", part="test", split="test"),),
    "gsm8k": (
        Part(path="openai/gsm8k", config="main", part="train", split="train"),
        Part(path="openai/gsm8k", config="main", part="test", split="test"),
    ),
}
VAL_FROM_YEAR = 2022


def load(name: str) -> list[MathTask]:
    """The tasks of a name of `SOURCES`. Raises `UnavailableError`, and `DataError` on unforeseen columns."""
    try:
        import datasets
    except ImportError as error:
        raise UnavailableError(
            f"tasks {name!r} come from the Hugging Face hub: pip install datasets, or name a JSON file"
        ) from error
    _probe(name)
    tasks: list[MathTask] = []
    for part in SOURCES[name]:
        records = _fetch(datasets, part)
        loaded = list(read_records(records, name=name, where=f"{part.path} ({part.part})", split=part.split))
        if part.split == "train":
            loaded = [_held_out(task, record) for task, record in zip(loaded, records, strict=True)]
        tasks += [replace(task, task_id=f"{name}-{part.part}-{task.task_id}") for task in loaded]
    return _without_leaks(tasks)


def _probe(name: str) -> None:
    """Fail after 5 s where the hub cannot be reached; its own client tries for minutes."""
    if any(os.environ.get(key, "0") not in ("", "0") for key in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")):
        return
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(endpoint, timeout=PROBE_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"tasks {name!r}: {endpoint} cannot be reached ({error}). Give the path of a JSON file, use "
            "'embedded', or set HF_HUB_OFFLINE=1 if the data is in the cache"
        ) from error


def _fetch(datasets: Any, part: Part) -> list[Any]:
    try:
        return list(datasets.load_dataset(part.path, part.config, split=part.part))
    except Exception as error:
        # The client raises what its many libraries raise; all of it means that the data is not to be had.
        raise UnavailableError(
            f"{part.path} cannot be had from the Hugging Face hub: {type(error).__name__}: {error}"
        ) from error


def _held_out(task: MathTask, record: Any) -> MathTask:
    """The task, moved to val where it belongs there: by its year, or by its text where it has none."""
    year = next((record[key] for key in ("Year", "year") if key in record), None)
    held_out = split_of(task.prompt) == "val" if year is None else int(year) >= VAL_FROM_YEAR
    return replace(task, split="val") if held_out else task


def _without_leaks(tasks: Sequence[MathTask]) -> list[MathTask]:
    leaked = {
        pair.first.task_id if pair.second.split == "test" else pair.second.task_id
        for pair in find_overlaps(tasks)
        if pair.leaks
    }
    if leaked:
        _log.warning("left out, as they stand in another split, too: %s", ", ".join(sorted(leaked)))
    return [task for task in tasks if task.task_id not in leaked]
