"""A checkpoint's agents as Hugging Face folders: `export RUN --format hf`.

The adapters of a LoRA run go out as peft keeps them, with the name of their base model; merged, or trained
whole, an agent goes out as a model of transformers. The tokenizer and a model card are beside it. What is
loaded from there has the logprobs of the policy.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mappa_envs.errors import ConfigError
from mappa_train import served
from mappa_train.checkpoint import Checkpoint, RunFolder
from mappa_train.config import Config
from mappa_train.engine.vllm_setup import find_vllm, served_rank
from mappa_train.files import disk_errors, sync_folder
from mappa_train.manifest import remove
from mappa_train.model import EMBEDDED, EMBEDDED_HUB_ID, LoadedModel, load_pretrained
from mappa_train.model_card import model_card
from mappa_train.policies import load_model
from mappa_train.settings import resolve
from mappa_train.team import WEIGHTS
from mappa_train.tokens import ChatTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ADAPTED = re.compile(r".*\.([^.]+)\.lora_A\.weight")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What is exported, and how."""

    run: RunFolder
    config: Config
    model: LoadedModel
    checkpoint: Checkpoint
    merged: bool
    dtype: str

    @property
    def base_name(self) -> str:
        """Under which peft finds the base: the hub's name of it, or its folder on this machine."""
        if self.model.source == "hub":
            return EMBEDDED_HUB_ID if self.config.model == EMBEDDED else self.config.model
        return str(self.model.folder)


def export_weights(
    run: RunFolder,
    *,
    step: int | None = None,
    out: Path | None = None,
    merged: bool = False,
    dtype: str = "float32",
) -> dict[str, Path]:
    """Write each agent's folder; returns them by agent.

    Parameters
    ----------
    step : of which checkpoint; None = the newest.
    out : where to, a folder that is new or empty; None = RUN/export-hf/step-<step>, which is replaced.
    merged : put the adapter's update into the weights of the model, instead of beside them.
    dtype : of a whole model; an adapter is float32.

    Raises `ConfigError` for a choice that would do nothing, or where something is in the way.
    """
    config = run.config()
    if config.policy == "full" and merged:
        raise ConfigError("--merged: the run's policies are whole models (--policy full); leave it out")
    if config.policy == "lora" and not merged and dtype != "float32":
        raise ConfigError(f"--dtype {dtype}: an adapter is float32; add --merged, or leave it out")
    model = load_pretrained(config.model)
    run.check_model(model)
    source = _Source(
        run=run, config=config, model=model, checkpoint=run.load(step), merged=merged, dtype=dtype
    )
    folder = out or _default_folder(source)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: exists and is not empty; choose another folder")
    with disk_errors(folder, "free some space, then export again", "choose another folder with --out"):
        return _write_all(source, folder)


def _default_folder(source: _Source) -> Path:
    name = source.run.checkpoint_path(source.checkpoint.step).name + ("-merged" if source.merged else "")
    return source.run.path / "export-hf" / name


