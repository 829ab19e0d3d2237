"""Packs: several samples in one forward pass, the prompt that they share only once.

A pack is one sequence `[prefix][tail 1][tail 2]…` for each group of samples whose prompts begin alike; a
tail is the rest of a prompt and its response. Every token sees its own prefix and, causally, its own
tail (`attention.py`); positions go on from the end of the prefix. So each logprob is exactly that of
the sample alone, without padding, and a prompt shared by eight samples costs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Prompt ids int64 [p] and response ids int64 [r] of one action."""

    prompt: Tensor
    response: Tensor


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One forward pass.

    `ids`, `positions` int64 [n]. `segment` int64 [n] numbers prefixes and tails, `parent` int64 [segments]
    the prefix of each tail (a prefix is its own). `predictors` int64 [t] are the places whose output
    predicts `targets` int64 [t]: the response tokens of `members` (indices of samples) one after the
    other, `lengths` of them each.
    """

    ids: Tensor
    positions: Tensor
    segment: Tensor
    parent: Tensor
    predictors: Tensor
    targets: Tensor
    members: tuple[int, ...]
    lengths: tuple[int, ...]


def common_prefix(a: Tensor, b: Tensor) -> int:
    """How many leading ids are equal."""
    n = min(len(a), len(b))
    different = (a[:n] != b[:n]).nonzero()
    return int(different[0]) if len(different) else n


def group_by_prefix(prompts: Sequence[Tensor]) -> list[tuple[list[int], int]]:
    """Groups of prompts that begin alike, each with the length of what it shares.

    Every prompt keeps at least its last token for itself, since that one predicts the response.
    """
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tolist())
    groups: list[tuple[list[int], int]] = []
    for i in order:
        most = len(prompts[i]) - 1
        if groups:
            members, shared = groups[-1]
            both = min(common_prefix(prompts[members[0]], prompts[i]), shared, most)
            # A new group costs its prefix again, joining shortens the prefix of all: join if it pays.
            if both * (len(members) + 1) > shared * len(members) or both == shared:
                groups[-1] = ([*members, i], both)
                continue
        groups.append(([i], most))
    return groups


def make_packs(samples: Sequence[Sample], token_budget: int) -> list[Pack]:
    """All samples in packs of at most `token_budget` tokens (one sample may be longer)."""
    packs: list[Pack] = []
    chosen: list[tuple[int, list[int]]] = []
    used = 0
    for members, shared in group_by_prefix([sample.prompt for sample in samples]):
        current: list[int] = []
        for i in members:
            tail = len(samples[i].prompt) - shared + len(samples[i].response)
            need = tail + (0 if current else shared)
            if used and used + need > token_budget:
                packs.append(_build(samples, [*chosen, (shared, current)]))
                chosen, current, used, need = [], [], 0, tail + shared
            current.append(i)
            used += need
        chosen.append((shared, current))
    if used:
        packs.append(_build(samples, chosen))
    return packs


def _build(samples: Sequence[Sample], groups: Sequence[tuple[int, list[int]]]) -> Pack:
    ids, positions, segment, predictors, targets = [], [], [], [], []
    parent: list[int] = []
    order: list[int] = []
    at = 0
    for shared, group in groups:
        if not group:
            continue
        root = len(parent)
        pieces = [(samples[group[0]].prompt[:shared], 0, root)]
        pieces += [
            (torch.cat([samples[i].prompt[shared:], samples[i].response]), shared, root + 1 + k)
            for k, i in enumerate(group)
        ]
        for place, (piece, start, number) in enumerate(pieces):
            parent.append(root)
            ids.append(piece)
            positions.append(torch.arange(start, start + len(piece)))
            segment.append(torch.full((len(piece),), number))
            at += len(piece)
            if place:
                response = samples[group[place - 1]].response
                order.append(group[place - 1])
                predictors.append(torch.arange(at - len(response) - 1, at - 1))
                targets.append(response)
    return Pack(
        ids=torch.cat(ids),
        positions=torch.cat(positions),
        segment=torch.cat(segment),
        parent=torch.tensor(parent),
        predictors=torch.cat(predictors),
        targets=torch.cat(targets),
        members=tuple(order),
        lengths=tuple(len(samples[i].response) for i in order),
    )
