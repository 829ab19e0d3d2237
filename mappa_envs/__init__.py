"""Multi-agent environments in which every action can be coached.

    >>> import mappa_envs
    >>> env = mappa_envs.make("dsbench-v0")

Importing this loads no torch, transformers, vllm, ray, litellm or docker.
"""

from mappa_envs.adapters import register_gymnasium
from mappa_envs.errors import (
    CoachError,
    ConfigError,
    DataError,
    MappaError,
    SandboxError,
    SandboxUnavailable,
    UnavailableError,
)
from mappa_envs.evaluation import EvalResult, EvalRow, EvalTable, aevaluate, evaluate
from mappa_envs.registry import list_envs, make
from mappa_envs.types import (
    Artifact,
    CoachScore,
    Episode,
    FileRecord,
    Message,
    Outcome,
    Role,
    ScoreRevision,
    StopReason,
    Task,
    ToolResult,
    Turn,
)

__all__ = [
    "Artifact",
    "CoachError",
    "CoachScore",
    "ConfigError",
    "DataError",
    "Episode",
    "EvalResult",
    "EvalRow",
    "EvalTable",
    "FileRecord",
    "MappaError",
    "Message",
    "Outcome",
    "Role",
    "SandboxError",
    "SandboxUnavailable",
    "ScoreRevision",
    "StopReason",
    "Task",
    "ToolResult",
    "Turn",
    "UnavailableError",
    "aevaluate",
    "evaluate",
    "list_envs",
    "make",
]

register_gymnasium()
