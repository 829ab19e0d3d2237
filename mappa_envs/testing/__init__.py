"""What others need to test with: `api_test`, the scripted experts, planted faults, and the fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mappa_envs.coach.fake import FakeCoach
from mappa_envs.mathchat.expert import MathExpert
from mappa_envs.sandbox.fake import FakeSandbox, FakeWorkspace
from mappa_envs.testing.expert import ExpertPolicy, expert_action, lay_artifacts
from mappa_envs.testing.faults import FAULTS, Fault
from mappa_envs.testing.math_faults import MATH_FAULTS, MathFault
from mappa_envs.testing.registry import (
    ExpertTeam,
    FaultyTeam,
    PlantedFault,
    expert_message,
    planted_faults,
    register_expert,
    register_fault,
)
from mappa_envs.testing.saboteur import SaboteurPolicy, fault_named, faults_for, saboteur_action

if TYPE_CHECKING:
    from mappa_envs.testing.api import api_test, check_promises, without_times

__all__ = [
    "FAULTS",
    "MATH_FAULTS",
    "ExpertPolicy",
    "ExpertTeam",
    "FakeCoach",
    "FakeSandbox",
    "FakeWorkspace",
    "Fault",
    "FaultyTeam",
    "MathExpert",
    "MathFault",
    "PlantedFault",
    "SaboteurPolicy",
    "api_test",
    "check_promises",
    "expert_action",
    "expert_message",
    "fault_named",
    "faults_for",
    "lay_artifacts",
    "planted_faults",
    "register_expert",
    "register_fault",
    "saboteur_action",
    "without_times",
]


def __getattr__(name: str) -> Any:
    # Environments import the expert; PettingZoo's test suite need not come with it.
    if name in __all__:
        from mappa_envs.testing import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
