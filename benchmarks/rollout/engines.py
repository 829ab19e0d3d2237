"""The default run's steps with vLLM and with the transformers engine, and bare vLLM on the same prompts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mappa_train.config import Config
from mappa_train.engine.vllm_setup import engine_settings
from mappa_train.learner import Learner
from mappa_train.model import load_pretrained
from mappa_train.policies import Policies, load_model, pick_device
from mappa_train.rollout import plans_of
from mappa_train.team import open_team, play
from mappa_train.trainer import credit_samples
from mappa_train.types import Action, EpisodeRollout

RAW_TIMEOUT_S = 1200
WARM_EPISODES = 2
"""Of the step before those that count, which starts engine and sandbox and learns nothing."""
COMPARED_EPISODES = 3
"""Of the last step, whose logprobs are compared: each is computed twice more, without a cache."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What some training steps took; `total_s` is that of all, learning included.

    `logprob_diffs` are |log π of the engine − log π of the policy| of tokens that the last step sampled, by
    the type that the policy was computed in.
    """

    num_tokens: int
    rollout_s: float
    sync_s: float
    total_s: float
    rollouts: list[EpisodeRollout]
    logprob_diffs: dict[str, Tensor]

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.rollout_s


def run_steps(config: Config, num_steps: int, *, learns: bool) -> Steps:
    """Sync, play and maybe learn, `num_steps` times after a small first one that does not count."""
    syncs, plays, totals, num_tokens = 0.0, 0.0, 0.0, 0
    with closing(open_team(config)) as team:
        learner = Learner(team.policies, config)
        team.playing_engine().sync(learner.version)
        play(
            plans_of(1, config, team.env)[:WARM_EPISODES],
            config,
            team,
            step=1,
            policy_version=learner.version,
        )
        for step in range(2, num_steps + 2):
            start = time.perf_counter()
            team.playing_engine().sync(learner.version)
            syncs += time.perf_counter() - start
            plans = plans_of(step, config, team.env)
            rollouts, times = play(plans, config, team, step=step, policy_version=learner.version)
            plays += times.rollout
            num_tokens += sum(len(action.generation.token_ids) for action in _actions(rollouts))
            if step > num_steps:  # before learning, while the policies are what was sampled from
                pause = time.perf_counter()
                diffs = _logprob_diffs(rollouts[:COMPARED_EPISODES], team.policies, config.temperature)
                start += time.perf_counter() - pause
            if learns:
                learner.update(credit_samples(rollouts, config))
            totals += time.perf_counter() - start
    return Steps(
        num_tokens=num_tokens,
        rollout_s=plays,
        sync_s=syncs,
        total_s=totals,
        rollouts=rollouts,
        logprob_diffs=diffs,
    )


def raw_tokens_per_s(config: Config, rollouts: Sequence[EpisodeRollout]) -> float:
    """Of vLLM itself on the prompts of these rollouts, with the model that the policies began from.

    It gets our engines' settings and samples as many tokens of each prompt as the rollout did, so that only
    what a rollout adds is between the two.
    """
    from mappa_train.tokens import ChatTokenizer

    folder = load_pretrained(config.model).folder
    tokenizer = ChatTokenizer(folder)
    device, on_gpu = pick_device(), torch.cuda.is_available()
    model = load_model(folder, torch.bfloat16 if on_gpu else torch.float32, device)
    by_agent: dict[str, list[tuple[list[int], int]]] = {}
    for action in _actions(rollouts):
        asked = (action.prompt_ids.tolist(), len(action.generation.token_ids))
        by_agent.setdefault(action.agent, []).append(asked)
    job = {
        "settings": engine_settings(folder, model, context_tokens=tokenizer.context_tokens),
        "temperature": config.temperature,
        "prompts": list(by_agent.values()),
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "job.json"
        path.write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.rollout.raw", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RAW_TIMEOUT_S, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["tokens"] / found["seconds"])


def compare(config: Config, num_steps: int) -> dict[str, float | None]:
    """The figures that need vLLM."""
    ours = run_steps(replace(config, engine="vllm"), num_steps, learns=True)
    theirs = run_steps(replace(config, engine="transformers"), num_steps, learns=False)
    raw = raw_tokens_per_s(config, ours.rollouts)
    figures: dict[str, float | None] = {
        "vs_raw_vllm": ours.tokens_per_s / raw,
        "vs_transformers": ours.tokens_per_s / theirs.tokens_per_s,
        "sync_share": ours.sync_s / ours.total_s,
        "tokens_per_s": ours.tokens_per_s,
    }
    for name, diff in ours.logprob_diffs.items():
        figures |= {
            f"logprob_diff_max_{name}": float(diff.max()),
            f"logprob_diff_mean_{name}": float(diff.mean()),
        }
    return figures


def _actions(rollouts: Sequence[EpisodeRollout]) -> list[Action]:
    return [action for rollout in rollouts for action in rollout.actions]


@torch.no_grad()
def _logprob_diffs(
    rollouts: Sequence[EpisodeRollout], policies: Policies, temperature: float
) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {"fp32": [], "bf16": []}
    for action in _actions(rollouts):
        model, answer = policies.sampler(action.agent), action.generation
        device = model.lm_head.weight.device
        ids = torch.cat([action.prompt_ids, answer.token_ids]).to(device)
        for name, parts in found.items():
            with torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16"):
                hidden = model.model(input_ids=ids[None]).last_hidden_state[0]
                logits = model.lm_head(hidden[len(action.prompt_ids) - 1 : -1]).float() / temperature
            logprobs = logits.log_softmax(-1).gather(1, answer.token_ids.to(device)[:, None])[:, 0]
            parts.append((logprobs.cpu() - answer.logprobs).abs())
    return {name: torch.cat(parts) for name, parts in found.items()}
