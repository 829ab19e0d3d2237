"""The head of the page: what the run is, what is amiss with it, and its first step against its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from mappa_envs.evaluation import artifact_rate
from mappa_train.algorithms import FLAT_STD
from mappa_train.report.reading import Line, RunData
from mappa_train.report.text import figure, share, text

NO_STEP = '<p class="soft">No step is finished yet.</p>'
DRIFT = 1.5
"""Deviations from the scores of the first steps from which on an agent's drift is named."""


def summary(data: RunData) -> str:
    """The run in one line."""
    settings = data.settings
    parts = [
        f"{settings.get('env')}, tasks {settings.get('tasks')} ({settings.get('split')})",
        str(data.resolved.get("model_description") or settings.get("model")),
        f"coach {settings.get('coach')}",
        f"seed {settings.get('seed')}",
    ]
    return text(" · ".join(parts))


def tiles(data: RunData) -> str:
    """The figures that one looks for first."""
    if not data.lines:
        return NO_STEP
    first, last = data.lines[0], data.lines[-1]

    def change(key: str, show: str) -> tuple[str, str]:
        old, new = first.get(key), last.get(key)
        as_text = share if show == "share" else figure
        return as_text(new), f"step {first['step']}: {as_text(old)}" if len(data.lines) > 1 else ""

    minutes = round(sum(line.get("time_s") or 0.0 for line in data.lines) / 60)
    time = f"{minutes} minute{'' if minutes == 1 else 's'}"
    trained = sum(line.get("tokens/trained") or 0 for line in data.lines)
    episodes = sum(line.get("episodes") or 0 for line in data.lines)
    found = [
        ("step", f"{last['step']} of {data.settings.get('steps', '?')}", time),
        ("mean score", *change("score/mean", "figure")),
        ("outcome", *change("outcome/mean", "figure")),
        ("success rate", *change("outcome/success", "share")),
        ("trained tokens", f"{trained:,}", f"{episodes:,} episodes"),
    ]
    cost = sum(line.get("coach/cost_usd") or 0.0 for line in data.lines)
    if cost:
        found.append(("coach", f"${cost:.2f}", f"${cost / len(data.lines):.3f} a step"))
    return '<div class="tiles">' + "".join(_tile(*tile) for tile in found) + "</div>"


def _tile(title: str, value: str, below: str) -> str:
    inside = f'<div class="label">{title}</div><b>{text(value)}</b><div class="soft">{text(below)}</div>'
    return f'<div class="card">{inside}</div>'


def alarms(data: RunData) -> str:
    """What the monitors found, and what keeps actions from being learned from."""
    if not data.lines:
        return ""
    found = "".join(f"<li>{text(words)}</li>" for words in find_alarms(data.lines, data.names("score/")))
    if not found:
        return '<p class="card calm">No alarm: coach, sandbox and budget are as they should be.</p>'
    return f'<div class="card alarm"><b>Alarms</b><ul>{found}</ul></div>'


def find_alarms(lines: Sequence[Line], agents: Sequence[str]) -> Iterator[str]:
    """One sentence for each thing that is amiss, of the last step or of the steps that it names."""
    last = lines[-1]
    if on := _spans(lines, lambda line: bool(line.get("coach/alarm"))):
        now = "it is on now" if last.get("coach/alarm") else "it is off now"
        yield f"Scores rose and outcomes did not, step {on}; {now}. See “Is the coach to be trusted?” below."
    for agent in agents:
        moved = last.get(f"coach/drift/{agent}")
        if moved is not None and abs(moved) > DRIFT:
            yield f"The scores of {agent} have moved {moved:+.1f} deviations from those of the first steps."
    if missing := sum(line.get("unscored") or 0 for line in lines):
        steps = _spans(lines, lambda line: bool(line.get("unscored")))
        actions = sum(line.get("actions") or 0 for line in lines)
        yield f"{missing} of {actions} actions have no score, step {steps}."
    if failed := sum(line.get("stop/infra") or 0 for line in lines):
        steps = _spans(lines, lambda line: bool(line.get("stop/infra")))
        yield f"Faults of the sandbox: {failed}, step {steps}; the episodes were run again."
    if spent := _spans(lines, lambda line: bool(line.get("stop/budget") or line.get("coach/budget_spent"))):
        yield f"The coach's budget was spent in step {spent}."
    if unused := _spans(lines, lambda line: bool(line.get("actions")) and line.get("tokens/trained") == 0):
        yield f"No action was learned from, since all were unscored, masked or frozen, step {unused}."
    if flat := _spans(lines, lambda line: line.get("adv/std") is not None and line["adv/std"] < FLAT_STD):
        yield f"All returns were alike, so that nothing was learned, step {flat}."


def _spans(lines: Sequence[Line], holds: Callable[[Line], bool]) -> str:
    """The steps at which something holds, as "3, 7–9"; "" if there are none."""
    steps = [int(line["step"]) for line in lines if holds(line)]
    runs = []
    for _, numbered in groupby(enumerate(steps), key=lambda item: item[1] - item[0]):
        members = [step for _, step in numbered]
        runs.append(f"{members[0]}–{members[-1]}" if len(members) > 1 else f"{members[0]}")
    return ", ".join(runs if len(runs) <= 8 else [*runs[:4], "…", *runs[-3:]])


def comparison(data: RunData) -> str:
    """The table of the first step against the last; of a single step its figures alone."""
    if not data.lines:
        return NO_STEP
    first, last = data.lines[0], data.lines[-1]
    agents = data.names("score/")
    rows = [(f"score {agent}", f"score/{agent}") for agent in agents]
    rows += [("score of all", "score/mean"), ("outcome", "outcome/mean"), ("return", "return/mean")]
    rows += [("actions without a score", "unscored")]
    rows += [(f"tokens an action, {agent}", f"length/{agent}") for agent in agents]
    body = [(title, *_cells(first.get(key), last.get(key))) for title, key in rows]
    for title, key in (("success rate", "outcome/success"), ("code that failed", "tool/error_rate")):
        body.append((title, *_cells(first.get(key), last.get(key), as_share=True)))
    rates = [artifact_rate(data.episodes(int(line["step"]))) for line in (first, last)]
    body.append(("valid artifacts", *_cells(*rates, as_share=True)))
    head = ("", f"step {first['step']}", f"step {last['step']}", "change")
    num_shown = 4 if len(data.lines) > 1 else 2
    table = [_row("th", head[:num_shown]), *(_row("td", row[:num_shown]) for row in body)]
    return f"<table>{''.join(table)}</table>"


def _cells(old: float | None, new: float | None, *, as_share: bool = False) -> tuple[str, str, str]:
    """Before, after and the change."""
    show = share if as_share else figure
    change = "–"
    if old is not None and new is not None:
        change = f"{100 * (new - old):+.0f} pts" if as_share else f"{new - old:+.3g}"
    return show(old), show(new), change


def _row(tag: str, cells: Sequence[str]) -> str:
    rest = "".join(f'<{tag} class="n">{text(cell)}</{tag}>' for cell in cells[1:])
    return f"<tr><{tag}>{text(cells[0])}</{tag}>{rest}</tr>"
