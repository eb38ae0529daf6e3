"""The rows of committed offsets against a dictionary; and what an entry costs."""

from __future__ import annotations

import sys
import tracemalloc
from array import array
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylane.coordinator.formats import OffsetValue, TopicCommit
from keylane.coordinator.offsets import rows
from keylane.coordinator.offsets.rows import Columns
from keylane.coordinator.offsets.store import SHARES, GroupTable, OffsetStore, TopicOffsets

MAX_TIMESTAMP = 2**48 - 1
PARTITION = st.integers(0, 12) | st.integers(0, 2**31 - 1)
VALUE = st.builds(
    OffsetValue,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "m", "long " * 40]),
    st.integers(0, MAX_TIMESTAMP),
    st.sampled_from([-1, -1, 2**62]),
)
MAX_BYTES_AN_ENTRY = 64
PLACE_OF_A_GROUP = 35
"""In the table of groups, however full its parts are."""


@st.composite
def commits(draw: st.DrawFn) -> tuple[TopicCommit, int, int]:
    start = draw(st.integers(0, 8))
    partitions = draw(st.lists(PARTITION, min_size=1, max_size=6) | st.just(list(range(start, start + 5))))
    values = draw(st.lists(VALUE, min_size=len(partitions), max_size=len(partitions)))
    metadata = [value.metadata for value in values]
    commit = TopicCommit(
        "t",
        partitions,
        [value.offset for value in values],
        [value.leader_epoch for value in values],
        metadata if any(metadata) else None,
    )
    return commit, draw(st.integers(0, MAX_TIMESTAMP)), draw(st.sampled_from([-1, 2**62]))


@given(st.lists(commits() | st.tuples(PARTITION, VALUE) | PARTITION, max_size=30))
@example([(3, OffsetValue(5, metadata="m")), (TopicCommit("t", [3], [6], [-1], None), 0, -1)])
def test_columns_are_a_dictionary(steps: list[tuple[TopicCommit, int, int] | tuple[int, OffsetValue] | int]) -> None:
    """Commits, replayed records and tombstones in any order; partitions dense, sparse, repeated."""
    store = OffsetStore()
    model: dict[int, OffsetValue] = {}
    log_offsets: dict[int, int] = {}
    for at, step in zip(count(0, 10), steps, strict=False):
        if isinstance(step, int):
            store.remove("g", "t", step)
            model.pop(step, None)
        elif len(step) == 2:
            store.put("g", "t", *step, at)
            model[step[0]] = step[1]
            log_offsets[step[0]] = at
        else:
            commit, timestamp, expires = step
            store.apply("g", [commit], at, timestamp, expires)
            for row, partition in enumerate(commit.partitions):
                text = commit.metadata[row] if commit.metadata else ""
                model[partition] = OffsetValue(commit.offsets[row], commit.leader_epochs[row], text, timestamp, expires)
                log_offsets[partition] = at + row
        assert len(store) == len(model)
        assert ("g" in store) is bool(model)
    assert {p: store.get("g", "t", p) for p in model} == model
    kept = {p: at for _, offsets in store.topics_of("g") for p, _, at in offsets.values()}
    assert kept == {p: log_offsets[p] for p in model}
    everything = dict(store.fetch_all("g"))
    assert list(everything) == (["t"] if model else [])
    for columns in everything.values():
        assert list(columns.partitions) == sorted(model)
        texts = columns.metadata or [""] * len(model)
        rows = zip(columns.partitions, columns.offsets, columns.leader_epochs, texts, strict=True)
        assert {p: row for p, *row in rows} == {p: list(value[:3]) for p, value in model.items()}
    asked = [*model, 13, 2**31 - 1]
    found = store.fetch("g", "t", asked)
    missing = OffsetValue(-1)
    assert list(found.offsets) == [model.get(p, missing).offset for p in asked]
    assert list(found.leader_epochs) == [model.get(p, missing).leader_epoch for p in asked]
    assert (found.metadata or [""] * len(asked)) == [model.get(p, missing).metadata for p in asked]


LOG_OFFSET = st.integers(0, 2**48 - 500) | st.integers(2**16 - 300, 2**16 + 300) | st.integers(2**32 - 300, 2**32)
WIDE_STEP = st.tuples(
    st.sampled_from(["run", "run", "some", "some", "remove"]),
    st.sampled_from("xyz"),
    st.integers(0, 500),
    st.integers(1, 400),
    st.sampled_from(["", "", "", "m", "map " * 60]),
    LOG_OFFSET,
)


