"""What vLLM is asked for an action and what it answers, in this process and in others alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mappa_envs.errors import DataError
from mappa_train.types import Generation, GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Who asks for what. One of `stop_ids` ends an action and belongs to it; `vocabulary` counts ids."""

    agents: Sequence[str]
    vocabulary: int
    stop_ids: Sequence[int]
    context_tokens: int
    max_new_tokens: int
    temperature: float

    def check(self, request: GenerationRequest) -> None:
        """Raise `DataError` for a prompt that no model can answer."""
        ids, agent = request.prompt_ids, request.agent
        if agent not in self.agents:
            raise DataError(f"{agent!r}: no such agent; there are {', '.join(self.agents)}")
        # With room for a whole action, `length` can only mean that the action was too long.
        room = self.context_tokens - self.max_new_tokens
        if not 1 <= len(ids) <= room:
            raise DataError(
                f"{agent}: a prompt of {len(ids)} tokens; the context of {self.context_tokens}, with room "
                f"for --max-new-tokens {self.max_new_tokens}, takes 1 to {room}"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary:
            raise DataError(f"{agent}: a prompt has token ids outside the vocabulary of {self.vocabulary}")

    def params(self, request: GenerationRequest, *, in_parts: bool) -> Any:
        """vLLM's `SamplingParams`. `in_parts`: each token as it comes, for a request with a deadline."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_new_tokens,
            logprobs=0,
            seed=request.seed,
            # Our own set of ids ends an action, and all of it.
            ignore_eos=True,
            stop_token_ids=list(self.stop_ids),
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if in_parts else RequestOutputKind.FINAL_ONLY,
        )


def prompt_of(request: GenerationRequest, version: int) -> Any:
    """The prompt for vLLM, whose cache it shares with the same agent and version only."""
    from vllm import TokensPrompt

    salt = f"{request.agent}@{version}"
    return TokensPrompt(prompt_token_ids=request.prompt_ids.tolist(), cache_salt=salt)


def generation_of(output: Any, version: int, *, truncated: bool) -> Generation:
    """What vLLM sampled as ours; `output` is None where a deadline came before the first token."""
    ids = [] if output is None else list(output.outputs[0].token_ids)
    entries = [] if output is None else output.outputs[0].logprobs
    logprobs = [entry[token].logprob for entry, token in zip(entries, ids, strict=True)]
    return Generation(
        token_ids=torch.tensor(ids, dtype=torch.int64),
        logprobs=torch.tensor(logprobs, dtype=torch.float32),
        truncated=truncated,
        policy_version=version,
    )
