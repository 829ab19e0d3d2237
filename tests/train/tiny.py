"""A random two-layer model with a word tokenizer, and samples for it: milliseconds a forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mappa_train.config import Config
from mappa_train.engine.transformers import TransformersEngine
from mappa_train.packing import Pack
from mappa_train.policies import FullPolicies, LoRAPolicies, load_model
from mappa_train.settings import resolve
from mappa_train.types import Action, Generation, GenerationRequest, SampleCredit

AGENTS = ("writer_0", "checker_0")
SPECIAL = ("<unk>", "<end>", "<system>", "<user>", "<assistant>")
WORDS = (*SPECIAL, *(f"w{k}" for k in range(43)))
STOP = 1
TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def make_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Saves the model and its tokenizer; logits differ enough for sampling to mean something.

    `changes` are of the model's config.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    known: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16384,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": STOP,
        "tie_word_embeddings": False,
    }
    config = LlamaConfig(**(known | changes))
    # Numbers that bf16 can hold: the frozen base of the learner (bf16) and the sampler (fp32) are then equal.
    LlamaForCausalLM(config).bfloat16().float().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def plain_model(folder: Path) -> Any:
    """The library's own model and attention, fp32."""
    return load_model(folder, torch.float32, torch.device("cpu"))


def make_policies(folder: Path, agents: Sequence[str] = AGENTS) -> LoRAPolicies:
    return LoRAPolicies(folder, agents, rank=4, alpha=8, seed=0)


def make_engine(policies: LoRAPolicies | FullPolicies, **options: Any) -> TransformersEngine:
    known: dict[str, Any] = {"stop_ids": (STOP,), "max_new_tokens": 12, "temperature": 0.7}
    return TransformersEngine(policies, **(known | options))


def make_config(**settings: Any) -> Config:
    return resolve({"token_budget": 64, "temperature": 0.7, **settings})


def ids(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.randint(2, len(WORDS), (count,), generator=generator)


def make_requests(count: int, agents: Sequence[str] = AGENTS, seed: int = 0) -> list[GenerationRequest]:
    """Prompts of 4 to 30 tokens, all of an agent beginning alike."""
    generator = torch.Generator().manual_seed(seed)
    shared = {agent: ids(generator, 3 + 2 * k) for k, agent in enumerate(agents)}
    requests = []
    for k in range(count):
        agent = agents[k % len(agents)]
        prompt = torch.cat([shared[agent], ids(generator, 1 + (7 * k) % 23)])
        requests.append(GenerationRequest(agent=agent, prompt_ids=prompt, key=(seed, 1, k, 0)))
    return requests


def make_samples(
    policies: LoRAPolicies | FullPolicies,
    rets: Sequence[float | None],
    version: int = 0,
    agents: Sequence[str] = AGENTS,
) -> list[SampleCredit]:
    """Really sampled actions of the agents in turn, with these returns."""
    engine = make_engine(policies)
    engine.sync(version)
    requests = make_requests(len(rets), agents)
    return [
        SampleCredit(
            action=Action(agent=r.agent, turn=0, prompt_ids=r.prompt_ids, generation=answer),
            task_id=("iris", "wine")[k // 4 % 2],
            task_type=("classification", "regression")[k // 2 % 2],
            episode_index=k,
            ret=ret,
        )
        for k, (r, answer, ret) in enumerate(zip(requests, engine.generate(requests), rets, strict=True))
    ]


def make_action(agent: str, prompt: Sequence[int], response: Sequence[int], version: int = 0) -> Action:
    generation = Generation(
        token_ids=torch.tensor(response),
        logprobs=torch.zeros(len(response)),
        truncated=False,
        policy_version=version,
    )
    return Action(agent=agent, turn=0, prompt_ids=torch.tensor(prompt), generation=generation)


@torch.no_grad()
def alone(model: Any, prompt: torch.Tensor, response: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """log π of each response token by one plain forward pass of this sample."""
    logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0].float() / temperature
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs.gather(1, response[:, None])[:, 0]


@contextlib.contextmanager
def no_autocast(monkeypatch: Any) -> Iterator[None]:
    """Run the learner in fp32, so that only its arithmetic's order is left to differ."""
    with monkeypatch.context() as patch:
        patch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
        yield


def dense_mask(pack: Pack) -> torch.Tensor:
    """bool [1, 1, n, n], what packs promise: each token sees its own prefix and, causally, its own tail."""
    index = torch.arange(len(pack.ids))
    own = pack.segment[:, None] == pack.segment[None, :]
    prefix = pack.parent[pack.segment][:, None] == pack.segment[None, :]
    return ((own | prefix) & (index[:, None] >= index[None, :]))[None, None]


def weights(policies: LoRAPolicies | FullPolicies, agent: str) -> torch.Tensor:
    """All weights of an agent in one vector, copied."""
    state = policies.state(agent)
    return torch.cat([state[name].float().flatten() for name in sorted(state)]).clone()