@settings(deadline=None)
@given(st.lists(WIDE_STEP, max_size=12))
def test_many_rows_in_many_blocks_are_a_dictionary(steps: list[tuple[str, str, int, int, str, int]]) -> None:
    """A group whose rows fill several blocks: runs of partitions, some here and there, with metadata and without."""
    store, copy = OffsetStore(), OffsetStore()
    model: dict[tuple[str, int], tuple[OffsetValue, int]] = {}
    for way, topic, first, number, text, log_offset in steps:
        partitions = range(first, first + number) if way == "run" else [first * at % 501 for at in range(number % 20)]
        if way == "remove":
            for partition in partitions:
                store.remove("g", topic, partition)
                model.pop((topic, partition), None)
            continue
        size = len(partitions)
        offsets, epochs = [at * 2**32 - 1 for at in range(size)], [at - 1 for at in range(size)]
        texts = [text if at % 3 else "" for at in range(size)] if text else None
        columns = (array("i", partitions), array("q", offsets), array("i", epochs))
        store.apply("g", [TopicCommit(topic, *columns, texts)], log_offset, first)
        for at, partition in enumerate(partitions):
            value = OffsetValue(offsets[at], epochs[at], texts[at] if texts else "", first)
            model[topic, partition] = value, log_offset + at
    by_topic = {topic: sorted(one for known, one in model if known == topic) for topic, _ in model}
    assert len(store) == store.size_of("g") == len(model)
    assert dict(store.partitions_of("g")) == by_topic
    assert store.topics() == set(by_topic)
    for topic, kept in store.topics_of("g"):
        copy.restore("g", topic, kept)
        assert {p: (value, at) for p, value, at in kept.values()} == {p: model[topic, p] for p in by_topic[topic]}
    assert dict(copy.topics_of("g")) == dict(store.topics_of("g"))
    for name, (value, at) in model.items():
        assert (store.get("g", *name), store.log_offset_of("g", *name)) == (value, at)
    for topic in "xyz":
        for asked in (range(100, 160), [3, 500, 3, 499], range(501, 503)):
            nothing = OffsetValue(-1), -1
            known = [model.get((topic, one), nothing)[0] for one in asked]
            found = store.fetch("g", topic, asked)
            rows_found = zip(found.offsets, found.leader_epochs, found.metadata or [""] * len(asked), strict=True)
            assert [*rows_found] == [value[:3] for value in known]
            assert [store.plain("g", topic, one) for one in asked] == [
                None if value.metadata else rows.encode_offset(*value[:2]) for value in known
            ]


def bytes_an_entry(groups: int, topics: int, partitions: int, metadata: str = "") -> float:
    numbers = list(range(partitions))
    # Interned before it is measured: the interpreter's own table of interned names, which other code of the process
    # has filled, may double at any new name (3.8 MB at 175,000 names), and is not the store's.
    topic_names = [sys.intern(f"topic-{number:03d}") for number in range(topics)]
    group_names = [sys.intern(f"consumer-group-{number:06d}") for number in range(groups)]
    OffsetStore().apply("g", [TopicCommit("t", range(32), range(32), range(32), None)], 0, 0)  # what all stores share
    store = OffsetStore()
    tracemalloc.start()
    try:
        for at, group in enumerate(group_names):
            for topic in topic_names:
                offsets = [(1 << 40) + at + one for one in numbers]
                texts = [f"{at:08d}{metadata[8:]}" for _ in numbers] if metadata else None
                commit = TopicCommit(topic, numbers, offsets, [3] * partitions, texts)
                store.apply(group, [commit], (1 << 30) + at, 1_700_000_000_000 + at)
                del offsets, texts, commit
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == groups * topics * partitions
    return size / len(store)


