"""Warm start: a few passes of supervised fine-tuning on good actions, before reinforcement learning.

    python -m mappa_train sft --env dsbench-v0 --max-new-tokens 512 --out runs/warm
    python -m mappa_train --env dsbench-v0 --max-new-tokens 512 --init runs/warm

The actions are the scripted expert's on the tasks of the split, or those of `--data` files (as `export
--format sft` writes them). Each agent learns from its own alone: the mean cross-entropy over the tokens of an
optimizer batch, the stop token included, on exactly the prompts that the environment shows. What comes of it
is where learning begins, and what π_ref is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from mappa_envs.errors import ConfigError, DataError
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.types import Episode
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.files import write_atomically
from mappa_train.loss import token_logprobs
from mappa_train.packing import Sample, make_packs
from mappa_train.plan import make_env
from mappa_train.policies import Policies
from mappa_train.tokens import ChatTokenizer
from mappa_train.trainer import Team, open_team, save_weights

log = logging.getLogger(__name__)

BATCH = 16
"""Actions in one optimizer step."""
NUM_CONCURRENT = 4


@dataclass(frozen=True, kw_only=True)
class Example:
    """One action to imitate: the chat messages that `agent` saw, and its whole message."""

    agent: str
    messages: tuple[Mapping[str, str], ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """One agent's warm start: nats per token (None: no examples), share of actions too long to sample."""

    num_examples: int
    num_tokens: int
    before: float
    after: float
    val_before: float | None
    val_after: float | None
    too_long: float


def warm_start(
    config: Config, run: RunFolder, examples: Sequence[Example] = (), say: Callable[[str], None] = print
) -> dict[str, FitResult]:
    """Fine-tune every agent and leave a checkpoint (step 0) and `sft.json` in the run folder.

    Without `examples` the scripted expert plays every task of the split once, and those of `val` to measure
    on. Raises `DataError` where an agent has nothing to learn from.
    """
    with closing(open_team(config, num_envs=1, coached=False)) as team:
        env = team.envs[0]
        held_out: list[Example] = []
        if not examples:
            say(f"the scripted expert plays {len(env.tasks)} tasks to learn from, and those of val")
            examples, held_out = _expert_examples(config, team)
        _check_examples(env.possible_agents, examples)
        results = {}
        for agent in env.possible_agents:
            train, val = (_samples(team.tokenizer, agent, some) for some in (examples, held_out))
            num_tokens = sum(len(sample.response) for sample in train)
            say(f"{agent}: {len(train)} actions of {num_tokens} tokens, {config.epochs} times")
            results[agent] = _fit_agent(team.policies, agent, train, val, config)
        save_weights(run, 0, team.policies, {})
    figures = {agent: vars(result) for agent, result in results.items()}
    write_atomically(run.path / "sft.json", (json.dumps(figures, indent=1) + "\n").encode())
    return results


def table(results: Mapping[str, FitResult]) -> Table:
    """The figures, for the screen."""
    shown = Table(title="nats per token of the actions to imitate, before → after")
    for name in ("agent", "actions", "train", "val"):
        shown.add_column(name, justify="left" if name == "agent" else "right")
    for agent, r in results.items():
        val = "" if r.val_before is None else f"{r.val_before:.3f} → {r.val_after:.3f}"
        shown.add_row(agent, str(r.num_examples), f"{r.before:.3f} → {r.after:.3f}", val)
    return shown


def read_examples(path: Path) -> list[Example]:
    """Actions of a JSON-lines file, or of all in a folder: `messages`, the last the assistant's, and `agent`.

    Raises `DataError`, which names the line.
    """
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise DataError(f"--data {path}: no .jsonl file in this folder")
        return [example for file in files for example in read_examples(file)]
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--data {path}: cannot be read ({error})") from error
    return [_example(f"--data {path}, line {k}", line) for k, line in enumerate(lines, 1) if line.strip()]


def _example(where: str, line: str) -> Example:
    try:
        record = json.loads(line)
        agent, messages = record["agent"], record["messages"]
        chat = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: needs `agent` and `messages` of role and content ({error!r})") from error
    if len(chat) < 2 or chat[-1]["role"] != "assistant":
        raise DataError(f"{where}: the last of the messages must be the assistant's, and not the only one")
    return Example(agent=str(agent), messages=tuple(chat[:-1]), action=chat[-1]["content"])


