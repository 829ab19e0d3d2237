"""Tasks from files and from the hub."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.__main__ import main
from mappa_envs.errors import DataError, UnavailableError
from mappa_envs.mathchat import grade, hub
from mappa_envs.mathchat.tasks import MathTask, load_tasks, split_of


def write(folder: Path, content: Any, name: str = "problems.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def one(folder: Path, record: Any) -> MathTask:
    (task,) = load_tasks(write(folder, [record]))
    return task


@pytest.mark.parametrize("problem", ["prompt", "problem", "question", "Question", "PROBLEM"])
@pytest.mark.parametrize("answer", ["answer", "Answer", "final_answer", "ground_truth"])
def test_field_names(tmp_path: Path, problem: str, answer: str) -> None:
    task = one(tmp_path, {problem: " What is 1+1? ", answer: "2"})
    assert (task.prompt, task.golds) == ("What is 1+1?", ("2",))


@pytest.mark.parametrize(
    ("answer", "golds"),
    [
        (142.0, ("142",)),
        ("007", ("007",)),
        (-4, ("-4",)),
        (0.5, ("0.5",)),
        (r"\frac{1}{2}", (r"\frac{1}{2}",)),
        ("080 or 081 (both were accepted)", ("080", "081")),
        (["1", 2.0], ("1", "2")),
        ("He has 9 * 8 = 72 left.\n#### 72", ("72",)),
        (r"So it is \boxed{\frac12}.", (r"\frac12",)),
        (r"336^\circ", (r"336^\circ",)),
    ],
)
def test_answer_types(tmp_path: Path, answer: Any, golds: tuple[str, ...]) -> None:
    task = one(tmp_path, {"problem": "?", "answer": answer})
    assert task.golds == golds
    assert all(grade(rf"\boxed{{{gold}}}", list(golds)) for gold in golds)


def test_a_solution_reaches_nobody_but_its_box_counts(tmp_path: Path) -> None:
    task = one(tmp_path, {"problem": "Add 1 and 2.", "solution": r"Adding gives \boxed{3}."})
    assert task.golds == ("3",)
    assert "Adding" not in str(task)


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    task = one(tmp_path, {"id": "\ud835", "problem": "Find \ud835.", "answer": "\ud835", "split": "val"})
    assert (task.task_id, task.prompt, task.golds) == ("\ufffd", "Find \ufffd.", ("\ufffd",))


def test_shapes_of_files(tmp_path: Path) -> None:
    records = [{"problem": f"What is {n}+1?", "answer": n + 1} for n in range(4)]
    lines = "\n".join(map(json.dumps, records))
    for name, content in (
        ("a.json", records),
        ("b.jsonl", lines),
        ("c.json", {"data": records}),
        ("e.json", {"version": 1, "data": records}),
        ("f.json", {"problems": records}),
        ("d.jsonl", "\ufeff" + lines.replace("\n", "\r\n\r\n")),
    ):
        assert [task.golds for task in load_tasks(write(tmp_path, content, name))] == [
            ("1",), ("2",), ("3",), ("4",)
        ]  # fmt: skip


def test_one_record_alone_is_no_list_of_them(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "What is 1+1?"}]
    for record in ({"prompt": chat, "answer": 2}, {"answer": [2, "two"], "problem": "What is 1+1?"}):
        task = one(tmp_path, record)
        assert (task.prompt, task.golds[0]) == ("What is 1+1?", "2")
        assert load_tasks(write(tmp_path, record, "alone.json"))[0].golds == task.golds


def test_ids_splits_and_levels(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            {"id": "x", "problem": "1", "answer": 1, "split": "validation", "level": "Level 5"},
            {"id": "x", "problem": "2", "answer": 1, "split": "test"},
            {"problem": "3", "answer": 1},
        ],
    )
    tasks = load_tasks(path)
    assert [task.task_id for task in tasks] == ["x", "x-0002", "problems-0003"]
    assert [task.split for task in tasks] == ["val", "test", split_of("3")]
    assert [task.level for task in tasks] == [5, None, None]
    assert load_tasks(path, "val") == tasks[:1]


def test_chat_prompts_and_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "Add.\nAIME 1985 Problem 4.png"}]
    assert one(tmp_path, {"prompt": chat, "answer": 1}).prompt == "Add."
    assert one(tmp_path, {"prompt": "Count in a.png", "answer": 1}).prompt == "Count in a.png"
    assert "picture" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("[]", "no record"),
        ("{", "line 1"),
        ("[" * 100_000, "line 1"),
        ('[{"answer": 1}]', "no problem"),
        ('[{"problem": "?"}]', "no usable answer"),
        ('[{"problem": "?", "answer": null}]', "no usable answer"),
        ('[{"problem": "?", "answer": true}]', "no usable answer"),
        ("[1]", "record 1 is int"),
        ('[{"problem": "?", "answer": 1, "split": "later"}]', "later"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_tasks(write(tmp_path, content))


def test_all_records_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    records = [{"problem": "1 + 1?", "answer": 2}, {"problem": "1 + 2?"}, {"answer": 3}]
    with pytest.raises(DataError) as caught:
        load_tasks(write(tmp_path, records))
    second, third = str(caught.value).split("\n")
    assert "record 2 has no usable answer" in second
    assert "record 3 has no problem" in third
    with pytest.raises(DataError) as caught:
        load_tasks(write(tmp_path, [*records, *([{"problem": "?"}] * 100)]))
    *named, more = str(caught.value).split("\n")
    assert len(named) == 10
    assert more.endswith("so it is with 92 more records")


def test_the_hub_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnavailableError, match="pip install datasets"):
        load_tasks("aime")


def test_the_hub_needs_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        load_tasks("gsm8k")


def fake_hub(monkeypatch: pytest.MonkeyPatch, parts: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    module = types.ModuleType("datasets")

    def load_dataset(path: str, config: str | None, split: str) -> list[dict[str, Any]]:
        if (path, split) not in parts:
            raise FileNotFoundError(path)
        return parts[path, split]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_aime_from_the_hub_without_its_leaks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = [
        {"ID": f"{year}-1", "Year": year, "Question": f"Find {year}.", "Answer": "7"}
        for year in (1990, 2023, 2024)
    ]
    new = [
        {"problem": "Find 2024!", "answer": "7", "id": 0},
        {"problem": "Find 2025.", "answer": "8", "id": 1},
    ]
    fake_hub(monkeypatch, {("di-zhang-fdu/AIME_1983_2024", "train"): old, ("math-ai/aime25", "test"): new})
    tasks = load_tasks("aime")
    assert [(task.split, task.prompt) for task in tasks] == [
        ("train", "Find 1990."),
        ("val", "Find 2023."),
        ("val", "Find 2024."),
        ("test", "Find 2024!"),
        ("test", "Find 2025."),
    ]
    new[0]["problem"] = "Find 2024"
    assert [task.prompt for task in load_tasks("aime", "val")] == ["Find 2023."]
    assert "aime-train-2024-1" in caplog.text


def test_a_data_set_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, {})
    with pytest.raises(UnavailableError, match="MATH-500"):
        load_tasks("math500")


def test_every_name_has_a_test_part() -> None:
    assert set(hub.SOURCES) == {"aime", "amc", "math500", "gsm8k"}
    assert all(any(part.split == "test" for part in parts) for parts in hub.SOURCES.values())


def test_the_command_line_finds_problems_that_stand_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "Find the number of positive integers less than 100 that are divisible by 7 but not by 5."
    file = tmp_path / "problems.jsonl"
    records = [
        {"problem": problem, "answer": "12"},
        {"problem": problem.replace("Find", "Compute"), "answer": 12},
        {"problem": "What is 1 + 1?", "answer": "2"},
    ]
    file.write_text("\n".join(json.dumps(record) for record in records))
    assert main(["data", "check", str(file)]) == 1
    shown = capsys.readouterr().out
    assert shown.split()[0] in ("TWICE", "LEAK")
    assert shown.split()[1] == "near:"
    assert "3 problems looked at, 1 pairs are the same" in shown
    file.write_text(json.dumps(records[2]))
    assert main(["data", "check", str(file)]) == 0


def test_the_command_line_finds_an_answer_that_nothing_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, [{"id": "half", "problem": "Halve 1.", "answer": r"\frac{1}{2"}])
    assert main(["data", "check", path]) == 1
    shown = capsys.readouterr().out
    assert "'half': nothing matches its answer" in shown
    assert "1 problems looked at, 0 pairs are the same, 1 answers can never be given" in shown


def test_the_command_line_needs_no_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["data", "check", write(tmp_path, [{"problem": "What is 1 + 1?", "answer": "2"}])]) == 0
