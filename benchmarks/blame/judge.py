"""Asks a coach about episodes that were played, as the environment would have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.blame.measure import Action, Record
from benchmarks.blame.play import Played
from mappa_envs.coach import Coach, CoachRequest
from mappa_envs.errors import CoachError
from mappa_envs.types import Turn

NUM_CONCURRENT = 16


async def judge_all(coach: Coach, played: Sequence[Played]) -> list[Record]:
    """A record for each episode but the twins, which are in the records of their injections."""
    slots = asyncio.Semaphore(NUM_CONCURRENT)

    async def judge(one: Played) -> list[Action]:
        async with slots:
            return await _judge(coach, one)

    actions = await asyncio.gather(*(judge(one) for one in played))
    twins = {
        (one.case.of, one.case.task.task_id): tuple(mine)
        for one, mine in zip(played, actions, strict=True)
        if one.case.layout == "twin"
    }
    records = []
    for one, mine in zip(played, actions, strict=True):
        case = one.case
        if case.layout == "twin":
            continue
        injected = len(case.faults) == 1 and case.faults[0].injection
        records.append(
            Record(
                name=case.name,
                env_id=case.env_id,
                guilty=tuple(fault.agent for fault in case.faults),
                severity=case.faults[0].severity if len(case.faults) == 1 else None,
                actions=tuple(mine),
                is_injection=injected,
                twin=twins.get((case.faults[0].name, case.task.task_id)) if injected else None,
            )
        )
    return records


async def _judge(coach: Coach, played: Played) -> list[Action]:
    """Action by action; later verdicts may change the scores of earlier turns."""
    turns: list[Turn] = []
    spent_s: list[float] = []
    for request in played.requests:
        # The recorded episode has no scores: the coach is to find its own of before.
        mine = replace(request, episode=replace(request.episode, turns=tuple(turns)))
        start = time.perf_counter()
        turn = await _ask(coach, mine)
        spent_s.append(time.perf_counter() - start)
        for revision in turn.score.revisions if turn.score else ():
            turns[revision.turn] = replace(turns[revision.turn], final_score=revision.score)
        turns.append(turn)
    return [
        Action(
            agent=turn.agent,
            score=turn.final_score if turn.score else None,
            blame=turn.score.blame if turn.score else {},
            did_job=played.did_job(turn.index),
            cost_usd=turn.score.cost_usd if turn.score else 0.0,
            time_s=time_s,
            cached=bool(turn.score and turn.score.cached),
        )
        for turn, time_s in zip(turns, spent_s, strict=True)
    ]


async def _ask(coach: Coach, request: CoachRequest) -> Turn:
    try:
        score = await coach.score(request)
    except CoachError as error:
        return replace(request.turn, unscored_reason=str(error))
    return replace(request.turn, score=score, final_score=score.score)
