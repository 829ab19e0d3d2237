"""The records that cross a boundary inside `mappa_envs`.

All are frozen, keyword-only dataclasses. `Episode` serialises to one JSON line and
loads back equal: `Episode.from_json(episode.to_json()) == episode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from mappa_envs.errors import ConfigError

ChatRole = Literal["system", "user", "assistant", "tool"]
Change = Literal["created", "changed", "deleted"]
ArtifactStatus = Literal["valid", "invalid", "unverifiable", "missing"]


class StopReason(StrEnum):
    """Why an episode ended. The first is natural (terminated), the others are cuts (truncated)."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    TIME = "time"
    CONTEXT = "context"
    INFRA = "infra"
    """The sandbox itself failed: the episode is run again and counts in no statistic."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat message. The environment never applies a chat template."""

    role: ChatRole
    content: str


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file that a turn touched. `path` is relative to the workspace, `size` in bytes."""

    path: str
    change: Change
    size: int
    sha256: str
    kind: str
    """"csv", "pickle", "joblib", "npy", "parquet", "json", "text", "link", "fifo", "other"."""


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What running one message's code showed. Decided by the trusted side only.

    `stdout` and `stderr` keep head and tail within the sandbox's output limit; a cut is marked
    in the text. `exception` is the class name of an uncaught exception, `limit` the limit that
    ended the run, `files` what the run created, changed or deleted.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    exception: str | None = None
    limit: Literal["time", "memory", "output", "processes", "disk"] | None = None
    duration_s: float = 0.0
    files: tuple[FileRecord, ...] = ()

    @property
    def ok(self) -> bool:
        """The code ran to its end without error and within its limits."""
        return self.exit_code == 0 and self.limit is None


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What an inspector inside the sandbox found out about one required file.

    `valid` means: usable by the next role. `problem` says why it is not, in words that help the
    agent. `shape` is rows × columns where that makes sense; `nan_share` the share of missing cells
    in [0, 1]; `written_by` the index of the turn that last wrote the file (None: there at the start).
    `facts` are measurements for the coach by name, never shown to an agent; {} where there are none.
    """

    path: str
    status: ArtifactStatus
    kind: str = ""
    shape: tuple[int, ...] | None = None
    nan_share: float | None = None
    problem: str = ""
    written_by: int | None = None
    facts: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class ScoreRevision:
    """A later action proved an earlier one better or worse than it looked.

    `score` is the earlier turn's new score. With `cap` it is the most that the turn can still have: a score
    that is lower stays, and a turn without a score stays unscored. That is for coaches that are not told the
    earlier scores.
    """

    turn: int
    score: float
    reason: str
    cap: bool = False


class InvalidScore(ConfigError):
    """A `CoachScore` that cannot be. Where a coach is asked, its name is put to this."""


@dataclass(frozen=True, kw_only=True)
class CoachScore:
    """A coach's verdict on one action.

    `score` is in [0, 10]. `blame` maps agents to shares that sum to 1, or is {} if nobody is to
    blame. `correct` is the coach's opinion where it has one, `correction` an action that would have
    worked. `revisions` change the scores of earlier turns of the same episode.

    In hindsight a coach may split the outcome: `raised` is this action's part of the outcome, `lowered` its
    part of what is missing to 1; over an episode they sum to outcome and 1 − outcome. `prompt_tokens` and
    `completion_tokens` are those of all model calls behind the verdict, repairs included.

    Raises `InvalidScore` on a score or share that is out of its range.
    """

    score: float
    reason: str
    blame: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None = None
    correction: str | None = None
    revisions: tuple[ScoreRevision, ...] = ()
    raised: float | None = None
    lowered: float | None = None
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    cached: bool = False

    def __post_init__(self) -> None:
        if not _is_within(self.score, 0, 10):
            raise InvalidScore(f"score {self.score!r}: it must be a number in [0, 10]")
        if self.blame and abs(sum(self.blame.values()) - 1) > 1e-6:
            raise InvalidScore(f"blame {dict(self.blame)}: the shares must sum to 1")
        for name, share in (("raised", self.raised), ("lowered", self.lowered)):
            if share is not None and not _is_within(share, 0, 1):
                raise InvalidScore(f"{name} {share!r}: it must be a number in [0, 1], or None")


