"""One seat of a team as a Gymnasium environment; given policies play the others.

    >>> import gymnasium
    >>> env = gymnasium.make("mappa_envs:mappa/dsbench-v0", seat="modeler_0", others=policy)
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step("```python\\n...\\n```")

`policy(agent, messages)` returns a teammate's whole message, as for `mappa_envs.evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from mappa_envs.adapters import answer_of
from mappa_envs.errors import ConfigError, PromptTooLong, SandboxError
from mappa_envs.evaluation import Policy
from mappa_envs.pipeline import PipelineEnv
from mappa_envs.registry import make
from mappa_envs.types import StopReason

MAX_ATTEMPTS = 10
"""How many episodes `reset` begins to find one in which the seat gets a turn."""


class SeatEnv(gymnasium.Env[dict[str, Any], str]):
    """A step is one action of the seat, and then its teammates' actions until it is the seat's turn again.

    The observation is what the seat sees on its turn (after the end: what it would see if it acted now). The
    reward is score / 10 of the action, plus the corrections of the seat's earlier turns that came until now;
    over an episode the rewards sum to the seat's final scores / 10. `terminated` and `truncated` are the
    environment's. With scores that come at the end, the last step's reward is the sum.

    `info` holds "messages" (the prompt as chat messages; not after the end), "unscored", "pending",
    "corrections" (`[(turn, delta)]` of this step), and after the end "stop_reason", "outcome" and "success".
    An episode with the stop reason "infra" ended because the sandbox failed: throw it away.

    Parameters
    ----------
    env : the team's environment; `close` closes it.
    seat : the agent to train.
    others : one policy for all other agents, or a dict of one for each of them. Coroutine functions run in
        a private event loop. `PromptTooLong` from one ends the episode. Not needed where the team is the seat
        alone.

    Raises `ConfigError` without a seat or for an unknown one, and for policies that do not match the team.
    """

    def __init__(
        self, env: PipelineEnv, seat: str | None = None, others: Policy | Mapping[str, Policy] | None = None
    ) -> None:
        names = ", ".join(env.possible_agents)
        if seat is None:
            raise ConfigError(
                f"seat: name the agent to train, one of {names}; and others: a policy(agent, messages) that "
                "plays the rest, or a dict of one for each"
            )
        if seat not in env.possible_agents:
            raise ConfigError(f"seat: no agent {seat!r}; known: {names}")
        self.aec, self.seat = env, seat
        self.others = _by_agent(others, [agent for agent in env.possible_agents if agent != seat])
        self.metadata = {"render_modes": list(env.metadata["render_modes"])}
        self.render_mode = env.render_mode
        self.observation_space = env.observation_space(seat)
        self.action_space = env.action_space(seat)
        self._reward = 0.0
        self._corrections: list[tuple[int, float]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Play until the seat's first turn. `options` are those of the environment's `reset`.

        Episodes that end before the seat's turn are passed over, `info["skipped"]` counts them; the next
        ones are drawn from the seed, too. Raises `RuntimeError` (`SandboxError` if the sandbox failed) after
        `MAX_ATTEMPTS`.
        """
        super().reset(seed=seed)
        for skipped in range(MAX_ATTEMPTS):
            first = seed is not None and skipped == 0
            self.aec.reset(seed=seed if first else int(self.np_random.integers(2**31)), options=options)
            self._reward, self._corrections = 0.0, []
            self._play_others()
            if not self._is_over:
                return self.aec.observe(self.seat), {**self._info(), "skipped": skipped}
        message = (
            f"{self.seat} got no turn in {MAX_ATTEMPTS} episodes; the last ended with {self._stop_reason}"
        )
        raise (SandboxError if self._stop_reason == StopReason.INFRA else RuntimeError)(message)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """The seat's whole message."""
        if self._is_over:
            raise RuntimeError("the episode is over: call reset()")
        self._reward, self._corrections = 0.0, []
        self._act(action)
        self._play_others()
        terminated = self._stop_reason == StopReason.DONE
        truncated = self._is_over and not terminated
        return self.aec.observe(self.seat), self._reward, terminated, truncated, self._info()

    def render(self) -> str | None:
        """The transcript of the whole team ("ansi"), or print the newest turn ("human")."""
        return self.aec.render()

    def close(self) -> None:
        self.aec.close()

    @property
    def _stop_reason(self) -> StopReason | None:
        return self.aec.episode.stop_reason

    @property
    def _is_over(self) -> bool:
        return self._stop_reason is not None

    def _play_others(self) -> None:
        while not self._is_over and (agent := self.aec.agent_selection) != self.seat:
            try:
                action = answer_of(self.others[agent], agent, self.aec.infos[agent]["messages"])
            except PromptTooLong:
                self.aec.cut(StopReason.CONTEXT)
                self._collect()
            else:
                self._act(action)

    def _act(self, action: str) -> None:
        self.aec.step(action)
        self._collect()

    def _collect(self) -> None:
        self._reward += float(self.aec.rewards[self.seat])
        self._corrections += self.aec.infos[self.seat]["corrections"]

    def _info(self) -> dict[str, Any]:
        info = {**self.aec.infos[self.seat], "corrections": list(self._corrections)}
        if self._is_over:
            episode = self.aec.episode
            ending = {"outcome": episode.outcome, "success": episode.success}
            info |= {"stop_reason": str(episode.stop_reason), **ending}
        return info


def make_seat(
    env_id: str,
    seat: str | None = None,
    others: Policy | Mapping[str, Policy] | None = None,
    **arguments: Any,
) -> SeatEnv:
    """What `gymnasium.make("mappa_envs:mappa/<id>", …)` calls; `arguments` are those of `mappa_envs.make`."""
    return SeatEnv(make(env_id, **arguments), seat, others)


def _by_agent(others: Policy | Mapping[str, Policy] | None, agents: list[str]) -> dict[str, Policy]:
    if callable(others):
        return dict.fromkeys(agents, others)
    given = dict(others or {})
    if set(given) != set(agents):
        got = ", ".join(given) or "none"
        raise ConfigError(f"others: one policy for each of {', '.join(agents)} is needed, got {got}")
    return given
