"""The benchmark of rollouts: its parts, and a small run of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.rollout import __main__ as rollout
from benchmarks.rollout import engines, waiting
from mappa_train.types import Action, EpisodeRollout, Generation

WAITED = ["slowdown_coach2s", "slowdown_coach10s", "slowdown_tool1s", "slowdown_coach10s_tool1s"]
AGREED = ("vs_raw_vllm", "vs_transformers", "sync_share", "logprob_diff_max_fp32")


def test_slowdowns_are_medians_of_ratios_within_a_round() -> None:
    seconds = {"none": [10.0, 20.0, 10.0], "coach2s": [11.0, 30.0, 12.0]}
    seconds |= {name: [10.0, 20.0, 10.0] for name in ("coach10s", "tool1s", "coach10s_tool1s")}
    assert rollout.slowdowns(seconds) == dict(zip(WAITED, [pytest.approx(1.2), 1, 1, 1], strict=True))


def test_a_run_of_the_slow_sandbox_takes_its_time() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        workspace = await waiting.SlowSandbox(0.05).open()
        start = loop.time()
        await workspace.run("print(1)")
        assert loop.time() - start >= 0.05

    asyncio.run(check())


def test_what_needs_vllm_is_null_with_a_reason_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "why_not", lambda: "vLLM is not installed here")
    figures, reason = rollout.with_engines(rollout.SIZES["quick"])
    assert reason == "vLLM is not installed here"
    assert set(figures.values()) == {None}
    assert set(AGREED) <= set(figures)


class Echo(nn.Module):
    """A model whose logits are those of its input's embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)

    def model(self, input_ids: torch.Tensor) -> object:
        return type("Out", (), {"last_hidden_state": self.embed(input_ids)})


def test_the_difference_is_that_of_the_sampled_tokens_at_the_temperature() -> None:
    model, prompt, said = Echo(), torch.tensor([1, 2]), torch.tensor([3, 4])
    logits = model.lm_head(model.embed(torch.tensor([2, 3]))) / 0.5
    exact = logits.log_softmax(-1)[torch.arange(2), said].detach()
    generation = Generation(
        token_ids=said, logprobs=exact + torch.tensor([0.25, -0.5]), truncated=False, policy_version=0
    )
    action = Action(agent="a_0", turn=0, prompt_ids=prompt, generation=generation)
    played = EpisodeRollout(index=0, episode=None, actions=(action,))  # type: ignore[arg-type]
    policies = type("Policies", (), {"sampler": staticmethod(lambda agent: model)})
    found = engines._logprob_diffs([played], policies, 0.5)  # type: ignore[arg-type]
    assert found["fp32"].tolist() == pytest.approx([0.25, 0.5], abs=1e-5)
    assert found["bf16"].tolist() == pytest.approx([0.25, 0.5], abs=0.1)


@pytest.mark.slow
def test_a_small_run_has_the_agreed_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rollout, "why_not", lambda: "not here")
    monkeypatch.setattr(waiting, "ACTION_S", 0.05)
    waits = [waiting.Waits(name=item.name, coach_s=item.coach_s / 100) for item in waiting.WAITS]
    monkeypatch.setattr(waiting, "WAITS", tuple(waits))
    rollout.main(["--episodes", "4", "--json", str(tmp_path / "out.json")])
    figures = json.loads((tmp_path / "out.json").read_text())
    assert list(figures) == [*WAITED, *rollout.NEED_VLLM]
    assert all(figures[name] > 0 for name in WAITED)
