from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from run_fakes import AGENTS, make_episode, make_line, make_rollout, make_run, make_turn

from mappa_envs.errors import DataError
from mappa_envs.evaluation import EvalTable
from mappa_envs.types import Artifact, CoachScore, Episode, ScoreRevision, ToolResult
from mappa_train import report
from mappa_train.config import Config
from mappa_train.progress import PlainProgress, comparison, duration, make_progress
from mappa_train.report import reading
from mappa_train.report.charts import chart, nice_ticks

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e$title"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_curves_episodes_and_settings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, episodes=2)
    page = report.write_report(run.path).read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert {"svg", "details", "table"} <= tags.seen
    for title in ("Mean score of each agent", "Actions that ran code", "Actions cut by the length limit"):
        assert f"<figcaption>{title}</figcaption>" in page
    assert page.count('<article class="page"') == 6
    assert page.count('<a class="row ') == 12
    assert f"max_new_tokens = {Config().max_new_tokens}" in page


def test_what_agents_write_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    broken = Artifact(path=EVIL, status="invalid", problem=EVIL)
    tool = ToolResult(stdout=EVIL, stderr=EVIL, exit_code=1, exception=EVIL)
    verdict = CoachScore(score=1.0, reason=EVIL, blame={AGENTS[0]: 1.0})
    turn = replace(make_turn(0, AGENTS[0], action=EVIL, tool=tool, artifacts=(broken,)), score=verdict)
    turns = (turn, make_turn(1, AGENTS[1], None, action=EVIL, unscored_reason=EVIL))
    episode = make_episode(turns=turns, grade_message=EVIL, task_id=EVIL)
    run.append_episodes(2, [make_rollout(9, episode)])
    run.append_metrics(make_line(2))
    page = report.write_report(run.path).read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "img", "link", "iframe"} & tags.seen
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "$title" in page  # an agent's text is no template


def test_a_corrected_score_shows_both(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    verdict = CoachScore(score=9.0, reason="fine", revisions=(ScoreRevision(turn=0, score=2.0, reason="no"),))
    changed = replace(make_turn(0, AGENTS[0]), score=verdict, final_score=2.0)
    run.append_episodes(2, [make_rollout(5, make_episode(turns=(changed,)))])
    run.append_metrics(make_line(2))
    page = report.write_report(run.path).read_text()
    assert '<em class="chip k1">2.0</em> (first 9.0)' in page
    assert "action 1 is worth 2.0: no" in page


def test_a_run_without_steps_has_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.truncate(0)
    assert "No step is finished yet" in report.write_report(run.path).read_text()


def test_the_newest_evaluation_is_on_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    assert "Evaluation of" not in report.write_report(run.path).read_text()
    for step, outcome in ((1, 0.111), (2, 0.222)):
        episodes = [make_episode(outcome=outcome, task_type=EVIL) for _ in range(4)]
        table = EvalTable.of(episodes, lambda chosen: {"fair_f1": 0.125, "f1": None})
        path = run.path / f"eval-test-step-{step}.json"
        path.write_text(json.dumps({"step": step, "split": "test", **table.to_json()}))
        os.utime(path, (step, step))
    page = report.write_report(run.path).read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "Evaluation of step 2 on test tasks" in page
    assert "0.222<" in page  # without an interval, since this is one task
    assert "0.111" not in page
    assert "100 % (51 % to 100 %)" in page
    assert '<td>fair f1</td><td class="n">0.125</td>' in page
    assert "script" not in tags.seen


def test_an_evaluation_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    huge = f'{{"overall": {{"success_rate": 1{"0" * 400}}}, "task_types": {{}}, "step": 1, "split": "test"}}'
    for content in ("{", "[]", '{"overall": {}}', "[" * 100_000, huge):
        (run.path / "eval-test-step-1.json").write_text(content)
        assert "eval-test-step-1.json cannot be read" in report.write_report(run.path).read_text()


def test_long_outputs_are_cut_in_the_middle(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.append_episodes(
        2, [make_rollout(2, make_episode(turns=(make_turn(0, AGENTS[0], action="y" * 50_000),)))]
    )
    run.append_metrics(make_line(2))
    page = report.write_report(run.path).read_text()
    assert "44000 characters left out" in page


def test_episodes_of_any_step_are_found(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=12, episodes=3)
    with run.episodes_path.open("a") as file:
        file.write('{"step": 12, "index": 99, "episode": {"env')
    for step in range(1, 13):
        found = reading.read_numbered_episodes(run.path, step)
        assert [index for index, _ in found] == [3 * (step - 1) + k for k in range(3)]
    assert report.read_episodes(run.path, 13) == []
    assert report.read_episodes(run.path, 5) == [make_episode()] * 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "damaged at 'nonsense"),
        ('{"step": 2}', "damaged at"),
        ('{"step": 2, "index": 2, "turn": 0}', "does not begin with step and index"),
        ('{"step": 2, "index": 2, "episode": {"env": 5}}', "no episode"),
    ],
)
def test_a_damaged_line_of_episodes_is_named_and_not_skipped(tmp_path: Path, line: str, why: str) -> None:
    run = make_run(tmp_path / "run", steps=3, episodes=2)
    lines = run.episodes_path.read_text().splitlines()
    run.episodes_path.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(DataError, match=rf"episodes\.jsonl, .*step \d: .*{why}"):
        report.write_report(run.path)


