"""How a table of an evaluation looks. Names of tasks are not ours: `Text` is never read as markup."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from mappa_envs.evaluation import EvalRow, EvalTable

MAX_COLUMNS = 4
"""Of task types side by side, all of them together included; more are one below the other."""
_FAIR = "; fair: a failed run counts as accuracy 0.5, f1 0, error 50 %"


def summary(table: EvalTable) -> Table:
    """All episodes beside those of each task type."""
    rows = (table.overall, *table.task_types)
    cells = [_summary_cells(row, table.overall.figures) for row in rows]
    names, titles = [_plain(row.name) for row in rows], [_title(title) for title in cells[0]]
    values = [list(row.values()) for row in cells]
    if len(rows) > MAX_COLUMNS:
        columns, lines = titles, list(zip(names, values, strict=True))
    else:
        columns, lines = names, [(title, list(v)) for title, *v in zip(titles, *values, strict=True)]
    shown = Table("")
    for name in columns:
        shown.add_column(name, justify="right")
    for title, line in lines:
        shown.add_row(title, *line)
    fair = _FAIR if "fair_f1" in table.overall.figures else ""
    shown.caption = _plain(f"[low, high]: 95 % intervals{fair}")
    return shown


def _summary_cells(row: EvalRow, figures: Mapping[str, float | None]) -> dict[str, Text]:
    valid = None if row.valid_artifacts is None else 100 * row.valid_artifacts
    return {
        "episodes": _plain(str(row.num_episodes)),
        "tasks": _plain(str(row.num_tasks)),
        "success, %": _plain(_interval(row.success_rate, row.success_interval, 100)),
        "outcome (0–1)": _plain(_interval(row.outcome, row.outcome_interval)),
        **({} if valid is None else {"valid files, %": _plain(_number(valid))}),
        **{name: _plain(_number(row.figures.get(name))) for name in figures},
    }


def by_task(table: EvalTable, task_type: str) -> Table:
    """The tasks of one type, with the figures that one of them has. The fair ones are for many tasks."""
    rows = [row for row in table.tasks if row.task_type == task_type]
    names = [
        name
        for name in table.overall.figures
        if not name.startswith("fair_") and any(row.figures.get(name) is not None for row in rows)
    ]
    shown = Table(title=_plain(task_type), title_justify="left", box=None)
    shown.add_column("task", no_wrap=True)
    for name in ("runs", "success", "outcome", *names):
        shown.add_column(_title(name), justify="right")
    for row in rows:
        counts = (str(row.num_episodes), str(row.num_successes), _number(row.outcome))
        shown.add_row(_plain(row.name), *counts, *(_number(row.figures.get(name)) for name in names))
    return shown


def _plain(words: str) -> Text:
    return Text("".join(char if char.isprintable() else "?" for char in words))


def _title(name: str) -> Text:
    return _plain(name.replace("_", " ").replace(" pct", ", %"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _interval(value: float | None, interval: tuple[float, float] | None, scale: int = 1) -> str:
    if value is None:
        return "–"
    digits = 0 if scale == 100 else 2
    bounds = ", ".join(f"{scale * bound:.{digits}f}" for bound in interval or ())
    return f"{scale * value:.{digits}f}" + (f" [{bounds}]" if bounds else "")
