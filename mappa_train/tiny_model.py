"""`--model tiny`: a random model that learns nothing, to try a whole set-up with in seconds.

>>> make(folder)  # what transformers, peft and vLLM load, from nothing but this file

It is a Llama of two layers with a token for each byte, so that it reads any text. Left to chance it would
neither end its messages nor write a program: the tokens for those are made likelier than the bytes, so that
sandbox and coach have something to do. Importing this loads no torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

TINY = "tiny"
DESCRIPTION = "a random model of 0.4M parameters, made here; it learns nothing and is for checking a set-up"
REVISION = 1
"""To be raised with every change of what is made: the cache keeps models under this number."""

BEGIN, END = "<|begin|>", "<|end|>"
PROGRAM = "```python\nprint('hello')\n```\n"
"""One token: a message with it has code to run."""
_LIKELIER = 0.25
_TEMPLATE = (
    "{% for message in messages %}{{ '"
    + BEGIN
    + "' + message['role'] + '\n' + message['content'] + '"
    + END
    + "\n' }}{% endfor %}{% if add_generation_prompt %}{{ '"
    + BEGIN
    + "assistant\n' }}{% endif %}"
)


def make(folder: Path) -> None:
    """Write the model and its tokenizer, the same on every machine: no number is drawn from a generator."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    known: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        # Heads of 32 numbers are the smallest that vLLM has; four can be split over as many GPUs.
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    config = LlamaConfig(**known)
    llama: Any = LlamaForCausalLM  # without types
    with torch.device("meta"):  # names and shapes alone
        shapes = {name: weight.shape for name, weight in llama(config).named_parameters()}
    favoured = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(PROGRAM)]
    folder.mkdir()
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {name: _weight(name, shape, favoured) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={char: k for k, char in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([BEGIN, END])
    plain.add_tokens([AddedToken(PROGRAM, normalized=False)])
    make_fast: Any = PreTrainedTokenizerFast  # without types
    tokenizer = make_fast(tokenizer_object=plain, eos_token=END, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _weight(name: str, shape: Sequence[int], favoured: Sequence[int]) -> Tensor:
    """A matrix of evenly spread numbers that bf16 can hold, and float32 ones for a norm.

    The first number of the hidden state is nearly the same for every text, since no layer adds to it, and
    the head makes the favoured tokens likelier by it.
    """
    import torch

    if "norm" in name:
        return torch.ones(*shape)
    digits = np.frombuffer(hashlib.shake_256(name.encode()).digest(math.prod(shape)), np.uint8)
    odd = torch.from_numpy(2.0 * digits.astype(np.float32) - 255.0).reshape(*shape)
    if "embed_tokens" in name:
        weight = odd * 2.0**-8
        weight[:, 0] = 4.0
    elif "lm_head" in name:
        weight = odd * 2.0**-12
        weight[:, 0] = 0.0
        weight[list(favoured), 0] = _LIKELIER
    else:
        weight = odd * 2.0**-11
        if "o_proj" in name or "down_proj" in name:
            weight[0] = 0.0
    return weight
