"""A key-value cache and an attention for sampling that copy nothing at each token.

The library's cache concatenates all keys and values anew for every token, and its attention repeats them
for every query head as soon as there is padding; measured on two cores, the two cost more than the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "mappa_grouped"


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # untyped base
    """Writes into a buffer with room for `headroom` more tokens; `keys` and `values` are views of it."""

    def __init__(self, headroom: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._headroom = headroom
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if self._buffers is None or new > self._buffers[0].shape[-2]:
            batch, heads, _, width = key_states.shape
            room = (batch, heads, new + self._headroom, width)
            buffers = (key_states.new_empty(room), value_states.new_empty(room))
            if self.keys is not None and self.values is not None and old:
                buffers[0][:, :, :old] = self.keys
                buffers[1][:, :, :old] = self.values
            self._buffers = buffers
        self._buffers[0][:, :, old:new] = key_states
        self._buffers[1][:, :, old:new] = value_states
        self.keys, self.values = self._buffers[0][:, :, :new], self._buffers[1][:, :, :new]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        length = self.get_seq_length()
        if self._buffers is not None and length:
            self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self.keys, self.values = self._buffers[0][:, :, :length], self._buffers[1][:, :, :length]


def roomy_cache(model: Any, headroom: int) -> DynamicCache:
    """An empty cache for the model that grows in steps of `headroom` tokens."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_RoomyLayer(headroom) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """One query token: the heads that share keys become queries of one head, so keys are not repeated."""
    batch, heads, length, width = query.shape
    if length != 1 or options.get("position_bias") is not None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return out
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    answer = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=options.get("scaling")
    )
    return answer.reshape(batch, 1, heads, width), None


def use_grouped_attention(model: Any) -> None:
    """Make a sampling model attend as above."""
    AttentionInterface.register(ATTENTION, _grouped_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
