"""The only place that knows tokenizers and chat templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mappa_envs.errors import ConfigError, boundary


class ChatTokenizer:
    """Chat messages to token ids and back.

    `stop_ids` end an action: the tokenizer's and the model's end-of-text ids. `context_tokens` is the most
    that prompt and action may have together, `vocabulary` how many ids the model knows.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoTokenizer, GenerationConfig

        with boundary(ConfigError, f"{folder}: no tokenizer", OSError, ValueError):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"{folder}: the tokenizer has no chat template; take an instruction-tuned model"
            )
        stops = {self._tokenizer.eos_token_id}
        if (folder / "generation_config.json").is_file():
            extra = GenerationConfig.from_pretrained(folder).eos_token_id
            stops |= set(extra) if isinstance(extra, list) else {extra}
        config = AutoConfig.from_pretrained(folder).get_text_config()
        self.context_tokens = int(getattr(config, "max_position_embeddings", 2**31))
        self.vocabulary = int(config.vocab_size)
        special = [str(t) for t in self._tokenizer.added_tokens_decoder.values() if t.special]
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self.stop_ids = tuple(sorted(stop for stop in stops if stop is not None))

    def save(self, folder: Path) -> None:
        """Write the tokenizer and its chat template, as `from_pretrained` reads them."""
        self._tokenizer.save_pretrained(folder)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> Tensor:
        """The prompt up to and including the start of the assistant's turn: int64 [p].

        Control tokens inside a message become blanks: what code printed must not open a turn of its own.
        """
        clean = [{**message, "content": self._special.sub(" ", message["content"])} for message in messages]
        encoded = self._tokenizer.apply_chat_template(
            clean, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return torch.tensor(encoded["input_ids"], dtype=torch.int64)

    def encode_action(self, text: str) -> Tensor:
        """The ids of an action to imitate, the stop token included: int64 [r]."""
        ids = self._tokenizer.encode(self._special.sub(" ", text), add_special_tokens=False)
        return torch.tensor([*ids, self._tokenizer.eos_token_id], dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        """The text of a sampled action, without the stop token."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))
