"""How a table of an evaluation looks. Names of tasks are not ours: `Text` is never read as markup.

No figure is ever cut: columns that do not fit beside each other come below, in a further table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from mappa_envs.evaluation import EvalRow, EvalTable
from mappa_envs.stats import MIN_TASKS

MAX_COLUMNS = 4
"""Of task types side by side, all of them together included; more are one below the other."""
_FAIR = "; fair: a failed run counts as accuracy 0.5, f1 0, error 50 %"

Column = tuple[Text, Sequence[Text]]
"""Its title and its cells."""


def evaluation_tables(table: EvalTable, width: int) -> Iterator[Table]:
    """All that is shown of an evaluation, on a console of `width` characters."""
    yield from _summary(table, width)
    for row in table.task_types:
        yield from _by_task(table, row.name, width)


def _summary(table: EvalTable, width: int) -> list[Table]:
    """All episodes beside those of each task type."""
    rows = (table.overall, *table.task_types)
    cells = [_summary_cells(row, table.overall.figures) for row in rows]
    names, titles = [_plain(row.name) for row in rows], [_title(title) for title in cells[0]]
    values = [list(row.values()) for row in cells]
    if len(rows) > MAX_COLUMNS:
        head = names
        columns: list[Column] = [(title, [row[k] for row in values]) for k, title in enumerate(titles)]
    else:
        head, columns = titles, list(zip(names, values, strict=True))
    shown = _side_by_side((_plain(""), head), columns, width, has_box=True)
    fair = _FAIR if "fair_f1" in table.overall.figures else ""
    shown[-1].caption = _plain(f"[low, high]: 95 % intervals{fair}")
    return shown


def _summary_cells(row: EvalRow, figures: Mapping[str, float | None]) -> dict[str, Text]:
    over_tasks = row.outcome_interval if row.num_tasks >= MIN_TASKS else None
    valid = None if row.valid_artifacts is None else 100 * row.valid_artifacts
    return {
        "episodes": _plain(str(row.num_episodes)),
        "tasks": _plain(str(row.num_tasks)),
        "success rate, %": _plain(_interval(row.success_rate, row.success_interval, 100)),
        "outcome (0–1)": _plain(_interval(row.outcome, over_tasks)),
        **({} if valid is None else {"valid artifacts, %": _plain(_number(valid))}),
        **{name: _plain(_number(row.figures.get(name))) for name in figures},
    }


def _by_task(table: EvalTable, task_type: str, width: int) -> list[Table]:
    """The tasks of one type, with the figures that one of them has. The fair ones are for many tasks."""
    rows = [row for row in table.tasks if row.task_type == task_type]
    names = [
        name
        for name in table.overall.figures
        if not name.startswith("fair_") and any(row.figures.get(name) is not None for row in rows)
    ]
    columns: list[Column] = [
        (_plain("episodes"), [_plain(str(row.num_episodes)) for row in rows]),
        (_plain("successes"), [_plain(str(row.num_successes)) for row in rows]),
        (_plain("outcome"), [_plain(_number(row.outcome)) for row in rows]),
        *((_title(name), [_plain(_number(row.figures.get(name))) for row in rows]) for name in names),
    ]
    shown = _side_by_side((_plain("task"), [_plain(row.name) for row in rows]), columns, width)
    shown[0].title, shown[0].title_justify = _plain(task_type), "left"
    return shown


def _side_by_side(
    head: Column, columns: Sequence[Column], width: int, *, has_box: bool = False
) -> list[Table]:
    """Tables of as many columns as fit, each with the names of the rows in front, at least one."""
    edges, around = (3, 1) if has_box else (2, 0)
    # Names are of any length; they may be folded, figures may not.
    names = min(_width(head), width // 2)
    blocks: list[list[Column]] = []
    free = 0
    for column in columns:
        if not blocks or _width(column) + edges > free:
            blocks.append([])
            free = width - around - names - edges
        blocks[-1].append(column)
        free -= _width(column) + edges
    return [_table([head, *block], names, has_box=has_box) for block in blocks]


def _table(columns: Sequence[Column], names: int, *, has_box: bool) -> Table:
    shown = Table() if has_box else Table(box=None)
    (title, _), *others = columns
    shown.add_column(title, overflow="fold", width=names)
    for title, _ in others:
        shown.add_column(title, justify="right", overflow="fold")
    for row in zip(*(cells for _, cells in columns), strict=True):
        shown.add_row(*row)
    return shown


def _width(column: Column) -> int:
    title, cells = column
    return max(text.cell_len for text in (title, *cells))


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
