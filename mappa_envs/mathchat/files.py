r"""Problems from a JSON or JSON-lines file.

A list of records, one record a line, or `{"data": [...]}`. A record has

- the problem: `prompt`, `problem`, `question`, `query` or `input`, in any case; of a list of chat messages,
  the last one of the user;
- the answer: `answer`, `final_answer`, `expected_answer`, `ground_truth`, `gold` or `target`: text ("007",
  "080 or 081 (both were accepted)", LaTeX, the end of a worked solution after `####`), a number (142.0), or a
  list of accepted answers. Without any of these, the last `\boxed` of `solution`. No other part of a solution
  is kept.

Optional are `id`, `level` and `split`. Where a record names no split, `tasks.split_of` does.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.actions import sanitize
from mappa_envs.errors import DataError
from mappa_envs.mathchat.grading import read_golds
from mappa_envs.mathchat.latex import find_answer
from mappa_envs.mathchat.tasks import SPLITS, MathTask, split_of

PROBLEM = ("prompt", "problem", "question", "query", "input")
ANSWER = ("answer", "final_answer", "expected_answer", "ground_truth", "gold", "target")
IDS = ("id", "unique_id", "task_id", "problem_idx")
ALIASES = {"validation": "val", "valid": "val", "dev": "val", "eval": "test", "training": "train"}

MAX_NAMED = 10
"""Records that the error of a file names; more are counted."""
_PICTURES = (".png", ".jpg", ".jpeg", ".gif")
_log = logging.getLogger(__name__)


def load_file(path: Path) -> list[MathTask]:
    """The tasks of a file. Raises `DataError` with file, records and remedy."""
    return list(read_records(_records(path), name=path.stem, where=str(path)))


def read_records(
    records: Sequence[Any], *, name: str, where: str, split: str | None = None
) -> Iterator[MathTask]:
    """The tasks of records; `name` is their type and the start of ids, `split` what all of them get.

    Raises `DataError` at the end, with a line for each record that cannot be used.
    """
    taken: set[str] = set()
    faults: list[str] = []
    num_pictures = 0
    for number, record in enumerate(records, 1):
        place = f"{where}: record {number}"
        try:
            fields = _fields(record, place)
            problem = _problem(fields, place)
            text = _without_picture(problem)
            golds, own_split = _golds(fields, place), split or _split(fields, text, place)
        except DataError as error:
            faults.append(str(error))
            continue
        num_pictures += text != problem
        given_id = _first(fields, IDS)
        task_id = f"{name}-{number:04d}" if given_id is None else sanitize(str(given_id))
        if task_id in taken:
            task_id = f"{task_id}-{number:04d}"
        taken.add(task_id)
        yield MathTask(
            task_id=task_id,
            task_type=name,
            split=own_split,
            prompt=text.strip(),
            golds=golds,
            level=_level(fields.get("level")),
        )
    if len(faults) > MAX_NAMED:
        faults[MAX_NAMED:] = [f"{where}: so it is with {len(faults) - MAX_NAMED} more records"]
    if faults:
        raise DataError("\n".join(faults))
    if num_pictures:
        _log.warning("%s: %d problems end in the name of a picture, which is left out", where, num_pictures)


def _records(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return _lines(path, text)
    records = _listed(whole) if isinstance(whole, dict) else whole if isinstance(whole, list) else [whole]
    if not records:
        raise DataError(f"{path} holds no record")
    return records


def _listed(whole: dict[str, Any]) -> list[Any]:
    """The records in an object, or the object itself where it is a record: its problem may be a list, too."""
    if any(key.strip().lower() in PROBLEM for key in whole):
        return [whole]
    found = whole.get("data", next(iter(whole.values()), None))
    return found if isinstance(found, list) else [whole]


def _lines(path: Path, text: str) -> list[Any]:
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if path.suffix.lower() == ".csv":
                raise DataError(
                    f"{path} is a CSV; maths problems are JSON or JSON lines, and a table task is a folder "
                    "with task.toml, train.csv, test.csv, answers.csv (docs/dsbench.md)"
                ) from None
            raise DataError(
                f"{path}: neither one JSON value nor JSON lines; line {number}: {error}"
            ) from error
    if not records:
        raise DataError(f"{path} is empty")
    return records


def _fields(record: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise DataError(
            f"{place} is {type(record).__name__}; a JSON object with problem and answer is needed"
        )
    return {str(key).strip().lower().replace(" ", "_"): value for key, value in record.items()}


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _problem(fields: Mapping[str, Any], place: str) -> str:
    found = _first(fields, PROBLEM)
    if isinstance(found, list):
        said = [
            part.get("content") for part in found if isinstance(part, dict) and part.get("role") == "user"
        ]
        found = said[-1] if said else None
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"{place} has no problem: one of {', '.join(PROBLEM)} is needed, as text; "
                        f"it has {', '.join(fields) or 'no field'}")  # fmt: skip
    return sanitize(found)


def _without_picture(problem: str) -> str:
    """Without a last line that is the name of a picture."""
    body, _, last = problem.rstrip().rpartition("\n")
    return body.rstrip() if body.strip() and last.lower().endswith(_PICTURES) else problem


def _golds(fields: Mapping[str, Any], place: str) -> tuple[str, ...]:
    found = _first(fields, ANSWER)
    if found is None and isinstance(solution := fields.get("solution"), str):
        found = find_answer(solution)
    if isinstance(found, str):
        found = found.rpartition("####")[2]
        if "\\boxed" in found:
            found = find_answer(found) or ""
    golds = read_golds(found) if isinstance(found, (str, int, float, list)) else ()
    if not golds:
        raise DataError(f"{place} has no usable answer ({found!r}): one of {', '.join(ANSWER)} is needed, as "
                        f"text, number or list; it has {', '.join(fields)}")  # fmt: skip
    return tuple(map(sanitize, golds))


def _split(fields: Mapping[str, Any], prompt: str, place: str) -> str:
    named = fields.get("split")
    if named is None:
        return split_of(prompt)
    split = ALIASES.get(str(named).lower(), str(named).lower())
    if split not in SPLITS:
        raise DataError(f"{place}: unknown split {named!r}; known: {', '.join(SPLITS)}")
    return split


def _level(found: Any) -> int | None:
    """5 of 5, 5.0, "5" and "Level 5"."""
    digits = re.search(r"\d+", str(found)) if found is not None else None
    return int(digits[0]) if digits else None
