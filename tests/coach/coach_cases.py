"""Requests for a coach about a team of two: one with a required file, one without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_envs.coach import CoachRequest, EpisodeRequest
from mappa_envs.types import (
    Artifact,
    Episode,
    FileRecord,
    Message,
    Outcome,
    Role,
    Task,
    ToolResult,
    Turn,
)

MAKER = Role(name="maker_0", title="Maker", duty="Make model.pkl.", max_actions=2, required=("model.pkl",))
TALKER = Role(name="talker_0", title="Talker", duty="Say what came of it.")
TEAM = (MAKER, TALKER)
AGENTS = [role.name for role in TEAM]


def make_request(**said: str) -> CoachRequest:
    """An action of the second agent. `said` sets what others wrote: see the names below."""

    def text(name: str) -> str:
        return said.get(name, f"the {name}")

    assert set(said) <= set(FIELDS)
    made = FileRecord(path=text("file"), change="created", size=7, sha256="0" * 64, kind=text("kind"))
    before = Turn(
        index=0,
        agent="maker_0",
        messages=(Message(role="user", content="Go."),),
        action=text("earlier_action"),
        tool=ToolResult(
            exit_code=1,
            exception=text("earlier_exception"),
            files=(replace(made, path=text("earlier_file")),),
        ),
        handed_over=True,
    )
    tool = ToolResult(
        stdout=text("stdout"),
        stderr=text("stderr"),
        exit_code=1,
        exception=text("exception"),
        files=(made,),
        duration_s=1.23456,
    )
    artifact = Artifact(
        path="model.pkl",
        status="invalid",
        kind=text("artifact_kind"),
        shape=(3, 2),
        nan_share=0.25,
        problem=text("problem"),
        written_by=0,
    )
    task = Task(
        task_id="t",
        task_type=text("task_type"),
        split="train",
        prompt=text("prompt"),
        files={text("task_file"): Path("x")},
    )
    return CoachRequest(
        task=task,
        team=TEAM,
        role=TALKER,
        episode=Episode(env_id="e", task_id="t", task_type="c", split="train", seed=0, turns=(before,)),
        turn=Turn(
            index=1,
            agent="talker_0",
            messages=(Message(role="user", content=text("message")),),
            action=text("action"),
            tool=tool,
            sandbox_s=0.5,
        ),
        before={"model.pkl": artifact},
        after={"model.pkl": artifact},
        outcome=Outcome(
            value=0.25, success=True, code="ok", message=text("remark"), metrics={"f1": 0.5, "r2": None}
        ),
    )


FIELDS = (
    *("prompt", "task_type", "task_file", "message", "action", "stdout", "stderr", "exception", "file"),
    *("kind", "artifact_kind", "problem", "earlier_action", "earlier_exception", "earlier_file", "remark"),
)
"""Everything that agents, their code or a task's author can write."""


def make_episode_request(value: float | None = 0.25, **said: str) -> EpisodeRequest:
    """The same as a finished episode of two actions."""
    request = make_request(**said)
    states: tuple[Any, ...] = ({}, request.before, request.after)
    outcome = None if value is None or request.outcome is None else replace(request.outcome, value=value)
    return EpisodeRequest(
        task=request.task,
        team=TEAM,
        episode=replace(request.episode, turns=(*request.episode.turns, request.turn)),
        states=states,
        outcome=outcome,
    )