def _is_within(value: Any, least: float, most: float) -> bool:
    try:
        return bool(least <= value <= most)
    except TypeError:  # no number at all
        return False


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One action of one agent, with all that it saw and all that came of it.

    `tool` is None when the message held no code. `artifacts` are the acting role's required files
    after the action. `score` is the coach's verdict as given then (None: unscored, see
    `unscored_reason`, or `pending`); `final_score` is the score after later corrections, which learning uses.
    `truncated` says that a limit, not a stop token, ended the sampling of `action`; None where that
    is not known, as outside training.
    """

    index: int
    agent: str
    messages: tuple[Message, ...]
    action: str
    truncated: bool | None = None
    tool: ToolResult | None = None
    artifacts: tuple[Artifact, ...] = ()
    handed_over: bool = False
    score: CoachScore | None = None
    final_score: float | None = None
    unscored_reason: str | None = None
    sandbox_s: float = 0.0
    coach_s: float = 0.0

    @property
    def pending(self) -> bool:
        """Whether the verdict is still to come. Never so in an episode whose scores were awaited."""
        return self.score is None and self.final_score is None and self.unscored_reason is None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The grader's verdict on a finished episode; the coach has no say in it.

    `value` is in [0, 1]. `metrics` holds the task's metric and further figures by name, finite (undefined =
    None), `code` the grader's reason code, `message` its words. Raises `ValueError` on other numbers.
    """

    value: float
    success: bool
    code: str
    message: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise ValueError(f"value must be in [0, 1], got {self.value}")
        for name, figure in self.metrics.items():
            if figure is not None and not math.isfinite(figure):
                raise ValueError(f"metrics: {name} must be finite, or None where undefined, got {figure}")


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One team attempt at one task.

    `outcome` and what follows it are the grader's `Outcome`, None or empty until the end. `start_role` is
    set when the episode began in the middle, on artifacts of the scripted expert.
    """

    env_id: str
    task_id: str
    task_type: str
    split: str
    seed: int
    start_role: str | None = None
    turns: tuple[Turn, ...] = ()
    outcome: float | None = None
    success: bool = False
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    grade_code: str | None = None
    grade_message: str = ""
    stop_reason: StopReason | None = None

    # For the turns and what is in them, too. JSON has no infinity: one in a file is damage.
    __pydantic_config__: ClassVar[Any] = {"allow_inf_nan": False}

    def to_json(self) -> str:
        """One line of JSON."""
        line: str = _episode_adapter().dump_json(self).decode()
        return line

    @staticmethod
    def from_json(line: str) -> Episode:
        """The inverse of `to_json`. Raises `ValueError` on a malformed line; it names the field."""
        from pydantic import ValidationError

        try:
            episode: Episode = _episode_adapter().validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
        return episode


@lru_cache(maxsize=1)
def _episode_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Episode)


@dataclass(frozen=True, kw_only=True)
class Role:
    """One seat of a team. A new team is a new list of these; the engine needs no new code.

    `name` is the PettingZoo agent name (`<word>_<number>`). `duty` is what the role is told about
    its job. `required` are the files that it must leave in the workspace. `next` names who follows
    (default: the next in the list; returning None ends the episode), so loops back are possible.
    """

    name: str
    title: str
    duty: str
    max_actions: int = 1
    required: tuple[str, ...] = ()
    next: Callable[[Episode], str | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem. `prompt` is what agents may read; `files` maps workspace names to host paths.

    Answers are never here under a name that reaches a workspace or a prompt.
    """

    task_id: str
    task_type: str
    split: str
    prompt: str
    files: Mapping[str, Path] = field(default_factory=dict)
