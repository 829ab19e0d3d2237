"""Other libraries' interfaces to our environments, one module each.

- `mappa_envs.adapters.gymnasium`: one seat to train, the others played by given policies.
- `mappa_envs.adapters.torchrl`: the whole team, one agent's turn a step.

PettingZoo needs none: every environment is a `pettingzoo.AECEnv`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import gymnasium

from mappa_envs.blocking import wait_for
from mappa_envs.registry import list_envs

if TYPE_CHECKING:
    from mappa_envs.evaluation import Policy

__all__ = ["answer_of", "register_gymnasium"]


def register_gymnasium() -> None:
    """Make every environment known to `gymnasium.make` as "mappa/<id>".

    `import mappa_envs` does it, and so does `gymnasium.make("mappa_envs:mappa/<id>")`, which imports that.
    """
    for env_id in list_envs():
        name = f"mappa/{env_id}"
        if name not in gymnasium.registry:
            entry_point = "mappa_envs.adapters.gymnasium:make_seat"
            gymnasium.register(name, entry_point=entry_point, kwargs={"env_id": env_id})


def answer_of(policy: Policy, agent: str, messages: list[dict[str, str]]) -> str:
    """What the policy says, also where it is a coroutine function. Raises `TypeError` if it is no text."""
    answer: Any = policy(agent, messages)
    if inspect.isawaitable(answer):
        answer = wait_for(_awaited(answer))
    if not isinstance(answer, str):
        raise TypeError(f"the policy of {agent} must return a str, got {type(answer).__name__}")
    return answer


async def _awaited(answer: Any) -> Any:
    return await answer
