"""Algorithms: what each token is worth, given what the actions returned, and what is maximised.

One file here is one algorithm, chosen by `--algorithm NAME`; its docstring has the formula. The loop never
asks for a name: it hands an `ActionReturns` over and gets one advantage a token. An algorithm of one's own
needs no place here: `--algorithm my_module:MyAlgorithm`, or `register_algorithm` before the settings are
resolved.

Nothing in this folder imports torch, since settings are checked before torch is loaded: the methods of the
tensors that come in are enough.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, TypeVar, get_args

from mappa_envs.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FLAT_STD = 1e-4
"""Returns that differ by less than this (std) differ by float noise: their advantages are 0."""


@dataclass(frozen=True, kw_only=True)
class ActionReturns:
    """What one update knows of its n scored actions, of all agents, and their t tokens.

    `returns` float64 [n] is G_i. `groups` int64 [n] numbers what is compared: actions of one agent on one
    task, in the same place of its episode (`credit.group_numbers`); there are `num_groups`. `lengths` int64
    [n] are tokens; those of action i come before those of i + 1. `penalties` float64 [t] is
    −β Σ_{t'≥t} (log π_old − log π_ref)_{t'} within each action, all 0 with `--kl loss`. `whiten` takes
    float64 [t] to mean 0 and variance 1 within the scope of `--norm`, exactly over all ranks, and gives
    float32 [t]: 0 where all that differs is noise or `penalties`.

    >>> batch.tokens(batch.returns - batch.group_mean())
    """

    returns: Tensor
    groups: Tensor
    num_groups: int
    lengths: Tensor
    penalties: Tensor
    whiten: Callable[[Tensor], Tensor]

    def tokens(self, values: Tensor) -> Tensor:
        """R_t, float64 [t]: each token gets the value of its action (of [n]), and the penalty to go."""
        return values.repeat_interleave(self.lengths) + self.penalties

    def group_sum(self, values: Tensor) -> Tensor:
        """For each action the sum of `values` [n] over its group: [n]."""
        sums = values.new_zeros(self.num_groups).index_add(0, self.groups, values)
        return sums[self.groups]

    def group_size(self) -> Tensor:
        """For each action how many there are in its group, itself included: float64 [n]."""
        return self.group_sum(self.returns.new_ones(len(self.returns)))

    def group_mean(self) -> Tensor:
        """For each action the mean return of its group: [n]."""
        return self.group_sum(self.returns) / self.group_size()

    def group_std(self) -> Tensor:
        """For each action the sample standard deviation (n − 1) of its group; 0 in a group of one: [n]."""
        squares = self.group_sum((self.returns - self.group_mean()).square())
        return (squares / (self.group_size() - 1).clamp(min=1)).sqrt()


class Algorithm(ABC):
    """The two decisions that make an algorithm. Without state: one instance serves a whole run."""

    fixed: ClassVar[Mapping[str, Any]] = {}
    """Settings that this algorithm is made of; another value, given by hand, is an error."""

    compares: ClassVar[bool] = False
    """Whether it compares the actions of a group: then `--samples-per-task` must be 2 at least."""

    @abstractmethod
    def advantages(self, batch: ActionReturns) -> Tensor:
        """A_t of every token: [t]. A pure function of its argument."""

    def surrogate(self, log_ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """What is maximised, a token: min(ρA, clip(ρ, 1−ε, 1+ε)A); and where the clip acted.

        All are [t]; `log_ratio` is log ρ = log π − log π_old, with gradient.
        """
        ratio = log_ratio.clamp(-20, 20).exp()
        plain = ratio * advantages
        bounded = ratio.clamp(1 - clip, 1 + clip) * advantages
        return plain.minimum(bounded), bounded < plain


Kind = TypeVar("Kind", bound=type[Algorithm])
_REGISTERED: dict[str, type[Algorithm]] = {}


def register_algorithm(name: str) -> Callable[[Kind], Kind]:
    """Make a class known as `--algorithm NAME`. Raises `ConfigError` if another one has the name."""

    def register(kind: Kind) -> Kind:
        known = _REGISTERED.setdefault(name, kind)
        if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ConfigError(f"register_algorithm({name!r}): the name is taken by {known.__qualname__}")
        return kind

    return register


def list_algorithms() -> list[str]:
    """The names that `find_algorithm` knows."""
    return sorted(_REGISTERED.keys() | {module.name for module in pkgutil.iter_modules(__path__)})


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of a name, or of `module:Class` anywhere on the path. Raises `ConfigError`."""
    if ":" in name:
        return _foreign(name)
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        import_module(f"{__name__}.{name}")  # registers it
    if name not in _REGISTERED:
        from mappa_train.config import did_you_mean

        known = list_algorithms()
        module, _, attribute = name.rpartition(".")
        hint = f" (did you mean {module}:{attribute}?)" if module and attribute else did_you_mean(name, known)
        raise ConfigError(
            f"--algorithm {name}: unknown{hint}; give {', '.join(known)}, or module:Class for one of your own"
        )
    return _REGISTERED[name]


def _foreign(name: str) -> type[Algorithm]:
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
        kind = getattr(found, attribute, None)
    # Foreign code may raise anything, and a script without a main guard ends the process.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"--algorithm {name}: cannot be imported ({_cause(error)}); run where `import {module}` works"
        ) from error
    if kind is None:
        kinds = [value for value in vars(found).values() if _is_algorithm(value)]
        its = [value.__name__ for value in kinds if value.__module__ == module]
        there = f"there are {', '.join(its)}" if its else "nor any other subclass of Algorithm"
        raise ConfigError(f"--algorithm {name}: {module} has no {attribute!r}; {there}")
    if not _is_algorithm(kind):
        raise ConfigError(f"--algorithm {name}: not a subclass of mappa_train.algorithms.Algorithm")
    if kind.__abstractmethods__:
        raise ConfigError(f"--algorithm {name}: it has no method `advantages`")
    try:
        kind()
    except Exception as error:
        raise ConfigError(
            f"--algorithm {name}: {attribute}() cannot be made without arguments ({_cause(error)})"
        ) from error
    _check_fixed(name, kind.fixed)
    return kind


def _is_algorithm(value: object) -> TypeGuard[type[Algorithm]]:
    return isinstance(value, type) and issubclass(value, Algorithm)


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_fixed(name: str, fixed: object) -> None:
    from mappa_train.config import field_types
    from mappa_train.settings import parse_value

    if not isinstance(fixed, Mapping):
        raise ConfigError(f"--algorithm {name}: `fixed` must map settings to values, not be {fixed!r}")
    for setting, value in fixed.items():
        try:
            parsed = parse_value(setting, value)
        except ConfigError as error:
            raise ConfigError(f"--algorithm {name}: `fixed`: {error}") from error
        choices = get_args(field_types()[setting])
        if parsed != value or (choices and value not in choices):
            known = f"one of {', '.join(choices)}" if choices else field_types()[setting].__name__
            raise ConfigError(f"--algorithm {name}: `fixed`: {setting} {value!r}: must be {known}")
