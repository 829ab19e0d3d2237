"""The start of a run, or its resumption, up to the moment when training begins."""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.errors import ConfigError
from mappa_train import model
from mappa_train.checkpoint import RunFolder
from mappa_train.coaching import count_earlier, keep_spent, open_coach, try_out
from mappa_train.config import Config
from mappa_train.engine.choice import check_engine
from mappa_train.memory import check_memory
from mappa_train.plan import make_env
from mappa_train.router import check_frozen
from mappa_train.settings import check_shares
from mappa_train.start import copy_start, find_start, run_of
from mappa_train.wandb_writer import check_wandb

Say = Callable[[str], None]
"""Tells the user of something that takes long, such as a download."""


def say_loading(config: Config, say: Say) -> None:
    """To be said before a wait: torch alone may take half a minute to import."""
    say(f"loading torch and {config.model} …")


def begin_run(config: Config, say: Say) -> RunFolder:
    """A new run folder, after all that can be checked before.

    Tasks that cannot be used and a coach that does not answer are found before anything is fetched. What
    loads no torch comes first: a mistake is answered at once.
    """
    check_wandb(config)
    env = make_env(config)
    if config.eval_every:
        make_env(config, "val", coach=None)
    check_frozen(config, env.possible_agents)
    check_shares(config, len(env.tasks))
    start = find_start(config, env.possible_agents)
    check_engine(config)
    say_loading(config, say)
    try_out(env.coach)
    loaded = model.load_pretrained(config.model, say=say)
    # Each rank does so again before it loads anything; here, so that no folder is left behind.
    check_memory(config, loaded.folder, len(env.possible_agents))
    if start is not None and config.policy == "lora":  # adapters of another base would be another policy
        run_of(start).check_model(loaded)
    run = RunFolder.create(config, loaded)
    keep_spent(env.coach, run)  # the run's coach is another, which counts what this one was asked
    if start is not None:
        copy_start(start, env.possible_agents, run)
    return run


def go_on(config: Config, run: RunFolder, steps: int | None, say: Say) -> None:
    """Take hold of a run folder, after all that can be checked before; `steps` is its new length, if any."""
    run.lock()
    check_wandb(config)
    check_engine(config)
    try:
        check_shares(config, len(make_env(config, coach=None).tasks))
    except ConfigError as error:
        advice = f"resume takes --learners-per-agent; change anything else in {run.config_path}"
        raise ConfigError(f"{error}. {advice}") from None
    coach = open_coach(config)
    count_earlier(coach, run)
    try_out(coach)
    keep_spent(coach, run)
    run.check_model(model.load_pretrained(config.model, say=say))
    if steps is not None:
        run.load()  # a damaged checkpoint must not leave a longer run behind
        run.set_steps(steps)
