"""The data sets by name, with the real package `datasets` on local repositories in the layout of the hub's.

What they hold is made up; the names of files and columns, and the types, are those of the hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mappa_envs.mathchat import hub

pytest.importorskip("datasets", reason="pip install datasets")

LOAD = """\
import json, sys
from mappa_envs.errors import UnavailableError
from mappa_envs.mathchat.tasks import load_tasks
found = {}
for name in sys.argv[1:]:
    try:
        tasks = load_tasks(name, None)
    except UnavailableError as error:
        found[name] = str(error)
    else:
        found[name] = [[t.task_id, t.task_type, t.split, t.prompt, list(t.golds), t.level] for t in tasks]
print(json.dumps(found))
"""


def aime(root: Path) -> None:
    years = (1983, 2021, 2022, 2024)
    write_csv(
        root / "di-zhang-fdu" / "AIME_1983_2024" / "AIME_Dataset_1983_2024.csv",
        [
            {
                "ID": f"{year}-I-1", "Year": year, "Problem Number": 1, "Question": f"Find {year}.",
                "Answer": "007", "Part": "I",
            }
            for year in years
        ],
    )  # fmt: skip
    write_lines(root / "math-ai" / "aime25" / "test.jsonl", [{"problem": "New.", "answer": "70", "id": "0"}])


def amc(root: Path) -> None:
    write_parquet(
        root / "AI-MO" / "aimo-validation-amc" / "data" / "train-00000-of-00001.parquet",
        [{"id": 0, "problem": "How many?", "answer": 142.0, "url": "https://example.org/2022_AMC_12A"}],
    )


def math500(root: Path) -> None:
    write_lines(
        root / "HuggingFaceH4" / "MATH-500" / "test.jsonl",
        [
            {
                "problem": "Convert.", "solution": r"So $\boxed{\left( 3, \frac{\pi}{2} \right)}$.",
                "answer": r"\left( 3, \frac{\pi}{2} \right)", "subject": "Precalculus", "level": 2,
                "unique_id": "test/precalculus/807.json",
            }
        ],
    )  # fmt: skip


def gsm8k(root: Path) -> None:
    folder = root / "openai" / "gsm8k"
    for part, count in (("train", 30), ("test", 2)):
        rows = [
            {"question": f"{part} {k} apples?", "answer": f"He has <<{k}+1={k + 1}>>{k + 1}.\n#### {k + 1}"}
            for k in range(count)
        ]
        for config in ("main", "socratic"):
            write_parquet(folder / config / f"{part}-00000-of-00001.parquet", rows)
    configs = "".join(
        f"- config_name: {config}\n  data_files:\n"
        + "".join(f"  - split: {part}\n    path: {config}/{part}-*\n" for part in ("train", "test"))
        for config in ("main", "socratic")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(path, index=False)


def load(names: Sequence[str], folder: Path, **variables: str) -> dict[str, Any]:
    """The tasks of each name, or why there are none.

    In a process of its own: the package reads its settings when it is imported.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = {**kept, "HF_HOME": str(folder / "cache"), **variables}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *names],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """The tasks of all names."""
    folder = tmp_path_factory.mktemp("hub")
    for make in (aime, amc, math500, gsm8k):
        make(folder)
    return load(sorted(hub.SOURCES), folder, HF_HUB_OFFLINE="1")


@pytest.mark.slow
def test_aime_is_split_by_year(loaded: dict[str, list[list[Any]]]) -> None:
    assert [(task[0], task[2], task[4]) for task in loaded["aime"]] == [
        ("aime-train-1983-I-1", "train", ["7"]),
        ("aime-train-2021-I-1", "train", ["7"]),
        ("aime-train-2022-I-1", "val", ["7"]),
        ("aime-train-2024-I-1", "val", ["7"]),
        ("aime-test-0", "test", ["70"]),
    ]


@pytest.mark.slow
def test_amc_answers_are_whole_numbers(loaded: dict[str, list[list[Any]]]) -> None:
    assert loaded["amc"] == [["amc-train-0", "amc", "test", "How many?", ["142"], None]]


@pytest.mark.slow
def test_math500_keeps_latex_and_level(loaded: dict[str, list[list[Any]]]) -> None:
    (task,) = loaded["math500"]
    assert task[2:] == ["test", "Convert.", [r"\left( 3, \frac{\pi}{2} \right)"], 2]


@pytest.mark.slow
def test_gsm8k_takes_the_end_of_the_solution(loaded: dict[str, list[list[Any]]]) -> None:
    tasks = loaded["gsm8k"]
    assert len(tasks) == 32
    assert {task[2] for task in tasks} == {"train", "val", "test"}
    assert [task[3:5] for task in tasks if task[2] == "test"] == [
        ["test 0 apples?", ["1"]],
        ["test 1 apples?", ["2"]],
    ]


@pytest.mark.slow
def test_an_empty_cache_is_said_at_once(tmp_path: Path) -> None:
    found = load(sorted(hub.SOURCES), tmp_path, HF_HUB_OFFLINE="1")
    assert found.keys() == hub.SOURCES.keys()
    for name, words in found.items():
        assert words.startswith(f"{hub.SOURCES[name][0].path} cannot be had"), words


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_no_hang(tmp_path: Path) -> None:
    found = load(["aime"], tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert found["aime"].startswith("tasks 'aime': http://127.0.0.1:9 cannot be reached"), found
