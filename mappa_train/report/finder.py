"""The index of actions: one line for each, found by agent, score, blame, stop reason, task, step or result.

Menus and styles do the search, without a script: a chosen option hides what does not match
(`.finder:has(option[value="a1"]:checked) .row:not(.a1)`), and `order` sorts. All class names are made of
numbers; what agents wrote is in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mappa_envs.types import Episode, Turn
from mappa_train.credit_log import ActionCredit
from mappa_train.report.text import text

BANDS = ((0.0, "0 to 2"), (2.0, "2 to 4"), (4.0, "4 to 6"), (6.0, "6 to 8"), (8.0, "8 to 10"))
NOBODY = "nobody"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An episode on the page, with the credit of its actions by turn; None if its step recorded none."""

    step: int
    index: int
    episode: Episode
    credit: Mapping[int, ActionCredit] | None


def band(score: float | None) -> int:
    """Which of `BANDS` a score is in; −1 without a score."""
    if score is None:
        return -1
    return max(k for k, (low, _) in enumerate(BANDS) if score >= low)


def blamed(turn: Turn) -> Mapping[str, float]:
    """Who is to blame for what is wrong with an action, in shares."""
    return turn.score.blame if turn.score else {}


@dataclass(frozen=True, kw_only=True)
class _Menu:
    """What one can choose of one kind: class → name."""

    title: str
    options: Mapping[str, str]


class Finder:
    """The menus for some episodes, the styles that make them work, and the lines they choose from."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self._shown = shown
        turns = [turn for item in shown for turn in item.episode.turns]
        self._agents = {name: f"a{k}" for k, name in enumerate(dict.fromkeys(turn.agent for turn in turns))}
        names = dict.fromkeys(name for turn in turns for name in blamed(turn))
        self._blamed = {name: f"b{k}" for k, name in enumerate([NOBODY, *names])}
        ends = dict.fromkeys(str(item.episode.stop_reason) for item in shown)
        self._ends = {name: f"r{k}" for k, name in enumerate(ends)}
        tasks = sorted({item.episode.task_id for item in shown})
        self._tasks = {name: f"w{k}" for k, name in enumerate(tasks)}

    def _menus(self) -> Iterator[_Menu]:
        yield _Menu(title="agent", options={value: name for name, value in self._agents.items()})
        scores = {f"s{k}": name for k, (_, name) in enumerate(BANDS)}
        yield _Menu(title="score", options={**scores, "s-1": "no score"})
        yield _Menu(title="blamed", options={value: name for name, value in self._blamed.items()})
        yield _Menu(title="stop reason", options={value: name for name, value in self._ends.items()})
        yield _Menu(title="task", options={value: name for name, value in self._tasks.items()})
        steps = dict.fromkeys(item.step for item in self._shown)
        yield _Menu(title="step", options={f"t{step}": str(step) for step in steps})
        yield _Menu(title="result", options={"g1": "success", "g0": "no success"})

    def style(self) -> str:
        """The rules for the page's style sheet."""
        rules = [
            f'.finder:has(option[value="{value}"]:checked) .row:not(.{value}){{display:none}}'
            for menu in self._menus()
            for value in menu.options
        ]
        for value, sign in (("up", 1), ("down", -1)):
            chosen = f'.finder:has(option[value="{value}"]:checked)'
            rules += [f"{chosen} .row.q{place}{{order:{sign * place}}}" for place in range(21)]
            rules.append(f"{chosen} .row.s-1{{order:21}}")
        return "\n".join(rules)

    def html(self) -> str:
        """Menus and index."""
        order = (("", "step"), ("up", "lowest score first"), ("down", "highest score first"))
        menus = "".join(_select(menu.title, [("", "any"), *menu.options.items()]) for menu in self._menus())
        heads = ("step", "episode", "agent", "score", "return", "advantage", "blamed", "end")
        head = "".join(f"<span>{name}</span>" for name in heads)
        rows = "".join(self._row(item, turn) for item in self._shown for turn in item.episode.turns)
        return (
            f'<div class="finder"><div class="menus">{menus}{_select("order", order)}</div>'
            f'<div class="index"><div class="head">{head}</div>{rows}</div><p class="count soft"></p></div>'
        )

    def _row(self, item: Shown, turn: Turn) -> str:
        episode, credit = item.episode, (item.credit or {}).get(turn.index)
        shares = blamed(turn)
        classes = [
            self._agents[turn.agent],
            f"s{band(turn.final_score)}",
            *(self._blamed[name] for name in shares or (NOBODY,)),
            self._ends[str(episode.stop_reason)],
            self._tasks[episode.task_id],
            f"t{item.step}",
            f"g{int(episode.success)}",
        ]
        if turn.final_score is not None:
            classes.append(f"q{round(2 * turn.final_score)}")
        mark = '<i class="good">✓</i>' if episode.success else '<i class="bad">✗</i>'
        cells = (
            str(item.step),
            f"<b>#{item.index}</b> {text(episode.task_id)}",
            text(turn.agent),
            chip(turn.final_score),
            f"{credit.ret:.2f}" if credit else "",
            f"{credit.advantage:+.2f}" if credit else "",
            text(", ".join(shares)),
            f"{mark} {text(episode.stop_reason)}",
        )
        body = "".join(f"<span>{cell}</span>" for cell in cells)
        return f'<a class="row {" ".join(classes)}" href="#e{item.index}-{turn.index}">{body}</a>'


def chip(score: float | None) -> str:
    """A score in the colour of its band."""
    return f'<em class="chip k{band(score)}">{"–" if score is None else f"{score:.1f}"}</em>'


def _select(title: str, options: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<option value="{value}">{text(name)}</option>' for value, name in options)
    return f'<label>{title}<select name="{title}" autocomplete="off">{items}</select></label>'
