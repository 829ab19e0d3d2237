"""The embedded engine: batched sampling with a Hugging Face model, no service, no compilation.

`model.generate` would do, but it keeps finished sequences in the batch, computes a prompt that eight
samples share eight times, and cannot draw noise per sequence; so the loop over the cache is ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mappa_train.engine.cache import roomy_cache
from mappa_train.packing import group_by_prefix
from mappa_train.policies import Policies
from mappa_train.types import Generation, GenerationRequest

MAX_BATCH = 64
COMPACT_BELOW = 0.8
"""Finished sequences leave the batch when fewer than this share is still going."""


class TransformersEngine:
    """Samples policy by policy from the merged weights of each.

    The uniform number behind a token depends on the request's key and the token's place alone, so
    neither batching nor order changes what the same logits would give.
    """

    def __init__(
        self, policies: Policies, stop_ids: Sequence[int], *, max_new_tokens: int, temperature: float
    ) -> None:
        self._policies = policies
        self._stop_ids = torch.tensor(list(stop_ids))
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._version = 0
        self._cancelled = threading.Event()

    def sync(self, version: int) -> None:
        """The weights are read when something is sampled; only the version is new."""
        self._version = version
        self._cancelled.clear()

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        """Nothing of its own: the weights are the policies'."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order."""
        found: dict[int, Generation] = {}
        policies = [self._policies.policy_of[request.agent] for request in requests]
        for policy in sorted(set(policies)):
            mine = [i for i, name in enumerate(policies) if name == policy]
            model = self._policies.sampler(policy)
            for start in range(0, len(mine), MAX_BATCH):
                batch = mine[start : start + MAX_BATCH]
                found |= zip(batch, self._sample(model, [requests[i] for i in batch]), strict=True)
        return [found[i] for i in range(len(requests))]

    @torch.inference_mode()
    def _sample(self, model: Any, requests: Sequence[GenerationRequest]) -> list[Generation]:
        device = model.lm_head.weight.device
        live = _prefill(model, [request.prompt_ids for request in requests], self._max_new_tokens)
        noise = torch.stack([_noise(request.seed, self._max_new_tokens) for request in requests]).to(device)
        stop_ids = self._stop_ids.to(device)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        stopped = [False] * len(requests)
        for place in range(self._max_new_tokens):
            if self._cancelled.is_set():
                raise asyncio.CancelledError
            logits = model.lm_head(live.hidden).float() / self._temperature
            token, logprob = _draw(logits, noise[live.rows, place])
            done = torch.isin(token, stop_ids).tolist()
            for row, t, lp, end in zip(
                live.rows.tolist(), token.tolist(), logprob.tolist(), done, strict=True
            ):
                if not stopped[row]:
                    tokens[row].append(t)
                    logprobs[row].append(lp)
                    stopped[row] = end
            if all(stopped[row] for row in live.rows.tolist()) or place + 1 == self._max_new_tokens:
                break
            keep = [k for k, row in enumerate(live.rows.tolist()) if not stopped[row]]
            if len(keep) < COMPACT_BELOW * len(live.rows):
                live.select(keep)
                token = token[keep]
            live.advance(model, token)
        return [
            Generation(
                token_ids=torch.tensor(tokens[i]),
                logprobs=torch.tensor(logprobs[i]),
                truncated=not stopped[i],
                policy_version=self._version,
            )
            for i in range(len(requests))
        ]


@dataclass
class _Live:
    """The sequences still being sampled: original rows, cache, attention mask, next position."""

    rows: Tensor
    cache: Any
    mask: Tensor
    position: Tensor
    hidden: Tensor

    def select(self, keep: Sequence[int]) -> None:
        index = torch.tensor(list(keep), device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.rows, self.mask, self.position = self.rows[index], self.mask[index], self.position[index]

    def advance(self, model: Any, token: Tensor) -> None:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=1)
        out = model.model(
            input_ids=token[:, None],
            attention_mask=self.mask,
            position_ids=self.position[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.position = self.position + 1
        self.hidden = out.last_hidden_state[:, -1]


def _prefill(model: Any, prompts: Sequence[Tensor], headroom: int = 16) -> _Live:
    """Run shared beginnings once, then the rest of each prompt on a copy of their cache."""
    device = model.lm_head.weight.device
    groups = group_by_prefix(prompts)
    owner = {i: g for g, (members, _) in enumerate(groups) for i in members}
    cache = roomy_cache(model, headroom)
    prefix, prefix_mask = _left_pad([prompts[members[0]][:shared] for members, shared in groups])
    _forward(model, prefix.to(device), prefix_mask.to(device), prefix_mask.to(device), cache)
    rows = torch.tensor([owner[i] for i in range(len(prompts))])
    cache.batch_select_indices(rows.to(device))
    rest, rest_mask = _left_pad([prompts[i][groups[owner[i]][1] :] for i in range(len(prompts))])
    mask = torch.cat([prefix_mask[rows], rest_mask], dim=1).to(device)
    hidden = _forward(model, rest.to(device), mask, rest_mask.to(device), cache)
    return _Live(
        rows=torch.arange(len(prompts), device=device),
        cache=cache,
        mask=mask,
        position=mask.sum(dim=1),
        hidden=hidden,
    )


def _forward(model: Any, ids: Tensor, mask: Tensor, own_mask: Tensor, cache: Any) -> Tensor:
    before = mask.sum(dim=1, keepdim=True) - own_mask.sum(dim=1, keepdim=True)
    positions = (before + own_mask.cumsum(dim=1) - 1).clamp(min=0)
    out = model.model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
    )
    hidden: Tensor = out.last_hidden_state[:, -1]
    return hidden


def _left_pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(1, *(len(row) for row in rows))
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for k, row in enumerate(rows):
        ids[k, width - len(row) :] = row
        mask[k, width - len(row) :] = 1
    return ids, mask


def _draw(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the cumulative distribution: one uniform number a token, float64."""
    logprobs = logits.log_softmax(dim=-1)
    edges = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    point = uniform[:, None] * edges[:, -1:]
    token = torch.searchsorted(edges, point, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    return token, logprobs.gather(1, token[:, None])[:, 0]


def _noise(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64)
