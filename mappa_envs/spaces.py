"""The space of free text, any Python string up to a length; and the observations that it is part of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.spaces import Dict as DictSpace

from mappa_envs.types import Episode
from mappa_envs.view import file_trail, transcript

MAX_CHARS = 2_000_000
_SAMPLES = (
    "I hand over.",
    "```python\nprint(1 + 1)\n```",
    "```py\nprint('café')\n```",
    "<think>first a plan</think>Done: ∑ = 42",
    "",
    "```Python\nraise ValueError('oops')",
)


class FreeText(gymnasium.Space[str]):
    """All strings of at most `max_chars` characters, over all of Unicode.

    `gymnasium.spaces.Text` needs a character set: it checks text letter by letter, and a set of all of
    Unicode weighs 193 MB. Here `contains` looks at the length alone. `sample` draws short messages, some
    with code. Not flattenable.
    """

    def __init__(self, max_chars: int = MAX_CHARS, *, seed: int | None = None) -> None:
        if max_chars < 0:
            raise ValueError(f"max_chars must not be negative, got {max_chars}")
        self.max_chars = max_chars
        super().__init__(shape=None, dtype=str, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short message. `mask` and `probability` are part of the interface and have no meaning here."""
        picks = self.np_random.integers(0, len(_SAMPLES), size=int(self.np_random.integers(1, 4)))
        return "\n".join(_SAMPLES[int(pick)] for pick in picks)[: self.max_chars]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_chars

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        return [str(sample) for sample in sample_n]

    def __repr__(self) -> str:
        return f"FreeText({self.max_chars})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and self.max_chars == other.max_chars

    __hash__ = None  # type: ignore[assignment]


def check_action(agent: str, action: object) -> str:
    """The action, if it is in the space. Raises `TypeError` or `ValueError`."""
    if not isinstance(action, str):
        raise TypeError(
            f"the action of {agent} must be a str, its whole message; got {type(action).__name__}"
        )
    if len(action) > MAX_CHARS:
        raise ValueError(f"the action of {agent} has {len(action)} characters; at most {MAX_CHARS} are taken")
    return action


def _count_space() -> Box:
    """A number of turns or actions."""
    # Not up to the largest int64: the space could not be sampled, since Gymnasium adds 1 to its bound.
    return Box(0, np.iinfo(np.int32).max, (), np.int64)


def prompt_space() -> DictSpace:
    """What an agent sees: its prompt as one string, the turns so far, its actions left."""
    # PettingZoo's tests demand arrays under keys called "observation" or "action_mask": none here.
    return DictSpace({"prompt": FreeText(), "turn": _count_space(), "actions_left": _count_space()})


def state_space() -> DictSpace:
    """The whole episode: its transcript, the trail of its files, the turns so far."""
    return DictSpace({"transcript": FreeText(), "files": FreeText(), "turn": _count_space()})


def state_of(episode: Episode) -> dict[str, Any]:
    """The element of `state_space` for an episode."""
    return {
        "transcript": transcript(episode)[:MAX_CHARS],
        "files": file_trail(episode)[:MAX_CHARS],
        "turn": np.array(len(episode.turns), dtype=np.int64),
    }
