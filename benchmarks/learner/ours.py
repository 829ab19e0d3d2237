"""Updates by `mappa_train`'s learner, in a process of their own; `__main__` starts it."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from benchmarks.learner.workload import (
    ALPHA,
    BETA,
    LR,
    MODEL,
    RANK,
    TEMPERATURE,
    Clock,
    Spec,
    Workload,
    make_samples,
    rewards,
    tell,
)
from mappa_train.learner import Learner
from mappa_train.model import load_pretrained
from mappa_train.policies import LoRAPolicies
from mappa_train.settings import resolve
from mappa_train.types import Action, Generation, SampleCredit


def credited(work: Workload, agents: tuple[str, ...], version: int) -> list[SampleCredit]:
    """The actions of every agent; the later it speaks, the more of its prompts is its own."""
    out = []
    for place, agent in enumerate(agents):
        own = work.own if len(agents) == 1 else 0.2 * place
        samples = make_samples(replace(work, own=own, seed=work.seed + place))
        for k, (sample, ret) in enumerate(zip(samples, rewards(len(samples)), strict=True)):
            generation = Generation(
                token_ids=sample.response,
                logprobs=torch.full((len(sample.response),), -10.0),
                truncated=False,
                policy_version=version,
            )
            action = Action(agent=agent, turn=place, prompt_ids=sample.prompt, generation=generation)
            task = f"task-{k // work.episodes_per_task}"
            out.append(SampleCredit(action=action, task_id=task, task_type="any", episode_index=k, ret=ret))
    return out


def main(text: str) -> None:
    """Run what the spec says and print what was measured."""
    spec = Spec.from_json(text)
    agents = tuple(f"agent_{k}" for k in range(spec.num_agents))
    folder = load_pretrained(MODEL).folder
    policies = LoRAPolicies(folder, agents, RANK, ALPHA, seed=0, checkpointing=spec.checkpointing)
    config = resolve({"lr": LR, "beta": BETA, "temperature": TEMPERATURE, "token_budget": spec.token_budget})
    learner = Learner(policies, config)
    clock = Clock()
    # The first is small and not measured.
    for work in (replace(spec.workload, scale=0.1), *[spec.workload] * spec.num_updates):
        actions = credited(work, agents, learner.version)
        policies.sampler(agents[0])  # as a run that has just sampled
        clock.begin()
        learner.update(actions)
        clock.end()
    tell(clock, sum(len(item.action.generation.token_ids) for item in actions))


if __name__ == "__main__":
    main(sys.argv[1])
