"""DSBench: a data engineer, a modeler and an analyst work on a table task.

| | |
|---|---|
| Import | `mappa_envs.make("dsbench-v0")` or `from mappa_envs.dsbench.env import env` |
| Agents | `data_engineer_0`, `modeler_0`, `analyst_0`, in this order |
| Actions | `FreeText`: the agent's whole message; blocks tagged `python` are run in the shared folder |
| Observations | `Dict(prompt: FreeText, turn: Box, actions_left: Box)`; as chat: `info["messages"]` |
| State | `Dict(transcript: FreeText, files: FreeText, turn: Box)` |
| Parallel | no |

Each role may send up to four messages. It hands over when all the files that it must leave are valid, when
it sends no code, or when its messages are used up:

- `data_engineer_0`: `X_train.pkl`, `y_train.pkl`, `X_test.pkl`
- `modeler_0`: `model.pkl`
- `analyst_0`: `submission.csv`

Rewards
-------
The coach scores every action from 0 to 10; the acting agent gets score / 10. When a later action shows that
an earlier one was better or worse than it looked, the earlier agent gets the difference, listed in
`infos[agent]["corrections"]`. An action that the coach could not score gives 0, with
`infos[agent]["unscored"]`; with `coach=None` that is every action. With `scoring="deferred"` or `"hindsight"`
rewards are 0, with `infos[agent]["pending"]`, until the last step pays them all.

Outcome
-------
`episode.outcome` in [0, 1]: 0 for an invalid submission, else how far its score is from a prediction without
features (0) to a good simple model (1). `episode.success`: the submission is valid. `episode.metrics`: the
task's metric, `relative`, and the figures of `metrics.REPORT_KEYS`, each None where it is not defined.
All agents end together: a finished pipeline terminates, any limit truncates.

Arguments
---------
See `DSBenchEnv`. Options of `reset`: `task_id`, and `start_role` to begin with a later role on files that a
scripted expert made.

Version history
---------------
- v0: first version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

from mappa_envs.coach.base import Coach
from mappa_envs.dsbench import artifacts, prompts, scores
from mappa_envs.dsbench.csv_files import read_columns, read_header
from mappa_envs.dsbench.grader_process import judge_apart
from mappa_envs.dsbench.grading import Grade, TaskSpec, size_limit
from mappa_envs.dsbench.metrics import REPORT_KEYS
from mappa_envs.dsbench.tasks import DSBenchTask, load_tasks, too_good
from mappa_envs.errors import ConfigError
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.rules import choose_team, seat_counts
from mappa_envs.sandbox.base import Limits, Sandbox, Workspace
from mappa_envs.types import Artifact, Episode, Message, Outcome, Role, Task
from mappa_envs.view import View

SUBMISSION = "submission.csv"


def dsbench_team(max_actions: Sequence[int] = (4, 4, 4)) -> list[Role]:
    """The three roles; `max_actions` in their order."""
    counts = seat_counts(max_actions, (4, 4, 4))
    seats = (
        ("data_engineer", "Data Engineer", ("X_train.pkl", "y_train.pkl", "X_test.pkl")),
        ("modeler", "Modeler", ("model.pkl",)),
        ("analyst", "Analyst", (SUBMISSION,)),
    )
    return [
        Role(name=f"{seat}_0", title=title, duty=prompts.DUTIES[seat], max_actions=most, required=required)
        for (seat, title, required), most in zip(seats, counts, strict=True)
    ]


class DSBenchEnv(PipelineEnv):
    """The environment of this page.

    Parameters
    ----------
    tasks : "embedded", a folder of tasks (see `load_tasks`), or tasks that are loaded already.
    split : "train", "val", "test" or None for all; only for a source that is loaded here.
    max_actions : the most messages of each role; None = (4, 4, 4). Not beside `team`, whose roles say it.
    prompt_style : "full", or "starter" for a very small model: short, with a script to start from
        for each of these three roles.
    team : other roles in place of `dsbench_team(max_actions)`.
    options : those of `PipelineEnv`: coach, sandbox, limits, packages, visibility, handover, ground_truth
        (here "final" unless set), scoring, max_turns, time_limit_s, render_mode.

    Raises `ConfigError` on a senseless argument, `DataError` on tasks that cannot be used.
    """

    env_id = "dsbench-v0"
    metadata: dict[str, Any] = {  # noqa: RUF012  (PettingZoo's own attribute)
        "name": "dsbench_v0",
        "render_modes": ["human", "ansi"],
        "is_parallelizable": False,
    }

    def __init__(
        self,
        tasks: str | Path | Sequence[DSBenchTask] = "embedded",
        split: str | None = "train",
        *,
        max_actions: Sequence[int] | None = None,
        prompt_style: prompts.PromptStyle = "full",
        team: Sequence[Role] | None = None,
        coach: Coach | str | None = "rubric",
        sandbox: Sandbox | str = "auto",
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        if prompt_style not in prompts.STYLES:
            raise ConfigError(f"prompt_style: unknown {prompt_style!r}; known: {', '.join(prompts.STYLES)}")
        self.prompt_style = prompt_style
        loaded = load_tasks(str(tasks), split) if isinstance(tasks, (str, Path)) else tasks
        super().__init__(
            choose_team(team, max_actions, dsbench_team),
            loaded,
            coach=coach,
            sandbox=sandbox,
            limits=limits,
            **{"ground_truth": "final", **options},
        )

    def build_messages(self, view: View) -> Sequence[Message]:
        task = _own(view.task)
        return prompts.build(view, task.spec, _facts(task), self.prompt_style)

    async def inspect(
        self, workspace: Workspace, task: Task, known: Mapping[str, Artifact], touched: Set[str]
    ) -> Mapping[str, Artifact]:
        mine = _own(task)
        tables = artifacts.Tables.read(mine.files["train.csv"], mine.files["test.csv"], mine.spec)
        paths = artifacts.stale(known, touched)
        return await artifacts.inspect(workspace, paths, mine.spec, tables, known=known)

    async def lay_start(self, workspace: Workspace, task: Task, upstream: Sequence[Role]) -> None:
        from mappa_envs.testing.expert import lay_artifacts

        await lay_artifacts(workspace, _own(task), [role.name for role in upstream])

    def figures(self, episodes: Sequence[Episode]) -> Mapping[str, float | None]:
        return scores.figures(episodes)

    async def grade(self, workspace: Workspace, task: Task, episode: Episode) -> Outcome:
        mine = _own(task)
        tables = artifacts.Tables.read(mine.files["train.csv"], mine.files["test.csv"], mine.spec)
        limit = size_limit(tables.test_rows, mine.spec)
        try:
            content = await workspace.read(SUBMISSION, limit)
        except FileNotFoundError:
            return _outcome(mine, Grade(False, "no_file", None, (), f"there is no file {SUBMISSION}"), {})
        except ValueError as error:
            return _outcome(mine, Grade(False, _unreadable(episode, limit), None, (), str(error)), {})
        verdict, figures = await judge_apart(content, mine.answers, mine.spec)
        return _outcome(mine, verdict, figures)


def _own(task: Task) -> DSBenchTask:
    if not isinstance(task, DSBenchTask):
        raise ConfigError(f"task {task.task_id!r} is a {type(task).__name__}; dsbench-v0 takes DSBenchTask")
    return task


def _outcome(task: DSBenchTask, verdict: Grade, figures: Mapping[str, float | None]) -> Outcome:
    relative = task.relative(verdict.score) if verdict.valid else None
    suspicious = verdict.valid and too_good(task, verdict.score)
    words = [verdict.message, *verdict.warnings]
    if suspicious:
        words.append("suspicious: such a score is hardly to be had without the answers")
    known = dict.fromkeys(REPORT_KEYS) | dict(figures)
    return Outcome(
        value=relative or 0.0,
        success=verdict.valid,
        code=verdict.code,
        message="; ".join(filter(None, words)),
        metrics=known
        | {task.spec.metric: verdict.score, "relative": relative, "suspicious": float(suspicious)},
    )


def _unreadable(episode: Episode, limit: int) -> str:
    """Why the workspace would not hand out the submission, by what the last turn to touch it left there."""
    for turn in reversed(episode.turns):
        for file in turn.tool.files if turn.tool else ():
            if file.path == SUBMISSION:
                is_file = file.kind not in ("link", "fifo", "other")
                return "too_large" if is_file and file.size > limit else "not_a_file"
    return "not_a_file"


def _facts(task: DSBenchTask) -> prompts.Facts:
    return _table_facts(task.files["train.csv"], task.files["test.csv"], task.spec)


@lru_cache(maxsize=512)
def _table_facts(train: Path, test: Path, spec: TaskSpec) -> prompts.Facts:
    tables, columns = artifacts.Tables.read(train, test, spec), read_columns(test)
    return prompts.Facts(
        shapes={
            "train.csv": (tables.train_rows, len(read_header(train))),
            "test.csv": (tables.test_rows, len(columns)),
        },
        has_text=not all(column.is_number for column in columns if column.name != spec.id_column),
    )


def env(**arguments: Any) -> DSBenchEnv:
    """The environment. It checks the order of calls itself: see `PipelineEnv` on wrappers."""
    return DSBenchEnv(**arguments)


raw_env = DSBenchEnv
