"""What one role sees when it acts, and the plain text that prompts are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mappa_envs.actions import handover_text
from mappa_envs.types import Artifact, Episode, Message, Role, Task, ToolResult, Turn

Visibility = Literal["full", "previous"]

MAX_OUTPUT_CHARS = 12_000
"""Of one run's output in the prompt of who ran it."""

_PLAIN_NAME = re.compile(r"[\w./-]+")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that a role's prompt may be built from.

    `handovers` are the turns with which upstream teammates handed over, oldest first, one a teammate, each
    with the last output of its visit (see `handovers_for`); `own` the role's own turns since it was last
    handed to. `files` maps every file of the workspace to its size in bytes (None: not known), `artifacts`
    every required file of the team to its state.
    """

    task: Task
    team: tuple[Role, ...]
    role: Role
    actions_left: int
    handovers: tuple[Turn, ...] = ()
    own: tuple[Turn, ...] = ()
    files: Mapping[str, int | None] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)

    def title(self, agent: str) -> str:
        """The title of a teammate."""
        return next(role.title for role in self.team if role.name == agent)


def handovers_for(agent: str, episode: Episode, visibility: Visibility) -> tuple[Turn, ...]:
    """The last hand-over of each teammate, oldest first; with "previous" only the newest of them.

    A hand-over's `tool` is the last of the visit that showed anything: a message that only sums up, as the
    last one often does, would leave the teammates without the result that it sums up.
    """
    latest = {turn.agent: turn for turn in episode.turns if turn.handed_over and turn.agent != agent}
    ordered = sorted(latest.values(), key=lambda turn: turn.index)
    shown = ordered[-1:] if visibility == "previous" else ordered
    return tuple(replace(turn, tool=_last_output(turn, episode)) for turn in shown)


def _last_output(handover: Turn, episode: Episode) -> ToolResult | None:
    """What the visit's code last printed or failed with; what its last code did, where nothing was shown."""
    silent = None
    for turn in reversed(episode.turns[: handover.index + 1]):
        if turn.agent != handover.agent or (turn.handed_over and turn.index != handover.index):
            break
        if turn.tool and (turn.tool.stdout.strip() or turn.tool.stderr.strip() or not turn.tool.ok):
            return turn.tool
        silent = silent or turn.tool
    return silent


def head_and_tail(text: str, max_chars: int) -> str:
    """The text with its middle left out where it is too long."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[len(text) - half :]}"


def tail(text: str, max_chars: int) -> str:
    """The end of the text."""
    return text if len(text) <= max_chars else "…" + text[len(text) - max_chars :]


def tool_text(tool: ToolResult) -> str:
    """What an agent is shown of a run: output, errors and how it ended. No times."""
    parts = [part.rstrip("\n") for part in (tool.stdout, tool.stderr) if part.strip()]
    if tool.limit:
        parts.append(f"[stopped: the {tool.limit} limit was reached]")
    elif tool.exit_code:
        parts.append(f"[failed: exit code {tool.exit_code}]")
    elif not parts:
        parts.append("[no output]")
    return "\n".join(parts)


def own_messages(view: View) -> list[Message]:
    """The role's own turns as a chat: its message, then what its code printed.

    The output comes in the role "user": not every chat template knows "tool".
    """
    messages = []
    for turn in view.own:
        messages.append(Message(role="assistant", content=handover_text(turn.action)))
        shown = "There was no code to run." if turn.tool is None else tool_text(turn.tool)
        messages.append(Message(role="user", content=f"Output:\n{head_and_tail(shown, MAX_OUTPUT_CHARS)}"))
    return messages


def prompt_text(messages: Sequence[Message]) -> str:
    """Chat messages as one string, for policies that take text. Not a chat template."""
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


def transcript(episode: Episode) -> str:
    """All actions and their outputs."""
    return "\n".join([_heading(episode), *map(_turn_text, episode.turns), *ending(episode)])


def newest_turn(episode: Episode) -> str:
    """The part of the transcript that came with the newest turn."""
    heading = [_heading(episode)] if len(episode.turns) < 2 else []
    return "\n".join([*heading, *map(_turn_text, episode.turns[-1:]), *ending(episode)])


def ending(episode: Episode) -> list[str]:
    """The line that closes the transcript; [] while the episode goes on."""
    if episode.stop_reason is None:
        return []
    outcome = "none" if episode.outcome is None else f"{episode.outcome:.3g}"
    grade = f" ({episode.grade_code})" if episode.grade_code else ""
    return [f"=== {episode.stop_reason}: outcome {outcome}{grade}, success {episode.success} ==="]


def one_line(text: str) -> str:
    """Words with names in them that cannot leave their line of a list."""
    return text if text.isprintable() else ascii(text)


def file_name(path: str) -> str:
    """A name that no reader of a list takes for more: in quotes, if there are others than letters in it."""
    return path if _PLAIN_NAME.fullmatch(path) else ascii(path)


def printable(text: str) -> str:
    """The text with what could steer a terminal or hide letters replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _heading(episode: Episode) -> str:
    start = f", from {episode.start_role} on" if episode.start_role else ""
    return f"task {episode.task_id} ({episode.task_type}, {episode.split}), seed {episode.seed}{start}"


def _turn_text(turn: Turn) -> str:
    lines = [f"--- {turn.index} {turn.agent} ---", turn.action]
    if turn.tool is not None:
        lines.append(f"[output]\n{tool_text(turn.tool)}")
    if turn.artifacts:
        lines.append(f"[files] {', '.join(f'{file.path} {file.status}' for file in turn.artifacts)}")
    if turn.pending:
        lines.append("[score still to come]")
    elif turn.final_score is None:
        lines.append(f"[unscored: {turn.unscored_reason}]")
    else:
        first = turn.score.score if turn.score else None
        revised = "" if first in (None, turn.final_score) else f", at first {first:.3g}"
        lines.append(f"[score {turn.final_score:.3g}{revised}]")
    return "\n".join(lines)


def file_trail(episode: Episode) -> str:
    """Which turn created, changed or deleted which file, one a line."""
    return "\n".join(
        f"{turn.index} {turn.agent} {file.change} {file_name(file.path)} {file.size} {file.sha256}"
        for turn in episode.turns
        if turn.tool is not None
        for file in turn.tool.files
    )
