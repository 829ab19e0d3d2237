"""A team of language models as a PettingZoo AEC environment.

`PipelineEnv` shows an `Attempt` (the turn engine) to the outside. A team is a list of `Role`; what is
particular to an environment is in four hooks: `build_messages`, `grade`, `inspect` and `lay_start`.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from pettingzoo import AECEnv

from mappa_envs.attempt import Attempt, Step
from mappa_envs.blocking import wait_for
from mappa_envs.coach import make_coach
from mappa_envs.coach.base import Coach
from mappa_envs.errors import ConfigError, SandboxError
from mappa_envs.rules import GroundTruth, Handover, Rules, check_choice, check_parts, check_reset, most_turns
from mappa_envs.sampling import pick
from mappa_envs.sandbox import open_sandbox
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.scoring import Correction, Scoring, check_coach
from mappa_envs.spaces import MAX_CHARS, FreeText, check_action, prompt_space, state_of, state_space
from mappa_envs.types import Artifact, Episode, Message, Outcome, Role, StopReason, Task
from mappa_envs.view import View, Visibility, ending, newest_turn, printable, prompt_text, transcript

LARGE_FILE_BYTES = 32 << 20
"""Larger files of a task are shown to every episode read-only, smaller ones copied into its workspace."""

log = logging.getLogger(__name__)


class PipelineEnv(AECEnv[str, dict[str, Any], Any], ABC):  # type: ignore[misc]  # untyped base
    """A team of language models on tasks with files and code.

    Parameters
    ----------
    team : the roles, in their order.
    tasks : what `reset` draws from.
    coach : a coach, the name of one for `make_coach`, or None: every action stays unscored, with reward 0.
    sandbox : a sandbox that others may share (it is not closed here), or a kind for `open_sandbox`: that
        one is opened at the first reset and closed by `close`.
    max_turns : bound of an episode, which is truncated there; None = all actions that the team has, four
        times as many if a role names who follows.
    time_limit_s : bound of an episode's time, the coach's left out, looked at after each action; None = none.
    visibility : "full" = a role sees what every upstream teammate handed over, "previous" = the last one.
    handover : "artifacts" = a role is done when all its required files are valid, or as with "message":
        when it sends no code or has used up its actions.
    ground_truth : "final" = the coach gets the metric report with the action that ends an episode.
    scoring : when the coach is asked and its scores are there. "inline" = after each `step`; "deferred" = the
        coach works while the episode goes on, and its last `step` waits; "hindsight" = once, at the end. With
        the last two, `rewards` are 0 and `infos[agent]["pending"]` is True until the last step pays all.
    limits, packages : for a sandbox that is opened here.
    render_mode : "human" prints each turn, "ansi" returns the transcript.

    Raises `ConfigError` on a senseless combination. Not offered: parallel actions, an agent that ends early.
    The class checks the order of calls itself and needs no PettingZoo wrapper around it, which its async
    twins `areset`, `astep` and `aclose` would go past.
    """

    env_id = "pipeline-v0"
    metadata: dict[str, Any] = {  # noqa: RUF012  (PettingZoo's own attribute)
        "name": "pipeline_v0",
        "render_modes": ["human", "ansi"],
        "is_parallelizable": False,
    }

    def __init__(
        self,
        team: Sequence[Role],
        tasks: Sequence[Task],
        *,
        coach: Coach | str | None = "rubric",
        sandbox: Sandbox | str = "auto",
        max_turns: int | None = None,
        time_limit_s: float | None = None,
        visibility: Visibility = "full",
        handover: Handover = "artifacts",
        ground_truth: GroundTruth = "off",
        scoring: Scoring = "inline",
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        super().__init__()
        team, self.tasks = check_parts(team, tasks, sandbox, limits, packages)
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.rules = Rules(
            team=team,
            max_turns=most_turns(team) if max_turns is None else max_turns,
            time_limit_s=time_limit_s,
            visibility=visibility,
            handover=handover,
            ground_truth=ground_truth,
            scoring=scoring,
        )
        self.coach: Coach | None = make_coach(coach) if isinstance(coach, str) else coach
        check_coach(self.coach, scoring)
        self.limits, self.packages, self.render_mode = limits, tuple(packages), render_mode
        self._sandbox_kind = sandbox if isinstance(sandbox, str) else None
        self._sandbox = None if isinstance(sandbox, str) else sandbox
        self._workspace: Workspace | None = None
        self._attempt: Attempt | None = None
        self._rng = np.random.default_rng()
        self.agents: list[str] = []
        self.possible_agents = [role.name for role in team]
        self.action_spaces = {agent: FreeText() for agent in self.possible_agents}
        self.observation_spaces = {agent: prompt_space() for agent in self.possible_agents}
        self.state_space = state_space()

    # The hooks of an environment.

    @abstractmethod
    def build_messages(self, view: View) -> Sequence[Message]:
        """The prompt of a role. Pure: the same view gives the same messages."""

    @abstractmethod
    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        """The verdict on the finished episode. Raises `SandboxError` when the sandbox failed."""

    async def inspect(
        self, workspace: Workspace, task: Task, known: Mapping[str, Artifact], touched: Set[str]
    ) -> Mapping[str, Artifact]:
        """The state of the team's required files, at least of those that may have another than before.

        `known` is what was found of all of them before, `touched` has every file of the workspace that may
        have changed since. Needed where a role requires files.
        """
        raise NotImplementedError(f"{self.env_id} has required files but no inspect()")

    async def lay_start(self, workspace: Workspace, task: Task, upstream: Sequence[Role]) -> None:
        """Put the artifacts of the upstream roles into the workspace, for `start_role`."""
        raise ConfigError(f"start_role: {self.env_id} cannot start in the middle")

    def figures(self, episodes: Sequence[Episode]) -> Mapping[str, float | None]:
        """What an evaluation reports of episodes besides success and outcome: always the same keys."""
        return {}

    # PettingZoo's interface; the async twins do the work.

    @property
    def episode(self) -> Episode:
        """The record of the current episode so far; complete when all agents are done."""
        return self._running.episode

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode.

        `options`: "task_id" picks the task (else the seed does); "start_role" begins with that role, on
        artifacts of the scripted expert; other keys are ignored. Raises `ConfigError` on an unknown task or
        role and on a `seed` that is no whole number from 0, `SandboxError` when no workspace could be opened.
        """
        wait_for(self.areset(seed, options))

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """PettingZoo's `last`. Raises `RuntimeError` before `reset`."""
        _ = self._running
        return super().last(observe)  # type: ignore[no-any-return]  # untyped base

    def step(self, action: Any) -> None:
        """The whole message of the agent to act; None for an agent that is done."""
        if self._is_over():
            self._was_dead_step(action)
        else:
            wait_for(self.astep(action))

    def close(self) -> None:
        """End the workspace, and the sandbox if it was opened here. `reset` works again afterwards."""
        busy = self._attempt is not None and self._attempt.has_open_scores
        if busy or self._workspace is not None or (self._sandbox_kind and self._sandbox):
            wait_for(self.aclose())

    def cut(self, reason: StopReason) -> None:
        """In place of `step`: end the episode, for example because a prompt no longer fits (`CONTEXT`)."""
        wait_for(self.acut(reason))

    def sibling(self, coach: Coach | None) -> Self:
        """A shallow copy to play at the same time, in the same sandbox, which stays this one's to close."""
        check_coach(coach, self.rules.scoring)
        made = copy.copy(self)
        made.coach, made._sandbox, made._sandbox_kind = coach, self._open_sandbox(), None
        made._workspace, made._attempt, made._rng = None, None, np.random.default_rng()
        return made

    async def areset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """`reset` in the caller's event loop."""
        check_reset(seed, options)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        number = int(self._rng.integers(2**31)) if seed is None else int(seed)
        task = pick(self.tasks, (options or {}).get("task_id"), number)
        start = self.rules.start((options or {}).get("start_role"))
        await self._end_attempt()
        # Should the rest fail, the episode before is over even so.
        self._attempt, self.agents = None, []
        self._workspace = workspace = await self._open_sandbox().open(task.files)
        try:
            if start is not None:
                await self.lay_start(workspace, task, self.rules.upstream(start))
            attempt = Attempt(
                hooks=self,
                rules=self.rules,
                coach=self.coach,
                task=task,
                workspace=workspace,
                seed=number,
                start_role=start,
            )
            await attempt.begin()
        except BaseException:
            await self._close_workspace()
            raise
        self._attempt = attempt
        self._start_agents(attempt.acting)

    async def astep(self, action: Any, *, wait_for_scores: bool = True) -> None:
        """`step` in the caller's event loop.

        Without `wait_for_scores` the step that ends an episode leaves deferred scores to `scores`, so that
        others can act while the coach thinks.
        """
        if self._is_over():
            self._was_dead_step(action)
            return
        self._show(await self._running.play(check_action(self.agent_selection, action)))
        if self.episode.stop_reason is not None:
            await self._close_workspace()
            if wait_for_scores:
                await self.scores()
        if self.render_mode == "human":
            self.render()

    async def acut(self, reason: StopReason, *, wait_for_scores: bool = True) -> None:
        """`cut` in the caller's event loop: everything is truncated; what is there is graded."""
        if self._is_over():
            raise RuntimeError(f"{self.env_id}: the episode is over already")
        # As `step` does: what `last` told of the acting agent's reward is not told again.
        self._cumulative_rewards[self.agent_selection] = 0.0
        self._clear_rewards()
        self._end_agents(await self._running.end(reason))
        self._update_infos(())
        await self._close_workspace()
        if wait_for_scores:
            await self.scores()
        if self.render_mode == "human":
            print(*ending(self.episode))

    async def scores(self) -> tuple[float | None, ...]:
        """The final score of each turn of the finished episode, None = unscored.

        Waits for the coach and pays its scores out to the agents that are still there; after that it only
        tells them again. Raises `RuntimeError` while the episode goes on, and whatever is wrong with the
        coach itself; what `CoachError` says leaves a turn unscored.
        """
        if self._running.episode.stop_reason is None:
            raise RuntimeError(f"{self.env_id}: scores() is for a finished episode")
        if (paid := await self._running.settle()) is not None:
            self._pay(paid)
        return tuple(turn.final_score for turn in self.episode.turns)

    async def aclose(self) -> None:
        """`close` in the caller's event loop."""
        await self._end_attempt()
        if self._sandbox_kind is not None and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()

    def observe(self, agent: str) -> dict[str, Any]:
        """What the agent would see if it acted now."""
        view = self._running.view(agent)
        return {
            "prompt": prompt_text(self.build_messages(view))[:MAX_CHARS],
            "turn": np.array(len(self.episode.turns), dtype=np.int64),
            "actions_left": np.array(view.actions_left, dtype=np.int64),
        }

    def state(self) -> Any:
        """The whole transcript and file trail; see `state_space`."""
        return state_of(self.episode)

    def render(self) -> str | None:
        """The transcript ("ansi"), or print the newest turn ("human")."""
        if self.render_mode == "ansi":
            return printable(transcript(self.episode))
        if self.render_mode == "human":
            print(printable(newest_turn(self.episode)))
        else:
            gymnasium.logger.warn(f"{self.env_id}: render() without a render_mode shows nothing")
        return None

    # How an attempt shows in PettingZoo's dictionaries.

    @property
    def _running(self) -> Attempt:
        if self._attempt is None:
            raise RuntimeError(f"{self.env_id}: call reset() first")
        return self._attempt

    def _is_over(self) -> bool:
        over = self._running.episode.stop_reason is not None
        if over and not self.agents:
            raise RuntimeError(f"{self.env_id}: the episode is over and every agent is gone: call reset()")
        return over

    def _start_agents(self, first: str) -> None:
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection: str | None = None
        self.agent_selection = first
        self._update_infos(())

    def _show(self, step: Step) -> None:
        self._cumulative_rewards[step.turn.agent] = 0.0
        self._clear_rewards()
        for correction in step.corrections:
            self.rewards[correction.agent] += correction.delta
        self.rewards[step.turn.agent] += (step.turn.final_score or 0.0) / 10
        self._accumulate_rewards()
        if step.stop is not None:
            self._end_agents(step.stop)
        else:
            self.agent_selection = self._running.acting
        self._update_infos(step.corrections)

    def _pay(self, corrections: Sequence[Correction]) -> None:
        """Scores that came after the last step belong to its rewards."""
        for correction in corrections:
            if correction.agent in self.agents:
                self.rewards[correction.agent] += correction.delta
                self._cumulative_rewards[correction.agent] += correction.delta
        # The last action's score is no correction, as in the step of any other action.
        self._update_infos([c for c in corrections if c.turn != self._running.closing])

    def _end_agents(self, reason: StopReason) -> None:
        natural = reason is StopReason.DONE
        self.terminations = dict.fromkeys(self.agents, natural)
        self.truncations = dict.fromkeys(self.agents, not natural)
        self.agent_selection = self.agents[0]

    def _update_infos(self, corrections: Sequence[Correction]) -> None:
        for agent in self.agents:
            turns = [turn for turn in self.episode.turns if turn.agent == agent]
            self.infos[agent] = {
                "unscored": bool(turns) and turns[-1].final_score is None and not turns[-1].pending,
                "pending": any(turn.pending for turn in turns),
                "corrections": [(c.turn, c.delta) for c in corrections if c.agent == agent],
            }
        if self.episode.stop_reason is None:
            messages = [{"role": m.role, "content": m.content} for m in self._running.messages]
            self.infos[self.agent_selection]["messages"] = messages

    # Sandbox and workspace.

    def _open_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            kind = self._sandbox_kind or "auto"
            self._sandbox = open_sandbox(kind, self.limits, self.packages, shared=large_files(self.tasks))
        return self._sandbox

    async def _end_attempt(self) -> None:
        if self._attempt is not None and self._attempt.has_open_scores:
            await self._attempt.abandon("the episode was left before the coach had answered")
        await self._close_workspace()

    async def _close_workspace(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is None:
            return
        try:
            await workspace.close()
        except SandboxError as error:
            log.warning("closing a workspace: %s", error)


def large_files(tasks: Iterable[Task]) -> list[Path]:
    """The tasks' files that a sandbox should show instead of copying them for every episode."""
    files = dict.fromkeys(path for task in tasks for path in task.files.values())
    return [path for path in files if path.is_file() and path.stat().st_size > LARGE_FILE_BYTES]
