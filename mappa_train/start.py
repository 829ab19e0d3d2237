"""Where a run's policies begin, if not at the model itself: at what `sft` or another run has made.

The weights are copied into the run folder (`start/<agent>/`), so that a run can be resumed without the one
that it began from.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mappa_envs.errors import ConfigError
from mappa_train.checkpoint import RunFolder, find_run
from mappa_train.config import Config
from mappa_train.files import disk_errors, user_path
from mappa_train.manifest import MANIFEST, verify_files, write_manifest

_LORA = ("lora_rank", "lora_alpha")


def find_start(config: Config, agents: Sequence[str]) -> Path | None:
    """The checkpoint folder that `--init` names, or a run's newest; None without `--init`.

    Raises `ConfigError` where there is none, or its weights are not those of this run's policies, and
    `DataError` where a file of it is damaged.
    """
    if not config.init:
        return None
    given = user_path(config.init, "--init")
    try:
        is_checkpoint = (given / MANIFEST).is_file()
        run = run_of(given) if is_checkpoint else RunFolder.open(find_run(config.init))
    except ConfigError as error:
        raise ConfigError(f"--init {error}") from error
    checkpoint = given
    if not is_checkpoint:
        latest = run.latest()
        if latest is None:
            raise ConfigError(f"--init {config.init}: the run has no checkpoint to begin from")
        checkpoint = run.checkpoint_path(latest)
    theirs = run.config()
    for name in ("model", "policy") if config.policy == "full" else ("model", "policy", *_LORA):
        mine, other = getattr(config, name), getattr(theirs, name)
        if mine != other:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"--init {config.init}: made with {flag} {other}, but this run has {mine}")
    if config.shared_policy == "on" and theirs.shared_policy == "off":
        raise ConfigError(
            f"--init {config.init}: each agent has weights of its own there, and with --shared-policy on all "
            "have the same; begin from a run or a warm start (sft) with --shared-policy on"
        )
    known = verify_files(checkpoint, f"--init {config.init} cannot be begun from; choose another")
    if missing := [agent for agent in agents if agent not in known]:
        raise ConfigError(f"--init {config.init}: no weights of {missing[0]}; it has {', '.join(known)}")
    return checkpoint


def run_of(checkpoint: Path) -> RunFolder:
    """The run that a checkpoint is one of. Raises `ConfigError` where there is none."""
    return RunFolder.open(checkpoint.absolute().parent.parent)


def copy_start(checkpoint: Path, agents: Sequence[str], run: RunFolder) -> None:
    """Keep each agent's weights of a checkpoint as the start of a run.

    Raises `UnavailableError` where there is no room for them.
    """
    with disk_errors(run.path, "free some space, then start again", "choose another folder with --out"):
        for agent in agents:
            shutil.copytree(checkpoint / agent, run.start_path / agent)
        write_manifest(run.start_path, 0, list(agents))
