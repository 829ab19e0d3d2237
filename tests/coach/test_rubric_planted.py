"""The rubric on real episodes with planted faults: whom it blames, and whether its corrections work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mappa_envs.actions import extract_code
from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.mathchat.env import MathChatEnv
from mappa_envs.mathchat.tasks import load_tasks as load_problems
from mappa_envs.mathchat.templates import TEMPLATES
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.sandbox import Limits
from mappa_envs.testing.registry import FaultyTeam, PlantedFault, expert_message, planted_faults
from mappa_envs.types import Episode, Task

pytestmark = pytest.mark.slow

Policy = Callable[[str, list[dict[str, str]]], str]
TABLE_TASKS = ("penguin-species", "penguin-sex", "penguin-body-mass")
EXPERT_TASKS = ("auto-origin", "digits-eight", "iris-petals", "titanic-age", "epa-vehicle-class")


@pytest.fixture(scope="module")
def tables() -> Iterator[DSBenchEnv]:
    tasks = [t for t in load_tasks("embedded", None) if t.task_id in (*TABLE_TASKS, *EXPERT_TASKS)]
    yield from opened(
        DSBenchEnv(tasks, None, max_actions=(1, 1, 1), sandbox="namespace", limits=Limits(time_s=6))
    )


@pytest.fixture(scope="module")
def problems() -> Iterator[MathChatEnv]:
    kinds = {template.name for template in TEMPLATES[:3]}
    tasks = {t.task_type: t for t in load_problems("embedded", "train") if t.task_type in kinds}
    yield from opened(
        MathChatEnv(
            list(tasks.values()), None, sandbox="namespace", limits=Limits(time_s=2), ground_truth="final"
        )
    )


def opened(env: Any) -> Iterator[Any]:
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    yield env
    env.close()


def play(env: PipelineEnv, task: Task, policy: Policy) -> Episode:
    env.reset(seed=0, options={"task_id": task.task_id})
    while env.episode.stop_reason is None:
        agent = env.agent_selection
        env.step(policy(agent, env.infos[agent]["messages"]))
    return env.episode


def blame(episode: Episode) -> Counter[str]:
    """By agent: its shares in all verdicts, each weighted by how bad the verdict is in the end."""
    found: Counter[str] = Counter()
    for turn in episode.turns:
        assert turn.score is not None
        assert turn.final_score is not None
        for agent, share in turn.score.blame.items():
            found[agent] += share * max(0.05, (10 - turn.final_score) / 10)
    return found


def cases(env: PipelineEnv, tasks: Sequence[Task]) -> Iterator[tuple[Task, PlantedFault, FaultyTeam]]:
    for task in tasks:
        for fault in planted_faults(env.env_id):
            try:
                yield task, fault, FaultyTeam(env, task, [fault])
            except ConfigError:
                continue  # makes no sense for the task


def named(env: PipelineEnv, names: Sequence[str]) -> list[Task]:
    return [task for task in env.tasks if task.task_id in names]


def check_top_blame(env: PipelineEnv, tasks: Sequence[Task]) -> None:
    wrong, total = [], 0
    for task, fault, team in cases(env, tasks):
        episode = play(env, task, team)
        found, total = blame(episode), total + 1
        if not found or found.most_common(1)[0][0] != fault.agent:
            reasons = " | ".join(f"{t.agent}: {t.score.reason}" for t in episode.turns if t.score)
            wrong.append(f"{task.task_id:20} {fault.name:32} {dict(found)} {reasons}")
        guilty = [t.final_score or 0 for t in episode.turns if t.agent == fault.agent]
        if fault.injection:
            assert min(guilty) < 7, (task.task_id, fault.name)
    print(f"\n{len(wrong)} of {total} wrong", *wrong, sep="\n")
    assert total > 40
    assert len(wrong) <= 0.05 * total


def test_the_guilty_agent_of_a_table_task_gets_most_blame(tables: DSBenchEnv) -> None:
    check_top_blame(tables, named(tables, ["penguin-sex"]))


def test_the_guilty_agent_of_a_maths_team_gets_most_blame(problems: MathChatEnv) -> None:
    check_top_blame(problems, problems.tasks)


@pytest.mark.parametrize("kind", ["tables", "problems"])
def test_nobody_of_an_expert_team_is_blamed(kind: str, request: pytest.FixtureRequest) -> None:
    env: PipelineEnv = request.getfixturevalue(kind)
    for task in env.tasks:
        episode = play(env, task, expert_of(env, task))
        assert blame(episode) == Counter(), task.task_id
        assert min(turn.final_score or 0 for turn in episode.turns) >= 6.5, task.task_id


def expert_of(env: PipelineEnv, task: Task) -> Policy:
    return lambda agent, said: expert_message(env.env_id, agent, said, task)


MENDED = (
    "no_test_table", "other_columns", "claims_files", "only_talk", "crash_before_saving", "own_class",
    "other_file_name", "never_saved", "wrong_file_name", "prints_only", "missing_rows", "crash_while_writing",
)  # fmt: skip


@pytest.mark.parametrize("task_id", TABLE_TASKS)
def test_a_correction_makes_valid_files(tables: DSBenchEnv, task_id: str) -> None:
    task = named(tables, [task_id])[0]
    for _, fault, team in [c for c in cases(tables, [task]) if c[1].name.split("/")[1] in MENDED]:
        broken = play(tables, task, team)
        at = next(turn.index for turn in broken.turns if turn.agent == fault.agent)
        verdict = broken.turns[at].score
        assert verdict is not None
        assert verdict.correction is not None, fault.name
        before = [turn.action for turn in broken.turns[:at]]
        actions = iter([*before, verdict.correction])
        mended = play_until(tables, task, actions)
        assert all(a.status == "valid" for a in mended.turns[at].artifacts), (fault.name, mended.turns[at])
        if fault.name.endswith("file_name"):
            own = extract_code(broken.turns[at].action)[0].splitlines()
            changed = [line for line in extract_code(verdict.correction)[0].splitlines() if line not in own]
            assert len(changed) == 1, "a wrong name is mended in its line alone"


def test_a_blocked_agent_is_shown_how_to_make_what_it_needs(tables: DSBenchEnv) -> None:
    task = named(tables, ["penguin-sex"])[0]
    fault = next(f for f in planted_faults("dsbench-v0") if f.name.endswith("/no_test_table"))
    broken = play(tables, task, FaultyTeam(tables, task, [fault]))
    verdict = broken.turns[2].score
    assert verdict is not None
    assert verdict.correction is not None
    mended = play(
        tables, task, lambda agent, said: verdict.correction or "" if agent == "analyst_0" else "I pass."
    )
    assert mended.success


def play_until(env: PipelineEnv, task: Task, actions: Iterator[str]) -> Episode:
    env.reset(seed=0, options={"task_id": task.task_id})
    for action in actions:
        env.step(action)
    return env.episode


def test_a_maths_correction_is_right(problems: MathChatEnv) -> None:
    names = (
        "not_boxed",
        "open_box",
        "contradicts_output",
        "code_without_fence",
        "prints_nothing",
        "crash_early",
    )
    task = problems.tasks[0]
    for _, fault, team in [c for c in cases(problems, [task]) if c[1].name.split("/")[1] in names]:
        broken = play(problems, task, team)
        turn = next(turn for turn in broken.turns if turn.agent == fault.agent)
        assert turn.score is not None
        correction = turn.score.correction
        assert correction is not None, fault.name

        assert play(problems, task, mended_by(correction, fault.agent, task)).success, fault.name


def mended_by(correction: str, agent: str, task: Task) -> Policy:
    """The expert team, but for that agent's first message."""

    def policy(acting: str, said: list[dict[str, str]]) -> str:
        is_first = not any(message["role"] == "assistant" for message in said)
        if acting == agent and is_first:
            return correction
        return expert_message("mathchat-v0", acting, said, task)

    return policy
