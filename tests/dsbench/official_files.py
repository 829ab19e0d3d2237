"""A folder in the official layout of DSBench, with its quirks and made-up numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

STEEL = ("Pastry", "Z_Scratch", "K_Scatch", "Stains", "Dirtiness", "Bumps", "Other_Faults")
LISTED = (
    "titanic", "bike-sharing-demand", "playground-series-s4e3", "playground-series-s4e6", "dont-overfit-ii",
    "tabular-playground-series-sep-2021", "conways-reverse-game-of-life-2020",
)  # fmt: skip


def write_official(root: Path) -> Path:
    """`root/data_modeling`: five good tasks; one without answers, one without a folder; rubbish of macOS."""
    top = root / "data_modeling"
    data = top / "data"
    write_task(data, "titanic", "PassengerId", ("Survived",), [(0,), (1,)], "gender_submission.csv")
    write_task(data, "bike-sharing-demand", "datetime", ("count",), [(3,), (13,)], "sampleSubmission.csv",
        extra=("casual", "registered"))  # fmt: skip
    one_hot = [tuple(int(i == j) for i in range(7)) for j in range(7)]
    write_task(data, "playground-series-s4e3", "id", STEEL, one_hot, "sample_submission.csv")
    grades = [("Graduate",), ("Dropout",), ("Enrolled",)]
    write_task(data, "playground-series-s4e6", "id", ("Target",), grades, "sample_submission.csv")
    write_task(
        data, "tabular-playground-series-sep-2021", "id", ("claim",), [(0,), (1,)], "sample_solution.csv"
    )
    write_task(data, "dont-overfit-ii", "id", ("target",), [(0,), (1,)], "sample_submission.csv")
    (data / "answers" / "dont-overfit-ii" / "test_answer.csv").unlink()
    for kind, score in (("baseline", "4.8"), ("GT", "0.0")):
        folder = top / "save_performance" / kind / "bike-sharing-demand"
        folder.mkdir(parents=True)
        (folder / "result.txt").write_text(score)
    lines = [json.dumps({"name": name, "url": "", "size": "1 kB", "year": 2021}) for name in LISTED]
    (top / "data.json").write_text("\n".join(lines) + "\n")
    (data / "task").mkdir()
    (data / "task" / "titanic.txt").write_text("Predict Transported. Metric: RMSE.")
    (data / "task" / "digit-recognizer.txt").write_text("A description without data.")
    rubbish = top / "__MACOSX" / "data" / "data_resplit" / "titanic"
    rubbish.mkdir(parents=True)
    (rubbish / "._train.csv").write_bytes(b"\0\5\x16\7")
    for path in (data / ".DS_Store", data / "data_resplit" / ".DS_Store"):
        path.write_bytes(b"\0\0\0\1Bud1")
    (data / "data_resplit" / "titanic" / "._test.csv").write_bytes(b"\0\5\x16\7")
    (data / "data_resplit" / "__MACOSX").mkdir()
    return top


def write_task(
    data: Path, name: str, id_column: str, targets: Sequence[str], truth: Sequence[tuple[object, ...]],
    sample: str | None, *, extra: Sequence[str] = (),
) -> None:  # fmt: skip
    """14 training and 7 test rows; `truth` is repeated, `extra` columns are in train.csv only."""
    folder, answers = data / "data_resplit" / name, data / "answers" / name
    folder.mkdir(parents=True)
    answers.mkdir(parents=True)

    def rows(numbers: range, *columns: str, values: Sequence[tuple[object, ...]] = truth) -> str:
        lines = [",".join((id_column, *columns))]
        for i in numbers:
            cells = dict(zip(targets, values[i % len(values)], strict=True))
            cells |= {"x": i % 5, **dict.fromkeys(extra, i)}
            lines.append(",".join(str(value) for value in (i, *(cells[column] for column in columns))))
        return "\n".join(lines) + "\n"

    (folder / "train.csv").write_text(rows(range(14), "x", *extra, *targets))
    (folder / "test.csv").write_text(rows(range(14, 21), "x"))
    (answers / "test_answer.csv").write_text(rows(range(14, 21), *targets))
    if sample is not None:
        (folder / sample).write_text(rows(range(14, 21), *targets, values=truth[:1]))
