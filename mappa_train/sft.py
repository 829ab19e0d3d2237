"""Warm start: a few passes of supervised fine-tuning on good actions, before reinforcement learning.

    python -m mappa_train sft --env dsbench-v0 --max-new-tokens 512 --out runs/warm
    python -m mappa_train --env dsbench-v0 --max-new-tokens 512 --init runs/warm

The actions are the scripted expert's on the tasks of the split, or those of `--data` files (as `export
--format sft` writes them). Each agent learns from its own alone, a shared policy from those of all: the mean
cross-entropy over the tokens of an optimizer batch, the stop token included, on exactly the prompts that the
environment shows. What comes of it is where learning begins, and what π_ref is. All agents are saved at the
end: what is stopped begins anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jinja2 import TemplateError
from rich.table import Table

from mappa_envs.errors import ConfigError, DataError, boundary
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.types import Episode
from mappa_train.checkpoint import RunFolder
from mappa_train.config import Config
from mappa_train.files import write_atomically
from mappa_train.loss import token_logprobs
from mappa_train.packing import Sample, make_packs
from mappa_train.plan import make_env
from mappa_train.policies import Policies
from mappa_train.progress import PHASE_INTERVAL_S, duration
from mappa_train.team import Team, save_weights
from mappa_train.tokens import ChatTokenizer

log = logging.getLogger(__name__)

BATCH = 16
"""Actions in one optimizer step."""
NUM_CONCURRENT = 4
ROLES = {"system", "user", "assistant", "tool"}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One action to imitate: the chat messages that `agent` saw, and its whole message."""

    agent: str
    messages: tuple[Mapping[str, str], ...]
    action: str
    where: str
    """For messages: the file and line, or the task of the expert."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What one agent learns from, and what it is measured on beside that (may be empty)."""

    train: list[Sample]
    val: list[Sample]

    @property
    def num_tokens(self) -> int:
        """Of one pass, prompts included."""
        return sum(len(sample.prompt) + len(sample.response) for sample in self.train)


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


def prepare(
    config: Config, team: Team, examples: Sequence[Example], say: Callable[[str], None] = print
) -> dict[str, Lesson]:
    """Every agent's lesson. Without `examples` the scripted expert plays: each task of the split once, and
    those of `val` to measure on.

    Raises `DataError` where an agent has nothing to learn from, or an action is too long for the model.
    """
    env = team.env
    held_out: list[Example] = []
    if not examples:
        say(f"the scripted expert plays {len(env.tasks)} tasks to learn from, and those of val")
        examples, held_out = _expert_examples(config, team)
    _check_examples(env.possible_agents, examples)
    return {
        agent: Lesson(
            train=_samples(team.tokenizer, agent, examples), val=_samples(team.tokenizer, agent, held_out)
        )
        for agent in env.possible_agents
    }


def warm_start(
    config: Config,
    run: RunFolder,
    policies: Policies,
    lessons: Mapping[str, Lesson],
    say: Callable[[str], None] = print,
) -> dict[str, FitResult]:
    """Fine-tune every policy and leave a checkpoint (step 0) and `sft.json` in the run folder."""
    pace = Pace(config.epochs * sum(lesson.num_tokens for lesson in lessons.values()), say)
    results: dict[str, FitResult] = {}
    for policy in policies.names:
        mine = {agent: lessons[agent] for agent in policies.actors(policy)}
        count = sum(len(lesson.train) for lesson in mine.values())
        steps = config.epochs * math.ceil(count / BATCH)
        say(f"{policy}: {count} actions, {config.epochs} times, in {steps} optimizer steps")
        results |= _fit_policy(policies, policy, mine, config, pace)
    save_weights(run, 0, policies, {})
    figures = {agent: vars(result) for agent, result in results.items()}
    write_atomically(run.path / "sft.json", (json.dumps(figures, indent=1) + "\n").encode())
    return results


