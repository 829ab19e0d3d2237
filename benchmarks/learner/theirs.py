"""Updates by TRL's `GRPOTrainer`, in a process of their own; `__main__` starts it.

Its `rollout_func` hands it the recorded actions in place of generating, so what is timed is the rest of its
step: padding, reference logprobs, forward and backward passes, gradient clipping and optimizer.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.learner.workload import (
    ALPHA,
    ANSWER,
    BETA,
    LR,
    MODEL,
    RANK,
    TEMPERATURE,
    Clock,
    Spec,
    make_samples,
    rewards,
    tell,
)
from mappa_train.model import load_pretrained


class _Timed(TrainerCallback):
    """When each optimizer step begins and ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._clock.begin()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._clock.end()


def _config(spec: Spec, count: int, folder: str) -> Any:
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=True,
        learning_rate=LR,
        lr_scheduler_type="constant",
        beta=BETA,
        temperature=TEMPERATURE,
        num_generations=spec.workload.episodes_per_task,
        per_device_train_batch_size=spec.micro_batch,
        gradient_accumulation_steps=count // spec.micro_batch,
        max_completion_length=ANSWER[1],
        max_steps=1 + spec.num_updates,
        gradient_checkpointing=spec.checkpointing,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main(text: str) -> None:
    """Run what the spec says and print what was measured."""
    spec = Spec.from_json(text)
    small, real = make_samples(replace(spec.workload, scale=0.1)), make_samples(spec.workload)
    folder = load_pretrained(MODEL).folder
    calls: list[int] = []

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        samples = real if calls else small
        calls.append(len(prompts))
        return {
            "prompt_ids": [sample.prompt.tolist() for sample in samples],
            "completion_ids": [sample.response.tolist() for sample in samples],
            "logprobs": [[-10.0] * len(sample.response) for sample in samples],
        }

    def scores(completions: list[Any], **_: Any) -> list[float | None]:
        return [*rewards(len(completions))]

    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16),
            reward_funcs=scores,
            args=_config(spec, len(real), scratch),
            train_dataset=Dataset.from_list([{"prompt": "x"}] * 64),
            processing_class=AutoTokenizer.from_pretrained(folder),
            peft_config=LoraConfig(
                r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            rollout_func=recorded,
            callbacks=[_Timed(clock)],
        )
        trainer.train()
    assert calls == [len(real)] * (1 + spec.num_updates), calls
    tell(clock, sum(len(sample.response) for sample in real))


if __name__ == "__main__":
    main(sys.argv[1])
