"""A calibration learns a coach's partiality from outcomes, and is used on what a coach can see alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappa_envs.coach import CoachRequest, EpisodeRequest, FakeCoach, HindsightCoach
from mappa_envs.coach.calibration import (
    Calibration,
    Origin,
    calibrated,
    describe,
    exception_group,
    read_calibration,
    write_calibration,
)
from mappa_envs.coach.fitting import fit
from mappa_envs.errors import ConfigError, DataError
from mappa_envs.scoring import Scorer, Verdict, enter
from mappa_envs.types import (
    Artifact,
    CoachScore,
    Episode,
    Outcome,
    Role,
    ScoreRevision,
    StopReason,
    Task,
    ToolResult,
    Turn,
)

TEAM = tuple(Role(name=name, title="", duty="") for name in ("writer_0", "checker_0"))
ORIGIN = Origin(env="fake-v0", coach="fake", ground_truth="off")


def make_turn(index: int, score: float | None = None, agent: str = "", **fields: Any) -> Turn:
    return Turn(
        index=index,
        agent=agent or TEAM[index % 2].name,
        messages=(),
        score=None if score is None else CoachScore(score=score, reason="so"),
        final_score=score,
        **({"action": "hi", "tool": ToolResult()} | fields),
    )


def make_episode(task: int, outcome: float, scores: Sequence[float], **fields: Any) -> Episode:
    known: dict[str, Any] = {
        "env_id": "fake-v0",
        "task_id": f"t{task}",
        "task_type": ("classification", "regression")[task % 2],
        "split": "train",
        "seed": 0,
        "outcome": outcome,
        "stop_reason": StopReason.DONE,
        "turns": tuple(make_turn(k, score) for k, score in enumerate(scores)),
    }
    return Episode(**(known | fields))


def partial_log(num_tasks: int = 12, per_task: int = 8, seed: int = 0) -> list[Episode]:
    """Scores are half the outcome and noise, and 4 more for regression, whose outcomes are no better."""
    rng = random.Random(seed)
    episodes = []
    for k in range(num_tasks * per_task):
        outcome = rng.random()
        kind = k % num_tasks % 2
        scores = [min(max(5 * outcome + 4 * kind + rng.gauss(0, 0.7), 0.0), 10.0) for _ in range(2)]
        episodes.append(make_episode(k % num_tasks, outcome, scores))
    return episodes


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    return fit(partial_log(), ORIGIN)


def request(turn: Turn, task_type: str = "regression", **fields: Any) -> CoachRequest:
    episode = Episode(env_id="fake-v0", task_id="t", task_type=task_type, split="train", seed=0)
    return CoachRequest(
        task=Task(task_id="t", task_type=task_type, split="train", prompt=""),
        team=TEAM,
        role=TEAM[0],
        episode=episode,
        turn=turn,
        **fields,
    )


def test_a_planted_bias_is_found_and_removed(fitted: Calibration) -> None:
    bias = {(row.role, row.task_type): row.bias for row in fitted.fit.biases}
    for role in ("writer_0", "checker_0"):
        assert bias[role, "regression"] - bias[role, "classification"] == pytest.approx(4, abs=0.8)
    before, after = fitted.fit.before["all"], fitted.fit.after["all"]
    assert before is not None
    assert after is not None
    assert after.value > before.value + 0.2
    assert (after.low or 0) > (before.high or 1)
    assert fitted.fit.error_after < fitted.fit.error_before
    turn = make_turn(0)
    kinds = [fitted.score(turn, kind, raw) for kind, raw in (("classification", 3.0), ("regression", 7.0))]
    assert kinds[0] == pytest.approx(kinds[1], abs=0.6)


def test_figures_are_of_tasks_that_the_fit_has_not_seen() -> None:
    """Each task has a kind of its own, which gives its outcome away to a fit that has seen it."""
    rng = random.Random(1)
    outcomes = [rng.random() for _ in range(20)]
    log = [
        make_episode(k % 20, outcomes[k % 20], [rng.uniform(0, 10)] * 2, task_type=f"kind {k % 20}")
        for k in range(160)
    ]
    found = fit(log, ORIGIN)
    seen = [found.score(e.turns[0], e.task_type, 5.0) - 10 * e.outcome for e in log if e.outcome is not None]
    assert sum(map(abs, seen)) / len(seen) < 1.5
    after = found.fit.after["all"]
    assert after is None or after.value < 0.2  # below 0, rather: what is left out pulls the mean of the rest


def test_a_higher_score_is_never_worth_less(fitted: Calibration) -> None:
    for kind in ("classification", "regression", "unheard of"):
        for turn in (make_turn(0), make_turn(1, tool=None), make_turn(5, action="x" * 9000)):
            curve = [fitted.score(turn, kind, raw / 4) for raw in range(41)]
            assert curve == sorted(curve)
            assert 0 <= curve[0] <= curve[-1] <= 10
    opposite = [make_episode(k % 5, 1 - k % 11 / 10, [k % 11] * 2) for k in range(110)]
    turned = fit(opposite, ORIGIN)  # a coach that is wrong throughout is not believed, nor turned around
    assert turned.score(make_turn(0), "regression", 10) >= turned.score(make_turn(0), "regression", 0)


def test_only_the_record_of_the_action_counts(fitted: Calibration) -> None:
    bare = make_turn(0)
    later = replace(
        bare, score=CoachScore(score=1, reason="?"), final_score=9.0, coach_s=3.0, handed_over=True
    )
    assert describe(bare, "regression", 6.0) == describe(later, "regression", 6.0)
    coach = calibrated(FakeCoach(6.0), fitted)
    good = Outcome(value=1.0, success=True, code="ok")
    scores = [asyncio.run(coach.score(request(bare, outcome=outcome))).score for outcome in (None, good)]
    assert scores[0] == scores[1] == fitted.score(bare, "regression", 6.0)


def test_features_tell_how_the_code_ended() -> None:
    files = (Artifact(path="a", status="valid"), Artifact(path="b", status="missing"))
    failed = make_turn(3, artifacts=files, tool=ToolResult(exit_code=1, exception="KeyError", limit="time"))
    found = describe(failed, "regression", 6.0)
    assert (found["code"], found["code ran"], found["limit"], found["valid files"]) == (1.0, 0.0, 1.0, 0.5)
    assert (found["exception data"], found["position"], found["role checker_0"]) == (1.0, 3.0, 1.0)
    ramps = [found[f"score checker_0 from {low}"] for low in ("0", "2.5", "5", "7.5")]
    assert ramps == [1.0, 1.0, 0.4, 0.0]
    assert [exception_group(name) for name in ("TabError", "NameError", "ValueError", "OSError")] == [
        *("syntax", "name", "data", "other")
    ]


def test_the_coach_keeps_the_raw_score_in_its_reason(fitted: Calibration) -> None:
    verdict = CoachScore(
        score=8.0,
        reason="fine",
        blame={"writer_0": 1.0},
        revisions=(ScoreRevision(turn=0, score=9.0, reason="was fine", cap=True),),
    )
    coach = calibrated(FakeCoach(lambda _: verdict), fitted)
    asked = request(make_turn(1))
    asked = replace(asked, episode=replace(asked.episode, turns=(make_turn(0),)))
    found = asyncio.run(coach.score(asked))
    assert found.score == fitted.score(make_turn(1), "regression", 8.0) != 8.0
    assert found.reason == f"fine (Raw score 8, calibrated {found.score:.6g})"
    assert found.blame == {"writer_0": 1.0}
    (revision,) = found.revisions
    assert revision.cap
    assert revision.score == fitted.score(make_turn(0), "regression", 9.0) != 9.0


def test_the_coach_is_shown_its_own_earlier_scores(fitted: Calibration) -> None:
    seen: list[list[float | None]] = []

    def judge(asked: CoachRequest) -> CoachScore:
        seen.append([turn.final_score for turn in asked.episode.turns])
        halved = tuple(
            ScoreRevision(turn=turn.index, score=(turn.final_score or 0) / 2, reason="(Raw score 1, so)")
            for turn in asked.episode.turns[:1]
        )
        return CoachScore(score=8.0, reason="fine (Raw score 3, calibrated 4)", revisions=halved)

    coach, turns = calibrated(FakeCoach(judge), fitted), ()
    for index in range(3):
        asked = request(make_turn(index))
        asked = replace(asked, episode=replace(asked.episode, turns=turns))
        verdict = asyncio.run(coach.score(asked))
        turns, _ = enter((*turns, make_turn(index)), index, Verdict(score=verdict))
    assert seen == [[], [8.0], [4.0, 8.0]]
    assert turns[0].final_score == fitted.score(make_turn(0), "regression", 2.0)


class OneByOne:
    async def score(self, request: CoachRequest) -> CoachScore:
        return CoachScore(score=8.0, reason="seen alone")


class LooksBack(OneByOne):
    async def score_episode(self, request: EpisodeRequest) -> Sequence[CoachScore | None]:
        return [CoachScore(score=8.0, reason="seen whole"), None]


class Plain:
    def score(self, request: CoachRequest) -> CoachScore:
        return CoachScore(score=8.0, reason="no coroutine")


def test_a_coach_that_is_calibrated_is_still_named(fitted: Calibration) -> None:
    with pytest.raises(ConfigError, match=r"Plain\.score is a plain method"):
        asyncio.run(calibrated(Plain(), fitted).score(request(make_turn(0))))  # type: ignore[arg-type]


def test_it_looks_back_if_the_coach_does(fitted: Calibration) -> None:
    assert not isinstance(calibrated(OneByOne(), fitted), HindsightCoach)
    coach = calibrated(LooksBack(), fitted)
    assert isinstance(coach, HindsightCoach)
    episode = make_episode(1, 0.5, [1.0, 2.0])
    asked = EpisodeRequest(task=request(make_turn(0)).task, team=TEAM, episode=episode, states=({}, {}, {}))
    first, second = asyncio.run(coach.score_episode(asked))
    assert first is not None
    assert first.score == fitted.score(episode.turns[0], "regression", 8.0)
    assert second is None


def test_surplus_verdicts_are_left_for_the_environment_to_refuse(fitted: Calibration) -> None:
    episode = make_episode(1, 0.5, [1.0])
    asked = EpisodeRequest(task=request(make_turn(0)).task, team=TEAM, episode=episode, states=({}, {}))
    verdicts = asyncio.run(Scorer(calibrated(LooksBack(), fitted)).look_back(asked))
    assert [verdict.score for verdict in verdicts] == [None]
    assert verdicts[0].unscored_reason == "the coach gave 2 verdicts on 1 actions"


def test_a_file_is_json_and_reads_back_the_same(fitted: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(fitted, path)
    assert read_calibration(path) == fitted
    content = json.loads(path.read_text())
    assert content["schema"] == 1
    assert content["origin"]["coach"] == "fake"
    assert (content["num_tasks"], content["num_episodes"], content["num_actions"]) == (12, 96, 192)


def test_the_same_log_gives_the_same_calibration_and_another_its_digest(fitted: Calibration) -> None:
    assert fit(partial_log(), ORIGIN) == fitted
    assert fit(partial_log(seed=1), ORIGIN).data_sha256 != fitted.data_sha256


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("pickle", "no calibration"),
        ("[]", "no calibration"),
        ('{"schema": 99}', "format 99"),
        ('{"schema": 1}', "damaged"),
        ("NaN", "out of range"),
        ("scale", "out of range"),
    ],
)
def test_a_file_that_is_none_is_refused(
    content: str | None, words: str, fitted: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    if content in ("NaN", "scale"):
        write_calibration(fitted, path)
        table = json.loads(path.read_text())
        table["features"][0]["weight" if content == "NaN" else "scale"] = (
            float("nan") if content == "NaN" else 0
        )
        content = json.dumps(table)
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_calibration(path)


def test_it_fits_one_coach_environment_and_team_only(fitted: Calibration) -> None:
    fitted.check(ORIGIN, ["checker_0", "writer_0"])
    with pytest.raises(ConfigError, match="coach 'fake', not 'rubric'; ground_truth 'off', not 'final'"):
        fitted.check(replace(ORIGIN, coach="rubric", ground_truth="final"), ["checker_0", "writer_0"])
    with pytest.raises(ConfigError, match="roles 'checker_0, writer_0', not 'writer_0'"):
        fitted.check(ORIGIN, ["writer_0"])


def test_what_cannot_be_learned_from_is_said() -> None:
    with pytest.raises(DataError, match=r"4 scored action\(s\) of 2 task\(s\) are too few"):
        fit(partial_log(2, 1), ORIGIN)
    with pytest.raises(DataError, match=r"1 task\(s\)"):
        fit(partial_log(1, 40), ORIGIN)
    with pytest.raises(DataError, match="outcome 0: there is nothing"):
        fit([replace(episode, outcome=0.0) for episode in partial_log()], ORIGIN)
    with pytest.raises(DataError, match="an episode of fake-v0"):
        fit(partial_log(), replace(ORIGIN, env="other-v0"))


def test_ungraded_failed_and_unscored_do_not_count(fitted: Calibration) -> None:
    unscored = make_turn(2, unscored_reason="no answer")
    log = [replace(episode, turns=(*episode.turns, unscored)) for episode in partial_log()]
    log += [make_episode(0, 1.0, [0.0, 0.0], stop_reason=StopReason.INFRA)]
    log += [replace(make_episode(0, 1.0, [0.0, 0.0]), outcome=None)]
    found = fit(log, ORIGIN)
    assert (found.num_episodes, found.num_actions) == (96, 192)
    assert found.features == fitted.features


@pytest.mark.parametrize(
    "change",
    [{"weight": 1e308}, {"mean": -1e300}, {"scale": 1e-300}, {"low": 2.0, "high": 1.0}, {"low": -1e400}],
)
def test_numbers_that_no_score_can_be_made_of_are_refused(
    change: dict[str, float], fitted: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    write_calibration(fitted, path)
    table = json.loads(path.read_text())
    for feature in table["features"]:
        feature |= {"weight": 1.0, **change}
    path.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="damaged"):
        read_calibration(path)


def test_a_file_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"schema":' + "[" * 200_000)
    with pytest.raises(ConfigError, match="no calibration"):
        read_calibration(path)
