"""A small task of each kind, and a bench that runs code on it and inspects what is left."""

from __future__ import annotations

import asyncio
import csv
import io
import random
from dataclasses import dataclass
from pathlib import Path

from mappa_envs.dsbench.artifacts import Tables, inspect
from mappa_envs.dsbench.grading import TaskSpec
from mappa_envs.sandbox import Sandbox
from mappa_envs.types import Artifact, ToolResult


@dataclass(frozen=True)
class TinyTask:
    task_id: str
    spec: TaskSpec
    files: dict[str, Path]
    answers: Path

    @property
    def tables(self) -> Tables:
        return Tables.read(self.files["train.csv"], self.files["test.csv"], self.spec)


class Bench:
    """Runs code against a task's workspace and inspects what it left."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def look(
        self, task: TinyTask, code: str | list[str], paths: list[str]
    ) -> tuple[ToolResult, dict[str, Artifact]]:
        return asyncio.run(self._look(task, code, paths))

    async def _look(
        self, task: TinyTask, code: str | list[str], paths: list[str]
    ) -> tuple[ToolResult, dict[str, Artifact]]:
        async with await self.sandbox.open(task.files) as workspace:
            result = await workspace.run(code)
            return result, await inspect(workspace, paths, task.spec, task.tables)


def _csv(rows: list[dict[str, object]], columns: list[str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


KINDS = {
    "accuracy": TaskSpec("accuracy", "id", ("kind",), ("blue", "red")),
    "roc_auc": TaskSpec("roc_auc", "id", ("hit",), positive="1"),
    "mc_log_loss": TaskSpec("mc_log_loss", "id", ("A", "B", "C"), label_column="letter"),
    "map@3": TaskSpec("map@3", "id", ("letter",), ("A", "B", "C")),
    "rmsle": TaskSpec("rmsle", "id", ("size",)),
    "mcrmse": TaskSpec("mcrmse", "id", ("size", "depth")),
}


def tiny_task(kind: str, folder: Path) -> TinyTask:
    """80 + 20 rows: two informative numbers (one with gaps), a text column; the targets follow from them."""
    spec, draw, rows = KINDS[kind], random.Random(0), []
    for i in range(100):
        x, y, city = draw.random(), draw.random(), draw.choice(["Rome", "Oslo", "Bern"])
        letter = "ABC"[min(2, int(3 * x))]
        rows.append({
            "id": 1000 + i, "x": round(x, 6), "y": "" if i % 10 == 0 else round(y, 6), "city": city,
            "kind": "red" if x > 0.5 else "blue", "hit": int(x > 0.5), "letter": letter,
            "size": round(10 * x + y, 4), "depth": round(x - y, 4), **{c: int(c == letter) for c in "ABC"},
        })  # fmt: skip
    hidden = [spec.label_column] if spec.label_column else list(spec.target_columns)
    texts = {
        "train.csv": _csv(rows[:80], ["id", "x", "y", "city", *hidden]),
        "test.csv": _csv(rows[80:], ["id", "x", "y", "city"]),
        "answers.csv": _csv(
            rows[80:], ["id", *hidden, *(() if hidden[0] != "letter" else spec.target_columns)]
        ),
    }
    if hidden[0] == "letter" and spec.label_column is None:
        texts["answers.csv"] = _csv(rows[80:], ["id", "letter"])
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = {name: folder / name for name in ("train.csv", "test.csv")}
    return TinyTask(kind, spec, files, folder / "answers.csv")
