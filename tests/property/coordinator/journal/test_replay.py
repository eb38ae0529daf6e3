"""Replaying any batch of ours gives what was put into it; a batch of another's is refused."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylane.coordinator.formats import (
    GroupValue,
    OffsetValue,
    RecordFormatError,
    Records,
    TopicCommit,
    encode_batch,
    encode_commit,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    encode_records,
)
from keylane.coordinator.journal.batch_replay import Replayer, records_of
from keylane.coordinator.journal.headers import SEGMENT, JournalDamagedError, encode_header
from keylane.coordinator.journal.image import Image
from keylane.coordinator.journal.segments import SegmentReader, View, encode_frame
from keylane.coordinator.journal.tail_replay import TailReplay
from keylane.coordinator.offsets.store import OffsetStore
from keylane.wire import batches
from keylane.wire.batches import CRC_START
from kit.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = st.lists(
    st.tuples(
        st.binary(max_size=20) | st.sampled_from([b"k" * size for size in (63, 64, 8_191, 8_192)]),
        st.none() | st.binary(max_size=20) | st.sampled_from([b"v" * size for size in (63, 64, 8_192)]),
    ),
    min_size=1,
    max_size=70,
)


@given(PAIRS, st.sampled_from([0, 1, 4]))
def test_records_of_a_batch(pairs: list[tuple[bytes, bytes | None]], codec: int) -> None:
    batch = b"".join(encode_batch(encode_records(pairs, 5), 7, codec=codec))
    assert list(records_of(batch)) == [(7 + at, *pair) for at, pair in enumerate(pairs)]


@given(PAIRS, st.data(), st.sampled_from([0, 1, 4]))
def test_a_batch_cut_short_or_changed_is_refused_or_read_whole(
    pairs: list[tuple[bytes, bytes | None]], data: st.DataObject, codec: int
) -> None:
    """Whatever its records' bytes are, reading them ends, with records or with an error that says what is wrong."""
    batch = bytearray(b"".join(encode_batch(encode_records(pairs, 5), 7, codec=codec)))
    at = data.draw(st.integers(batches.HEADER_SIZE, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    for changed in (bytes(batch), bytes(batch[:at])):
        try:
            found = list(records_of(changed))
        except RecordFormatError:
            continue
        assert len(found) == len(pairs)


def test_other_batches_are_refused() -> None:
    with_header = [batches.NewRecord(b"k", b"v", ((b"name", b"value"),))]
    with pytest.raises(RecordFormatError, match="another form"):
        list(records_of(batches.encode_batch(with_header, timestamp_ms=1)))
    control = batches.encode_batch([batches.NewRecord(b"k", b"v")], timestamp_ms=1, attributes=0x20)
    with pytest.raises(RecordFormatError, match="attributes 32"):
        list(records_of(control))


def test_offsets_groups_and_tombstones() -> None:
    group = GroupValue("consumer", 3, "range", "m", 5, ())
    pairs: list[tuple[bytes, bytes | None]] = [
        (encode_offset_key("g", "t", 0), encode_offset_value(OffsetValue(1, 2, "", 3))),
        (encode_offset_key("g", "t", 1), encode_offset_value(OffsetValue(4, -1, "m", 5))),
        (encode_offset_key("g", "t", 2), encode_offset_value(OffsetValue(6, -1, "", 7, 8))),
        (encode_offset_key("g", "t", 3), encode_offset_value(OffsetValue(9, 9, "", 9))),
        (encode_offset_key("g", "t", 3), None),
        (b"\0\0" + encode_offset_key("g", "old", 0)[2:], b"\0\0" + (11).to_bytes(8, "big") + b"\0\0" + bytes(8)),
        (encode_group_key("g"), encode_group_value(group._replace(generation=2))),
        (encode_group_key("g"), encode_group_value(group)),
        (encode_group_key("gone"), encode_group_value(group)),
        (encode_group_key("gone"), None),
        (b"\0\x0bof newer software", b"kept, not read"),
    ]
    image = Image()
    store = image.store
    Replayer(image).replay(0, b"".join(encode_batch(encode_records(pairs, 5), 0)))
    assert [store.get("g", "t", p) for p in range(4)] == [
        OffsetValue(1, 2, "", 3),
        OffsetValue(4, -1, "m", 5),
        OffsetValue(6, -1, "", 7, 8),
        None,
    ]
    assert store.get("g", "old", 0) == OffsetValue(11, -1, "", 0)
    assert dict(image.groups()) == {"g": group}


TOPIC_COMMIT = st.builds(
    lambda topic, first, rows, texts: TopicCommit(
        topic,
        list(range(first, first + len(rows))),
        [offset for offset, _ in rows],
        [epoch for _, epoch in rows],
        [texts[at % len(texts)] for at in range(len(rows))] if any(texts) else None,
    ),
    st.sampled_from(["a", "b", "topic-" * 10]),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 9)), min_size=1, max_size=12)
    | st.integers(60, 400).map(lambda count: [(at, at % 3) for at in range(count)]),
    st.sampled_from([[""], [""], ["", "m"], ["x" * 70]]),
)


