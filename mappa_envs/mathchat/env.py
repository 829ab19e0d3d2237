r"""MathChat: a problem solver, a code executor and a verifier answer a mathematical problem.

| | |
|---|---|
| Import | `mappa_envs.make("mathchat-v0")` or `from mappa_envs.mathchat.env import env` |
| Agents | `problem_solver_0`, `code_executor_0`, `verifier_0`, in this order |
| Actions | `FreeText`: the agent's whole message; blocks tagged `python` are run in the shared sandbox |
| Observations | `Dict(prompt: FreeText, turn: Box, actions_left: Box)`; as chat: `info["messages"]` |
| State | `Dict(transcript: FreeText, files: FreeText, turn: Box)` |
| Parallel | no |

The solver and the verifier send one message each, the executor up to two, so that it can mend its program. A
role hands over when it sends no code or when its messages are used up. With `visibility="previous"` the
verifier sees the executor's last message and its output, but not the solver's.

Rewards
-------
The coach scores every action from 0 to 10; the acting agent gets score / 10. When a later action shows that
an earlier one was better or worse than it looked, the earlier agent gets the difference, listed in
`infos[agent]["corrections"]`. An action that the coach could not score gives 0, with
`infos[agent]["unscored"]`; with `coach=None` that is every action. The coach is not told the verdict on the
answer unless `ground_truth="final"`. With `scoring="deferred"` or `"hindsight"` rewards are 0, with
`infos[agent]["pending"]`, until the last step pays them all.

Outcome
-------
`episode.outcome` is 1 if the last message of the last role gives the right answer, else 0; `episode.success`
says the same. The answer is read from its last `\boxed`, else from "the answer is …" (see `grading`); what
code prints does not count. `episode.metrics`: `correct`, and `answered` (there was an answer to read), each 1
or 0. `episode.grade_code` is one of the codes of `grading.Verdict`. All agents end together: a finished
pipeline terminates, any limit truncates.

Arguments
---------
See `MathChatEnv`. Options of `reset`: `task_id`. There are no files to start in the middle from, so that
`start_role` raises.

Version history
---------------
- v0: first version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_envs.coach.base import Coach
from mappa_envs.errors import ConfigError
from mappa_envs.mathchat import prompts
from mappa_envs.mathchat.grading import Verdict, judge_apart
from mappa_envs.mathchat.tasks import MathTask, load_tasks
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.rules import choose_team, seat_counts
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.stats import mean
from mappa_envs.types import Episode, Message, Outcome, Role, Task
from mappa_envs.view import View

METRICS = ("correct", "answered")

_MESSAGES = {
    "right": "the answer is right",
    "wrong": "the answer is wrong",
    "no_answer": r"the last message gives no answer, neither in \boxed{} nor after 'the answer is'",
    "too_long": "the answer is too long to be one",
    "undecided": "the answer is not in a form that can be compared in reasonable time: write it more simply",
}


def mathchat_team(max_actions: Sequence[int] = (1, 2, 1)) -> list[Role]:
    """The three roles; `max_actions` in their order."""
    counts = seat_counts(max_actions, (1, 2, 1))
    seats = (
        ("problem_solver", "Problem Solver"),
        ("code_executor", "Code Executor"),
        ("verifier", "Verifier"),
    )
    return [
        Role(name=f"{seat}_0", title=title, duty=prompts.DUTIES[seat], max_actions=most)
        for (seat, title), most in zip(seats, counts, strict=True)
    ]


class MathChatEnv(PipelineEnv):
    """The environment of this page.

    Parameters
    ----------
    tasks : "embedded", "aime", "amc", "math500", "gsm8k", a JSON file (see `load_tasks`), or tasks that are
        loaded already.
    split : "train", "val", "test" or None for all; only for a source that is loaded here.
    level : only tasks of this level; embedded tasks have 1, 2 and 3. Only for a source that is loaded here.
    max_actions : the most messages of each role; None = (1, 2, 1). Not beside `team`, whose roles say it.
    max_tokens : the limit on a message that the agents are told of. Whoever samples has to keep it.
    prompt_style : "full", or "starter" for a very small model: short, with an answer to start from
        for each of these three roles.
    team : other roles in place of `mathchat_team(max_actions)`; the last one gives the answer.
    options : those of `PipelineEnv`: coach, sandbox, limits, packages, visibility, handover, ground_truth
        ("off" unless set), scoring, max_turns, time_limit_s, render_mode.

    Raises `ConfigError` on a senseless argument, `DataError` on tasks that cannot be used, `UnavailableError`
    where the hub is needed and cannot be had.
    """

    env_id = "mathchat-v0"
    metadata: dict[str, Any] = {  # noqa: RUF012  (PettingZoo's own attribute)
        "name": "mathchat_v0",
        "render_modes": ["human", "ansi"],
        "is_parallelizable": False,
    }

    def __init__(
        self,
        tasks: str | Path | Sequence[MathTask] = "embedded",
        split: str | None = "train",
        *,
        level: int | None = None,
        max_actions: Sequence[int] | None = None,
        max_tokens: int = 4096,
        prompt_style: prompts.PromptStyle = "full",
        team: Sequence[Role] | None = None,
        coach: Coach | str | None = "rubric",
        sandbox: Sandbox | str = "auto",
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        if prompt_style not in prompts.STYLES:
            raise ConfigError(f"prompt_style: unknown {prompt_style!r}; known: {', '.join(prompts.STYLES)}")
        if max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {max_tokens}")
        loaded: Sequence[MathTask]
        if isinstance(tasks, (str, Path)):
            loaded = load_tasks(str(tasks), split, level=level)
        elif level is not None:
            raise ConfigError("level chooses among tasks that are loaded here; these are loaded already")
        else:
            loaded = tasks
        self.prompt_style, self.max_tokens = prompt_style, max_tokens
        super().__init__(
            choose_team(team, max_actions, mathchat_team),
            loaded,
            coach=coach,
            sandbox=sandbox,
            limits=limits,
            **options,
        )

    def build_messages(self, view: View) -> Sequence[Message]:
        return prompts.build(view, self.prompt_style, self.max_tokens)

    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        if not isinstance(task, MathTask):
            raise ConfigError(f"task {task.task_id!r} is a {type(task).__name__}; mathchat-v0 takes MathTask")
        last_role = self.rules.team[-1].name
        said = [turn.action for turn in episode.turns if turn.agent == last_role]
        verdict = await judge_apart(said[-1] if said else "", task.golds)
        return _outcome(verdict)

    def figures(self, episodes: Sequence[Episode]) -> Mapping[str, float | None]:
        return {name: mean(episode.metrics.get(name) for episode in episodes) for name in METRICS}


def _outcome(verdict: Verdict) -> Outcome:
    right = float(verdict.right)
    return Outcome(
        value=right,
        success=verdict.right,
        code=verdict.code,
        message=_MESSAGES[verdict.code],
        metrics={"correct": right, "answered": float(verdict.code != "no_answer")},
    )


def env(**arguments: Any) -> MathChatEnv:
    """The environment. It checks the order of calls itself: see `PipelineEnv` on wrappers."""
    return MathChatEnv(**arguments)


raw_env = MathChatEnv
