"""The report in a real browser: what hostile episodes can do there (nothing), the search, the looks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser, open_browser
from run_fakes import AGENTS, make_episode, make_line, make_rollout, make_run, make_turn

from mappa_envs.types import (
    Artifact,
    CoachScore,
    Episode,
    FileRecord,
    Message,
    ScoreRevision,
    StopReason,
    ToolResult,
)
from mappa_train import report
from mappa_train.checkpoint import RunFolder
from mappa_train.credit_log import ActionCredit
from mappa_train.report import server
from mappa_train.report.server import Pages, open_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]

DESK, PHONE = (1280, 900), (390, 844)
ATTACKS = (
    "<script>fetch('{hit}/script'); window.pwned = 1; alert(1)</script>",
    "<img src='{hit}/img' onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><script>pwned=1</script><use href='{hit}/use'/></svg>",
    "<a id=e0 href=\"javascript:window.pwned=1\" autofocus onfocus='window.pwned=1' tabindex=1>click</a>",
    "<iframe srcdoc='<script>top.pwned=1</script>'></iframe><object data='{hit}/object'></object>",
    "</pre></section></article></main></title></style></textarea></select></svg>--><!--<h1>mine</h1>",
    "<style>body{{display:none}}</style><link rel=stylesheet href='{hit}/css'><base href='{hit}/'>",
    "<meta http-equiv=refresh content='0;url={hit}/refresh'><form action='{hit}/form'><input autofocus>",
    '" onmouseover=window.pwned=1 style=position:fixed;inset:0;background:red x="\'><b>',
    "' style='position:fixed' &lt;script&gt; &#60;script&#62; \\u003cscript\\u003e $title ${{x}}",
    "\u202e\u2066right to left\u2069 \u200f\u061c{wide}" + "\u0301\u0489" * 300,
    "\x1b[2J\x1b[31m\x1b]0;title\x07\x00\x08\r\rover\x7f\x9b31m",
    "\ufdfd\ufdfd " + "W" * 400 + "\ufffe\uffff\U000e0041",
    "\n" * 300 + "far below" + "\t" * 50,
)


class Hits:
    """A server that counts who asks it for anything."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        paths = self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                paths.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def hits() -> Iterator[Hits]:
    counted = Hits()
    yield counted
    counted.server.shutdown()
    counted.server.server_close()


def episode_of(words: str, **fields: Any) -> Episode:
    """An episode in which every text that an agent, its files or a coach can choose is this one."""
    record = FileRecord(path=words, change="created", size=7, sha256="0" * 64, kind=words)
    tool = ToolResult(stdout=words, stderr=words, exit_code=1, exception=words, files=(record,))
    verdict = CoachScore(
        score=1.0,
        reason=words,
        blame={AGENTS[0]: 1.0},
        correction=words,
        revisions=(ScoreRevision(turn=0, score=1.0, reason=words),),
    )
    messages = (Message(role="system", content=words), Message(role="user", content=words))
    turn = make_turn(
        0,
        AGENTS[0],
        action=words,
        messages=messages,
        tool=tool,
        artifacts=(Artifact(path=words, status="invalid", problem=words),),
    )
    known: dict[str, Any] = {
        "turns": (
            replace(turn, score=verdict, final_score=1.0),
            make_turn(1, AGENTS[1], None, action=words, unscored_reason=words),
        ),
        "task_id": words,
        "task_type": words,
        "grade_code": words,
        "grade_message": words,
        "metrics": {words: 0.5},
        "start_role": words,
    }
    return make_episode(**(known | fields))


def hostile_run(folder: Path, texts: list[str]) -> RunFolder:
    run = make_run(folder / "run", steps=1, episodes=1)
    rollouts = [make_rollout(k + 1, episode_of(words)) for k, words in enumerate(texts)]
    run.append_episodes(2, rollouts)
    run.append_metrics(make_line(2, rollouts))
    return run


def address(run: RunFolder) -> str:
    return report.write_report(run.path).resolve().as_uri()


def boxes(browser: Browser) -> Any:
    """Where the fixed parts of the page lie, and whether anything juts out."""
    return browser.value(
        """(() => {
          const box = e => JSON.stringify(e.getBoundingClientRect());
          return { head: box(document.querySelector('.top')),
                   links: [...document.querySelectorAll('nav a')].map(box),
                   columns: [...document.querySelectorAll('.card, .row, figure')].map(
                     e => e.getBoundingClientRect()).map(r => [r.left, r.width]),
                   wide: document.documentElement.scrollWidth - innerWidth };
        })()"""
    )


