"""The newest evaluation of a checkpoint, by kind of task."""

from __future__ import annotations

import json
from pathlib import Path

from mappa_envs.stats import MIN_TASKS
from mappa_train.report.reading import Line, stamps
from mappa_train.report.text import figure, share, text


def evaluation(run: Path) -> str:
    """The section with the newest of the run's `eval-<split>-step-<N>.json`; "" if there is none."""
    found = stamps(run.glob("eval-*-step-*.json"))
    if not found:
        return ""
    *_, path = max(found)
    try:
        newest = json.loads(path.read_text("utf-8"))
        rows = {"all": dict(newest["overall"]), **newest["task_types"]}
        title = f"Evaluation of step {newest['step']} on {newest['split']} tasks"
        cells = {name: _cells(row) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        return f'<h2>Evaluation</h2><p class="soft">{text(path)} cannot be read: {text(error)}</p>'
    body = "".join(
        f"<tr><td>{text(title)}</td>"
        + "".join(f'<td class="n">{column.get(title, "–")}</td>' for column in cells.values())
        + "</tr>"
        for title in cells["all"]
    )
    head = "<th></th>" + "".join(f'<th class="n">{text(name)}</th>' for name in rows)
    return f'<h2>{text(title)}</h2><div class="card scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: Line) -> dict[str, str]:
    """Title → what is shown, counts and rates with their 95 % intervals first."""
    outcome, success = (row.get(f"{name}_low") for name in ("outcome", "success"))
    if (row.get("num_tasks") or 0) < MIN_TASKS:
        outcome = None
    cells = {
        "episodes": figure(row.get("num_episodes")),
        "tasks": figure(row.get("num_tasks")),
        "success rate": share(row.get("success_rate"))
        + ("" if success is None else f" ({share(success)} to {share(row.get('success_high'))})"),
        "outcome": figure(row.get("outcome"))
        + ("" if outcome is None else f" ({figure(outcome)} to {figure(row.get('outcome_high'))})"),
        "valid artifacts": share(row.get("valid_artifacts")),
    }
    known = ("num_", "success_", "outcome", "valid_artifacts", "task_type")
    others = {name: value for name, value in row.items() if not name.startswith(known)}
    return cells | {name.replace("_", " "): figure(value) for name, value in others.items()}
