"""Policies of a tiny model, the vLLM engine that samples from them, and requests for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from tiny import STOP, WORDS

from mappa_train.asking import Direct
from mappa_train.beside import run_beside
from mappa_train.engine.vllm import VllmEngine
from mappa_train.engine.vllm_sampling import Sampling
from mappa_train.policies import LoRAPolicies
from mappa_train.types import Generation, GenerationRequest

T = TypeVar("T")

AGENTS = ("data_engineer_0", "modeler_0", "analyst_0")
CONTEXT, MAX_NEW = 512, 96
RANK, ALPHA = 4, 8
PROBE = torch.randint(2, len(WORDS), (64,), generator=torch.Generator().manual_seed(9))


class Bench:
    """Policies and the engine that samples from them, of the kind `make`, with the version that it is at.

    `others` are the child processes that were there before vLLM. Fewer `agents` start faster.
    """

    def __init__(
        self,
        folder: Path,
        agents: Sequence[str] = AGENTS,
        make: Callable[..., Any] = VllmEngine,
        **options: Any,
    ) -> None:
        self.others = children()
        self.policies = LoRAPolicies(folder, agents, rank=RANK, alpha=ALPHA, seed=0)
        sampling = Sampling(
            agents=agents,
            vocabulary=len(WORDS),
            stop_ids=(STOP,),
            context_tokens=CONTEXT,
            max_new_tokens=MAX_NEW,
            temperature=0.7,
        )
        self.engine = make(self.policies, folder, sampling, probe_ids=PROBE, **options)
        self.version = 0

    def learn(self, seed: int) -> None:
        """New adapters, which say something else, and a sync."""
        self.shake(seed)
        self.sync()

    def shake(self, seed: int) -> None:
        """New adapters alone."""
        for k, agent in enumerate(self.policies.agents):
            generator = torch.Generator().manual_seed(100 * seed + k)
            for parameter in self.policies.parameters(agent):
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1

    def sync(self) -> None:
        self.version += 1
        self.engine.sync(self.version)

    def sample(self, requests: Sequence[GenerationRequest], **options: Any) -> list[Generation]:
        async def everything() -> list[Generation]:
            return await asyncio.gather(*(self.engine.agenerate(item, **options) for item in requests))

        return self.run(everything)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """`work()` in a loop beside, while the engine samples here, as in a rollout."""
        return run_beside(work, Direct(self.engine, action_timeout_s=0.0).serve)

    def unfinished(self) -> int:
        """Requests that vLLM still has, of all agents."""
        assert self.engine._weights is not None
        return sum(e.get_num_unfinished_requests() for e in self.engine._weights.engines.values())


def children() -> list[psutil.Process]:
    """The processes that this one has."""
    return psutil.Process().children(recursive=True)


def requests(count: int, *, length: int = 24, agents: Sequence[str] = AGENTS) -> list[GenerationRequest]:
    """Prompts that an agent's requests share half of; the agents in turn."""
    generator = torch.Generator().manual_seed(0)
    shared = {agent: torch.randint(2, len(WORDS), (length // 2,), generator=generator) for agent in agents}
    found = []
    for k in range(count):
        agent = agents[k % len(agents)]
        rest = torch.randint(2, len(WORDS), (length - length // 2,), generator=generator)
        prompt = torch.cat([shared[agent], rest])
        found.append(GenerationRequest(agent=agent, prompt_ids=prompt, key=(0, 1, k, 0)))
    return found
