"""Which episodes go to a worker together. No Ray here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mappa_train.cluster.chunks import ChunkQueue
from mappa_train.rollout import EpisodePlan


def plans_of(*tasks: str) -> list[EpisodePlan]:
    return [EpisodePlan(index=k, task_id=task, start_role=None) for k, task in enumerate(tasks)]


def cut(tasks: str, num_workers: int) -> list[str]:
    """The tasks of all chunks."""
    queue, taken = ChunkQueue(plans_of(*tasks), num_workers), []
    while chunk := queue.take():
        taken.append("".join(plan.task_id for plan in chunk))
    return taken


def test_a_worker_gets_two_chunks_and_tasks_stay_together_where_they_fit() -> None:
    assert cut("aaaaaabbbbbb", 2) == ["aaa", "aaa", "bbb", "bbb"]
    assert cut("aabbccddeeff", 1) == ["aabbcc", "ddeeff"]
    assert cut("aaaabbbbcccc", 1) == ["aaaa", "bbbb", "cccc"]
    assert cut("abcde", 1) == ["abc", "de"]
    assert cut("aaaa", 64) == ["a"] * 4


@given(tasks=st.lists(st.integers(0, 9), max_size=80).map(sorted), num_workers=st.integers(1, 9))
def test_every_episode_is_handed_out_once_and_what_comes_back_is_next(
    tasks: list[int], num_workers: int
) -> None:
    queue, taken = ChunkQueue(plans_of(*map(str, tasks)), num_workers), []
    while chunk := queue.take():
        queue.give_back(chunk[1:])
        taken.append(chunk[0])
    assert [plan.index for plan in taken] == list(range(len(tasks)))
