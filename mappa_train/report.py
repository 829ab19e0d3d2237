"""`report.html`: a run on one page, without scripts, rebuilt after each step.

Everything that an agent wrote is escaped and stripped of control characters: the page is safe to open
whatever agents do.
"""

from __future__ import annotations

import functools
import json
import os
import re
import string
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mappa_envs.errors import DataError
from mappa_envs.evaluation import artifact_rate
from mappa_envs.types import Artifact, Episode, ToolResult, Turn
from mappa_train.charts import Points, chart, text
from mappa_train.checkpoint import RunFolder
from mappa_train.files import first_line, write_atomically
from mappa_train.trust import trust_section

EPISODES_PER_STEP = 20
MAX_CHARS = 6000
"""Longest text shown of one message or output; head and tail are kept."""

Line = Mapping[str, Any]
_LINE = re.compile(rb'\{"step": (\d+), "index": (\d+), "episode": ')


def write_report(run: Path) -> Path:
    """Build the page of a run folder from its files, and return its path."""
    folder = RunFolder.open(run)
    lines = folder.read_metrics()
    settings = tomllib.loads(folder.config_path.read_text())
    resolved = settings.pop("resolved", {})
    shown = sorted({int(line["step"]) for line in lines[:1] + lines[-1:]})
    chosen = {step: read_numbered_episodes(run, step, EPISODES_PER_STEP) for step in shown}
    page = _template().substitute(
        title=text(f"{run.resolve().name}"),
        summary=_summary(settings, resolved, lines),
        comparison=_comparison(run, lines),
        trust=trust_section(lines, lambda step: read_episodes(run, step)),
        evaluation=_evaluation(run),
        charts="".join(_charts(lines)) or '<p class="soft">No step is finished yet.</p>',
        episodes="".join(_section(step, episodes) for step, episodes in chosen.items()),
        config="".join(
            f"<div>{text(key)} = {text(value)}</div>" for key, value in (settings | resolved).items()
        ),
    )
    write_atomically(folder.report_path, page.encode("utf-8", "replace"))
    return folder.report_path


def show(run: Path, say: Callable[[str], None]) -> None:
    """Rebuild the page and open it in a browser, where there is one."""
    path = write_report(run).resolve()
    on_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    say(str(path) if on_screen and webbrowser.open(path.as_uri()) else f"open in a browser: {path.as_uri()}")


@functools.cache
def _template() -> string.Template:
    return string.Template(Path(__file__).with_name("report.html").read_text())


def read_episodes(run: Path, step: int) -> list[Episode]:
    """All episodes of a step, in their order in the file; [] if there are none."""
    return [episode for _, episode in read_numbered_episodes(run, step)]


def read_numbered_episodes(run: Path, step: int, limit: int | None = None) -> list[tuple[int, Episode]]:
    """The first `limit` episodes of a step with their index in the run. Reads that part of the file only."""
    path = RunFolder(run).episodes_path
    found: list[tuple[int, Episode]] = []
    if not path.is_file():
        return found
    with path.open("rb") as file:
        for line in _lines_from(file, path.stat().st_size, step):
            head = _LINE.match(line)
            if not head or not line.endswith(b"}\n") or int(head[1]) != step or len(found) == limit:
                break
            found.append((int(head[2]), Episode.from_json(line[head.end() : -2].decode())))
    return found


def all_episodes(run: Path) -> Iterator[tuple[int, int, Episode]]:
    """Every episode of a run with its step and index, in the order of the file; one half written is left out.

    Raises `DataError` if there is none, or at a line that is no episode.
    """
    path = RunFolder(run).episodes_path
    if not path.is_file() or not path.stat().st_size:
        raise DataError(f"{run}: it has no episodes yet; train for a step first")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            head = _LINE.match(line)
            try:
                if head is None:
                    raise ValueError("it does not begin with step and index")
                episode = Episode.from_json(line[head.end() : -2].decode())
            except ValueError as error:
                raise DataError(f"{path}, line {number}: no episode: {first_line(error)}") from None
            yield int(head[1]), int(head[2]), episode