class Pace:
    """Says how far the training is: at the end of each pass, and in between as often as progress does."""

    def __init__(self, total: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.total, self.done, self.seconds = total, 0, 0.0
        self._say = say
        self.tell(f"to learn from: {total} tokens in all passes of all agents, prompts included")

    @property
    def is_due(self) -> bool:
        """Whether nothing was said for as long as a watcher should wait."""
        return time.monotonic() - self._spoke >= PHASE_INTERVAL_S

    def tell(self, line: str) -> None:
        """Say a line now."""
        self._spoke = time.monotonic()
        self._say(line)

    def add(self, num_tokens: int, seconds: float, where: str, *, is_end: bool) -> None:
        """One optimizer step is done."""
        self.done, self.seconds = self.done + num_tokens, self.seconds + seconds
        if is_end or self.is_due:
            rate = self.done / max(self.seconds, 1e-9)
            left = duration((self.total - self.done) / rate)
            self.tell(f"{where}: {self.done}/{self.total} tokens, {rate:.0f} tokens/s, about {left} left")


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
        lines = path.read_text("utf-8-sig").split("\n")  # splitlines would end one inside a text, at U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--data {path}: cannot be read ({error})") from error
    return [_example(f"--data {path}, line {k}", line) for k, line in enumerate(lines, 1) if line.strip()]


def _example(where: str, line: str) -> Example:
    try:
        record = json.loads(line)
        agent, messages = record["agent"], record["messages"]
        chat = [{"role": str(m["role"]), "content": m["content"]} for m in messages]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: needs `agent` and `messages` of role and content ({error!r})") from error
    if len(chat) < 2 or chat[-1]["role"] != "assistant":
        raise DataError(f"{where}: the last of the messages must be the assistant's, and not the only one")
    if not all(isinstance(message["content"], str) for message in chat):
        raise DataError(f"{where}: content must be a text")
    if unknown := {message["role"] for message in chat} - ROLES:
        raise DataError(f"{where}: role {min(unknown)!r}: must be one of {', '.join(sorted(ROLES))}")
    if any("\ud800" <= char <= "\udfff" for message in chat for char in message["content"]):
        raise DataError(f"{where}: half a surrogate pair (\\ud800 to \\udfff alone) is no text")
    return Example(agent=str(agent), messages=tuple(chat[:-1]), action=chat[-1]["content"], where=where)


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
        mine = await _play_tasks(team.env)
        if config.split == "val":
            return mine, []
        try:
            val = make_env(config, "val", sandbox=team.sandbox, coach=None)
        except DataError as error:  # tasks of one's own need not have any
            log.warning("nothing is measured beside what is learned: %s", error)
            return mine, []
        if config.max_tasks:
            val.tasks = val.tasks[: config.max_tasks]
        return mine, await _play_tasks(val)

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
    return [
        Example(
            agent=turn.agent,
            messages=tuple({"role": m.role, "content": m.content} for m in turn.messages),
            action=turn.action,
            where=f"the expert on {job.result().task_id}",
        )
        for job in jobs
        if job.result().success
        for turn in job.result().turns
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
    return [_sample(tokenizer, example) for example in examples if example.agent == agent]


def _sample(tokenizer: ChatTokenizer, example: Example) -> Sample:
    with boundary(DataError, f"{example.where}: the model's chat template refuses it", TemplateError):
        prompt = tokenizer.encode(example.messages)
    sample = Sample(prompt=prompt, response=tokenizer.encode_action(example.action))
    length = len(sample.prompt) + len(sample.response)
    if length > tokenizer.context_tokens:
        raise DataError(
            f"{example.where}: the action of {example.agent} has {length} tokens with its prompt, and the "
            f"model's context {tokenizer.context_tokens}; leave it out, or take a model with a longer one"
        )
    return sample


def _fit_policy(
    policies: Policies, policy: str, lessons: Mapping[str, Lesson], config: Config, pace: Pace
) -> dict[str, FitResult]:
    """Fit a policy to the lessons of all agents that act with it; what came of it, by agent."""
    before = {}
    for agent, lesson in lessons.items():
        if too_long := _too_long(lesson, config):
            log.warning(
                "%s: %.0f %% of the actions are longer than --max-new-tokens %d, and would be cut when "
                "sampled",
                agent, 100 * too_long, config.max_new_tokens,
            )  # fmt: skip
        before[agent] = _measure(policies, policy, lesson, config, pace)
        pace.tell(f"{agent}: {before[agent][0]:.3f} nats a token before")
    fit(policies, policy, [s for lesson in lessons.values() for s in lesson.train], config, pace)
    results = {}
    for agent, lesson in lessons.items():
        after, val_after = _measure(policies, policy, lesson, config, pace)
        pace.tell(f"{agent}: {after:.3f} nats a token after")
        results[agent] = FitResult(
            num_examples=len(lesson.train),
            num_tokens=sum(len(s.response) for s in lesson.train),
            before=before[agent][0],
            after=after,
            val_before=before[agent][1],
            val_after=val_after,
            too_long=_too_long(lesson, config),
        )
    return results


def _too_long(lesson: Lesson, config: Config) -> float:
    """The share of a lesson's actions that could not be sampled whole."""
    return sum(len(s.response) > config.max_new_tokens for s in lesson.train) / len(lesson.train)


def _measure(
    policies: Policies, policy: str, lesson: Lesson, config: Config, pace: Pace
) -> tuple[float, float | None]:
    """`mean_loss` on what is learned from, and on what is not."""
    train = mean_loss(policies, policy, lesson.train, config.token_budget, pace)
    assert train is not None  # every agent has examples
    return train, mean_loss(policies, policy, lesson.val, config.token_budget, pace)


def fit(
    policies: Policies, policy: str, samples: Sequence[Sample], config: Config, pace: Pace | None = None
) -> None:
    """`config.epochs` passes of AdamW: L = −Σ_t log π(a_t) / N over the N response tokens of each batch.

    The order of the samples is drawn from `config.seed`. Raises `ConfigError` where the loss is not finite.
    """
    parameters = policies.parameters(policy)
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    steps = math.ceil(len(samples) / BATCH)
    for step, batch in enumerate(_batches(len(samples), config.epochs, config.seed)):
        began = time.monotonic()
        chosen = [samples[k] for k in batch]
        num_tokens = sum(len(sample.response) for sample in chosen)
        for pack in make_packs(chosen, config.token_budget):
            logprobs, _ = token_logprobs(policies.activate(policy), pack, temperature=1.0)
            (-logprobs.sum() / num_tokens).backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm))
        if not math.isfinite(norm):
            raise ConfigError(f"--lr {config.lr}: the gradient of {policy} is not finite; choose a lower one")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if pace is not None:
            count = sum(len(sample.prompt) for sample in chosen) + num_tokens
            where = f"{policy}, pass {step // steps + 1} of {config.epochs}"
            pace.add(count, time.monotonic() - began, where, is_end=(step + 1) % steps == 0)


@torch.no_grad()
def mean_loss(
    policies: Policies, policy: str, samples: Sequence[Sample], token_budget: int, pace: Pace | None = None
) -> float | None:
    """−log π per response token, in nats; None without samples."""
    packs = make_packs(samples, token_budget)
    parts = []
    for pack in packs:
        parts.append(token_logprobs(policies.activate(policy), pack, temperature=1.0)[0])
        if pace is not None and pace.is_due:
            pace.tell(f"{policy}: measured {len(parts)}/{len(packs)} micro-batches")
    return -float(torch.cat(parts).mean()) if parts else None


def _batches(count: int, epochs: int, seed: int) -> Iterator[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        yield from (order[start : start + BATCH] for start in range(0, count, BATCH))