class Journal:
    """A segment of one offsets partition, and what a start makes of it."""

    def __init__(self) -> None:
        self._data = encode_header(SEGMENT, 1, 1)
        self._end = len(self._data)
        self.image = Image()
        self.view = View()
        self._tail = TailReplay(self.image, {0: self.view})

    def replay(self, *batches: bytes) -> None:
        """These batches too. Raises `JournalDamagedError`."""
        self._data += b"".join(encode_frame(0, 0, batch[:CRC_START], batch[CRC_START:]) for batch in batches)
        reader = SegmentReader(self._data, "path", number=1, partitions=1, may_be_torn=False)
        reader.end = self._end
        while self._tail.replay(reader, 1, stop=reader.end + 1_000):
            pass
        self._end = reader.end
        assert self._end == len(self._data)


RUN_AGAIN_BEHIND_ANOTHER_TOPIC = [
    TopicCommit("a", [0, 1, 2, 3], [10, 11, 12, 13], [0] * 4, None),
    TopicCommit("b", [0], [14], [0], None),
    TopicCommit("a", [1], [15], [0], ["m"]),
]
"""Seen from the first record on, row 4 is another topic's and row 5 has a longer head: what ends a run first counts."""


@settings(deadline=None)
@given(st.lists(TOPIC_COMMIT, min_size=1, max_size=6), st.sampled_from([-1, -1, 2**50]))
@example(RUN_AGAIN_BEHIND_ANOTHER_TOPIC, -1)
def test_a_replayed_commit_is_the_commit(commits: list[TopicCommit], expires: int) -> None:
    """Single records, runs that are read as columns, and what lies between: as if the commit had just been made."""
    if expires >= 0:  # only requests without leader epochs can ask for it
        commits = [commit._replace(leader_epochs=[-1] * len(commit.partitions)) for commit in commits]
    live, journal = OffsetStore(), Journal()
    for _ in range(2):  # the second time shapes are known
        base_offset = journal.view.appended
        live.apply("g", commits, base_offset, 5, expires)
        records = encode_commit("g", commits, 5, expires)
        journal.replay(b"".join(encode_batch(records, base_offset)))
        assert journal.view.appended == base_offset + records.record_count
    image = journal.image
    assert dict(image.store.topics_of("g")) == dict(live.topics_of("g"))
    assert len(image.store) == len(live)
    assert not image.kept


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["g", "h", "group-" * 9, "ß"]), st.sampled_from("xy"), st.integers(0, 1), st.booleans()
        ),
        max_size=20,
    )
)
def test_what_is_known_of_a_partition_ends_with_it(steps: list[tuple[str, str, int, bool]]) -> None:
    """Commits of one partition and tombstones, in any order: a partition that is gone is not written to, a group that
    gets more than one is."""
    live, journal = OffsetStore(), Journal()
    image = journal.image
    for at, (group, topic, partition, is_tombstone) in enumerate(steps):
        if is_tombstone:
            live.remove(group, topic, partition)
            records = encode_records([(encode_offset_key(group, topic, partition), None)], 5)
        else:
            commit = TopicCommit(topic, [partition], [at], [3], None)
            live.apply(group, [commit], at, 5)
            records = encode_commit(group, [commit], 5)
        journal.replay(b"".join(encode_batch(records, at)))
        assert len(image.store) == len(live)
        assert set(image.store.groups) == set(live.groups)
        for name in live.groups:
            assert dict(image.store.topics_of(name)) == dict(live.topics_of(name))


