"""Reads a coach's answer on a whole episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mappa_envs.coach.llm.parse import VerdictError, read_actions, read_shares, to_score
from mappa_envs.types import CoachScore

Verdicts = list[CoachScore | None]


def read_episode(
    text: str, agents: Collection[str], num_actions: int, outcome: float | None, *, last: bool
) -> Verdicts:
    """One verdict an action, in their order, with the outcome split over them where it is known.

    Raises `VerdictError` if a verdict cannot be used; on the `last` try only if none can: then a bad entry is
    None. A split that does not add up, or lacks an entry, is left out of all.
    """
    verdicts: Verdicts = []
    entries: list[Mapping[str, Any]] = []
    for turn, entry in enumerate(read_actions(text, agents, num_actions)):
        try:
            if isinstance(entry, VerdictError):
                raise entry
            verdicts.append(to_score({**entry, "revisions": None}, agents, None))
            entries.append(entry)
        except VerdictError as error:
            if not last:
                raise VerdictError(f"turn {turn}: {error}") from None
            verdicts.append(None)
    if not entries:
        raise VerdictError("no entry can be used")
    if outcome is None or len(entries) < num_actions:
        return verdicts
    try:
        return _split(verdicts, entries, outcome)
    except VerdictError:
        return verdicts  # the scores are there: not worth asking about the whole episode again


def _split(verdicts: Verdicts, entries: list[Mapping[str, Any]], outcome: float) -> Verdicts:
    def parts(name: str, total: float) -> list[float]:
        values = [entry.get(name) for entry in entries]
        # Where there is nothing to share out, whatever was said means nothing.
        return [total * share for share in read_shares(values, name)] if total else [0.0] * len(values)

    raised, lowered = parts("raised", outcome), parts("lowered", 1 - outcome)
    return [
        verdict and replace(verdict, raised=up, lowered=down)
        for verdict, up, down in zip(verdicts, raised, lowered, strict=True)
    ]
