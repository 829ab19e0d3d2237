"""One running episode: the order in which things happen in a step, and the record that grows.

`Attempt` knows nothing of PettingZoo; `PipelineEnv` shows it as an AEC environment. A step runs the code,
looks at the files, decides who is next, grades if that was the end, and then turns to the coach (`scoring`
says how). Nothing of it is recorded before all of it is done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from mappa_envs.actions import extract_code, sanitize
from mappa_envs.coach.base import Coach, CoachRequest, EpisodeRequest
from mappa_envs.errors import ConfigError, SandboxError
from mappa_envs.rules import Rules
from mappa_envs.sandbox.base import Workspace
from mappa_envs.scoring import Correction, Scorer, Scoring, enter
from mappa_envs.types import (
    Artifact,
    Episode,
    Message,
    Outcome,
    Role,
    StopReason,
    Task,
    ToolResult,
    Turn,
)
from mappa_envs.view import View, handovers_for


class Hooks(Protocol):
    """What is particular to an environment; `PipelineEnv` documents each."""

    env_id: str

    def build_messages(self, view: View) -> Sequence[Message]: ...

    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome: ...

    async def inspect(
        self, workspace: Workspace, task: Task, known: Mapping[str, Artifact], touched: Set[str]
    ) -> Mapping[str, Artifact]: ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one action led to."""

    turn: Turn
    corrections: tuple[Correction, ...] = ()
    stop: StopReason | None = None