@settings(deadline=None, max_examples=examples(300))
@given(TOPIC_COMMIT, st.booleans(), st.data())
def test_the_short_way_of_one_partition_reads_what_the_long_way_reads(
    commit: TopicCommit, is_known: bool, data: st.DataObject
) -> None:
    """Any byte changed behind the checksum, and the checksum made to hold."""
    one = TopicCommit(commit.topic, commit.partitions[:1], commit.offsets[:1], commit.leader_epochs[:1], None)
    batch = bytearray(b"".join(encode_batch(encode_commit("g", [one], 5), 0)))
    at = data.draw(st.sampled_from([22, 26]) | st.integers(batches.HEADER_SIZE - 4, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255) | st.just(batch[at]))
    batch[CRC_START - 4 : CRC_START] = crc32c(batch[CRC_START:]).to_bytes(4, "big")
    journal, long_way = Journal(), Image()
    if is_known:
        first = b"".join(encode_batch(encode_commit("g", [one], 4), 0))
        journal.replay(first)
        Replayer(long_way).replay(0, first)
        batch[:8] = (1).to_bytes(8, "big")
    found: list[object] = []
    ways: list[tuple[Image, Callable[[], None]]] = [
        (journal.image, partial(journal.replay, bytes(batch))),
        (long_way, partial(Replayer(long_way).replay, 0, bytes(batch))),
    ]
    for image, replay in ways:
        try:
            replay()
        except (RecordFormatError, JournalDamagedError):
            found.append(None)
        else:
            rows = {
                (group, topic): offsets
                for group in image.store.groups
                for topic, offsets in image.store.topics_of(group)
            }
            found.append((image.kept, rows))
    assert found[0] == found[1]


def offset_records(group: str, topic: str, partition: int, offset: int | None) -> Records:
    """A commit, or its tombstone."""
    value = None if offset is None else encode_offset_value(OffsetValue(offset, 1, "m" * (offset % 2), 5))
    return encode_records([(encode_offset_key(group, topic, partition), value)], 5)


A_FEW = st.sampled_from("gh")
RECORDS = st.one_of(
    st.builds(encode_commit, A_FEW, st.lists(TOPIC_COMMIT, min_size=1, max_size=3), st.just(5)),
    st.builds(offset_records, A_FEW, st.sampled_from("ab"), st.integers(0, 2), st.none() | st.integers(0, 9)),
    st.builds(
        lambda group, generation: encode_records(
            [
                (
                    encode_group_key(group),
                    encode_group_value(GroupValue("consumer", generation, "range", "m", 5, ())) if generation else None,
                )
            ],
            5,
        ),
        A_FEW,
        st.integers(0, 3),
    ),
    st.builds(  # a key of before Kafka 0.9
        lambda group, offset: encode_records(
            [
                (
                    b"\0\0" + encode_offset_key(group, "a", 0)[2:],
                    b"\0\0" + offset.to_bytes(8, "big") + b"\0\0" + bytes(8),
                )
            ],
            5,
        ),
        A_FEW,
        st.integers(0, 9),
    ),
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(RECORDS, max_size=20), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([0, 1, 4]))
def test_many_batches_at_once_are_what_they_are_one_by_one(steps: list[Records], sizes: list[int], codec: int) -> None:
    batches_of: list[bytes] = []
    base_offset = 0
    for records in steps:
        batches_of.append(b"".join(encode_batch(records, base_offset, codec=codec)))
        base_offset += records.record_count
    one_by_one, at_once = Image(), Image()
    replayer = Replayer(one_by_one)
    for batch in batches_of:
        replayer.replay(3, batch)
    replayer, at = Replayer(at_once), 0
    for size in sizes * len(batches_of):
        replayer.replay_newest(3, batches_of[at : at + size])
        at += size
    assert table(at_once) == table(one_by_one)
    assert at_once.kept == one_by_one.kept


def table(image: Image) -> dict[str, dict[str, object]]:
    return {group: dict(image.store.topics_of(group)) for group in image.store.groups}
