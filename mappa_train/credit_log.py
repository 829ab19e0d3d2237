"""What learning made of each action: the records of credit.jsonl.

Importing this loads no torch: the report reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict import TensorDict

    from mappa_train.types import SampleCredit


@dataclass(frozen=True, kw_only=True)
class ActionCredit:
    """One trained action. An action that learning left out (unscored, masked) has none.

    `index` is that of the episode in the run, `ret` the return G. `advantage` and `kl` (log π_old − log
    π_ref, in nats) are means over the action's `num_tokens` tokens; the advantage is the one that was
    learned from, after normalization.
    """

    index: int
    turn: int
    agent: str
    ret: float
    advantage: float
    kl: float
    num_tokens: int

    def to_json(self, step: int) -> str:
        """One line; it begins with the step and the episode, as the lines of episodes.jsonl do."""
        line = {
            "step": step,
            "index": self.index,
            "turn": self.turn,
            "agent": self.agent,
            "return": self.ret,
            "advantage": self.advantage,
            "kl": self.kl,
            "tokens": self.num_tokens,
        }
        return json.dumps(line, allow_nan=False)

    @staticmethod
    def from_json(line: str | bytes) -> ActionCredit:
        """The inverse of `to_json`, without the step. Raises `ValueError` on a line that is none."""
        try:
            found: dict[str, Any] = json.loads(line)
            return ActionCredit(
                index=int(found["index"]),
                turn=int(found["turn"]),
                agent=str(found["agent"]),
                ret=float(found["return"]),
                advantage=float(found["advantage"]),
                kl=float(found["kl"]),
                num_tokens=int(found["tokens"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no credit of an action: {error!r}") from None


def action_credits(packs: Iterable[TensorDict], samples: Sequence[SampleCredit]) -> tuple[ActionCredit, ...]:
    """The credit of every action in the packs, which hold `advantages` by now; by episode and turn.

    A pack's `members` are places in `samples`; its token tensors [t] hold the members one after another, in
    parts of its `lengths`.
    """
    found = []
    for pack in packs:
        lengths = pack["lengths"].tolist()
        divergences = (pack["old_logprobs"] - pack["ref_logprobs"]).split(lengths)
        parts = zip(pack["members"].tolist(), pack["advantages"].split(lengths), divergences, strict=True)
        for member, advantages, divergence in parts:
            sample = samples[member]
            assert sample.ret is not None  # what has no return is in no pack
            found.append(
                ActionCredit(
                    index=sample.episode_index,
                    turn=sample.action.turn,
                    agent=sample.action.agent,
                    ret=sample.ret,
                    advantage=float(advantages.double().mean()),
                    kl=float(divergence.double().mean()),
                    num_tokens=len(advantages),
                )
            )
    return tuple(sorted(found, key=lambda item: (item.index, item.turn)))
