"""Types that the fixtures and the tests share."""

from __future__ import annotations

from collections.abc import Callable

from mappa_envs.mathchat.env import MathChatEnv

MakeEnv = Callable[..., MathChatEnv]
