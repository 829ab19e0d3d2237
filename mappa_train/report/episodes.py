"""A page for each sampled episode: what every agent saw, did and caused, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_envs.types import Artifact, ToolResult, Turn
from mappa_train.credit_log import ActionCredit
from mappa_train.report.finder import Shown, blamed, chip
from mappa_train.report.text import pre, short, text

MAX_FILES = 50
MAX_BYTES = 12_000_000
"""Largest size of all episodes on a page together."""


def pages(shown: Sequence[Shown]) -> tuple[list[Shown], str]:
    """The episodes that fit into `MAX_BYTES`, those of the newest steps first to fit, and their pages.

    Both are in the order of `shown`.
    """
    fitting: dict[int, str] = {}
    size = 0
    for item in sorted(shown, key=lambda item: -item.step):
        body = _body(item)
        size += len(body.encode())
        if size > MAX_BYTES:
            break
        fitting[item.index] = body
    kept = [item for item in shown if item.index in fitting]
    found = []
    for k, item in enumerate(kept):
        before = f'<a href="#e{kept[k - 1].index}">← previous</a>' if k else ""
        after = f'<a href="#e{kept[k + 1].index}">next →</a>' if k + 1 < len(kept) else ""
        walk = f'<p class="walk"><a href="#episodes">all episodes</a>{before}{after}</p>'
        found.append(f'<article class="page" id="e{item.index}">{walk}{fitting[item.index]}</article>')
    return kept, "".join(found)


def _body(item: Shown) -> str:
    episode = item.episode
    mark = '<span class="good">success</span>' if episode.success else '<span class="bad">no success</span>'
    facts = [
        f"step {item.step}",
        f"{text(episode.task_type)}, {text(episode.split)}",
        f"seed {episode.seed}",
        mark,
        "no outcome" if episode.outcome is None else f"outcome {episode.outcome:.2f}",
        f"ended by: {text(episode.stop_reason)}",
    ]
    if episode.start_role:
        facts.append(f"began at {text(episode.start_role)}, on the expert's files")
    head = "".join(f"<span>{fact}</span>" for fact in facts)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in episode.metrics.items() if value is not None)
    verdict = " · ".join(filter(None, (episode.grade_code, episode.grade_message, figures)))
    turns = "".join(_turn(item, turn) for turn in episode.turns)
    return (
        f'<h2>Episode #{item.index}: {text(episode.task_id)}</h2><p class="facts">{head}</p>{turns}'
        f'<section class="card"><p class="label">grader</p><div class="said">{text(short(verdict))}</div>'
        "</section>"
    )


def _turn(item: Shown, turn: Turn) -> str:
    prompt = "".join(f'<p class="label">{text(part.role)}</p>{pre(part.content)}' for part in turn.messages)
    return (
        f'<section class="card turn" id="e{item.index}-{turn.index}">'
        f"<header><b>{turn.index + 1}. {text(turn.agent)}</b>{_score(turn)}"
        f"{_credit(item, turn)}</header>"
        f"{_verdict(turn)}<details><summary>prompt</summary>{prompt}</details>"
        f'<p class="label">action{", handed over" if turn.handed_over else ""}</p>{pre(turn.action)}'
        f"{_tool(turn.tool)}{_artifacts(turn.artifacts)}</section>"
    )


def _score(turn: Turn) -> str:
    if turn.final_score is None:
        return "<span>unscored</span>"
    changed = turn.score is not None and turn.score.score != turn.final_score
    before = f" (first {turn.score.score:.1f})" if changed and turn.score else ""
    return f"<span>score {chip(turn.final_score)}{before}</span>"


def _credit(item: Shown, turn: Turn) -> str:
    if item.credit is None:
        return ""
    credit: ActionCredit | None = item.credit.get(turn.index)
    if credit is None:
        return '<span class="soft">left out of learning</span>'
    return (
        f"<span>return {credit.ret:.3f}</span><span>advantage {credit.advantage:+.3f}</span>"
        f'<span class="soft">KL {credit.kl:.3g} · {credit.num_tokens} tokens</span>'
    )


def _verdict(turn: Turn) -> str:
    """What the coach said: reason, blame, correction, and what it changed about earlier scores."""
    score = turn.score
    if score is None:
        reason = turn.unscored_reason or ""
        return f'<p class="label">coach</p><div class="said">{text(short(reason))}</div>' if reason else ""
    parts = [f'<p class="label">coach</p><div class="said">{text(short(score.reason))}</div>']
    if shares := blamed(turn):
        words = ", ".join(f"{agent} {part:.0%}" for agent, part in shares.items())
        parts.append(f'<div class="said bad">blame: {text(words)}</div>')
    for revision in score.revisions:
        most = "at most " if revision.cap else ""
        words = f"action {revision.turn + 1} is worth {most}{revision.score:.1f}: {revision.reason}"
        parts.append(f'<div class="said">{text(short(words))}</div>')
    if score.correction:
        parts.append(f"<details><summary>correction</summary>{pre(score.correction)}</details>")
    return "".join(parts)


def _tool(tool: ToolResult | None) -> str:
    if tool is None:
        return '<p class="label">no code was run</p>'
    state = f"exit code {tool.exit_code}"
    state += f", {tool.exception}" if tool.exception else ""
    state += f", stopped by the {tool.limit} limit" if tool.limit else ""
    shown = f'<span class="{"good" if tool.ok else "bad"}">{text(short(state))}</span>'
    parts = [f'<p class="label">code ran {tool.duration_s:.2f} s, {shown}</p>']
    parts += [pre(output) for output in (tool.stdout, tool.stderr) if output.strip()]
    files = "".join(
        f'<tr><td>{text(short(file.path))}</td><td class="whole">{text(file.change)}</td>'
        f"<td>{text(file.kind)}</td>"
        f'<td class="n">{file.size:,} bytes</td></tr>'
        for file in tool.files[:MAX_FILES]
    )
    more = len(tool.files) - MAX_FILES
    if files:
        parts.append(f'<p class="label">files</p><div class="scroll"><table>{files}</table></div>')
    if more > 0:
        parts.append(f'<p class="soft">and {more} more</p>')
    return "".join(parts)


def _artifacts(artifacts: Sequence[Artifact]) -> str:
    items = []
    for item in artifacts:
        shape = " × ".join(map(str, item.shape)) if item.shape else ""
        words = " · ".join(filter(None, (item.path, item.status, shape, item.problem)))
        state = "good" if item.status == "valid" else "bad"
        items.append(f'<div class="said {state}">{text(short(words))}</div>')
    return f'<p class="label">required files</p>{"".join(items)}' if items else ""
