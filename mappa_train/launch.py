"""Starting one command in several processes, by PyTorch's own launcher. Importing this loads no torch.

`torchrun --nproc-per-node N -m mappa_train …` does the same, and on several machines, too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train.config import Config
from mappa_train.settings import OF_WORKERS, parse_value, resolve

OF_MACHINES = ("learners_per_agent", "engine_gpus", "engine_sleep", "num_rollout_workers", *OF_WORKERS)
"""Settings in which a run may differ when it goes on: they say who does the work, not what is learned."""


def num_launched() -> int:
    """How many processes a launcher started for this run, on all machines; 1 if there was no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_launched(wanted: int | str) -> None:
    """Raise `ConfigError` if another number of processes is wanted than was launched."""
    if str(wanted) != str(num_launched()):
        raise ConfigError(f"--learners-per-agent {wanted}: {num_launched()} were launched; leave it out")


def to_go_on(config: Config, wanted: Mapping[str, Any]) -> Config:
    """The settings of a run that goes on here: its own, but for what is `wanted` of `OF_MACHINES`.

    The number of learners is that which was launched, if any were.
    """
    launched, learners = num_launched(), wanted.get("learners_per_agent")
    if launched > 1 and learners is not None:
        check_launched(learners)
    number = launched if launched > 1 else learners or config.learners_per_agent
    given = {name: parse_value(name, wanted[name]) for name in OF_MACHINES if wanted.get(name) is not None}
    settings = dataclasses.asdict(config) | given | {"learners_per_agent": number}
    if number == 1:
        settings["shard"] = Config.shard
    if not settings["num_rollout_workers"]:  # then these do nothing, which is nobody's mistake
        settings |= {name: getattr(Config, name) for name in OF_WORKERS if name not in given}
    return resolve(settings)


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m mappa_train ARGUMENTS` in several processes of this machine; the exit code.

    If one fails, the others are ended. Raises `KeyboardInterrupt` when interrupted or terminated, after all
    have ended, and `UnavailableError` if one was killed.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    # It reports in its own way what the processes say themselves.
    logging.disable(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "mappa_train", *arguments)
    except SignalException as error:
        raise KeyboardInterrupt from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code: int = failure.exitcode
        if code >= 0:
            return code
        why = " (perhaps this machine's memory was full)" if code == -signal.SIGKILL else ""
        raise UnavailableError(f"rank {rank} was killed by {signal.Signals(-code).name}{why}") from error
    finally:
        logging.disable(logging.NOTSET)
    return 0
