"""What samples actions: token ids in, token ids and their logprobs out, for each agent's own policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mappa_train.types import Generation, GenerationRequest


class Engine(Protocol):
    """Samples at the run's temperature from the whole vocabulary (top_p 1, no top_k)."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation for each request, in order. Blocking; called from one worker thread."""
        ...

    def sync(self, version: int) -> None:
        """Take over the current weights of every agent's policy as policy version `version`."""
        ...

    def cancel(self) -> None:
        """Make a running `generate` in another thread end soon, by an exception there."""
        ...
