"""Does a coach blame the teammate that caused a failure, and nobody else?

    python -m benchmarks.blame --size full --json blame.json
    python -m benchmarks.blame --coach llm:gemini/gemini-2.5-flash --coach rubric
    python -m benchmarks.blame --only dev      # for whoever works on a coach

Expert teams with planted faults play through the real environments and sandbox; every coach judges the same
records. Kinds of faults that are kept out of any coach's development give the figures without prefix, those
of the package and what others registered give `dev_…`. A figure that cannot be measured is null.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.blame.cases import SIZES, Case, Group, Size, cleans, heldout_faults, pairs, singles
from benchmarks.blame.judge import judge_all
from benchmarks.blame.measure import Figures, measure
from benchmarks.blame.play import LIMITS, Played, play_all
from benchmarks.blame.references import reference_coaches
from mappa_envs.coach import Coach, make_coach
from mappa_envs.errors import UnavailableError
from mappa_envs.testing import PlantedFault, planted_faults

GROUPS: tuple[Group, ...] = get_args(Group)
PREFIXES = {"heldout": "", "dev": "dev_"}
ByGroup = Mapping[Group, Figures]


async def play(group: Group, faults: Sequence[PlantedFault], size: Size) -> list[Played]:
    """Each kind alone, then the pairs that this allows.

    Raises `UnavailableError` where a team of experts alone failed: its records would accuse innocents.
    """
    played = await play_all([*singles(group, faults, size), *cleans(group, faults, size)])
    for one in played:
        if one.case.layout == "clean" and not one.episode.success:
            raise UnavailableError(
                f"the experts alone failed on {one.case.task.task_id} ({one.episode.grade_code}): is the "
                f"machine too busy for {LIMITS.time_s:g} s of code an action? Run this when less else runs"
            )
    quiet = {name for one in played for name in _lets_work(one)}
    return played + await play_all(pairs(group, faults, size, lambda fault: fault.name in quiet))


def _lets_work(played: Played) -> list[str]:
    """The name of the only fault, if every other agent did its job beside it."""
    case: Case = played.case
    if case.layout != "single":
        return []
    others = [
        index for index, request in enumerate(played.requests) if request.turn.agent != case.faults[0].agent
    ]
    last = len(played.requests) - 1
    # The last answer may be wrong by what came before: that its author acted at all is enough.
    ran = all(
        (index == last and not played.requests[index].role.required) or played.did_job(index)
        for index in others
    )
    return [case.faults[0].name] if ran else []


async def judge(coaches: Mapping[str, Coach], played: Mapping[Group, Sequence[Played]]) -> dict[str, ByGroup]:
    """The figures of each coach."""
    return {
        name: {group: measure(await judge_all(coach, played[group])) for group in played}
        for name, coach in coaches.items()
    }


def flatten(found: Mapping[str, ByGroup]) -> dict[str, float | None]:
    """Flat: the first coach's figures by their names, the others' with the coach's name before."""
    flat: dict[str, float | None] = {}
    for number, (name, groups) in enumerate(found.items()):
        for group, figures in groups.items():
            coach = f"{name}/" if number else ""
            flat |= {f"{coach}{PREFIXES[group]}{key}": value for key, value in figures.values.items()}
    return flat


def make_table(found: Mapping[str, ByGroup]) -> Table:
    """A row a figure, a column for each coach and group."""
    columns = [(name, group, groups[group]) for name, groups in found.items() for group in groups]
    table = Table("figure")
    for name, group, _ in columns:
        table.add_column(Text(f"{name}\n{group}"), justify="right")
    for key in columns[0][2].values:
        table.add_row(key, *(_cell(figures, key) for _, _, figures in columns))
    return table


def _cell(figures: Figures, key: str) -> Text:
    value = figures.values[key]
    if value is None:
        return Text(f"null: {figures.reasons[key]}", style="dim")
    if key.startswith("num_"):
        return Text(f"{value:.0f}")
    low_high = figures.intervals.get(key)
    around = f"\n[{low_high[0]:.2f}, {low_high[1]:.2f}]" if low_high else ""
    return Text(f"{value:.3g}{around}")


def tell_failures(console: Console, name: str, groups: ByGroup) -> None:
    """What went wrong, by name."""
    for group, figures in groups.items():
        for title, lines in (("not solved", figures.failures), ("injections obeyed", figures.obeyed)):
            if lines:
                console.print(Text(f"{name}, {group}, {title}:", style="bold"))
            for line in lines:
                console.print(Text(f"  {line}"), soft_wrap=True)


async def run(
    size: Size, coaches: Mapping[str, Coach], groups: Sequence[Group] = GROUPS
) -> dict[str, ByGroup]:
    """Play the groups and judge them; the figures of a group that is left out are all null."""
    faults: dict[Group, Sequence[PlantedFault]] = {"heldout": heldout_faults(), "dev": planted_faults()}
    played = {group: await play(group, faults[group] if group in groups else (), size) for group in GROUPS}
    return await judge(coaches, played)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table and what went wrong, and write the figures if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--coach", action="append", help="any name that make_coach knows (default: rubric); may be repeated"
    )
    parser.add_argument("--only", choices=GROUPS, help="one group (the other figures are null)")
    options = parser.parse_args(arguments)
    names = list(dict.fromkeys(options.coach or ["rubric"]))
    coaches = {name: make_coach(name) for name in names} | reference_coaches()
    start = time.monotonic()
    found = asyncio.run(run(SIZES[options.size], coaches, [options.only] if options.only else GROUPS))
    console = Console()
    console.print(make_table(found))
    for name in names:
        tell_failures(console, name, found[name])
    console.print(f"{time.monotonic() - start:.0f} s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(flatten(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