def _lines_from(file: IO[bytes], size: int, step: int) -> Iterator[bytes]:
    """The lines from the first of `step` on, found by bisection: they are in the order of steps."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        _to_line(file, middle)
        head = _LINE.match(file.readline())
        if head is None or int(head[1]) >= step:
            high = middle
        else:
            low = middle + 1
    _to_line(file, low)
    yield from file


def _to_line(file: IO[bytes], offset: int) -> None:
    """Seek to the first line that begins at `offset` or behind it."""
    file.seek(max(offset - 1, 0))
    if offset:
        file.readline()


def _summary(settings: Line, resolved: Line, lines: Sequence[Line]) -> str:
    done = int(lines[-1]["step"]) if lines else 0
    parts = [
        f"{settings.get('env')}, tasks {settings.get('tasks')} ({settings.get('split')})",
        str(resolved.get("model_description") or settings.get("model")),
        f"coach {settings.get('coach')}",
        f"step {done} of {settings.get('steps')}",
        f"seed {settings.get('seed')}",
    ]
    return text(" · ".join(parts))


def _names(lines: Sequence[Line], prefix: str) -> list[str]:
    names = [key.removeprefix(prefix) for key in lines[0] if key.startswith(prefix)] if lines else []
    return [name for name in names if name != "mean"]


def _comparison(run: Path, lines: Sequence[Line]) -> str:
    if not lines:
        return '<p class="soft">No step is finished yet.</p>'
    first, last = lines[0], lines[-1]
    rows = [(f"score {agent}", f"score/{agent}") for agent in _names(lines, "score/")]
    rows += [
        ("score of all", "score/mean"),
        ("outcome", "outcome/mean"),
        ("actions without a score", "unscored"),
    ]
    figures = [(title, _figure(first.get(key)), _figure(last.get(key))) for title, key in rows]
    for title, key in (("success rate", "outcome/success"), ("code that failed", "tool/error_rate")):
        figures.append((title, _share(first.get(key)), _share(last.get(key))))
    rates = [artifact_rate(read_episodes(run, int(line["step"]))) for line in (first, last)]
    figures.append(("valid artifacts", _share(rates[0]), _share(rates[1])))
    body = "".join(
        f"<tr><td>{text(title)}</td>" + "".join(f'<td class="n">{value}</td>' for value in pair) + "</tr>"
        for title, *pair in figures
    )
    head = f'<th></th><th class="n">step {first["step"]}</th><th class="n">step {last["step"]}</th>'
    return f"<table><tr>{head}</tr>{body}</table>"


def _evaluation(run: Path) -> str:
    """The newest evaluation of a checkpoint, where there is one."""
    paths = sorted(run.glob("eval-*-step-*.json"), key=lambda path: path.stat().st_mtime)
    if not paths:
        return ""
    try:
        newest = json.loads(paths[-1].read_text("utf-8"))
        rows = {"all": dict(newest["overall"]), **newest["task_types"]}
        title = f"Evaluation of step {newest['step']} on {newest['split']} tasks"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f'<h2>Evaluation</h2><p class="soft">{text(paths[-1])} cannot be read: {text(error)}</p>'
    cells = {name: _evaluation_cells(row) for name, row in rows.items()}
    body = "".join(
        f"<tr><td>{text(title)}</td>"
        + "".join(f'<td class="n">{column[title]}</td>' for column in cells.values())
        + "</tr>"
        for title in cells["all"]
    )
    head = "<th></th>" + "".join(f'<th class="n">{text(name)}</th>' for name in rows)
    return f'<h2>{text(title)}</h2><div class="card scroll"><table><tr>{head}</tr>{body}</table></div>'


def _evaluation_cells(row: Line) -> dict[str, str]:
    """Title → what is shown, counts and rates with their 95 % intervals first."""
    outcome, success = (row.get(f"{name}_low") for name in ("outcome", "success"))
    cells = {
        "episodes": _figure(row.get("num_episodes")),
        "tasks": _figure(row.get("num_tasks")),
        "success rate": _share(row.get("success_rate"))
        + ("" if success is None else f" ({_share(success)} to {_share(row.get('success_high'))})"),
        "outcome": _figure(row.get("outcome"))
        + ("" if outcome is None else f" ({_figure(outcome)} to {_figure(row.get('outcome_high'))})"),
        "valid artifacts": _share(row.get("valid_artifacts")),
    }
    known = ("num_", "success_", "outcome", "valid_artifacts", "task_type")
    others = {name: value for name, value in row.items() if not name.startswith(known)}
    return cells | {name.replace("_", " "): _figure(value) for name, value in others.items()}


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else text(value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _charts(lines: Sequence[Line]) -> Iterator[str]:
    def points(key: str) -> Points:
        return [(line["step"], line.get(key)) for line in lines]

    def each(prefix: str, names: Sequence[str]) -> dict[str, Points]:
        return {name: points(prefix + name) for name in names}

    agents = _names(lines, "score/")
    yield chart("Mean score", {"all agents": points("score/mean")}, low=0, high=10)
    yield chart("Mean score of each agent", each("score/", agents), low=0, high=10)
    rates = {"success": "outcome/success", "outcome": "outcome/mean", "failed code": "tool/error_rate"}
    yield chart("Shares", {name: points(key) for name, key in rates.items()}, low=0, high=1)
    yield chart("Mean score by kind of task", each("score_by/", _names(lines, "score_by/")), low=0, high=10)
    yield chart("KL to the reference, nats a token", each("kl/", agents))
    yield chart("Entropy, nats a token", each("entropy/", agents), low=0)
    yield chart("Gradient norm", each("grad_norm/", agents), low=0)
    yield chart("Learning rate", each("lr/", agents), low=0)
    yield chart("Length of actions, tokens", each("length/", agents), low=0)
    yield chart("Tokens a second while sampling", {"tokens/s": points("throughput/tokens_per_s")}, low=0)
    yield chart(
        "Coach: rank correlation with the outcome",
        {"all actions": points("coach/outcome_corr")},
        low=-1,
        high=1,
    )
    yield chart("Coach: drift of scores from the first steps, in deviations", each("coach/drift/", agents))
    yield chart("Seconds of a step", each("time/", ["rollout", "learn", "sync"]), low=0)


def _section(step: int, episodes: Sequence[tuple[int, Episode]]) -> str:
    if not episodes:
        return ""
    shown = "".join(_episode(index, episode) for index, episode in episodes)
    return f"<h3>Step {step}: the first {len(episodes)} episodes</h3>{shown}"


def _episode(index: int, episode: Episode) -> str:
    mark = '<span class="good">success</span>' if episode.success else '<span class="bad">no success</span>'
    scores = [turn.final_score for turn in episode.turns if turn.final_score is not None]
    start = f" · began at {text(episode.start_role)}" if episode.start_role else ""
    outcome = "no outcome" if episode.outcome is None else f"outcome {episode.outcome:.2f}"
    head = (
        f"<b>#{index}</b><span>{text(episode.task_id)} ({text(episode.task_type)})</span>"
        f"{mark}<span>{outcome}</span>"
        f"<span>scores {', '.join(f'{score:.1f}' for score in scores) or '–'}</span>"
        f'<span class="soft">{text(episode.stop_reason)}{start}</span>'
    )
    figures = ", ".join(f"{name} {value:.4g}" for name, value in episode.metrics.items() if value is not None)
    verdict = " · ".join(filter(None, (episode.grade_code or "", episode.grade_message, figures)))
    turns = "".join(_turn(turn) for turn in episode.turns)
    return (
        f'<details class="episode"><summary>{head}</summary>{turns}'
        f'<p class="label">grader</p><div>{text(_short(verdict))}</div></details>'
    )


def _turn(turn: Turn) -> str:
    score = "unscored" if turn.final_score is None else f"score {turn.final_score:.1f}"
    if turn.score is not None and turn.final_score is not None and turn.score.score != turn.final_score:
        score += f" (first {turn.score.score:.1f})"
    reason = turn.score.reason if turn.score else turn.unscored_reason or ""
    blame = ", ".join(
        f"{agent} {share:.0%}" for agent, share in (turn.score.blame if turn.score else {}).items()
    )
    prompt = "".join(f'<p class="label">{text(item.role)}</p>{_pre(item.content)}' for item in turn.messages)
    return (
        f'<section class="turn"><header><span>{text(turn.agent)}</span><span>{score}</span></header>'
        f"<details><summary>prompt</summary>{prompt}</details>"
        f'<p class="label">action</p>{_pre(turn.action)}{_tool(turn.tool)}{_artifacts(turn.artifacts)}'
        f'<p class="label">coach</p><div>{text(_short(reason))}</div>'
        + (f'<div class="soft">blame: {text(blame)}</div>' if blame else "")
        + "</section>"
    )


def _tool(tool: ToolResult | None) -> str:
    if tool is None:
        return '<p class="label">no code was run</p>'
    state = f"exit code {tool.exit_code}"
    state += f", {tool.exception}" if tool.exception else ""
    state += f", stopped by the {tool.limit} limit" if tool.limit else ""
    shown = f'<span class="{"good" if tool.ok else "bad"}">{text(state)}</span>'
    parts = [f'<p class="label">code ran {tool.duration_s:.2f} s, {shown}</p>']
    parts += [_pre(output) for output in (tool.stdout, tool.stderr) if output.strip()]
    files = ", ".join(
        f"{file.path} {file.change} ({file.kind}, {file.size} bytes)" for file in tool.files[:50]
    )
    if files:
        parts.append(f'<div class="soft">files: {text(_short(files))}</div>')
    return "".join(parts)


def _artifacts(artifacts: Sequence[Artifact]) -> str:
    items = []
    for item in artifacts:
        shape = " × ".join(map(str, item.shape)) if item.shape else ""
        words = " · ".join(filter(None, (item.path, item.status, shape, item.problem)))
        items.append(
            f'<div class="{"good" if item.status == "valid" else "bad"}">{text(_short(words))}</div>'
        )
    return f'<p class="label">required files</p>{"".join(items)}' if items else ""


def _pre(content: str) -> str:
    return f"<pre>{text(_short(content))}</pre>"


def _short(content: str) -> str:
    if len(content) <= MAX_CHARS:
        return content
    half = MAX_CHARS // 2
    return f"{content[:half]}\n… {len(content) - 2 * half} characters left out …\n{content[-half:]}"
