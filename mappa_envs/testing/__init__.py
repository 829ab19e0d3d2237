"""What others need to test with: `api_test`, the scripted expert, and the fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mappa_envs.coach.fake import FakeCoach
from mappa_envs.sandbox.fake import FakeSandbox, FakeWorkspace
from mappa_envs.testing.expert import ExpertPolicy, expert_action, lay_artifacts

if TYPE_CHECKING:
    from mappa_envs.testing.api import api_test, check_promises, without_times

__all__ = [
    "ExpertPolicy",
    "FakeCoach",
    "FakeSandbox",
    "FakeWorkspace",
    "api_test",
    "check_promises",
    "expert_action",
    "lay_artifacts",
    "without_times",
]


def __getattr__(name: str) -> Any:
    # Environments import the expert; PettingZoo's test suite need not come with it.
    if name in __all__:
        from mappa_envs.testing import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
