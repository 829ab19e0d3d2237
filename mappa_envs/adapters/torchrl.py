"""A team as a TorchRL environment: one step is one agent's turn. Needs torchrl (the extra `train`).

    >>> env = TeamEnv(mappa_envs.make("dsbench-v0"))
    >>> rollout = env.rollout(100, TeamPolicy(policies))  # [1, turns]
    >>> by_agent(rollout)["modeler_0"]["next", "reward"]  # [turns of this agent, 1]

Entries of a step, all of shape [1, …]:

| key | what |
|---|---|
| `agent`, `agent_index` | whose turn it is; int64 index in `env.agents` |
| `messages`, `("text", "prompt")` | what that agent sees, as chat messages and as one string |
| `turn`, `actions_left` | turns so far; how many the agent has left; int64 |
| `("text", "response")` | the action: the agent's whole message |
| `("next", "reward")` | score / 10 of the action; 0 where it is unscored, or scored at the end only; [1, 1] |
| `("next", "scored")` | whether the coach has scored the action; bool, [1, 1] |
| `("next", "corrections")` | `[(turn, delta)]`: rewards of earlier turns that changed, or came at the end |
| `("next", "terminated" / "truncated" / "done")` | a natural end; a cut; either; bool, [1, 1] |
| `("next", "outcome")` | of the finished episode, in [0, 1]; NaN where there is none; [1, 1] |
| `("next", "stop_reason")` | why the episode ended, "" before; learn nothing of what ended with "infra" |

The text keys are those of TorchRL's own language-model wrappers (`input_mode="text"`). The adapter runs under
`LLMCollector` (whole episodes with `yield_completed_trajectories=True`), in `SerialEnv`, and in
`AsyncEnvPool(backend="threading")` for many episodes at a time. Not offered: processes (`ParallelEnv` shares
tensors, which text is not).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
)
from tensordict.nn import TensorDictModuleBase
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase

from mappa_envs.adapters import answer_of
from mappa_envs.evaluation import Policy
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.types import StopReason


class TeamEnv(EnvBase):  # type: ignore[misc]  # untyped base
    """The entries are those of this page; `env` is closed with this one.

    `set_seed` seeds the sequence of episodes: every reset draws the next one's task from it.
    `reset(options=…)` takes the options of the environment's `reset`.
    """

    def __init__(self, env: PipelineEnv) -> None:
        # One batch dimension: LLMCollector asks for it where it yields whole episodes.
        super().__init__(batch_size=(1,))
        self.aec = env
        self.agents = list(env.possible_agents)
        self._seeds = np.random.default_rng()
        number = Unbounded((1,), dtype=torch.int64)
        self.observation_spec = Composite(
            agent=_text(self.agents[0]),
            agent_index=Categorical(len(self.agents), shape=(1,), dtype=torch.int64),
            messages=_text([{"role": "user", "content": ""}]),
            text=Composite(prompt=_text(""), shape=(1,)),
            turn=number,
            actions_left=number.clone(),
            corrections=_text([]),
            scored=_flag(),
            outcome=Unbounded((1, 1)),
            stop_reason=_text(""),
            shape=(1,),
        )
        self.action_spec = Composite(text=Composite(response=_text("I hand over."), shape=(1,)), shape=(1,))
        self.reward_spec = Unbounded((1, 1))
        self.full_done_spec = Composite(done=_flag(), terminated=_flag(), truncated=_flag(), shape=(1,))

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.aec.close()

    def _set_seed(self, seed: int | None) -> None:
        self._seeds = np.random.default_rng(seed)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.aec.reset(seed=int(self._seeds.integers(2**31)), options=kwargs.get("options"))
        return self._observe(scored=False, corrections=[])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        (action,) = _values(tensordict, ("text", "response"))
        self.aec.step(action)
        turn = self.aec.episode.turns[-1]
        corrections = [pair for info in self.aec.infos.values() for pair in info["corrections"]]
        shown = self._observe(scored=turn.final_score is not None, corrections=corrections)
        shown["reward"] = torch.tensor([[(turn.final_score or 0.0) / 10]])
        return shown

    def _observe(self, *, scored: bool, corrections: list[tuple[int, float]]) -> TensorDict:
        agent = self.aec.agent_selection
        seen = self.aec.observe(agent)
        reason, outcome = self.aec.episode.stop_reason, self.aec.episode.outcome
        ends = {"done": reason is not None, "terminated": reason is StopReason.DONE}
        ends["truncated"] = ends["done"] and not ends["terminated"]
        return TensorDict(
            {
                "agent": _stack([agent]),
                "agent_index": torch.tensor([self.agents.index(agent)]),
                "messages": _stack([self.aec.infos[agent].get("messages", [])]),
                "text": TensorDict({"prompt": _stack([seen["prompt"]])}, batch_size=(1,)),
                "turn": torch.tensor([int(seen["turn"])]),
                "actions_left": torch.tensor([int(seen["actions_left"])]),
                "corrections": _stack([corrections]),
                "scored": torch.tensor([[scored]]),
                "outcome": torch.tensor([[math.nan if outcome is None else float(outcome)]]),
                "stop_reason": _stack([str(reason or "")]),
                **{name: torch.tensor([[value]]) for name, value in ends.items()},
            },
            batch_size=(1,),
        )


class TeamPolicy(TensorDictModuleBase):  # type: ignore[misc]  # untyped base
    """Plain policies `policy(agent, messages) -> message` for TorchRL: one for all, or a dict by agent."""

    def __init__(self, policies: Policy | Mapping[str, Policy]) -> None:
        super().__init__()
        self.policies = policies
        self.in_keys = ["agent", "messages"]
        self.out_keys = [("text", "response")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = zip(_values(tensordict, "agent"), _values(tensordict, "messages"), strict=True)
        answers = [self._ask(agent, messages) for agent, messages in rows]
        return tensordict.set(("text", "response"), _stack(answers, tensordict.batch_size))

    def _ask(self, agent: str, messages: list[dict[str, str]]) -> str:
        policy = self.policies[agent] if isinstance(self.policies, Mapping) else self.policies
        return answer_of(policy, agent, messages)


def by_agent(rollout: TensorDictBase) -> dict[str, TensorDictBase]:
    """The turns of each agent that had any, [turns], in their order, with rewards that learning can use.

    `rollout` has whole episodes along its last dimension, as `rollout` and `LLMCollector` give them. In the
    result ("next", "reward") is the final one: corrections by later turns of the same episode are added in,
    and a turn that was corrected is scored. Episodes that a fault of the sandbox ended are left out. Raises
    `ValueError` where a part of an episode is missing.
    """
    whole = [episode for episode in _episodes(rollout) if not _is_faulty(episode)]
    rows = [row for episode in whole for row in _final(episode)]
    agents = [name for row in rows for name in _values(row, "agent")]
    return {
        agent: LazyStackedTensorDict.lazy_stack(
            [row for row, name in zip(rows, agents, strict=True) if name == agent]
        )
        for agent in dict.fromkeys(agents)
    }


def _episodes(rollout: TensorDictBase) -> Iterator[list[TensorDictBase]]:
    if rollout.batch_dims > 1:
        for lane in rollout.unbind(0):
            yield from _episodes(lane)
        return
    episode: list[TensorDictBase] = []
    for row in rollout.unbind(0):
        episode.append(row)
        if bool(row["next", "done"].any()):
            yield episode
            episode = []
    if episode:
        raise ValueError(f"by_agent: the last {len(episode)} turns are of an episode that goes on")


def _is_faulty(episode: list[TensorDictBase]) -> bool:
    return bool(_values(episode[-1], ("next", "stop_reason"))[0] == StopReason.INFRA)


def _final(episode: list[TensorDictBase]) -> list[TensorDictBase]:
    if int(episode[0]["turn"]):
        raise ValueError("by_agent: the first turns of an episode are missing")
    rows = [row.clone() for row in episode]
    for row in episode:
        for turn, delta in _values(row, ("next", "corrections"))[0]:
            rows[turn]["next", "reward"] += delta
            rows[turn]["next", "scored"] = torch.ones_like(rows[turn]["next", "scored"])
    return rows


def _values(tensordict: TensorDictBase, key: Any) -> list[Any]:
    """The entries behind a non-tensor key. `tolist` would take lists that are entries apart, too."""
    return list(_leaves(tensordict.get(key)))


def _leaves(data: Any) -> Iterator[Any]:
    if not data.batch_dims:
        yield data.data
    else:
        for item in data.unbind(0):
            yield from _leaves(item)


def _stack(values: list[Any], shape: Sequence[int] = (1,)) -> NonTensorStack:
    """The values, in row-major order, as a stack of this shape."""
    if len(shape) == 1:
        return NonTensorStack(*[NonTensorData(value) for value in values])
    size = len(values) // shape[0]
    return NonTensorStack(*[_stack(values[k : k + size], shape[1:]) for k in range(0, len(values), size)])


def _text(example: Any) -> NonTensor:
    return NonTensor((1,), example_data=example)


def _flag() -> Categorical:
    return Categorical(2, shape=(1, 1), dtype=torch.bool)
