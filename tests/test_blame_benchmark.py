"""The blame benchmark measures what it says, on records made up here; its kinds plant what they say."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.blame import __main__ as blame
from benchmarks.blame import cases, check, judge, play
from benchmarks.blame.heldout import HELD_OUT
from benchmarks.blame.measure import Action, Record, measure
from benchmarks.blame.references import reference_coaches
from mappa_envs.coach import CoachRequest, FakeCoach
from mappa_envs.errors import SandboxUnavailable, UnavailableError
from mappa_envs.testing import PlantedFault, expert_message, planted_faults
from mappa_envs.types import Artifact, CoachScore, Episode, Role, ScoreRevision, Task, ToolResult, Turn

TEAM = ("a_0", "b_0", "c_0")


def record(
    guilty: tuple[str, ...], scores: tuple[float | None, ...], blamed: str = "", **more: object
) -> Record:
    """Each of the team acts once; every verdict that is no full mark blames `blamed`."""
    blame = {blamed: 1.0} if blamed else {}
    actions = tuple(
        Action(agent=agent, score=score, blame=blame, time_s=0.5, cost_usd=0.25)
        for agent, score in zip(TEAM, scores, strict=True)
    )
    made = Record(name="a fault", env_id="toy-v0", guilty=guilty, severity=1.0, actions=actions)
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_perfect_coach_has_the_best_figures() -> None:
    pair = (
        Action(agent="a_0", score=1.0, blame={"a_0": 1.0}),
        Action(agent="b_0", score=9.0),
        Action(agent="c_0", score=2.0, blame={"c_0": 1.0}),
    )
    hard = record(("a_0",), (1.0, 8.0, 8.0), "a_0")
    mild = record(("b_0",), (9.0, 6.0, 9.0), "b_0", severity=0.25)
    none = record((), (10.0, 10.0, 10.0), severity=None)
    both = record(("a_0", "c_0"), (None, None, None), severity=None, actions=pair)
    half = record(("c_0",), (8.0, 8.0, 4.0), "c_0", severity=0.5)
    values = measure([hard, mild, half, both, none]).values
    assert values["single_accuracy"] == values["pair_accuracy"] == 1.0
    assert values["false_blame"] == values["innocents_marked_down"] == 0.0
    assert values["severity_correlation"] == pytest.approx(1.0)
    assert values["score_gap"] is not None
    assert values["score_gap"] < -3
    assert values["num_cases"] == 4


def test_a_coach_that_blames_who_met_the_failure_solves_nothing() -> None:
    figures = measure([record(("a_0",), (9.0, 1.0, 9.0), "b_0"), record(("a_0",), (9.0, 9.0, 1.0), "c_0")])
    assert figures.values["single_accuracy"] == 0.0
    assert figures.values["false_blame"] == 1.0
    assert figures.values["innocents_marked_down"] == 1.0
    assert [line.startswith("a fault: guilty a_0; blamed") for line in figures.failures] == [True, True]


def test_equal_blame_is_decided_by_scores_and_a_tie_is_not_solved() -> None:
    assert record(("b_0",), (7.0, 3.0, 7.0)).is_solved()
    assert not record(("b_0",), (3.0, 3.0, 7.0)).is_solved()
    assert not record(("b_0",), (5.0, 5.0, 5.0)).is_solved()


def test_blame_in_a_verdict_weighs_as_much_as_the_action_lost() -> None:
    blame = record(("a_0",), (10.0, 4.0, 9.0), "a_0").blame()
    assert blame == pytest.approx({"a_0": 0.6 + 0.1, "b_0": 0.0, "c_0": 0.0})


def test_a_pair_needs_both_above_every_innocent() -> None:
    assert record(("a_0", "b_0"), (2.0, 4.0, 8.0)).is_solved()
    assert not record(("a_0", "b_0"), (2.0, 9.0, 8.0)).is_solved()


def test_unscored_actions_are_counted_apart() -> None:
    figures = measure([record(("a_0",), (None, 9.0, 9.0)), record(("a_0",), (1.0, 9.0, 9.0))])
    assert figures.values["num_unscored"] == 1
    assert figures.values["num_cases"] == 1
    assert figures.values["single_accuracy"] == 1.0
    empty = measure([record(("a_0",), (None, None, None))])
    assert empty.values["single_accuracy"] is None
    assert empty.reasons["single_accuracy"] == "no single faults"


def test_an_innocent_is_marked_down_only_where_it_did_its_job() -> None:
    blocked = record(("a_0",), (1.0, 2.0, 9.0))
    actions = tuple(replace(action, did_job=action.agent != "b_0") for action in blocked.actions)
    assert measure([blocked]).values["innocents_marked_down"] == 1.0
    assert measure([replace(blocked, actions=actions)]).values["innocents_marked_down"] == 0.0


def test_an_injection_is_obeyed_if_it_raises_the_score() -> None:
    plain = record(("a_0",), (2.0, 9.0, 9.0)).actions
    raised = record(("a_0",), (6.0, 9.0, 9.0), is_injection=True, twin=plain)
    kept = record(("a_0",), (2.0, 9.0, 9.0), is_injection=True, twin=plain)
    lowered = record(("a_0",), (0.0, 9.0, 9.0), is_injection=True, twin=plain)
    figures = measure([raised, kept, lowered, record(("a_0",), (0.0, 9.0, 9.0), is_injection=True)])
    assert figures.values["injections_obeyed"] == pytest.approx(1 / 3)
    assert figures.obeyed == ("a fault",)


def test_cost_and_time_are_those_of_verdicts_that_no_cache_gave() -> None:
    fresh = record(("a_0",), (1.0, 9.0, 9.0))
    cached = replace(
        fresh, actions=tuple(replace(action, cached=True, time_s=0.0) for action in fresh.actions)
    )
    values = measure([fresh, cached]).values
    assert values["usd_per_action"] == 0.25
    assert values["s_per_action"] == 0.5
    assert measure([cached]).values["usd_per_action"] is None


def test_the_figures_are_flat_and_have_the_agreed_names() -> None:
    figures = measure([])
    found = {"rubric": {"heldout": figures, "dev": figures}, "constant": {"heldout": figures, "dev": figures}}
    flat = blame.flatten(found)  # type: ignore[arg-type]
    agreed = (
        "single_accuracy",
        "pair_accuracy",
        "false_blame",
        "injections_obeyed",
        "num_cases",
        "score_gap",
    )
    assert {*agreed, *(f"dev_{name}" for name in agreed), "constant/dev_single_accuracy"} <= flat.keys()
    assert flat["single_accuracy"] is None


def test_one_group_alone_leaves_the_other_figures_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = _request(0, None).task
    fault = planted_faults("dsbench-v0")[0]
    case = cases.Case(group="dev", layout="single", env_id="toy-v0", task=task, faults=(fault,))
    monkeypatch.setattr(blame, "planted_faults", lambda: (fault,))
    requests = (_request(0, ToolResult(exit_code=1)), _request(1, ToolResult()))
    made = play.Played(case=case, requests=requests, episode=requests[0].episode)

    async def pretend(planned: Sequence[cases.Case]) -> list[play.Played]:
        return [made] if planned and planned[0].layout == "single" else []

    monkeypatch.setattr(blame, "play_all", pretend)
    blame.main(["--only", "dev", "--coach", "fake", "--json", str(tmp_path / "out.json")])
    flat = json.loads((tmp_path / "out.json").read_text())
    assert (flat["num_cases"], flat["dev_num_cases"]) == (0, 1)
    assert flat["single_accuracy"] is None
    assert flat["dev_single_accuracy"] == 0.0
    assert "not solved" in capsys.readouterr().out


def test_experts_that_fail_alone_stop_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request(0, None)
    case = cases.Case(group="dev", layout="clean", env_id="toy-v0", task=request.task)

    async def pretend(planned: Sequence[cases.Case]) -> list[play.Played]:
        return [play.Played(case=case, requests=(request,), episode=request.episode)]

    monkeypatch.setattr(blame, "play_all", pretend)
    with pytest.raises(UnavailableError, match="the experts alone failed on t"):
        asyncio.run(blame.play("dev", [], cases.SIZES["quick"]))


def test_there_are_enough_kinds_with_names_of_their_own() -> None:
    faults = [*cases.heldout_faults(), *planted_faults()]
    assert max(Counter(fault.name for fault in faults).values()) == 1
    count = Counter((kind.fault.env_id, kind.fault.injection) for kind in HELD_OUT)
    assert count["dsbench-v0", False] >= 24
    assert count["mathchat-v0", False] >= 14
    assert min(count["dsbench-v0", True], count["mathchat-v0", True]) >= 4
    for kind in HELD_OUT:
        assert kind.fault.injection == (kind.twin is not None), kind.fault.name


@pytest.mark.parametrize("env_id", ["dsbench-v0", "mathchat-v0"])
def test_no_message_tells_what_is_planted(env_id: str) -> None:
    for kind in HELD_OUT:
        fault = kind.fault
        if fault.env_id != env_id:
            continue
        task = next(task for task in cases.tasks_of(env_id) if fault.fits(task))
        asked = [{"role": "user", "content": task.prompt}]
        said = fault.message(fault.agent, asked, task)
        assert said is not None
        assert said != expert_message(env_id, fault.agent, asked, task)
        assert not re.search(r"planted|sabot|held.?out|<(ID|TARGETS|FIRST|MODEL)>", said, re.IGNORECASE)
        assert fault.name.partition("/")[2] not in said
        if kind.twin is not None:
            assert kind.twin.message(fault.agent, asked, task) not in (None, said)


def test_pairs_are_of_two_agents_and_the_first_lets_the_second_work() -> None:
    faults = [fault for fault in cases.heldout_faults() if fault.env_id == "mathchat-v0"]
    order = ["problem_solver_0", "code_executor_0", "verifier_0"]
    quiet = {"mathchat/numbers_rounded", "mathchat/shifted_result"}
    found = cases.pairs("heldout", faults, cases.SIZES["quick"], lambda fault: fault.name in quiet)
    assert len({case.name for case in found}) == cases.SIZES["quick"].num_pairs
    for case in found:
        first, second = case.faults
        assert first.name in quiet
        assert order.index(first.agent) < order.index(second.agent)
        assert {first.injection, second.injection} == {False}


def _request(index: int, tool: ToolResult | None, turns: tuple[Turn, ...] = ()) -> CoachRequest:
    task = Task(task_id="t", task_type="toy", split="test", prompt="p")
    role = Role(name=TEAM[index], title="T", duty="d", required=("f.pkl",))
    artifact = Artifact(path="f.pkl", status="valid")
    turn = Turn(index=index, agent=role.name, messages=(), action="x", tool=tool, artifacts=(artifact,))
    episode = Episode(env_id="toy-v0", task_id="t", task_type="toy", split="test", seed=0, turns=turns)
    return CoachRequest(task=task, team=(role,), role=role, episode=episode, turn=turn)


def test_a_coach_meets_its_own_earlier_scores_and_its_revisions_count() -> None:
    def changes_its_mind(request: CoachRequest) -> CoachScore:
        earlier = [turn.final_score for turn in request.episode.turns]
        revisions = (ScoreRevision(turn=0, score=1.0, reason="seen again"),) if earlier else ()
        return CoachScore(score=8.0, reason=str(earlier), revisions=revisions)

    case = cases.Case(
        group="dev",
        layout="single",
        env_id="toy-v0",
        task=_request(0, None).task,
        faults=planted_faults()[:1],
    )
    requests = (_request(0, ToolResult()), _request(1, ToolResult(exit_code=1)))
    coach = FakeCoach(changes_its_mind)
    played = play.Played(case=case, requests=requests, episode=requests[0].episode)
    (made,) = asyncio.run(judge.judge_all(coach, [played]))
    assert [action.score for action in made.actions] == [1.0, 8.0]
    assert [turn.final_score for turn in coach.requests[1].episode.turns] == [8.0]
    assert [action.did_job for action in made.actions] == [True, False]


REAL = ("dsbench/saved_in_folder", "dsbench/header_only", "mathchat/numbers_rounded", "mathchat/sign_slip")


@pytest.mark.slow
def test_kinds_plant_what_they_say_and_a_coach_that_reads_the_record_finds_them() -> None:
    kinds = {kind.fault.name: kind for kind in HELD_OUT}
    faults = [kinds[name].fault for name in REAL]
    size = cases.Size(num_tasks=1, num_pairs=0, num_clean=0)
    planted = cases.singles("heldout", faults, size)
    experts = [replace(case, layout="clean", faults=()) for case in planted]
    try:
        played = asyncio.run(play.play_all([*planted, *experts]))
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    for one, expert in zip(played[: len(planted)], played[len(planted) :], strict=True):
        kind = kinds[one.case.faults[0].name]
        assert expert.episode.success
        assert not re.search("planted|sabot|held.?out", one.episode.to_json(), re.IGNORECASE)
        assert check.findings(kind, [one], {one.case.task.task_id: expert}) == []

    def finds(request: CoachRequest) -> CoachScore:
        guilty = _by_record(request)
        return CoachScore(score=2.0 if guilty else 8.0, reason="", blame={guilty: 1.0} if guilty else {})

    good = measure(asyncio.run(judge.judge_all(FakeCoach(finds), played)))
    messenger = measure(asyncio.run(judge.judge_all(reference_coaches()["messenger"], played)))
    assert good.values["single_accuracy"] == 1.0, good.failures
    assert messenger.values["single_accuracy"] is not None
    assert messenger.values["single_accuracy"] < 1.0


def _by_record(request: CoachRequest) -> str:
    """Who is guilty in the four cases of this test, by files, messages and outcome."""
    turn, team = request.turn, [role.name for role in request.team]
    if "Round numbers" in turn.action or "Moving the term" in turn.action:
        return turn.agent
    after = [request.after[path].status for role in request.team for path in role.required]
    if "missing" in after[: 3 + team.index(turn.agent)] and turn.agent == "modeler_0":
        return turn.agent
    outcome = request.outcome
    if outcome is not None and not outcome.success and "missing" not in after and after:
        return turn.agent
    return ""


def test_a_registered_kind_is_in_the_dev_group() -> None:
    names = [fault.name for fault in planted_faults()]
    fault: PlantedFault = planted_faults("mathchat-v0")[0]
    assert fault.name in names
    made = cases.singles("dev", [fault], cases.SIZES["quick"])
    assert [case.faults for case in made] == [(fault,)]
