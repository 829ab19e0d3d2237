"""Training with an LLM coach: the real loop, a tiny model, the real litellm, a server that comes and goes."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("litellm") is None:  # not imported here: that takes seconds, in every process of pytest's
    pytest.skip("needs the extra coach", allow_module_level=True)
torch = pytest.importorskip("torch", reason="needs the extra train")

from mappa_envs.coach import BUDGET_SPENT, LLMCoach  # noqa: E402
from mappa_envs.coach.llm import client  # noqa: E402
from mappa_envs.errors import CoachError  # noqa: E402
from mappa_envs.testing import FakeSandbox  # noqa: E402
from mappa_envs.types import Episode  # noqa: E402
from mappa_train import cli, doctor, team  # noqa: E402
from mappa_train.checkpoint import RunFolder  # noqa: E402
from mappa_train.coaching import SPENT, open_coach  # noqa: E402
from mappa_train.config import COACH_OPTIONS, Config  # noqa: E402
from tests.coach.coach_cases import make_request  # noqa: E402
from tests.coach.coach_server import Asked, CoachServer, Reply, failing, verdict  # noqa: E402
from tests.train.tiny import make_model  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CoachServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key-of-a-user")
    monkeypatch.setattr(team, "open_sandbox", lambda *args, **options: FakeSandbox())
    monkeypatch.chdir(tmp_path)
    server, too_late = CoachServer(), client._too_late
    # A server that is gone does not come back here: nobody need wait for that until the dead-line.
    monkeypatch.setattr(client, "_too_late", lambda *about: server.stopped or too_late(*about))
    yield server
    server.stop()


def arguments(server: CoachServer, folder: Path, **changes: Any) -> list[str]:
    known: dict[str, Any] = {
        "model": folder,
        "out": "run",
        "steps": 3,
        "episodes_per_step": 4,
        "samples_per_task": 2,
        "max_tasks": 2,
        "max_new_tokens": 16,
        "exploring_starts": 0,
        "lora_rank": 4,
        "coach": "llm:openai/some-model",
        "coach_base_url": server.url,
        "coach_timeout_s": 60,
        "coach_prices": "1,1",
        "coach_cache": "off",
    }
    settings = known | changes
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def dies_after(server: CoachServer, count: int) -> None:
    """The server answers so many verdicts, then it is gone."""
    answered = 0

    def answer(asked: Asked) -> Reply:
        nonlocal answered
        answered += 1
        if answered == count:
            threading.Thread(target=server.stop).start()
        return Reply(text=verdict(answered % 11)) if answered <= count else failing(503)

    server.default = answer


def lines(step: int | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return found if step is None else [line for line in found if line["step"] == step]


def episodes() -> list[Episode]:
    read = (json.loads(line) for line in Path("run/episodes.jsonl").read_text().splitlines())
    return [Episode.from_json(json.dumps(line.get("episode", line))) for line in read]


def test_a_run_counts_tokens_and_dollars_by_agent(server: CoachServer, folder: Path) -> None:
    assert cli.main(arguments(server, folder, steps=2)) == 0
    (line,) = lines(2)
    assert (line["coach/prompt_tokens"], line["coach/completion_tokens"]) == (1200, 120)
    assert line["coach/cost_usd"] == pytest.approx(1320e-6)
    assert line["coach/cost_usd/modeler_0"] == pytest.approx(440e-6)
    assert (line["unscored"], line["coach/cached"], line["stop/budget"]) == (0, 0, 0)
    # One to try the coach out, one an action; all are paid for.
    assert len(server.asked) == 1 + 2 * 12
    assert json.loads((Path("run") / SPENT).read_text())["cost_usd"] == pytest.approx(25 * 110e-6)
    for name in ("config.toml", "episodes.jsonl", "run.log"):
        assert "very-secret" not in (Path("run") / name).read_text()


def test_a_dead_coach_ends_the_run_with_a_checkpoint_and_loses_no_episode(
    server: CoachServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dies_after(server, 17)
    assert cli.main(arguments(server, folder)) == 3
    shown = capsys.readouterr().err
    assert "step 2: the coach left" in shown
    assert "--max-unscored" in shown
    assert RunFolder(Path("run")).latest() == 1
    kept = episodes()
    assert len(kept) == 8
    assert all(episode.stop_reason is not None for episode in kept)
    turns = [turn for episode in kept for turn in episode.turns]
    assert sum(turn.final_score is not None for turn in turns) in (16, 17)
    assert all(turn.unscored_reason for turn in turns if turn.final_score is None)


def test_below_the_threshold_training_goes_on_without_the_coach(server: CoachServer, folder: Path) -> None:
    dies_after(server, 17)
    assert cli.main(arguments(server, folder, max_unscored=1)) == 0
    unscored = [line["unscored"] for line in lines()]
    assert unscored[0] == 0
    assert 0 < unscored[1] < 12
    assert unscored[2] == 12
    assert lines(3)[0]["score/mean"] is None
    assert RunFolder(Path("run")).latest() == 3


def test_a_resumed_run_goes_on_once_the_coach_is_back(server: CoachServer, folder: Path) -> None:
    dies_after(server, 17)
    assert cli.main(arguments(server, folder)) == 3
    assert cli.main(["resume", "run"]) == 3
    back = CoachServer()
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace(server.url, back.url))
    assert cli.main(["resume", "run"]) == 0
    back.stop()
    assert [line["step"] for line in lines()] == [1, 2, 3]
    assert [line["unscored"] for line in lines()] == [0, 0, 0]
    assert len(episodes()) == 12


def test_a_spent_budget_ends_the_run_well(
    server: CoachServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = 110e-6
    budget = {"coach_budget_usd": 17 * cost - 1e-9, "coach_concurrency": 1}
    assert cli.main(arguments(server, folder, **budget)) == 0
    assert "is spent: the run ends after step 2 of 3" in " ".join(capsys.readouterr().out.split())
    first, second = lines()
    assert (first["stop/budget"], first["unscored"]) == (0, 0)
    assert second["stop/budget"] > 0
    assert second["unscored"] == 24 - 16  # one call was to try the coach out
    assert RunFolder(Path("run")).latest() == 2
    reasons = {turn.unscored_reason for episode in episodes() for turn in episode.turns}
    assert reasons == {None, BUDGET_SPENT}
    asked = len(server.asked)
    assert cli.main(["resume", "run"]) == 0
    assert len(lines()) == 2
    assert len(server.asked) == asked + 1


def test_a_budget_that_the_try_out_spends_is_too_small(
    server: CoachServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments(server, folder, coach_budget_usd=50e-6)) == 3
    assert "trying out the coach has spent it" in " ".join(capsys.readouterr().err.split())
    assert len(server.asked) == 1


def test_the_budget_counts_steps_that_came_to_nothing(server: CoachServer, folder: Path) -> None:
    dies_after(server, 17)
    flags = {"coach_budget_usd": 1.0, "coach_cache": "off"}
    assert cli.main(arguments(server, folder, **flags)) == 3
    ledger = Path("run") / SPENT
    spent = json.loads(ledger.read_text())["cost_usd"]
    assert spent == pytest.approx(17 * 110e-6, rel=0.07)  # of two steps, one of them finished
    assert spent > sum(line["coach/cost_usd"] for line in lines())
    ledger.write_text('{"cost_usd": 1.0}')
    back, config = CoachServer(), Path("run/config.toml")
    config.write_text(config.read_text().replace(server.url, back.url))
    assert cli.main(["resume", "run"]) == 0
    assert [line["step"] for line in lines()] == [1]
    ledger.write_text('{"cost_usd": NaN}')
    assert cli.main(["resume", "run"]) == 2
    back.stop()


def test_a_coach_that_does_not_answer_is_found_before_anything_is_made(
    server: CoachServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.default = failing(401, "bad sk-very-secret-key-of-a-user")
    assert cli.main(arguments(server, folder)) == 3
    shown = capsys.readouterr().err
    assert "OPENAI_API_KEY" in shown
    assert "very-secret" not in shown
    assert shown.removeprefix(f"loading torch and {folder} …\n").count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"coach": "rubric"}, "only for llm: coaches, and --coach is rubric\n"),
        ({"coach_prices": "1"}, "two numbers"),
        ({"coach_base_url": "here"}, "must be an address"),
        ({"coach_prices": "", "coach_budget_usd": 1}, "--coach-prices IN,OUT"),
        ({"coach": "llm:"}, "needs a model"),
    ],
)
def test_settings_that_do_nothing_or_make_no_sense_are_refused(
    server: CoachServer, folder: Path, capsys: pytest.CaptureFixture[str], flags: dict[str, Any], words: str
) -> None:
    assert cli.main(arguments(server, folder, **flags)) == 2
    assert words in capsys.readouterr().err
    assert not Path("run").exists()


def test_the_settings_have_the_coachs_own_defaults() -> None:
    coach = open_coach(Config(coach="llm:a/b", coach_rpm=5))
    assert isinstance(coach, LLMCoach)
    own = inspect.signature(LLMCoach).parameters
    assert {name: getattr(Config(), f"coach_{name}") for name in COACH_OPTIONS} == {
        name: item.default for name, item in own.items() if name != "model"
    }


def test_the_doctor_tries_the_coach(
    server: CoachServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_sandbox", lambda: iter(()))
    flags = ["doctor", "--coach", "llm:openai/x", "--coach-base-url", server.url]
    cli.main(flags)
    assert "llm:openai/x (answers)" in capsys.readouterr().out
    server.default = failing(404)
    assert cli.main(flags) == 1
    assert "is the model's name right" in " ".join(capsys.readouterr().out.split())


class SmallModel:
    """SmolLM2-135M behind the server's replies: whatever it says, with the tokens that it took.

    It reads the last 500 tokens only, so that the test takes seconds.
    """

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from mappa_train.model import EMBEDDED, load_pretrained

        folder = load_pretrained(EMBEDDED).folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokens = (0, 0)

    def __call__(self, asked: Asked) -> Reply:
        prompt = self.tokenizer.apply_chat_template(
            list(asked["messages"]), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"][:, -500:]
        with torch.no_grad():
            ids = self.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
            )[0]
        said = ids[prompt.shape[1] :]
        usage = (prompt.shape[1], len(said))
        self.tokens = (self.tokens[0] + usage[0], self.tokens[1] + usage[1])
        reason = "stop" if said[-1] == self.tokenizer.eos_token_id else "length"
        text = self.tokenizer.decode(said, skip_special_tokens=True)
        return Reply(text=text, finish_reason=reason, usage=usage)


def test_a_real_small_model_can_be_the_coach(server: CoachServer) -> None:
    """The whole path. It is far too small to judge, and is refused."""
    model = SmallModel()
    server.default = model
    coach = LLMCoach("openai/smollm2-135m", base_url=server.url, timeout_s=500.0, cache="off", prices="1,1")
    asyncio.run(coach.check())
    # In 12 tokens there is no room for a JSON object.
    with pytest.raises(CoachError, match="no usable verdict, asked twice"):
        asyncio.run(coach.score(make_request()))
    assert len(server.asked) == 3
    used = coach.budget.spent
    assert (used.prompt_tokens, used.completion_tokens) == model.tokens
    assert used.prompt_tokens > 500
    assert used.cost_usd == pytest.approx(sum(model.tokens) / 1e6)