def _write_all(source: _Source, folder: Path) -> dict[str, Path]:
    """All agents or none: into a folder beside the right one, which is then renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = ChatTokenizer(source.model.folder)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as scratch:
        whole = Path(scratch) / folder.name
        for agent, weights in source.checkpoint.agents.items():
            mine = whole / agent
            mine.mkdir(parents=True)
            state = load_file(weights / WEIGHTS)
            if source.config.policy == "lora" and not source.merged:
                _write_adapter(source, state, mine)
            else:
                _write_model(source, state, tokenizer, mine)
            tokenizer.save(mine)
            _write_card(source, agent, mine)
        for path in whole.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes 0600
        remove(folder)
        whole.rename(folder)
        sync_folder(folder.parent)
    return {agent: folder / agent for agent in source.checkpoint.agents}


def _write_adapter(source: _Source, state: Mapping[str, Tensor], folder: Path) -> None:
    from peft import LoraConfig

    found = (_ADAPTED.fullmatch(name) for name in state)
    config = LoraConfig(
        r=source.config.lora_rank,
        lora_alpha=source.config.lora_alpha,
        lora_dropout=0.0,
        # By their names: "all-linear" is for peft alone.
        target_modules=sorted({match[1] for match in found if match}),
        task_type="CAUSAL_LM",
        base_model_name_or_path=source.base_name,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    save_file(dict(state), folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _write_model(
    source: _Source, state: Mapping[str, Tensor], tokenizer: ChatTokenizer, folder: Path
) -> None:
    from transformers import GenerationConfig

    make: Any = GenerationConfig  # without types
    model = load_model(source.model.folder, torch.float32, torch.device("cpu"))
    if source.config.policy == "lora":
        model = _merged(model, source, state)
    else:
        model.load_state_dict(state, strict=False)  # without a tied head, as it was saved
        model.tie_weights()
    model.generation_config = make(
        do_sample=True,
        temperature=source.config.temperature,
        top_p=1.0,
        top_k=0,
        max_new_tokens=source.config.max_new_tokens,
        eos_token_id=list(tokenizer.stop_ids),
    )
    model.to(DTYPES[source.dtype]).save_pretrained(folder)


def _merged(model: Any, source: _Source, state: Mapping[str, Tensor]) -> Any:
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as scratch:
        _write_adapter(source, state, Path(scratch))
        return PeftModel.from_pretrained(model, scratch).merge_and_unload()


def _write_card(source: _Source, agent: str, folder: Path) -> None:
    step = source.checkpoint.step
    line = next((line for line in source.run.read_metrics() if line["step"] == step), None)
    adapter = source.config.policy == "lora" and not source.merged
    card = model_card(agent, source.config, source.model, source.base_name, step, line, adapter=adapter)
    (folder / "README.md").write_text(card, encoding="utf-8")


def run_command(run: RunFolder, step: int | None, options: argparse.Namespace) -> int:
    """Export, and say what was written and how to serve it."""
    folders = export_weights(
        run,
        step=step,
        out=options.out,
        merged=options.merged,
        dtype=options.dtype or "float32",
    )
    for agent, folder in folders.items():
        print(f"{agent}: {folder}")
    first = next(iter(folders.values()))
    if not (first / "adapter_config.json").is_file():
        print(f"serve: {shlex.join(_server(str(first)))}")
        return 0
    facts = json.loads((first / "adapter_config.json").read_text("utf-8"))
    # Else top_k and repetition_penalty come from the base's folder; a whole model has the run's own in its.
    serve = [*_server(facts["base_model_name_or_path"]), "--generation-config", "vllm", "--enable-lora"]
    serve += ["--max-lora-rank", str(served_rank(facts["r"])), "--lora-modules"]
    print(f"serve: {shlex.join([*serve, *(f'{agent}={folder}' for agent, folder in folders.items())])}")
    print(f"measure: {shlex.join(_evaluation(run.config(), list(folders)))}")
    return 0


def _server(model: str) -> list[str]:
    """How vLLM's server is started with a model on this machine."""
    found = find_vllm()
    if found is not None and found[0] != "vllm":  # `vllm serve` looks for its version under that name
        return ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return ["vllm", "serve", model]


def _evaluation(config: Config, agents: Sequence[str]) -> list[str]:
    """The command that measures served adapters, named after their agents, with the run's own settings."""
    command = ["python", "-m", "mappa_train", "eval", "--env", config.env]
    default = resolve({"env": config.env, "coach": config.coach})
    for name in served.SETTINGS:
        if name != "env" and (value := getattr(config, name)) != getattr(default, name):
            command += ["--" + name.replace("_", "-"), str(value)]
    names = ",".join(f"{agent}={agent}" for agent in agents)
    return [*command, "--engine", f"{served.PREFIX}http://localhost:8000/v1", "--served-models", names]
