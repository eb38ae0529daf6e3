"""The loop over commits of one offset: what it takes, and before what it stops."""

from __future__ import annotations

import sys

import pytest

from keylane.coordinator.formats import (
    TRANSACTION_STATE,
    OffsetValue,
    Records,
    TopicCommit,
    encode_batch,
    encode_commit,
    encode_offset_key,
    encode_records,
)
from keylane.coordinator.journal.segments import INDEX_INTERVAL_BYTES, View, encode_frame
from keylane.coordinator.journal.single_commit_replay import SingleCommits
from keylane.coordinator.offsets.store import OffsetStore

NOW_MS = 1_700_000_000_000


def single(group: str, topic: str, partition: int, offset: int, metadata: str = "") -> Records:
    commit = TopicCommit(topic, [partition], [offset], [3], [metadata] if metadata else None)
    return encode_commit(group, [commit], NOW_MS)


def frame(records: Records, base_offset: int, partition: int = 0) -> bytes:
    return encode_frame(partition, 0, *encode_batch(records, base_offset))


class Loop:
    def __init__(self) -> None:
        self.store = OffsetStore()
        self.views = {0: View(), 1: View(), TRANSACTION_STATE: View()}
        self._commits = SingleCommits(self.store, self.views)

    def replay(self, data: bytes, position: int = 0, stop: int = sys.maxsize) -> int:
        return self._commits.replay(data, position, stop, 0)


def test_names_of_every_length_are_taken_in_one_go() -> None:
    """Sizes are varints of one byte or two; groups and topics of different lengths make frames of one size."""
    lengths = (0, 1, 2, 9, 10, 11, 12, 13, 40, 200)
    names = [("g" * group, "t" * topic) for group in lengths for topic in lengths if topic]
    data = b"".join(frame(single(*name, at, at << 40), at) for at, name in enumerate(names))
    loop = Loop()
    assert loop.replay(data) == len(data)
    assert loop.views[0].appended == len(names)
    for at, name in enumerate(names):
        assert loop.store.get(*name, at) == OffsetValue(at << 40, 3, "", NOW_MS)
        assert loop.store.log_offset_of(*name, at) == at


def test_it_stops_where_it_is_told() -> None:
    frames = [frame(single("g", "t", 0, at), at) for at in range(5)]
    loop = Loop()
    assert loop.replay(b"".join(frames), stop=2 * len(frames[0]) + 1) == 3 * len(frames[0])
    assert loop.views[0].appended == 3


@pytest.mark.parametrize(
    "records",
    [
        single("g", "t", 0, 5, "metadata"),
        encode_commit("g", [TopicCommit("t", [0, 1], [5, 6], [3, 3], None)], NOW_MS),
        encode_commit("g", [TopicCommit("t", [0], [5], [-1], None)], NOW_MS, NOW_MS + 1),
        encode_records([(encode_offset_key("g", "t", 0), None)], NOW_MS),
        single("g", "t", 0, 5)._replace(attributes=0x10, producer_id=7, producer_epoch=0),
    ],
    ids=["metadata", "two partitions", "with an expiry", "tombstone", "transactional"],
)
def test_it_stops_before_any_other_batch(records: Records) -> None:
    first = frame(single("g", "t", 0, 4), 0)
    loop = Loop()
    assert loop.replay(first + frame(records, 1)) == len(first)
    assert loop.store.get("g", "t", 0) == OffsetValue(4, 3, "", NOW_MS)
    assert loop.views[0].appended == 1


@pytest.mark.parametrize("partition", [1, 2, TRANSACTION_STATE])
def test_it_stops_before_a_frame_out_of_place(partition: int) -> None:
    """Offset 1 where 0 is due, a partition that there is not, and the partition that holds no offsets."""
    first = frame(single("g", "t", 0, 4), 0)
    other = frame(single("h", "t", 0, 5), int(partition == 1), partition)
    loop = Loop()
    assert loop.replay(first + other) == len(first)
    assert len(loop.store) == 1


def test_it_stops_before_any_changed_byte_and_any_end_that_is_missing() -> None:
    frames = [frame(single("g", "t", 0, at), at) for at in range(3)]
    sound = b"".join(frames)
    second = len(frames[0])
    for at in range(second, second + len(frames[1])):
        changed = bytearray(sound)
        changed[at] ^= 0x41
        for data in (bytes(changed), sound[:at]):
            loop = Loop()
            assert loop.replay(data) == second
            assert loop.views[0].appended == 1


def test_readers_find_the_batches() -> None:
    """An entry in the index for each interval of the journal."""
    frames = [frame(single("g", "t", 0, at), at) for at in range(1_500)]
    size = len(frames[0])
    loop = Loop()
    loop.replay(b"".join(frames))
    every = -(-INDEX_INTERVAL_BYTES // size)
    assert loop.views[0].offsets.tolist() == list(range(0, 1_500, every))
    assert loop.views[0].places.tolist() == [at * size for at in range(0, 1_500, every)]
