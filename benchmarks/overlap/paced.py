"""An engine that needs no model: the scripted expert's messages, as slowly as a model would sample them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.testing import expert_action
from mappa_train.types import Generation, GenerationRequest


class PacedTeam:
    """Engine and tokenizer in one: what is sampled is the number of a message.

    A batch takes as long as `tokens_per_action` tokens of each of its prompts at `tokens_per_s`, and ends at
    once for all of them, as with `TransformersEngine`. `task_of` maps an episode's number to its task.
    """

    def __init__(
        self, task_of: Mapping[int, DSBenchTask], *, tokens_per_action: int, tokens_per_s: float
    ) -> None:
        self._task_of = task_of
        self._pause_s = tokens_per_action / tokens_per_s
        self._messages: list[str] = []
        self._cancelled = threading.Event()

    def encode(self, messages: Sequence[Mapping[str, str]]) -> Tensor:
        """Any ids: nobody reads the prompt."""
        return torch.zeros(1, dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        return self._messages[int(ids[0])]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """The expert's message for each request."""
        self._cancelled.wait(self._pause_s * len(requests))
        first = len(self._messages)
        self._messages += [expert_action(item.agent, self._task_of[item.key[2]]) for item in requests]
        return [
            Generation(
                token_ids=torch.tensor([first + k]),
                logprobs=torch.zeros(1),
                truncated=False,
                policy_version=0,
            )
            for k in range(len(requests))
        ]

    def sync(self, version: int) -> None:
        """There are no weights."""

    def cancel(self) -> None:
        self._cancelled.set()
