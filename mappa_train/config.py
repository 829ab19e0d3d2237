"""The one typed tree of settings. Every field says how to choose it; `settings.py` fills and checks it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

COACH_OPTIONS = ("base_url", "timeout_s", "concurrency", "rpm", "tpm", "budget_usd", "prices", "cache")
"""The settings `coach_…` that are the coach's own options."""


def option(default: Any, help: str, **limits: float) -> Any:
    """A field with its help text and, for numbers, its limits: `low`, `above`, `high`."""
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run depends on. Counts are per step unless the name says otherwise."""

    env: str = option("dsbench-v0", "Environment id: dsbench-v0 or mathchat-v0.")
    tasks: str = option(
        "embedded",
        "`embedded`; for dsbench-v0 a folder in the layout of DSBench, or `dsbench` for the one that "
        "$DSBENCH_ROOT names; for mathchat-v0 a JSON file, or aime, amc, math500 or gsm8k.",
    )
    split: Literal["train", "val", "test"] = option(
        "train", "Tasks to train on. val and test are for evaluation: train on them to try things only."
    )
    max_tasks: int = option(
        0, "Use only the first N tasks of the split; 0 = all. Fewer tasks learn faster.", low=0
    )
    model: str = option(
        "smollm2-135m",
        "`smollm2-135m` (embedded default), a Hugging Face id, or a folder. `tiny` is random, made "
        "here, and learns nothing: it checks a whole set-up within a minute.",
    )
    policy: Literal["lora", "full"] = option(
        "lora",
        "lora: one adapter an agent on one shared base. full: own weights for each agent, "
        "at 12 bytes a parameter for each agent, and 10 once.",
    )
    lora_rank: int = option(16, "Rank of each agent's adapter; more learns more and costs more.", low=1)
    lora_alpha: int = option(32, "Scale of the adapter: its update is multiplied by alpha / rank.", low=1)
    frozen_agents: str = option(
        "",
        "Agents, by name and apart by commas, who act and are scored but never learn, such as analyst_0: to "
        "see what a role's learning is worth, or to keep one that is good. See docs/algorithms.md. Default: "
        "all learn.",
    )
    shared_policy: Literal["off", "on"] = option(
        "off",
        "on: all agents act with and train one set of weights, and only their prompts differ; the usual "
        "baseline, and less memory. off: each agent has its own.",
    )
    init: str = option(
        "",
        "Weights to begin from: the folder of a run or of a warm start (`sft`; a bare name is looked up in "
        "runs/, too), or one of its checkpoints. "
        "They are the reference of the KL penalty, too. Default: the model itself.",
    )
    engine: Literal["auto", "transformers", "vllm"] = option(
        "auto",
        "What samples. transformers: needs nothing, repeats exactly. vllm: each prompt on its own, for many "
        "episodes at once and for GPUs. auto: vllm on a GPU where it is installed; see docs/engines.md.",
    )
    engine_gpus: int = option(
        0,
        "GPUs that vLLM has for itself, in processes of its own: the last N of the visible ones; the learner "
        "has the first. --policy lora: one engine, its model split over all N. full: N must be a multiple of "
        "the agents, each of whom has an engine. 0 = beside the learner; see docs/engines.md.",
        low=0,
    )
    engine_sleep: Literal["off", "on"] = option(
        "off",
        "on: vLLM, beside the learner on one GPU, gives its memory back while the learner works. Costs "
        "seconds a step; for models that do not fit otherwise. For --policy lora.",
    )
    concurrent_episodes: int = option(
        64, "Episodes that are played at once; more use the machine better and need more memory.", low=1
    )
    action_timeout_s: float = option(
        0.0,
        "Seconds after which an action is cut, as by the length limit; 0 = no limit. For engines that sample "
        "each prompt on its own (vllm): a run with the others repeats exactly, whatever the time.",
        low=0,
    )
    episode_timeout_s: float = option(
        0.0,
        "Seconds of sampling and sandbox after which an episode ends (stop/time); 0 = no limit. The coach's "
        "time does not count. For the same engines.",
        low=0,
    )
    tool_timeout_s: float = option(
        30.0, "Seconds that the code of one action may run; more for large data.", above=0
    )
    watchdog_s: float = option(
        300.0,
        "After so many seconds in which no episode moved, the screen and run.log tell who waits for whom. "
        "0 = never.",
        low=0,
    )
    coach: str = option(
        "rubric",
        "Who scores: rubric (offline, deterministic), llm:MODEL (litellm's name, such as "
        "gemini/gemini-2.5-flash, or openai/NAME with --coach-base-url; keys from the environment) or a "
        "registered coach; see docs/coach.md.",
    )
    coach_base_url: str = option(
        "", "An OpenAI-compatible server for --coach llm:openai/NAME, such as http://localhost:8000/v1."
    )
    coach_timeout_s: float = option(
        120.0, "Bound of one LLM verdict, retries included; more for models that think long.", above=0
    )
    coach_concurrency: int = option(32, "LLM verdicts at once; more is faster until limits are met.", low=1)
    coach_rpm: int = option(0, "LLM requests a minute, as your account allows; 0 = no limit.", low=0)
    coach_tpm: int = option(0, "LLM prompt tokens a minute (estimated); 0 = no limit.", low=0)
    coach_budget_usd: float = option(
        0.0, "What the run may spend on its LLM coach; then it ends with a checkpoint. 0 = no limit.", low=0
    )
    coach_prices: str = option(
        "",
        "IN,OUT in USD per million prompt and completion tokens, where litellm does not know the model's.",
    )
    coach_cache: Literal["on", "off"] = option(
        "on", "on: an LLM verdict on the same evidence is kept and used again, at no cost."
    )
    coach_calibration: str = option(
        "",
        "A file of `coach fit`: the coach's scores are replaced by what they proved to be worth. For a coach "
        "that is partial to some roles, kinds of tasks or habits; fit it on runs with the same coach.",
    )
    debias: Literal["off", "task_role"] = option(
        "off",
        "task_role: learn from scores that are standardised within each kind of task and role. For a coach "
        "that is kinder to some; true differences between them are lost, too.",
    )
    sandbox: str = option(
        "auto",
        "Where agents' code runs: namespace (no set-up), docker or docker:IMAGE. auto takes the first that "
        "works here.",
    )
    steps: int = option(5, "Number of training steps (updates of every agent).", low=1)
    episodes_per_step: int = option(
        12, "Episodes collected for each step; more = less noise, more time.", low=1
    )
    samples_per_task: int = option(
        6, "Episodes of one step on the same task; capped at episodes_per_step.", low=1
    )
    lr: float = option(
        1e-3,
        "Peak learning rate of AdamW. 1e-3 suits LoRA on the embedded model, 1e-4 on larger ones; with "
        "--policy full it is 1e-5 unless set (the paper's: 1e-6). That of a preset or file is for the policy "
        "beside it.",
        low=0,
    )
    schedule: Literal["constant", "cosine"] = option(
        "constant", "Course of the learning rate. cosine: down to --min-lr at the end; for long runs."
    )
    warmup: float = option(
        0.0, "Share of the run in which the learning rate rises; the paper's is 0.03.", low=0, high=0.5
    )
    min_lr: float = option(0.0, "Where the cosine schedule ends.", low=0)
    adam_beta2: float = option(
        0.99, "Memory of AdamW's scale: 0.99 for runs of few steps, 0.95 in the paper.", low=0, high=0.9999
    )
    weight_decay: float = option(0.0, "AdamW's weight decay.", low=0)
    max_grad_norm: float = option(1.0, "Each agent's gradient is clipped to this norm.", above=0)
    algorithm: str = option(
        "reinforce_pp",
        "How returns become advantages: reinforce_pp, reinforce_pp_baseline, grpo, rloo, ppo_clip, outcome, "
        "or module:Class of your own; see docs/algorithms.md.",
    )
    beta: float = option(0.01, "Weight of the KL penalty that keeps policies close to the reference.", low=0)
    kl: Literal["reward", "loss"] = option(
        "reward",
        "Where the KL penalty goes: into the tokens' returns (k1), or into the loss (k3), as in GRPO.",
    )
    gamma: float = option(1.0, "Discount over the actions of an episode.", above=0, high=1)
    returns: Literal["to_go_mean", "to_go", "per_action", "outcome"] = option(
        "to_go_mean", "How scores become returns; see mappa_train/credit.py."
    )
    norm: Literal["global", "agent", "task_type", "none"] = option(
        "global", "Over which actions advantages are normalized."
    )
    loss_mean: Literal["token", "sequence"] = option(
        "token", "Mean of the loss. token: long actions weigh more. sequence: every action weighs the same."
    )
    clip: float = option(0.2, "ε of the clipped surrogate.", above=0)
    truncated: Literal["train", "mask"] = option("train", "What to do with actions cut by the length limit.")
    minibatches: int = option(1, "Optimizer steps in one pass over a step's actions.", low=1)
    actions_per_update: int = option(
        0,
        "Actions of one optimizer step; the last has the rest. 0: see --minibatches. The paper's is 16.",
        low=0,
    )
    epochs: int = option(1, "Passes over a step's actions.", low=1)
    max_actions: int = option(
        1,
        "Most actions of each role in an episode (MathChat: of the executor); the paper's are 4 and 2.",
        low=1,
    )
    prompt_style: Literal["starter", "full"] = option(
        "starter", "starter: short, with a worked example, for models under 1B. full: for larger ones."
    )
    visibility: Literal["full", "previous"] = option(
        "full", "full: an agent sees all upstream hand-overs. previous: only the last."
    )
    handover: Literal["artifacts", "message"] = option(
        "artifacts",
        "artifacts: valid required files also hand over. message: only a message without code does.",
    )
    ground_truth: Literal["final", "off"] = option(
        "final",
        "Whether the coach sees a metric report on the final action. On mathchat-v0 an LLM coach does not, "
        "unless told so here.",
    )
    scoring: Literal["inline", "deferred", "hindsight"] = option(
        "deferred",
        "When the coach is asked. deferred: about each action, while the episode goes on. inline: the same, "
        "but the episode waits; never faster. hindsight: once, about the whole episode; implies --returns "
        "per_action and needs a coach that can.",
    )
    exploring_starts: float = option(
        0.5,
        "Share of training episodes that begin at a later role, each in turn, on the expert's artifacts. "
        "Always 0 on mathchat-v0, which has none.",
        low=0,
        high=1,
    )
    max_unscored: float = option(
        0.2, "A step with a larger share of unscored actions ends the run (exit 3).", low=0, high=1
    )
    max_new_tokens: int = option(144, "Longest action, in tokens.", low=1)
    temperature: float = option(0.5, "Sampling temperature; the learner uses the same.", above=0)
    token_budget: int = option(
        1024, "Tokens of one micro-batch of the learner; less needs less memory.", low=64
    )
    gradient_checkpointing: Literal["off", "on"] = option(
        "off",
        "on: the learner's backward pass computes each layer again instead of keeping what it saw. Slower, "
        "the same gradients, far less memory: for large models, or for a larger --token-budget.",
    )
    checkpoint_every: int = option(1, "Steps between checkpoints; the last step always has one.", low=1)
    keep_checkpoints: int = option(
        0,
        "Keep this many of the newest checkpoints, and the best on val; 0 = all. Adapters are small, full "
        "weights are not.",
        low=0,
    )
    eval_every: int = option(
        0,
        "Measure on held-out val tasks after every N steps and after the last, without the coach; 0 = never. "
        "Marks the best checkpoint; costs its episodes' time.",
        low=0,
    )
    eval_episodes: int = option(
        32, "Episodes of a measurement, the val tasks in turn; four times as many halve the interval.", low=1
    )
    wandb: str = option(
        "",
        "A project of Weights & Biases to send the figures of metrics.jsonl to (pip install wandb; "
        "WANDB_MODE=offline works without a network). Default: none.",
    )
    num_rollout_workers: int = option(
        0,
        "Processes of Ray that play episodes, each with an engine and sandboxes of its own: one for each GPU "
        "or node that the learner leaves free. 0 = in the learners' processes, without Ray.",
        low=0,
    )
    ray_address: str = option(
        "",
        "Cluster of Ray for the workers: HOST:PORT, or `auto` for the one of this machine. Default: one is "
        "begun here, with the GPUs that the learners leave free, and ends with the run.",
    )
    placement: Literal["pack", "spread"] = option(
        "pack", "Rollout workers on as few nodes as possible (pack), or on as many (spread)."
    )
    worker_timeout_s: float = option(
        1800.0,
        "Seconds that a rollout worker may take for --concurrent-episodes episodes (in proportion for more "
        "at a time, which is half its share of a step), to join, or to take over weights. After that it is "
        "replaced, and its episodes are run again; more for long episodes.",
        above=0,
    )
    learners_per_agent: int = option(
        1,
        "Processes that learn together, each for all agents and on a GPU of its own; where no rollout "
        "workers do, they play, too. As many as this machine has GPUs (torchrun, for several machines, sets "
        "it itself); see docs/scaling.md.",
        low=1,
    )
    shard: Literal["ddp", "fsdp"] = option(
        "ddp",
        "How learners share an agent's weights. ddp: each has all. fsdp: each has a part, for models that do "
        "not fit otherwise.",
    )
    deterministic: Literal["off", "on"] = option(
        "off",
        "on: sample and learn by what repeats to the last digit only, also on a GPU: PyTorch's deterministic "
        "algorithms, slower there, and no vLLM. On a CPU the transformers engine repeats without it.",
    )
    seed: int = option(0, "Seeds tasks, starts and sampling.", low=0, high=2**31 - 1)
    out: str = option(
        "",
        "Run folder; default runs/<env>-<date>-<seed>. It must not exist, be empty, or hold a start that "
        "came to nothing.",
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: " (did you mean …?)", or "" if nothing known is close.

    What has the whole word in it is closer than what only looks like it: "gpu" means single-gpu, not cpu.
    """
    names = list(known)
    holders = [name for name in names if len(word.strip("-")) > 2 and word in name]
    close = difflib.get_close_matches(word, holders or names, n=1, cutoff=0.0 if holders else 0.6)
    return f" (did you mean {close[0]}?)" if close else ""


@functools.cache
def field_types() -> dict[str, Any]:
    """The type of each setting: str, int, float or a Literal."""
    return get_type_hints(Config)


def to_toml(config: Config) -> str:
    """The resolved settings, loadable with `--config`."""
    lines = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        lines.append(f"{item.name} = {toml_string(value) if isinstance(value, str) else repr(value)}")
    return "\n".join(lines) + "\n"


def toml_string(value: str) -> str:
    """A TOML basic string: JSON's, but for the one control character that JSON leaves bare."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