class Attempt:
    """One team attempt at one task, in one workspace.

    `acting` is the agent to act, `messages` what it sees; after the end they stay as they were. `closing` is
    the index of the turn that ended the episode: None while it goes on, or where it was ended from outside.
    """

    def __init__(
        self,
        *,
        hooks: Hooks,
        rules: Rules,
        coach: Coach | None,
        task: Task,
        workspace: Workspace,
        seed: int,
        start_role: str | None,
    ) -> None:
        self.hooks, self.rules = hooks, rules
        self.task, self.workspace = task, workspace
        self.episode = Episode(
            env_id=hooks.env_id,
            task_id=task.task_id,
            task_type=task.task_type,
            split=task.split,
            seed=seed,
            start_role=start_role,
        )
        self.files: dict[str, int | None] = {name: path.stat().st_size for name, path in task.files.items()}
        self.artifacts = {
            path: Artifact(path=path, status="missing", problem=f"there is no {path}")
            for path in rules.required
        }
        self.acting = start_role or rules.team[0].name
        self.closing: int | None = None
        self._scorer = Scorer(coach)
        self._scoring: Scoring = "inline" if coach is None else rules.scoring
        self._states: list[Mapping[str, Artifact]] = []
        """The required files before the first action and after each."""
        self._started_s = time.monotonic()
        self._visit_start = 0
        """Index of the first turn since the acting role was handed to."""
        self.messages: tuple[Message, ...] = ()

    async def begin(self) -> None:
        """Look at what is there already and prepare the first prompt."""
        laid = self.episode.start_role is not None and bool(self.artifacts)
        if laid or set(self.artifacts) & set(self.files):
            found = await self.hooks.inspect(self.workspace, self.task, self.artifacts, set(self.artifacts))
            self.artifacts.update(found)
            for path, artifact in found.items():
                if artifact.status != "missing":
                    self.files.setdefault(path, None)
        self._states.append(dict(self.artifacts))
        self._prepare()

    def view(self, agent: str) -> View:
        """All that the agent's prompt may be built from, if it acted now."""
        role = self.rules.role(agent)
        own = self.episode.turns[self._visit_start :] if agent == self.acting else ()
        return View(
            task=self.task,
            team=self.rules.team,
            role=role,
            actions_left=max(0, role.max_actions - len(own)),
            handovers=handovers_for(agent, self.episode, self.rules.visibility),
            own=own,
            files=self.files,
            artifacts=self.artifacts,
        )

    async def play(self, action: str) -> Step:
        """The acting agent's whole message, and all that comes of it."""
        draft = Turn(
            index=len(self.episode.turns),
            agent=self.acting,
            messages=self.messages,
            action=sanitize(action),
        )
        try:
            return await self._play(self.rules.role(self.acting), draft)
        except SandboxError as error:
            turn = replace(draft, unscored_reason=f"the sandbox failed: {sanitize(str(error))}")
            self.episode = replace(
                self.episode, turns=(*self.episode.turns, turn), stop_reason=StopReason.INFRA
            )
            await self.abandon("the sandbox failed later in the episode")
            return Step(turn=turn, stop=StopReason.INFRA)

    async def end(self, reason: StopReason) -> StopReason:
        """End from outside; what is there is graded. Returns `INFRA` if the sandbox failed at that."""
        outcome = None
        if reason is not StopReason.INFRA:
            try:
                outcome = await self.hooks.grade(self.workspace, self.task, self.episode)
            except SandboxError:
                reason = StopReason.INFRA
        self.episode = _finished(self.episode, reason, outcome)
        if reason is StopReason.INFRA:
            await self.abandon("the sandbox failed at the end of the episode")
        else:
            self._begin_look_back(outcome)
        return reason

    @property
    def has_open_scores(self) -> bool:
        """Whether a verdict is still to come, or still to be asked for."""
        return self._scorer.is_open or any(turn.pending for turn in self.episode.turns)

    async def settle(self) -> tuple[Correction, ...] | None:
        """Wait for the open verdicts and enter them, in turn order; what became known of every turn.

        For a finished episode. None if there is nothing left to do, as when two wait and the other was first.
        """
        verdicts = await self._scorer.verdicts()
        if not self._scorer.is_open:
            return None
        self._scorer.forget()
        turns = self.episode.turns
        for index, verdict in enumerate(verdicts):
            turns, _ = enter(turns, index, verdict)
        self.episode = replace(self.episode, turns=turns)
        return tuple(
            Correction(turn=turn.index, agent=turn.agent, delta=turn.final_score / 10)
            for turn in turns
            if turn.final_score is not None
        )

    async def abandon(self, reason: str) -> None:
        """Stop asking the coach: turns whose verdict is open stay unscored, for this reason."""
        turns = [
            replace(turn, unscored_reason=reason) if turn.pending else turn for turn in self.episode.turns
        ]
        self.episode = replace(self.episode, turns=tuple(turns))
        await self._scorer.cancel()

    async def _play(self, role: Role, draft: Turn) -> Step:
        turn, after = await self._run(role, draft)
        following, stop = self._decide(role, turn)
        record = replace(self.episode, turns=(*self.episode.turns, turn))
        outcome = None
        if stop is not None:
            outcome = await self.hooks.grade(self.workspace, self.task, record)
        shown = outcome if self._shows_outcome(role, stop) else None
        turns, corrections = await self._score(role, turn, after, shown)

        self.episode = replace(self.episode, turns=turns)
        self.artifacts = after
        self._states.append(after)
        for file in turn.tool.files if turn.tool else ():
            if file.change == "deleted":
                self.files.pop(file.path, None)
            else:
                self.files[file.path] = file.size
        if stop is not None:
            self.episode = _finished(self.episode, stop, outcome)
            self.closing = turn.index
            self._begin_look_back(outcome)
        elif turn.handed_over and following is not None:
            self.acting, self._visit_start = following, len(self.episode.turns)
        if stop is None:
            self._prepare()
        return Step(turn=turns[-1], corrections=corrections, stop=stop)

    async def _run(self, role: Role, draft: Turn) -> tuple[Turn, dict[str, Artifact]]:
        """Run the message's code and look at the files where it touched any that matter.

        Also at one that could not be looked at before: the machine may have been too slow then.
        """
        start = time.monotonic()
        tool, after = None, self.artifacts
        if blocks := extract_code(draft.action):
            tool = _clean(await self.workspace.run(blocks))
            touched = {file.path for file in tool.files}
            reached = _with_folders(touched)
            matter = {*self.artifacts, *self.task.files} if self.artifacts else set()
            unclear = any(artifact.status == "unverifiable" for artifact in self.artifacts.values())
            if unclear or reached & matter:
                found = await self.hooks.inspect(self.workspace, self.task, self.artifacts, touched)
                after = {
                    path: self._signed(found.get(path, before), reached, draft.index)
                    for path, before in self.artifacts.items()
                }
        turn = replace(
            draft,
            tool=tool,
            artifacts=tuple(after[path] for path in role.required),
            sandbox_s=time.monotonic() - start,
        )
        return replace(turn, handed_over=self._hands_over(role, turn)), after

    def _signed(self, found: Artifact, reached: Set[str], index: int) -> Artifact:
        """With the turn that last wrote (or deleted) the file."""
        writer = index if found.path in reached else self.artifacts[found.path].written_by
        return replace(found, written_by=writer, kind=sanitize(found.kind), problem=sanitize(found.problem))

    def _hands_over(self, role: Role, turn: Turn) -> bool:
        num_used = turn.index - self._visit_start + 1
        if turn.tool is None or num_used >= role.max_actions:
            return True
        return (
            self.rules.handover == "artifacts"
            and bool(turn.artifacts)
            and all(artifact.status == "valid" for artifact in turn.artifacts)
        )

    def _decide(self, role: Role, turn: Turn) -> tuple[str | None, StopReason | None]:
        """Who acts next, and why the episode ends if nobody does."""
        following: str | None = role.name
        if turn.handed_over:
            following = self._successor(role, turn)
            if following is None:
                return None, StopReason.DONE
        if turn.index + 1 >= self.rules.max_turns:
            return None, StopReason.MAX_TURNS
        limit_s = self.rules.time_limit_s
        if limit_s is not None and self._played_s() > limit_s:
            return None, StopReason.TIME
        return following, None

    def _played_s(self) -> float:
        """How long the team has taken. An inline coach's time is known by now, and not the team's."""
        coach_s = sum(turn.coach_s for turn in self.episode.turns)
        return time.monotonic() - self._started_s - coach_s

    def _successor(self, role: Role, turn: Turn) -> str | None:
        names = [member.name for member in self.rules.team]
        if role.next is None:
            return dict(itertools.pairwise(names)).get(role.name)
        name = role.next(replace(self.episode, turns=(*self.episode.turns, turn)))
        if name is not None and name not in names:
            raise ConfigError(f"Role.next of {role.name} named {name!r}; the team is {', '.join(names)}")
        return name

    def _shows_outcome(self, role: Role, stop: StopReason | None) -> bool:
        final = stop is StopReason.DONE or role is self.rules.team[-1]
        return stop is not None and final and self.rules.ground_truth == "final"

    async def _score(
        self, role: Role, turn: Turn, after: Mapping[str, Artifact], outcome: Outcome | None
    ) -> tuple[tuple[Turn, ...], tuple[Correction, ...]]:
        """All turns, the new one with its verdict unless that comes later; and what it changed."""
        turns = (*self.episode.turns, turn)
        if self._scoring == "hindsight":
            return turns, ()
        request = CoachRequest(
            task=self.task,
            team=self.rules.team,
            role=role,
            episode=self.episode,
            turn=turn,
            before=self.artifacts,
            after=after,
            last_action=turn.handed_over,
            outcome=outcome,
        )
        if self._scoring == "deferred":
            self._scorer.begin_judging(request)
            return turns, ()
        (verdict,) = await self._scorer.judge(request)
        return enter(turns, turn.index, verdict)

    def _begin_look_back(self, outcome: Outcome | None) -> None:
        """Hand the finished episode to the coach if that is when it is asked."""
        if self._scoring != "hindsight" or not self.episode.turns:
            return
        request = EpisodeRequest(
            task=self.task,
            team=self.rules.team,
            episode=self.episode,
            states=tuple(self._states),
            outcome=outcome if self.rules.ground_truth == "final" else None,
        )
        self._scorer.begin_looking_back(request)

    def _prepare(self) -> None:
        self.messages = tuple(self.hooks.build_messages(self.view(self.acting)))


def _with_folders(paths: Set[str]) -> set[str]:
    """The paths and the folders that they are in: no trail names a folder itself."""
    found = set(paths)
    for path in paths:
        while path := path.rpartition("/")[0]:
            found.add(path)
    return found


def _clean(tool: ToolResult) -> ToolResult:
    """Texts and file names that any record can carry."""
    return replace(
        tool,
        stdout=sanitize(tool.stdout),
        stderr=sanitize(tool.stderr),
        exception=None if tool.exception is None else sanitize(tool.exception),
        files=tuple(replace(file, path=sanitize(file.path)) for file in tool.files),
    )


def _finished(episode: Episode, stop: StopReason, outcome: Outcome | None) -> Episode:
    if outcome is None:
        return replace(episode, stop_reason=stop)
    return replace(
        episode,
        outcome=outcome.value,
        success=outcome.success,
        metrics=outcome.metrics,
        grade_code=outcome.code,
        grade_message=sanitize(outcome.message),
        stop_reason=stop,
    )