def test_rebuilding_parses_few_episodes_of_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", steps=1, episodes=1)
    for step in range(2, 32):
        run.append_episodes(step, [make_rollout(k) for k in range(8)])
        run.append_metrics(make_line(step))
    parsed: list[str] = []

    def counted(line: str) -> Episode:
        parsed.append(line)
        return from_json(line)

    from_json = Episode.from_json
    monkeypatch.setattr(Episode, "from_json", staticmethod(counted))
    report.write_report(run.path)
    assert 0 < len(parsed) <= 110  # of 241


def test_charts_leave_gaps_and_survive_flat_lines() -> None:
    svg = chart("t<", {"a&b": [(1, 1.0), (2, None), (3, 1.0)]})
    assert "t&lt;" in svg
    assert "a&amp;b" in svg
    path = re.search(r' d="([^"]*)"', svg)
    assert path is not None
    assert path[1].count("M") == 2
    assert chart("t", {"a": [(1, None)]}) == ""
    long = chart("t", {"a": [(k, float(k)) for k in range(5000)]})
    assert len(long) < 12_000


def test_ticks_enclose_the_values() -> None:
    for low, high in ((0.0, 10.0), (0.37, 0.38), (-3.0, 12345.0), (5.0, 5.0), (0.0, 0.0), (1e-9, 2e-9)):
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low + 1e-12
        assert ticks[-1] >= high - 1e-12
        assert 2 <= len(ticks) <= 8


def test_plain_progress_prints_one_line_a_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    screen = io.StringIO()
    progress = make_progress(Console(file=screen, width=80))
    assert isinstance(progress, PlainProgress)
    progress.start(2, AGENTS)
    progress.phase("rollout", 1, 2)
    lines = run.read_metrics()
    for line in lines:
        progress.step(line)
    progress.finish(lines[0], lines[-1], run.path)
    printed = screen.getvalue().splitlines()
    assert printed.pop(0) == "2 step(s) to go; agents: writer_0, checker_0"
    assert printed[0].startswith(
        "step 1/2  score 7.00 (writer_0 6.00 checker_0 8.00)  success rate 100 %  20 tokens/s"
    )
    assert printed[1].startswith("step 2/2")
    assert printed[-2:] == [f"run:    {run.path}", f"report: {run.report_path}"]
    assert any("valid artifacts" in line and "+0 pts" in line for line in printed)


def test_the_live_display_ends_with_the_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    screen = io.StringIO()
    progress = make_progress(Console(file=screen, width=80, force_terminal=True))
    progress.start(2, AGENTS)
    progress.phase("rollout", 1, 2)
    progress.step(run.read_metrics()[0])
    progress.phase("learn", 1, 2)
    progress.finish(run.read_metrics()[0], run.read_metrics()[1], run.path)
    progress.stop()
    assert "score writer_0" in screen.getvalue()


def test_tables_show_dashes_for_what_is_undefined(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    screen = io.StringIO()
    console = Console(file=screen, width=80)
    console.print(comparison({"step": 1}, {"step": 1}, AGENTS, run.path))
    assert "–" in screen.getvalue()


def test_durations() -> None:
    assert [duration(value) for value in (None, 5.4, 65, 7620)] == ["?", "5s", "1m05s", "2h07m"]