@pytest.mark.parametrize(
    ("groups", "topics", "partitions"),
    [
        pytest.param(10, 16, 1_000, marks=pytest.mark.full),
        pytest.param(1_600, 1, 100, marks=pytest.mark.full),
        pytest.param(1_000, 1, 50, marks=pytest.mark.full),
        (1_000, 1, 20),
        (1_500, 1, 10),
        (1_500, 1, 8),
        (5_000, 1, 3),
        (1_000, 5, 1),
        pytest.param(500, 40, 1, marks=pytest.mark.full),
        pytest.param(50, 300, 1, marks=pytest.mark.full),
        (100, 20, 10),
    ],
)
def test_an_entry_takes_at_most_64_bytes(groups: int, topics: int, partitions: int) -> None:
    """S1's requirement, in the shapes of 16 million entries, 160,000 of them here, and wherever a group has three
    entries or more, whatever the topics. Without metadata and names."""
    assert bytes_an_entry(groups, topics, partitions) <= MAX_BYTES_AN_ENTRY


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 2), (2, 1)])
def test_a_group_of_one_or_two_entries_pays_for_its_place(topics: int, partitions: int) -> None:
    """64 bytes for an entry and 96 for two, and the group's place in the table."""
    for groups in (4_800, 5_400):
        size = bytes_an_entry(groups, topics, partitions) * topics * partitions
        assert size <= 32 + 32 * topics * partitions + PLACE_OF_A_GROUP


def test_a_place_in_the_table_takes_no_more_while_the_table_grows() -> None:
    """A single dictionary has 44 bytes an entry when it has just grown: not less than 100 with the entry's 64."""
    table = GroupTable()
    parts = {}
    sizes = []
    for number in range(700_000):  # from 350,000 on each part grows once, with indexes of 32 bits
        part = table.of(name := f"consumer-group-{number:06d}")
        part[name] = b""
        parts[id(part)] = part
        if number >= 350_000 and number % 1_000 == 0:
            sizes.append(sum(map(sys.getsizeof, parts.values())) / number)
    assert len(parts) == len(SHARES)
    assert max(sizes) <= PLACE_OF_A_GROUP
    assert sum(1 for _ in table) == 700_000


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 8), (1, 50), (20, 1)])
@pytest.mark.parametrize(
    "characters", [12, *(pytest.param(more, marks=pytest.mark.full) for more in (100, 1_500)), 4_096]
)
def test_metadata_takes_its_length_and_less_than_64_bytes(topics: int, partitions: int, characters: int) -> None:
    """Beside what an entry takes without."""
    plain = bytes_an_entry(300, topics, partitions)
    assert bytes_an_entry(300, topics, partitions, "m" * characters) <= plain + characters + 64


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_timestamp_of_no_time_becomes_the_nearest(timestamp_ms: int) -> None:
    nearest = min(max(timestamp_ms, 0), MAX_TIMESTAMP)
    assert rows.read_row(rows.row_of(b"\0\0\0", 3, 5, 7, timestamp_ms, 9)) == (3, 5, 7, nearest, 9)
    one, many = OffsetStore(), OffsetStore()
    for store, size in ((one, 4), (many, 40)):
        numbers = range(size)
        store.apply("g", [TopicCommit("t", numbers, numbers, numbers, None)], 0, timestamp_ms)
        (_, kept), *_ = store.topics_of("g")
        assert set(kept.columns.timestamps) == {nearest}
        restored = rows.as_rows(b"\0\0\0", kept.columns._replace(timestamps=array("q", [timestamp_ms] * size)))
        assert set(rows.timestamps_in(restored)) == {nearest}


STEP = st.tuples(
    st.sampled_from(["put", "put", "apply", "remove", "restore"]), st.sampled_from("xy"), st.integers(0, 2), VALUE
)


