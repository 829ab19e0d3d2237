"""Attention within a pack: no work for the pairs of tokens that must not see each other.

One square mask for the whole pack would be simpler, but its cost grows with the square of the token budget,
and on a CPU it was nearly half of an update: most of the square is samples that do not see each other, or
the upper triangle. Here each group's shared beginning attends causally to itself, and each tail to that
beginning and causally to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mappa_envs.errors import ConfigError
from mappa_train.packing import Pack

PACKED = "mappa_packed"
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""What some models hand to their attention, and this one does not compute."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the samples of a pack lie: `groups` of lengths, a shared beginning and its tails (maybe none).

    The lengths in order are the whole pack. `masks` are additive, [tail, beginning + tail], by these two
    lengths, of the type that attention is computed in. `attended` has the layers' parts that went by it.
    """

    groups: tuple[tuple[int, ...], ...]
    masks: dict[tuple[int, int], Tensor]
    attended: set[Any] = field(default_factory=set)
    _repeated: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def mask(self, start: int, tail: int, times: int) -> Tensor:
        """A mask so many times below itself: made once, since every layer keeps it for its backward pass."""
        key = (start, tail, times)
        if key not in self._repeated:
            self._repeated[key] = self.masks[start, tail].repeat(times, 1)
        return self._repeated[key]

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(start + max(tails, default=0) for start, *tails in self.groups)


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
    """As the layout says; without one, the library's own attention: a model also samples.

    Raises `ConfigError` for what the layout does not know.
    """
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return plain
    _check_options(options, layout.longest)
    layout.attended.add(module)
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


def _check_options(options: Mapping[str, Any], longest: int) -> None:
    """Raise `ConfigError` where this attention would not be the model's, for samples of so many tokens."""
    if unknown := [name for name in _UNKNOWN if options.get(name) is not None]:
        raise ConfigError(
            f"--model: its attention uses {unknown[0]}, which the learner does not; take another"
        )
    window = options.get("sliding_window")
    if window is not None and longest > window:
        raise ConfigError(
            f"--model: its attention reaches back {window} tokens, and the learner's all {longest} of a "
            "prompt and its action; lower --max-new-tokens, or take another model"
        )


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Heads that share keys become queries of one head, so that keys are not copied for each.

    `mask` is repeated as often.
    """
    batch, heads, length, width = query.shape
    shared = key.shape[1]
    grouped = query.reshape(batch, shared, heads // shared * length, width)
    answer = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return answer.reshape(batch, heads, length, width)


@torch.no_grad()
def _check_head(model: Any) -> None:
    """Raise `ConfigError` if a model's logits are not its head times its last hidden state.

    Those of Granite, Gemma 2 and Phi 2 are not; for learning, logits are made without the model.
    """
    name = type(model).__name__
    if not (hasattr(model, "lm_head") and hasattr(getattr(model, "model", None), "layers")):
        raise ConfigError(
            f"--model: {name} is not built like Llama or Qwen, with model.layers and lm_head; take another"
        )
    ids = torch.arange(8, device=model.lm_head.weight.device)[None]
    logits = model(input_ids=ids, use_cache=False).logits
    plain = model.model(input_ids=ids, use_cache=False).last_hidden_state @ model.lm_head.weight.t()
    rounding = max(1e-4, 2 * torch.finfo(logits.dtype).eps)
    if not (logits - plain).abs().max() <= rounding * logits.abs().max():
        raise ConfigError(
            f"--model: {name} scales, caps or shifts the logits of its head, which the learner does not; "
            "take another"
        )


@torch.no_grad()
def _check_layers(model: Any) -> None:
    """Raise `ConfigError` if a layer does not attend by the layout: it would mix the samples of a pack.

    Such as those of hybrid models that carry a state along the sequence.
    """
    weight = model.lm_head.weight
    layout = Layout(groups=((2,),), masks={})
    model.model(
        input_ids=torch.arange(2, device=weight.device)[None],
        attention_mask=torch.zeros(1, 1, 1, 1, dtype=weight.dtype, device=weight.device),
        use_cache=False,
        layout=layout,
    )
    total = len(model.model.layers)
    if (others := total - len(layout.attended)) != 0:
        raise ConfigError(
            f"--model: {others} of the {total} layers of {type(model).__name__} have no attention that keeps "
            "samples apart; take another"
        )


def use_packed_attention(model: Any) -> None:
    """Let a model attend by the `layout` that its forward is given.

    Raises `ConfigError` for one that the learner would get wrong.
    """
    _check_head(model)
    AttentionInterface.register(PACKED, _packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    model.set_attn_implementation(PACKED)
    _check_layers(model)
