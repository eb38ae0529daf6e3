"""Offsets of open transactions, beside the store."""

from __future__ import annotations

from keylane.coordinator.formats import TopicCommit
from keylane.coordinator.offsets.store import OffsetStore
from keylane.coordinator.offsets.transactional import TransactionalOffsets

OWNER = (3, 70)
OTHER = (3, 71)


def commit(offset: int, *, partitions: tuple[int, ...] = (0,), metadata: str = "") -> TopicCommit:
    count = len(partitions)
    return TopicCommit("t", list(partitions), [offset] * count, [4] * count, [metadata] * count)


def offset_of(store: OffsetStore, partition: int = 0) -> int | None:
    found = store.get("g", "t", partition)
    return None if found is None else found.offset


def test_a_commit_marker_puts_them_into_the_store_as_they_were_sent() -> None:
    waiting, store = TransactionalOffsets(), OffsetStore()
    waiting.put_commit(OWNER, "g", [commit(10, metadata="map")], 100, 5_000)
    assert waiting
    assert waiting.is_waiting("g", "t", 0)
    assert not waiting.is_waiting("g", "t", 1)
    assert not waiting.is_waiting("h", "t", 0)
    assert list(waiting.groups) == ["g"]
    waiting.end(OTHER, store, committed=True)
    assert offset_of(store) is None
    waiting.end(OWNER, store, committed=True)
    assert store.get("g", "t", 0) == (10, 4, "map", 5_000, -1)
    assert store.log_offset_of("g", "t", 0) == 100
    assert not waiting
    assert not waiting.is_waiting("g", "t", 0)
    assert list(waiting.groups) == []


def test_an_abort_marker_drops_them() -> None:
    waiting, store = TransactionalOffsets(), OffsetStore()
    waiting.put_commit(OWNER, "g", [commit(10)], 100, 5_000)
    waiting.end(OWNER, store, committed=False)
    assert offset_of(store) is None
    assert not waiting


def test_the_later_record_wins_against_plain_commits() -> None:
    waiting, store = TransactionalOffsets(), OffsetStore()
    store.apply("g", [commit(1, partitions=(0, 1))], 99, 4_000)
    waiting.put_commit(OWNER, "g", [commit(10, partitions=(0, 1))], 101, 5_000)
    store.apply("g", [commit(7, partitions=(1,))], 103, 6_000)
    waiting.end(OWNER, store, committed=True)
    assert offset_of(store, 0) == 10
    assert offset_of(store, 1) == 7


def test_the_last_commit_of_a_transaction_counts() -> None:
    waiting, store = TransactionalOffsets(), OffsetStore()
    waiting.put_commit(OWNER, "g", [commit(10, partitions=(0, 1))], 100, 5_000)
    waiting.put_commit(OWNER, "g", [commit(20)], 102, 5_000)
    waiting.end(OWNER, store, committed=True)
    assert (offset_of(store, 0), offset_of(store, 1)) == (20, 10)
    assert store.log_offset_of("g", "t", 1) == 101


def test_a_tombstone_clears_them_in_every_transaction() -> None:
    waiting, store = TransactionalOffsets(), OffsetStore()
    waiting.put_commit(OWNER, "g", [commit(10, partitions=(0, 1))], 100, 5_000)
    waiting.put_commit(OTHER, "g", [commit(11)], 102, 5_000)
    waiting.remove("g", "t", 0)
    assert not waiting.is_waiting("g", "t", 0)
    assert list(waiting.partitions_of("g")) == [("t", 1)]
    waiting.end(OTHER, store, committed=True)
    waiting.end(OWNER, store, committed=True)
    assert offset_of(store, 0) is None
    assert offset_of(store, 1) == 10
    assert not waiting
