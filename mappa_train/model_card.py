"""The README.md of an exported agent: what it is, what it was trained on, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mappa_train.config import Config
from mappa_train.model import LoadedModel
from mappa_train.router import frozen_names

_FIGURES = {
    "score/{agent}": "mean score of its actions by the coach (0–10)",
    "outcome/mean": "mean outcome of the team's training episodes (0–1)",
    "outcome/success": "share of them that succeeded",
    "eval/outcome": "mean outcome on held-out val tasks",
    "eval/success_rate": "share of those that succeeded",
}
_ADAPTER = """\
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("{folder}", dtype="float32")
"""
_MODEL = """\
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{folder}", dtype="auto")
"""


def model_card(
    agent: str,
    config: Config,
    model: LoadedModel,
    base_name: str,
    step: int,
    line: Mapping[str, Any] | None,
    *,
    adapter: bool,
) -> str:
    """The card's text; nothing that agents wrote. `line` is the step's of metrics.jsonl, if it has one."""
    head = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "multi-agent", config.env],
    }
    if model.source == "hub":
        head["base_model"] = base_name  # elsewhere it would name a folder of this machine
    # JSON is YAML, and quotes what the settings may hold.
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in head.items())
    kind = "LoRA adapter" if adapter else "model"
    return "\n".join(
        (
            *("---", front, "---", "", f"# {agent} of a team for {config.env}", ""),
            *_what_it_is(kind, agent, config),
            *("", "| | |", "|---|---|"),
            *(
                f"| {name} | {_cell(value)} |"
                for name, value in _facts(config, model, base_name, step).items()
            ),
            *(f"| {name} | {value:.4g} |" for name, value in _figures(agent, line).items()),
            *("", "```python", (_ADAPTER if adapter else _MODEL).format(folder="FOLDER").rstrip(), "```", ""),
        )
    )


def _what_it_is(kind: str, agent: str, config: Config) -> tuple[str, str]:
    """Two lines for people: for whom it was trained, if at all, and what it knows."""
    prompts = "system prompt, task and hand-overs as `env.infos[agent]['messages']` has them."
    if config.shared_policy == "on":
        return (
            f"A {kind} trained with MAPPA for all roles of a team, `{agent}` among them: each has the same",
            f"weights. It knows the prompts of those roles alone: {prompts}",
        )
    if agent in frozen_names(config):
        return (
            f"A {kind} that acted as `{agent}` while MAPPA trained its teammates: it was frozen, and is what",
            f"it was when that training began. Its prompts were {prompts}",
        )
    return (
        f"A {kind} trained with MAPPA for the role `{agent}`. It knows the prompts of that role",
        f"alone: {prompts}",
    )


def _facts(config: Config, model: LoadedModel, base_name: str, step: int) -> dict[str, str]:
    sampling = (
        f"temperature {config.temperature:g}, top_p 1, no top_k, at most {config.max_new_tokens} tokens"
    )
    adapter = (
        f"rank {config.lora_rank}, alpha {config.lora_alpha}"
        if config.policy == "lora"
        else "none: all weights"
    )
    return {
        "base model": base_name,
        "its weights": f"sha256 {model.sha256} ({model.source})",
        "adapter": adapter,
        "tasks": f"{config.tasks}, split {config.split}",
        "training steps": f"{step} of {config.steps}, {config.episodes_per_step} episodes each",
        "algorithm": f"{config.algorithm}, returns {config.returns}, lr {config.lr:g}, beta {config.beta:g}",
        "coach": config.coach,
        "sampled in training with": sampling,
        "seed": str(config.seed),
    }


def _figures(agent: str, line: Mapping[str, Any] | None) -> dict[str, float]:
    known = {words: (line or {}).get(key.format(agent=agent)) for key, words in _FIGURES.items()}
    return {words: value for words, value in known.items() if value is not None}


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