def top(browser: Browser) -> tuple[Any, bytes]:
    """The head of the page: where it lies, and what is painted there."""
    browser.value("scrollTo(0, 0)")
    return boxes(browser), browser.screenshot_of(".top")


def test_hostile_episodes_run_nothing_and_stay_in_their_boxes(
    browser: Browser, hits: Hits, tmp_path: Path
) -> None:
    attacks = [words.format(hit=hits.url, wide="W" * 200) for words in ATTACKS]
    bad = address(hostile_run(tmp_path / "bad", attacks))
    good = address(hostile_run(tmp_path / "good", ["harmless"] * len(attacks)))
    browser.events.clear()
    for size in (DESK, PHONE):
        browser.screen(*size, phone=size == PHONE)
        for place in ("", "#episodes", *(f"#e{k + 1}" for k in range(len(attacks)))):
            browser.open("about:blank")
            browser.open(good + place)
            expected = top(browser)
            browser.open("about:blank")
            browser.open(bad + place)
            browser.value("document.querySelectorAll('details').forEach(item => item.open = true)")
            places, shot = top(browser)
            assert places == expected[0], place
            assert shot == expected[1], place
            assert places["wide"] <= 0, place
    assert browser.value("document.querySelectorAll('main').length") == 1
    forbidden = "script,img,iframe,object,embed,link,base,form,input,textarea,[style],[onload],[onfocus]"
    assert browser.value(f"document.querySelectorAll('{forbidden},svg svg,h1 ~ h1').length") == 0
    assert browser.value("[...document.links].every(a => a.getAttribute('href').startsWith('#'))")
    assert browser.value("document.title") == "run"
    assert browser.value("typeof window.pwned") == "undefined"
    assert browser.seen("Page.javascriptDialogOpening") == []
    assert [item for item in browser.seen("Log.entryAdded") if item["entry"]["level"] == "error"] == []
    assert hits.paths == []