@given(st.lists(STEP, max_size=12))
def test_a_group_of_one_offset_is_as_any_other(steps: list[tuple[str, str, int, OffsetValue]]) -> None:
    """From nothing to one offset, to more of them, and back, by every way in; all that can be asked."""
    store = OffsetStore()
    model: dict[tuple[str, int], OffsetValue] = {}
    for at, (way, topic, partition, value) in enumerate(steps):
        if way == "remove":
            store.remove("g", topic, partition)
            model.pop((topic, partition), None)
            continue
        if way == "restore" and not any(known == topic for known, _ in model):
            offset, epoch, text, timestamp, expires = value
            columns = ([partition], [offset], [timestamp], [epoch], [at])
            kept = Columns(*(array(code, column) for code, column in zip("iqqiq", columns, strict=True)))
            beside = {partition: (text, expires)} if text or expires >= 0 else {}
            store.restore("g", topic, TopicOffsets(kept, beside))
        elif way == "apply":
            offset, epoch, text, timestamp, expires = value
            commit = TopicCommit(topic, [partition], [offset], [epoch], [text] if text else None)
            store.apply("g", [commit], at, timestamp, expires)
        else:
            store.put("g", topic, partition, value, at)
        model[topic, partition] = value
        assert store.log_offset_of("g", topic, partition) == at
    by_topic = {topic: sorted(one for known, one in model if known == topic) for topic, _ in model}
    assert (len(store), "g" in store, store.size_of("g"), store.topics()) == (
        len(model),
        bool(model),
        len(model),
        set(by_topic),
    )
    assert {name: store.get("g", *name) for name in model} == model
    assert dict(store.partitions_of("g")) == by_topic
    assert {topic: list(columns.partitions) for topic, columns in store.fetch_all("g")} == by_topic
    for topic in "xy":
        assert list(store.entries_of(topic)) == ([("g", by_topic[topic])] if topic in by_topic else [])
        known = [model.get((topic, one), OffsetValue(-1)) for one in range(4)]
        found = store.fetch("g", topic, range(4))
        assert [*zip(found.offsets, found.leader_epochs, strict=True)] == [value[:2] for value in known]
        for one, value in enumerate(known):
            has_more = value.metadata or value.expire_timestamp_ms >= 0
            assert store.plain("g", topic, one) == (None if has_more else rows.encode_offset(*value[:2]))
    if all(value.expire_timestamp_ms < 0 for value in model.values()):
        before = 2**47
        stale = {topic: [one for one in by_topic[topic] if model[topic, one][3] <= before] for topic in by_topic}
        assert dict(store.stale("g", before, 0)) == {topic: found for topic, found in stale.items() if found}


@pytest.mark.parametrize("count", [1, 3, 40])
def test_metadata_of_any_length_comes_back(count: int) -> None:
    """Also where a block with metadata would be as long as one without."""
    for length in range(1, 70):
        store = OffsetStore()
        numbers, texts = range(count), [*[""] * (count - 1), "x" * length]
        store.apply("g", [TopicCommit("t", numbers, numbers, numbers, texts)], 5, 7)
        assert store.size_of("g") == count
        assert [store.get("g", "t", one) for one in numbers] == [
            OffsetValue(one, one, texts[one], 7) for one in numbers
        ]


@pytest.mark.parametrize("bits", [16, 32])
def test_log_offsets_go_on_where_their_lower_bits_end(bits: int) -> None:
    store = OffsetStore()
    numbers, first = range(100), 2**bits - 50
    store.apply("g", [TopicCommit("t", numbers, numbers, numbers, None)], first, 7)
    assert [store.log_offset_of("g", "t", one) for one in numbers] == [first + one for one in numbers]


RUNS = st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.integers(4, 6))
"""Topic, first partition, and how many."""


@given(st.lists(RUNS, min_size=1, max_size=6))
def test_runs_of_one_length_are_a_dictionary(runs: list[tuple[str, int, int]]) -> None:
    store, model = OffsetStore(), dict[tuple[str, int], int]()
    for number, (topic, first, size) in enumerate(runs):
        partitions = range(first, first + size)
        store.apply("g", [TopicCommit(topic, partitions, [number] * size, [-1] * size, None)], number, number)
        model |= {(topic, one): number for one in partitions}
    found = {
        (topic, one): at
        for topic, columns in store.fetch_all("g")
        for one, at in zip(columns.partitions, columns.offsets, strict=True)
    }
    assert (found, len(store)) == (model, len(model))


def test_ended_topics_leave_nothing_behind() -> None:
    store = OffsetStore()
    for group in ("a", "b"):
        for topic in ("x", "y"):
            store.apply(group, [TopicCommit(topic, [0, 5], [1, 2], [0, 0], ["m", ""])], 0, 1)
    assert store.topics() == {"x", "y"}
    assert sorted(store.entries_of("x")) == [("a", [0, 5]), ("b", [0, 5])]
    for group, partitions in list(store.entries_of("x")):
        for partition in partitions:
            store.remove(group, "x", partition)
    store.remove("a", "x", 0)
    assert store.topics() == {"y"}
    store.put_plain("c", "z", 1, 2, 3, 4, 5)  # has the place of the topic that ended
    assert [store.get(group, "y", 5) for group in "ab"] == [OffsetValue(2, 0, "", 1)] * 2
    assert store.plain("a", "x", 0) == rows.encode_offset(-1, -1)
    store.remove("c", "z", 1)
    assert (len(store), sorted(store.groups)) == (4, ["a", "b"])
