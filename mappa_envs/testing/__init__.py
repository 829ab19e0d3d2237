"""What others need to test with: `api_test`, the scripted expert and saboteur, and the fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mappa_envs.coach.fake import FakeCoach
from mappa_envs.sandbox.fake import FakeSandbox, FakeWorkspace
from mappa_envs.testing.expert import ExpertPolicy, expert_action, lay_artifacts
from mappa_envs.testing.faults import FAULTS, Fault
from mappa_envs.testing.saboteur import SaboteurPolicy, fault_named, faults_for, saboteur_action

if TYPE_CHECKING:
    from mappa_envs.testing.api import api_test, check_promises, without_times

__all__ = [
    "FAULTS",
    "ExpertPolicy",
    "FakeCoach",
    "FakeSandbox",
    "FakeWorkspace",
    "Fault",
    "SaboteurPolicy",
    "api_test",
    "check_promises",
    "expert_action",
    "fault_named",
    "faults_for",
    "lay_artifacts",
    "saboteur_action",
    "without_times",
]


def __getattr__(name: str) -> Any:
    # Environments import the expert; PettingZoo's test suite need not come with it.
    if name in __all__:
        from mappa_envs.testing import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
