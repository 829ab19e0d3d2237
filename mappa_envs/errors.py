"""The error vocabulary of both packages: what went wrong, and what it counts as.

A bad *rollout* is data (an agent's exception is a `ToolResult`, never one of these).
These errors are for everything else: a user's bad input, a machine that lacks
something, a coach or a sandbox that failed. The command line maps them to exit codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def install_hint(extra: str) -> str:
    """How to get the packages of an extra: from the clone, since PyPI's "Mappa" is another project."""
    return f'in the folder of this project run: pip install -c constraints.txt -e ".[{extra}]"'


class MappaError(Exception):
    """Base of every error that this project raises on purpose."""

    exit_code = 1


class ConfigError(MappaError, ValueError):
    """A setting is unknown, out of range or senseless in combination (exit 2)."""

    exit_code = 2


class DataError(MappaError, ValueError):
    """A task, table or file of the user cannot be used (exit 2)."""

    exit_code = 2


class UnavailableError(MappaError, RuntimeError):
    """This machine lacks something: a package, a model, disk space (exit 3)."""

    exit_code = 3


class SandboxUnavailable(UnavailableError):
    """No isolation is to be had here; the message says what to do."""


class SandboxError(MappaError, RuntimeError):
    """The sandbox itself failed, not the agent's code. Never shown to an agent."""


class PromptTooLong(MappaError):
    """A policy's model does not take a prompt of this length: the episode ends there, as a context limit."""


class CoachError(MappaError, RuntimeError):
    """The coach gave no usable score: the action stays unscored."""


@contextmanager
def boundary(kind: type[MappaError], what: str, *caught: type[Exception]) -> Iterator[None]:
    """Turn the named exceptions of a foreign library into one of ours.

    Parameters
    ----------
    kind : the error to raise instead.
    what : what was being done, as the start of the message ("reading train.csv").
    caught : the exception types to translate; nothing else is caught.
    """
    try:
        yield
    except caught as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error