def _check_examples(agents: Sequence[str], examples: Sequence[Example]) -> None:
    found = {example.agent for example in examples}
    if unknown := sorted(found - set(agents)):
        raise DataError(f"actions of {unknown[0]}, who is not in the team of {', '.join(agents)}")
    if missing := [agent for agent in agents if agent not in found]:
        raise DataError(
            f"nothing to learn from for {missing[0]}: the expert solved no task, or --data has none"
        )


def _expert_examples(config: Config, team: Team) -> tuple[list[Example], list[Example]]:
    """What the expert did in episodes that succeeded, on the tasks of the split and on those of val."""

    async def both() -> tuple[list[Example], list[Example]]:
        mine = await _play_tasks(team.envs[0])
        if config.split == "val":
            return mine, []
        return mine, await _play_tasks(make_env(config, "val", sandbox=team.sandbox, coach=None))

    return asyncio.run(both())


async def _play_tasks(env: PipelineEnv) -> list[Example]:
    gate = asyncio.Semaphore(NUM_CONCURRENT)

    async def one(index: int, task_id: str) -> Episode:
        async with gate:
            mine = env.sibling(None)
            try:
                return await _play_expert(mine, task_id, index)
            finally:
                await mine.aclose()

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(one(k, task.task_id)) for k, task in enumerate(env.tasks)]
    turns = [turn for job in jobs if job.result().success for turn in job.result().turns]
    return [
        Example(
            agent=turn.agent,
            messages=tuple({"role": m.role, "content": m.content} for m in turn.messages),
            action=turn.action,
        )
        for turn in turns
    ]


async def _play_expert(env: PipelineEnv, task_id: str, seed: int) -> Episode:
    from mappa_envs.testing import expert_message

    task = next(task for task in env.tasks if task.task_id == task_id)
    await env.areset(seed=seed, options={"task_id": task_id})
    while env.episode.stop_reason is None:
        agent = env.agent_selection
        await env.astep(expert_message(env.env_id, agent, env.infos[agent]["messages"], task))
    return env.episode


def _samples(tokenizer: ChatTokenizer, agent: str, examples: Sequence[Example]) -> list[Sample]:
    return [
        Sample(prompt=tokenizer.encode(item.messages), response=tokenizer.encode_action(item.action))
        for item in examples
        if item.agent == agent
    ]


def _fit_agent(
    policies: Policies, agent: str, train: Sequence[Sample], val: Sequence[Sample], config: Config
) -> FitResult:
    too_long = sum(len(s.response) > config.max_new_tokens for s in train) / len(train)
    if too_long:
        log.warning(
            "%s: %.0f %% of the actions are longer than --max-new-tokens %d, and would be cut when sampled",
            agent, 100 * too_long, config.max_new_tokens,
        )  # fmt: skip
    before, val_before = (mean_loss(policies, agent, some, config.token_budget) for some in (train, val))
    fit(policies, agent, train, config)
    after, val_after = (mean_loss(policies, agent, some, config.token_budget) for some in (train, val))
    assert before is not None
    assert after is not None
    return FitResult(
        num_examples=len(train),
        num_tokens=sum(len(s.response) for s in train),
        before=before,
        after=after,
        val_before=val_before,
        val_after=val_after,
        too_long=too_long,
    )


def fit(policies: Policies, agent: str, samples: Sequence[Sample], config: Config) -> None:
    """`config.epochs` passes of AdamW: L = −Σ_t log π(a_t) / N over the N response tokens of each batch.

    The order of the samples is drawn from `config.seed`. Raises `ConfigError` where the loss is not finite.
    """
    parameters = policies.parameters(agent)
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    for batch in _batches(len(samples), config.epochs, config.seed):
        chosen = [samples[k] for k in batch]
        num_tokens = sum(len(sample.response) for sample in chosen)
        for pack in make_packs(chosen, config.token_budget):
            logprobs, _ = token_logprobs(policies.activate(agent), pack, temperature=1.0)
            (-logprobs.sum() / num_tokens).backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm))
        if not math.isfinite(norm):
            raise ConfigError(f"--lr {config.lr}: the gradient of {agent} is not finite; choose a lower one")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def mean_loss(policies: Policies, agent: str, samples: Sequence[Sample], token_budget: int) -> float | None:
    """−log π per response token, in nats; None without samples."""
    packs = make_packs(samples, token_budget)
    parts = [token_logprobs(policies.activate(agent), pack, temperature=1.0)[0] for pack in packs]
    return -float(torch.cat(parts).mean()) if parts else None


def _batches(count: int, epochs: int, seed: int) -> Iterator[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        yield from (order[start : start + BATCH] for start in range(0, count, BATCH))
