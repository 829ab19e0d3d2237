"""Environments by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mappa_envs.errors import ConfigError

if TYPE_CHECKING:
    from mappa_envs.pipeline import PipelineEnv

_ENVS = {
    "dsbench-v0": "mappa_envs.dsbench.env",
    "mathchat-v0": "mappa_envs.mathchat.env",
}
"""Id → module with an `env(**arguments)`; imported when it is made."""


def list_envs() -> list[str]:
    """The ids that `make` knows."""
    return sorted(_ENVS)


def make(env_id: str, **arguments: Any) -> PipelineEnv:
    """The environment of that id ("dsbench-v0", or its PettingZoo id "mappa/dsbench-v0").

    `arguments` are those of the environment's class. Raises `ConfigError` on an unknown id or argument.
    """
    name = env_id.removeprefix("mappa/")
    if name not in _ENVS:
        raise ConfigError(f"there is no environment {env_id!r}; known: {', '.join(list_envs())}")
    try:
        made: PipelineEnv = import_module(_ENVS[name]).env(**arguments)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"{name}: {str(error).split('() ')[-1]}") from error
    return made
