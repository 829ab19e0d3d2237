"""The page as a whole: template, style sheet, content policy.

The policy allows nothing but the one style sheet of the page, named by its hash: no script, no style of
anybody else, no picture, no font, no form, no frame. A page that a mistake of ours let an agent write into
would still run nothing and load nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import string
from dataclasses import dataclass
from pathlib import Path

from mappa_train.checkpoint import RunFolder
from mappa_train.files import write_atomically
from mappa_train.report.curves import curves
from mappa_train.report.episodes import pages
from mappa_train.report.evaluation import evaluation
from mappa_train.report.finder import Finder, Shown
from mappa_train.report.overview import alarms, comparison, summary, tiles
from mappa_train.report.reading import RunData, read_credit, sampled_episodes, sampled_steps
from mappa_train.report.text import text
from mappa_train.report.trust import trust_section


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the page is read: what goes before "#…" in its links, where its start is, and a word on it.

    A served page reloads itself at its start, and leads to one that does not where one reads.
    """

    links: str = ""
    start: str = "#overview"
    note: str = ""


FILE = Place()


def write_report(run: Path) -> Path:
    """Build the page of a run folder from its files, and return its path.

    Raises `ConfigError` where there is no run, `DataError` if one of its files is damaged.
    """
    path = RunFolder(run).report_path
    write_atomically(path, render(RunData(run)).encode())
    return path


def render(data: RunData, place: Place = FILE) -> str:
    """The page of a run. Raises `DataError` if one of its files is damaged."""
    shown = [item for step in sampled_steps(data.steps) for item in _sample(data, step)]
    kept, episode_pages = pages(shown)
    finder, settings = Finder(kept), {**data.settings, **data.resolved}
    # No "<" can end the style sheet early: it holds nothing but our text and numbers.
    style = f"{_read('page.css')}\n{finder.style()}"
    return string.Template(_read("page.html")).substitute(
        policy=content_policy(style),
        style=style,
        title=text(data.path.resolve().name),
        summary=summary(data),
        note=place.note,
        start=place.start,
        links=place.links,
        tiles=tiles(data),
        alarms=alarms(data),
        compared="First step against last step" if len(data.lines) != 1 else "The first step",
        comparison=comparison(data),
        trust=trust_section(data.lines, data.episodes),
        evaluation=evaluation(data.path),
        charts=curves(data),
        num_episodes=len(kept),
        sampling=_sampling(data, shown, kept),
        finder=finder.html() if kept else '<p class="soft">No step is finished yet.</p>',
        pages=episode_pages,
        config="".join(f"<div>{text(key)} = {text(value)}</div>" for key, value in settings.items()),
    )


def content_policy(style: str) -> str:
    """The policy of a page with this style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _sample(data: RunData, step: int) -> list[Shown]:
    credit = read_credit(data.path, step)
    return [
        Shown(
            step=step,
            index=index,
            episode=episode,
            credit={item.turn: item for item in credit.values() if item.index == index} if credit else None,
        )
        for index, episode in sampled_episodes(data.numbered(step))
    ]


def _sampling(data: RunData, shown: list[Shown], kept: list[Shown]) -> str:
    """Which episodes these are."""
    if not kept:
        return ""
    total = sum(line.get("episodes") or 0 for line in data.lines)
    steps = ", ".join(str(step) for step in dict.fromkeys(item.step for item in kept))
    words = f"{len(kept)} of {total} episodes, of step {steps}."
    if len(kept) < len(shown):
        words += f" {len(shown) - len(kept)} more of older steps would have made the page too large."
    return text(words)


@functools.cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
