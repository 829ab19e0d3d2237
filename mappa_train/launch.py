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
from collections.abc import Sequence

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train.config import Config
from mappa_train.settings import check_learners, check_vllm_gpus


def num_launched() -> int:
    """How many processes a launcher started for this run, on all machines; 1 if there was no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_launched(wanted: int | str) -> None:
    """Raise `ConfigError` if another number of processes is wanted than was launched."""
    if str(wanted) != str(num_launched()):
        raise ConfigError(f"--learners-per-agent {wanted}: {num_launched()} were launched; leave it out")


def with_learners(config: Config, wanted: int | None) -> Config:
    """The settings of a run that goes on with the number of learners that is wanted, or was launched."""
    launched = num_launched()
    if launched > 1 and wanted is not None:
        check_launched(wanted)
    number = launched if launched > 1 else wanted or config.learners_per_agent
    shard = config.shard if number > 1 else Config.shard
    config = dataclasses.replace(config, learners_per_agent=number, shard=shard)
    check_learners(config)
    check_vllm_gpus(config)
    return config


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