def test_even_text_that_was_not_escaped_would_run_and_load_nothing(
    browser: Browser, hits: Hits, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", steps=1)
    page = report.write_report(run.path).read_text()
    raw = "".join(words.format(hit=hits.url, wide="") for words in (*ATTACKS[:5], *ATTACKS[6:9]))
    raw = raw.replace("<meta", "<nometa")  # no policy forbids this one
    raw += "<a id=click href='javascript:window.pwned=1'>x</a><style>h1{color:red}</style>"
    broken = page.replace("<h1>", f"{raw}<h1>").encode("utf-8", "replace")
    run.report_path.write_bytes(broken)
    browser.events.clear()
    browser.open(run.report_path.resolve().as_uri())
    browser.value("document.getElementById('click').click()")
    browser.value("new Promise(done => setTimeout(done, 300))")
    assert browser.value("document.querySelectorAll('script').length") > 0  # it was there
    assert browser.value("typeof window.pwned") == "undefined"
    assert browser.value("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"
    assert browser.value("getComputedStyle(document.body).display") == "block"
    assert browser.seen("Page.javascriptDialogOpening") == []
    assert hits.paths == []


def search_run(folder: Path) -> RunFolder:
    """Two steps; in the second, one action of each kind that one may look for."""
    run = make_run(folder / "run", steps=1, episodes=2)
    blamed = CoachScore(score=1.5, reason="wrong", blame={AGENTS[0]: 0.75, AGENTS[1]: 0.25})
    bad = make_turn(0, AGENTS[0], 1.5)
    turns = (replace(bad, score=blamed), make_turn(1, AGENTS[1], None, unscored_reason="timeout"))
    odd = make_episode(turns=turns, stop_reason=StopReason.TIME, success=False, outcome=0.0)
    run.append_episodes(2, [make_rollout(2, odd), make_rollout(3, make_episode((9.5, 8.0)))])
    credit = ActionCredit(index=3, turn=0, agent=AGENTS[0], ret=0.875, advantage=1.25, kl=0.01, num_tokens=5)
    run.append_credit(2, [credit])
    run.append_metrics(make_line(2))
    return run


def choose(browser: Browser, **menus: str) -> list[str]:
    """Set menus by what one reads there, all others to "any"; the targets of the lines then visible."""
    found: list[str] = browser.value(
        f"""(() => {{
          const menus = {menus!r};
          for (const menu of document.querySelectorAll('.menus select')) {{
            const wanted = menus[menu.name.replace(' ', '_')];
            menu.selectedIndex = wanted ? [...menu.options].findIndex(o => o.text == wanted) : 0;
          }}
          return [...document.querySelectorAll('.row')].filter(row => row.getClientRects().length)
            .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
            .map(row => row.hash);
        }})()"""
    )
    return found


def test_actions_are_found_and_sorted_without_a_script(browser: Browser, tmp_path: Path) -> None:
    browser.screen(*DESK)
    browser.open(address(search_run(tmp_path)) + "#episodes")
    everything = [f"#e{index}-{turn}" for index in range(4) for turn in (0, 1)]
    assert choose(browser) == everything
    assert choose(browser, agent=AGENTS[0]) == everything[::2]
    assert choose(browser, score="0 to 2") == ["#e2-0"]
    assert choose(browser, score="no score") == ["#e2-1"]
    assert choose(browser, blamed=AGENTS[1]) == ["#e2-0"]
    assert choose(browser, stop_reason="time") == ["#e2-0", "#e2-1"]
    assert choose(browser, step="2", result="success") == ["#e3-0", "#e3-1"]
    assert choose(browser, agent=AGENTS[1], score="8 to 10", step="1") == ["#e0-1", "#e1-1"]
    assert choose(browser, score="2 to 4") == []
    assert choose(browser, step="2", order="lowest score first") == ["#e2-0", "#e3-1", "#e3-0", "#e2-1"]
    assert choose(browser, step="2", order="highest score first") == ["#e3-0", "#e3-1", "#e2-0", "#e2-1"]


def visible(browser: Browser) -> list[str]:
    found: list[str] = browser.value(
        "[...document.querySelectorAll('main, .page')].filter(e => e.getClientRects().length).map(e => e.id)"
    )
    return found


def test_links_lead_from_the_curves_to_one_action_and_back(browser: Browser, tmp_path: Path) -> None:
    browser.screen(*DESK)
    browser.open(address(search_run(tmp_path)))
    assert visible(browser) == ["overview"]
    browser.value("document.querySelector('nav a:last-child').click()")
    browser.wait_for("location.hash == '#episodes'")
    assert visible(browser) == ["episodes"]
    browser.value("document.querySelector('.row[href=\"#e3-0\"]').click()")
    browser.wait_for("location.hash == '#e3-0'")
    assert visible(browser) == ["e3"]
    assert "return 0.875" in browser.value("document.getElementById('e3-0').innerText")
    browser.value("document.querySelector('#e3 .walk a:nth-child(2)').click()")
    browser.wait_for("location.hash == '#e2'")
    assert visible(browser) == ["e2"]
    browser.value("history.back()")
    browser.wait_for("location.hash == '#e3-0'")
    browser.value("document.querySelector('nav a').click()")
    browser.wait_for("location.hash == '#overview'")
    assert visible(browser) == ["overview"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_page_fits_the_screen_in_light_and_dark(
    browser: Browser, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    page = address(search_run(tmp_path))
    browser.screen(*size, dark=dark, phone=size == PHONE)
    shots = []
    for place in ("", "#episodes", "#e2"):
        browser.open("about:blank")
        browser.open(page + place)
        assert boxes(browser)["wide"] <= 0
        shots.append(browser.screenshot())
    assert len(set(shots)) == 3
    assert all(shot.startswith(b"\x89PNG") and len(shot) > 10_000 for shot in shots)
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(247, 246, 243)")
    drawn = browser.value("document.querySelectorAll('svg path[class]').length")
    assert drawn > 10


def test_a_served_page_follows_the_run_and_leaves_the_reader_alone(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RELOAD_S", 1)
    run = search_run(tmp_path)
    run.set_steps(4)
    browser.screen(*DESK)
    with open_server(Pages(run.path), None) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        start = f"http://127.0.0.1:{opened.server_port}/"
        browser.open(start)
        browser.wait_for("document.body.innerText.includes('2 of 4')")
        run.append_episodes(3, [make_rollout(4)])
        run.append_metrics(make_line(3))
        # Then for a while: the page might else load itself again in the moment of the click.
        monkeypatch.setattr(server, "RELOAD_S", 600)
        browser.wait_for("document.body.innerText.includes('3 of 4')")
        monkeypatch.setattr(server, "RELOAD_S", 1)
        browser.value("document.querySelector('nav a:last-child').click()")
        browser.wait_for("location.pathname == '/still' && document.readyState == 'complete'")
        assert visible(browser) == ["episodes"]
        assert choose(browser, step="3") == ["#e4-0", "#e4-1"]
        browser.value("window.kept = 1")
        browser.value("new Promise(done => setTimeout(done, 1500))")
        assert browser.value("window.kept") == 1
        opened.shutdown()
