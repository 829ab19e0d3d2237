"""Which episodes go to a worker together. No Ray here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mappa_train.cluster.chunks import Chunk, ChunkQueue
from mappa_train.rollout import EpisodePlan


def plans_of(*tasks: str) -> list[EpisodePlan]:
    return [EpisodePlan(index=k, task_id=task, start_role=None) for k, task in enumerate(tasks)]


def in_turn(tasks: str, num_workers: int) -> list[str]:
    """The tasks of all chunks, for workers that play one chunk at a time."""
    queue, taken = ChunkQueue(plans_of(*tasks), num_workers), []
    while chunk := queue.take(queue.room(0)):
        taken.append("".join(plan.task_id for plan in chunk))
    return taken


def test_one_at_a_time_a_worker_gets_two_chunks_and_tasks_stay_together_where_they_fit() -> None:
    assert in_turn("aaaaaabbbbbb", 2) == ["aaa", "aaa", "bbb", "bbb"]
    assert in_turn("aabbccddeeff", 1) == ["aabbcc", "ddeeff"]
    assert in_turn("aaaabbbbcccc", 1) == ["aaaa", "bbbb", "cccc"]
    assert in_turn("abcde", 1) == ["abc", "de"]
    assert in_turn("aaaa", 64) == ["a"] * 4
    assert ChunkQueue(plans_of(*"aaaa"), 1).room(num_playing=1) == 0


def side_by_side(plans: list[EpisodePlan], num_workers: int, at_once: int) -> list[Chunk]:
    """All chunks, for workers of which each has one chunk played before any has a second one."""
    queue, playing, taken = ChunkQueue(plans, num_workers, at_once), [[] for _ in range(num_workers)], []
    while True:
        for mine in playing:
            while (room := queue.room(sum(map(len, mine)))) > 0 and (chunk := queue.take(room)):
                mine.append(chunk)
                taken.append(chunk)
            assert sum(map(len, mine)) <= at_once
        if not any(playing):
            return taken
        for mine in playing:
            del mine[:1]


def test_side_by_side_chunks_shrink_towards_the_end() -> None:
    plans = plans_of(*(f"t{k // 8}" for k in range(192)))
    sizes = [len(chunk) for chunk in side_by_side(plans, num_workers=2, at_once=16)]
    assert sizes[0] == 16
    assert sizes[-6:] == [1] * 6
    assert sum(sizes[: len(sizes) // 2]) > 2 * sum(sizes[len(sizes) // 2 :])


@given(
    tasks=st.lists(st.integers(0, 9), max_size=80).map(sorted),
    num_workers=st.integers(1, 9),
    at_once=st.integers(0, 20),
)
def test_every_episode_is_handed_out_once_and_what_comes_back_is_next(
    tasks: list[int], num_workers: int, at_once: int
) -> None:
    queue, taken = ChunkQueue(plans_of(*map(str, tasks)), num_workers, at_once), []
    while chunk := queue.take(queue.room(0)):
        queue.give_back(chunk[1:])
        taken.append(chunk[0])
    assert [plan.index for plan in taken] == list(range(len(tasks)))
