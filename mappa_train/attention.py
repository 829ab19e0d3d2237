"""Attention within a pack: no work for the pairs of tokens that must not see each other.

One square mask for the whole pack would be simpler, but its cost grows with the square of the token budget,
and on a CPU it was nearly half of an update: most of the square is samples that do not see each other, or
the upper triangle. Here each group's shared beginning attends causally to itself, and each tail to that
beginning and causally to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mappa_train.packing import Pack

PACKED = "mappa_packed"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the samples of a pack lie: `groups` of lengths, a shared beginning and its tails (maybe none).

    The lengths in order are the whole pack. `masks` are additive, [tail, beginning + tail], by these two
    lengths, of the type that attention is computed in.
    """

    groups: tuple[tuple[int, ...], ...]
    masks: dict[tuple[int, int], Tensor]
    _repeated: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def mask(self, start: int, tail: int, times: int) -> Tensor:
        """A mask so many times below itself: made once, since every layer keeps it for its backward pass."""
        key = (start, tail, times)
        if key not in self._repeated:
            self._repeated[key] = self.masks[start, tail].repeat(times, 1)
        return self._repeated[key]


def layout_of(pack: Pack, dtype: torch.dtype, device: torch.device) -> Layout:
    """The layout of a pack for a model whose attention computes in `dtype`."""
    sizes = torch.bincount(pack.segment, minlength=len(pack.parent)).tolist()
    lengths: dict[int, list[int]] = {}
    for size, root in zip(sizes, pack.parent.tolist(), strict=True):
        lengths.setdefault(root, []).append(size)
    # A single tail goes on where its beginning ends: one causal sequence.
    groups = tuple(tuple(group) if len(group) != 2 else (sum(group),) for group in lengths.values())
    masks: dict[tuple[int, int], Tensor] = {}
    for start, *tails in groups:
        for tail in tails:
            seen = torch.ones(tail, start + tail, dtype=torch.bool, device=device).tril(start)
            masks[start, tail] = torch.zeros((), dtype=dtype, device=device).where(seen, -torch.inf)
    return Layout(groups=groups, masks=masks)


def _packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As the layout says; without one, the library's own attention: a model also samples."""
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return plain
    lengths = [length for group in layout.groups for length in group]
    pieces = zip(*(torch.split(part, lengths, 2) for part in (query, key, value)), strict=True)
    scale, out = options.get("scaling"), []
    for start, *tails in layout.groups:
        q, first_k, first_v = next(pieces)
        times = q.shape[1] // first_k.shape[1]
        if start:
            k, v = repeat_kv(first_k, times), repeat_kv(first_v, times)
            out.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale))
        for tail in tails:
            q, own_k, own_v = next(pieces)
            k, v = torch.cat([first_k, own_k], 2), torch.cat([first_v, own_v], 2)
            out.append(_attend(q, k, v, layout.mask(start, tail, times), scale))
    return torch.cat(out, 2).transpose(1, 2), None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Heads that share keys become queries of one head, so that keys are not copied for each.

    `mask` is repeated as often.
    """
    batch, heads, length, width = query.shape
    shared = key.shape[1]
    grouped = query.reshape(batch, shared, heads // shared * length, width)
    answer = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return answer.reshape(batch, heads, length, width)


def use_packed_attention(model: Any) -> None:
    """Let a model attend by the `layout` that its forward is given."""
    AttentionInterface.register(PACKED, _packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    model.set_attn_implementation(PACKED)
