"""`coach fit`: learn from runs what a coach's scores are worth. And a calibration's place in a new run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_envs.coach.calibration import (
    Calibration,
    Origin,
    calibrated,
    read_calibration,
    write_calibration,
)
from mappa_envs.errors import ConfigError
from mappa_envs.types import Episode
from mappa_train.arguments import given_path
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.files import user_path, write_atomically

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from mappa_envs.pipeline import PipelineEnv
    from mappa_envs.stats import Correlation

KEPT = "calibration.json"
"""The copy in a run folder: what becomes of the file later does not change the run."""


def fit_runs(runs: Sequence[Path]) -> Calibration:
    """A calibration from all episodes of some runs, but for those of test tasks.

    Raises `ConfigError` if the runs differ in coach, environment or what the coach could see, `DataError`
    if their episodes are too few or all alike.
    """
    from mappa_envs.coach.fitting import fit

    origins: dict[Path, Origin] = {}
    for run in runs:
        if run.resolve() in origins:
            raise ConfigError(f"{run}: given twice; name each run once")
        config = RunFolder.open(run).config()
        if config.coach_calibration:
            raise ConfigError(f"{run}: its scores are calibrated already; give runs of the coach itself")
        origins[run.resolve()] = origin_of(config)
    first = next(iter(origins.values()))
    for run, origin in zip(runs, origins.values(), strict=True):
        for name, value in vars(origin).items():
            if value != getattr(first, name):
                raise ConfigError(
                    f"{run}: {name} is {value!r}, but {getattr(first, name)!r} in {runs[0]}; "
                    "fit one calibration for each"
                )
    return fit(_episodes(runs), first)


def _episodes(runs: Sequence[Path]) -> Iterator[Episode]:
    from mappa_train.report import all_episodes

    for run in runs:
        for _, _, episode in all_episodes(run):
            if episode.split != "test":  # a coach that knows test tasks would train agents for them
                yield episode


def origin_of(config: Config) -> Origin:
    """What a run's scores come from."""
    return Origin(
        env=config.env,
        coach=config.coach,
        ground_truth=config.ground_truth,
        scoring="hindsight" if config.scoring == "hindsight" else "inline",
    )


def calibrate(env: PipelineEnv, config: Config) -> None:
    """Let the run's calibration stand between the environment and its coach.

    Raises `ConfigError` if it was fitted for something else.
    """
    calibration = read_calibration(user_path(config.coach_calibration, "--coach-calibration"))
    try:
        calibration.check(origin_of(config), env.possible_agents)
    except ConfigError as error:
        raise ConfigError(f"--coach-calibration {config.coach_calibration}: {error}") from None
    if env.coach is not None:
        env.coach = calibrated(env.coach, calibration)


def keep_calibration(config: Config, run: RunFolder) -> Config:
    """The settings with the calibration's copy in the run folder, which is made if it is not there yet."""
    if not config.coach_calibration:
        return config
    kept = run.path / KEPT
    if not kept.exists():
        write_atomically(kept, Path(config.coach_calibration).expanduser().read_bytes())
    return replace(config, coach_calibration=str(kept))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `coach fit`."""
    parser.add_argument("task", choices=("fit",), metavar="fit", help="fit a calibration on logged episodes")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs with the same coach")
    parser.add_argument(
        "--out",
        type=_file_that_is_not_there,
        required=True,
        metavar="FILE",
        help="the calibration to write, as JSON; for --coach-calibration",
    )


def _file_that_is_not_there(text: str) -> Path:
    path = given_path(text)
    if path.exists() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: must be a new file in a folder that exists")
    return path


def run_command(runs: Sequence[Path], out: Path) -> int:
    """Fit, write, and show what changes."""
    from rich.console import Console

    calibration = fit_runs(runs)
    write_calibration(calibration, out)
    console = Console(highlight=False)
    console.print(
        f"{calibration.num_actions} scored actions of {calibration.num_episodes} episodes on "
        f"{calibration.num_tasks} tasks; figures are out of fold: by fits that had not seen the task"
    )
    console.print(correlation_table(calibration), bias_table(calibration))
    console.print(
        f"error (root mean square of score - 10 x outcome): {calibration.fit.error_before:.2f} before, "
        f"{calibration.fit.error_after:.2f} after"
    )
    before, after = calibration.fit.before["all"], calibration.fit.after["all"]
    if before is not None and (after is None or after.value <= before.value):
        console.print(
            "note: calibrated scores rank actions no better than raw ones; only their level changed"
        )
    print(f"calibration: {out}\nuse it with: --coach-calibration {out}")
    return 0


def correlation_table(calibration: Calibration) -> Table:
    """Rank correlation with the outcome before and after, by role."""
    table = _table("Rank correlation of score and outcome (95 % over tasks)", 1, ("raw", "calibrated"))
    for role, before in calibration.fit.before.items():
        table.add_row(_plain(role), _interval(before), _interval(calibration.fit.after[role]))
    return table


def bias_table(calibration: Calibration) -> Table:
    """Mean raw and calibrated score and outcome (0–10), by role and kind of task."""
    heads = ("actions", "raw", "calibrated", "outcome", "bias")
    table = _table("Bias: raw - calibrated, all 0-10", 2, heads)
    for row in calibration.fit.biases:
        figures = (row.score, row.calibrated, row.outcome)
        table.add_row(
            _plain(row.role),
            _plain(row.task_type),
            str(row.num_actions),
            *(f"{figure:.2f}" for figure in figures),
            f"{row.bias:+.2f}",
        )
    return table


def _table(title: str, num_names: int, heads: Sequence[str]) -> Table:
    """Columns of names, never cut, then of figures."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for _ in range(num_names):
        table.add_column("", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _interval(value: Correlation | None) -> str:
    if value is None:
        return "-"
    shown = f"{value.value:.2f}"
    return shown if value.low is None else f"{shown} ({value.low:.2f} to {value.high:.2f})"


def _plain(name: str) -> Text:
    from rich.text import Text

    return Text("".join(char if char.isprintable() else "?" for char in name))
