"""Which episodes the page shows, how they are found, and what the page says is amiss."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_fakes import AGENTS, make_episode, make_line, make_rollout, make_run, make_turn

from mappa_envs.errors import DataError
from mappa_envs.types import CoachScore, StopReason
from mappa_train import report
from mappa_train.algorithms import FLAT_STD
from mappa_train.checkpoint import RunFolder
from mappa_train.credit_log import ActionCredit
from mappa_train.report import episodes as episode_pages
from mappa_train.report.finder import Shown, band
from mappa_train.report.overview import comparison, find_alarms, tiles
from mappa_train.report.reading import (
    EPISODES_PER_STEP,
    MAX_STEPS,
    RunData,
    read_credit,
    sampled_episodes,
    sampled_steps,
)


def credit(index: int, turn: int, **fields: float) -> ActionCredit:
    known = {"ret": 0.25, "advantage": -1.5, "kl": 0.0125}
    return ActionCredit(index=index, turn=turn, agent=AGENTS[turn % 2], num_tokens=40, **(known | fields))


def page_of(run: RunFolder) -> str:
    return report.write_report(run.path).read_text()


def test_a_longer_run_shows_fewer_of_its_steps_and_never_others() -> None:
    before: set[int] = set()
    for last in range(1, 260):
        chosen = sampled_steps(range(1, last + 1))
        assert chosen[0] == 1
        assert chosen[-1] == last
        assert len(chosen) <= MAX_STEPS
        assert set(chosen) <= before | {last}
        before |= set(chosen)
    assert sampled_steps([]) == []
    assert sampled_steps([7]) == [7]
    assert sampled_steps(range(1, 201)) == [1, 32, 64, 96, 128, 160, 192, 200]


def test_a_step_shows_what_is_rare_in_it() -> None:
    many = [(k, make_episode((5.0, 5.0))) for k in range(200)]
    many[90] = (90, make_episode((0.5, 5.0)))
    many[150] = (150, make_episode((5.0, 9.5)))
    many[170] = (170, make_episode(stop_reason=StopReason.MAX_TURNS, success=False))
    chosen = sampled_episodes(many)
    numbers = [index for index, _ in chosen]
    assert len(numbers) == EPISODES_PER_STEP
    assert {90, 150, 170} <= set(numbers)
    assert numbers == sorted(numbers)
    assert numbers[:20] == list(range(20))


def test_a_page_that_would_be_too_large_keeps_the_newest_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", steps=3, episodes=4)
    whole = page_of(run)
    assert whole.count('<article class="page"') == 12
    item = Shown(step=1, index=0, episode=make_episode(), credit=None)
    size = len(episode_pages.pages([item])[1])
    monkeypatch.setattr(episode_pages, "MAX_BYTES", 6 * size)
    cut = page_of(run)
    shown = [int(found) for found in re.findall(r'<article class="page" id="e(\d+)"', cut)]
    assert 4 <= len(shown) < 7
    assert set(range(8, 12)) <= set(shown)
    assert f"{12 - len(shown)} more of older steps would have made the page too large" in cut
    assert set(re.findall(r'href="#e(\d+)-', cut)) == {str(index) for index in shown}


def test_return_and_advantage_stand_beside_each_action(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, episodes=2)
    assert "return 0.250" not in page_of(run)
    run.append_credit(1, [credit(0, 0)])
    run.append_credit(2, [credit(2, 0, ret=0.875, advantage=1.25), credit(2, 1)])
    page = page_of(run)
    last = page[page.index('id="e2"') : page.index('id="e3"')]
    assert "<span>return 0.875</span><span>advantage +1.250</span>" in last
    assert "<span>return 0.250</span><span>advantage -1.500</span>" in last
    assert "KL 0.0125 · 40 tokens" in last
    first = page[page.index('id="e0"') : page.index('id="e1"')]
    assert first.count("left out of learning") == 1
    second = page[page.index('id="e1"') : page.index('id="e2"')]
    assert second.count("left out of learning") == 2  # of an episode of which nothing was learned
    assert "<span>0.88</span><span>+1.25</span>" in page


def test_credit_is_read_back_and_cut_off_with_its_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    for step in (1, 2, 3):
        run.append_credit(step, [credit(10 * step + k, turn) for k in range(50) for turn in (0, 1)])
    with run.credit_path.open("a") as file:
        file.write('{"step": 3, "index": 99, "tu')
    assert list(read_credit(run.path, 2)) == [(20 + k, turn) for k in range(50) for turn in (0, 1)]
    assert read_credit(run.path, 2)[20, 1] == credit(20, 1)
    assert len(read_credit(run.path, 3)) == 100
    assert read_credit(run.path, 4) == {}
    run.truncate(2)
    assert len(run.credit_path.read_bytes().splitlines()) == 200


def test_a_damaged_line_of_credit_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.credit_path.write_text('{"step": 1, "index": 0, "turn": 0}\n')
    with pytest.raises(DataError, match=r"credit\.jsonl, step 1: no credit of an action"):
        report.write_report(run.path)
    for damage in ('"turn": 1e999', '"turn": ' + "[" * 100_000):
        run.credit_path.write_text(f'{{"step": 1, "index": 0, {damage}}}\n')
        with pytest.raises(DataError, match=r"credit\.jsonl, step 1: .*; delete the file"):
            report.write_report(run.path)


def test_a_line_of_the_index_carries_what_it_is_found_by(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, episodes=1)
    blame = CoachScore(score=1.5, reason="no", blame={AGENTS[0]: 0.5, AGENTS[1]: 0.5})
    turns = (
        replace(make_turn(0, AGENTS[0], 1.5), score=blame),
        make_turn(1, AGENTS[1], None, unscored_reason="timeout"),
    )
    episode = make_episode(turns=turns, stop_reason=StopReason.TIME, success=False)
    run.append_episodes(2, [make_rollout(1, episode)])
    run.append_metrics(make_line(2))
    page = page_of(run)
    rows = {
        found[2]: found[1].split() for found in re.finditer(r'<a class="row ([^"]*)" href="([^"]*)"', page)
    }
    names = dict(re.findall(r'<option value="([^"]+)">([^<]*)</option>', page))
    found = [sorted(names[value] for value in rows[f"#e1-{turn}"] if value in names) for turn in (0, 1)]
    assert found[0] == sorted(["0 to 2", *AGENTS, AGENTS[0], "time", "iris", "2", "no success"])
    assert found[1] == sorted(["no score", "nobody", AGENTS[1], "time", "iris", "2", "no success"])
    assert "q3" in rows["#e1-0"]
    for value in names:
        if value not in ("up", "down"):
            assert f'option[value="{value}"]:checked) .row:not(.{value}){{display:none}}' in page


def test_bands_meet() -> None:
    assert [band(score) for score in (None, 0.0, 1.99, 2.0, 7.9, 8.0, 10.0)] == [-1, 0, 0, 1, 3, 4, 4]


def test_the_policy_names_the_style_sheet_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", steps=1))
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'none'; style-src 'sha256-{digest}'" in page
    assert "unsafe-inline" not in page
    assert "style=" not in page
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_links_lead_somewhere_and_names_are_unique(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", steps=4, episodes=3))
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(names)
    assert {"episodes", "overview", "e0", "e11", "e0-1"} <= links


def test_alarms_name_their_steps() -> None:
    lines = [make_line(step) | {"adv/std": 0.3, "coach/alarm": 0} for step in range(1, 11)]
    assert list(find_alarms(lines, AGENTS)) == []
    for step in (3, 4, 5, 9):
        lines[step - 1]["coach/alarm"] = 1
    lines[1] |= {"unscored": 2}
    lines[6] |= {"stop/infra": 3, "adv/std": 0.5 * FLAT_STD}
    lines[7] |= {"tokens/trained": 0, "adv/std": None}
    lines[-2] |= {"stop/budget": 1}
    lines[-1] |= {f"coach/drift/{AGENTS[1]}": 2.04, f"coach/drift/{AGENTS[0]}": -0.5}
    lines[-1] |= {"coach/budget_spent": 2.0}
    found = list(find_alarms(lines, AGENTS))
    assert found[0].startswith("Scores rose and outcomes did not, step 3–5, 9; it is off now.")
    assert found[1] == "The scores of checker_0 have moved +2.0 deviations from those of the first steps."
    assert found[2] == "2 of 20 actions have no score, step 2."
    assert found[3] == "Faults of the sandbox: 3, step 7; the episodes were run again."
    assert found[4] == "The coach's budget was spent in step 9–10."
    assert found[5] == "No action was learned from, since all were unscored, masked or frozen, step 8."
    assert found[6] == "All returns were alike, so that nothing was learned, step 7."
    assert len(found) == 7


def test_a_calm_run_says_so_and_an_alarm_is_on_top(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    assert "No alarm" in page_of(run)
    run.append_metrics(make_line(2) | {"coach/alarm": 1})
    page = page_of(run)
    assert "No alarm" not in page
    assert "it is on now" in page[: page.index("First step against last step")]


def test_one_step_is_shown_alone_and_not_against_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    data = RunData(run.path)
    assert comparison(data).startswith('<table><tr><th></th><th class="n">step 1</th></tr><tr><td>score ')
    assert comparison(data).count("step 1") == 1
    assert "step 1" not in tiles(data)
    run.append_metrics(make_line(2))
    data = RunData(run.path)
    assert '<th class="n">step 2</th><th class="n">change</th>' in comparison(data)
    assert "step 1: " in tiles(data)


def test_the_time_of_a_run_is_in_whole_minutes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.metrics_path.write_text("")
    run.append_metrics(make_line(1) | {"time_s": 61.0})
    assert "1 minute<" in tiles(RunData(run.path))
    run.append_metrics(make_line(2) | {"time_s": 61.0})
    assert "2 minutes<" in tiles(RunData(run.path))


def test_held_out_tasks_have_a_curve_with_intervals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    assert "Held-out tasks" not in page_of(run)
    for step in range(2, 6):
        figures = {"eval/outcome": 0.5, "eval/outcome_low": 0.25, "eval/outcome_high": 0.75}
        run.append_metrics(make_line(step) | (figures if step % 2 else dict.fromkeys(figures)))
    page = page_of(run)
    drawn = page[page.index("Held-out tasks, 95 % intervals") :]
    drawn = drawn[: drawn.index("</figure>")]
    assert drawn.count("<circle") == 2
    assert drawn.count('bar"') == 2
    assert "outcome, step 5: 0.5" in drawn
