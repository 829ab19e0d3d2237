"""The section of `report.html` on the coach: how its scores of the newest steps lie to the outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_envs.stats import Correlation
from mappa_envs.types import Episode
from mappa_train.monitors import (
    ALARM,
    WINDOW,
    Divergence,
    Group,
    ReadStep,
    breakdown,
    divergence,
    outcome_correlation,
    scored_actions,
)
from mappa_train.report.text import text

MAX_EPISODES = 100
"""Most episodes that `trust` reads, beyond those of one step: a page is made anew after each step."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What the page of a run shows. `correlations` by agent, and of all actions under "all"."""

    steps: tuple[int, int]
    correlations: Mapping[str, Correlation | None]
    groups: Mapping[str, Sequence[Group]]
    divergence: Divergence | None


def trust(lines: Sequence[Mapping[str, Any]], read: ReadStep) -> Trust | None:
    """The newest `WINDOW` steps of a run, fewer if they have over `MAX_EPISODES`; None before the first.

    `lines` are those of metrics.jsonl.
    """
    episodes: list[Episode] = []
    steps = [int(line["step"]) for line in lines][-WINDOW:]
    first = None
    for step in reversed(steps):
        mine = read(step)
        if first is not None and len(episodes) + len(mine) > MAX_EPISODES:
            break
        episodes, first = [*mine, *episodes], step
    if first is None:
        return None
    actions = scored_actions(episodes)
    agents = sorted({item.agent for item in actions})
    return Trust(
        steps=(first, steps[-1]),
        correlations={
            "all": outcome_correlation(actions),
            **{agent: outcome_correlation([a for a in actions if a.agent == agent]) for agent in agents},
        },
        groups=breakdown(actions),
        divergence=divergence(
            [line.get("score/mean") for line in lines], [line.get("outcome/mean") for line in lines]
        ),
    )


def trust_section(lines: Sequence[Mapping[str, Any]], read: ReadStep) -> str:
    """The HTML of the section; "" before the first step. The arguments are those of `trust`."""
    found = trust(lines, read)
    if found is None:
        return ""
    words = (
        "Scores and outcomes, both 0–10 here, of steps {} to {}, with 95 % intervals over tasks. A good "
        "coach ranks actions as their outcomes do, and is no kinder to a kind of task, a length or a habit "
        "whose outcomes are no better."
    ).format(*found.steps)
    correlations = "".join(
        f'<tr><td>{text(name)}</td><td class="n">{_correlation(value)}</td></tr>'
        for name, value in found.correlations.items()
    )
    groups = "".join(_group_rows(title, rows) for title, rows in found.groups.items())
    head = '<th class="n">actions</th><th class="n">score</th><th></th><th class="n">outcome</th>'
    return (
        f'<h2>Is the coach to be trusted?</h2>{_alarm(found)}<p class="soft">{text(words)}</p>'
        f'<div class="card scroll"><table><tr><th></th><th class="n">rank correlation of score and '
        f"outcome</th></tr>{correlations}</table><table><tr><th></th>{head}</tr>{groups}</table></div>"
    )


def _alarm(found: Trust) -> str:
    compared = found.divergence
    if compared is None:
        return '<p class="soft">Too few steps yet to compare the change of scores with that of outcomes.</p>'
    changes = (
        f"Change from the first steps to the last, as shares, 99 % intervals: score {_span(compared.score)}, "
        f"outcome {_span(compared.outcome)}, score − outcome {_span(compared.gap)}."
    )
    alarm = f'<p class="bad">ALARM: {text(ALARM)}.</p>' if compared.alarm else ""
    return f'{alarm}<p class="soft">{text(changes)}</p>'


def _group_rows(title: str, rows: Sequence[Group]) -> str:
    cells = (
        f'<tr><td>{text(row.name)}</td><td class="n">{row.num_actions}</td>'
        f'<td class="n">{row.score:.2f}</td><td>{"" if row.interval is None else _span(row.interval)}</td>'
        f'<td class="n">{row.outcome:.2f}</td></tr>'
        for row in rows
    )
    return f'<tr><th colspan="5">{text(title)}</th></tr>{"".join(cells)}'


def _correlation(value: Correlation | None) -> str:
    if value is None:
        return "–"
    return f"{value.value:.2f}" + ("" if value.low is None else f" ({_span((value.low, value.high or 0.0))})")


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"
