"""The columns of committed offsets against a dictionary; and what an entry costs."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.formats import OffsetValue, TopicCommit
from keylane.coordinator.offsets.store import OffsetColumns, OffsetStore

PARTITION = st.integers(0, 12) | st.integers(0, 2**31 - 1)
VALUE = st.builds(
    OffsetValue,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", "m", "long " * 40]),
    st.integers(0, 2**62),
    st.sampled_from([-1, -1, 2**62]),
)
MAX_BYTES_AN_ENTRY = 64
MAX_BYTES_A_GROUP_OF_ONE = 320
"""Without its name, and with its place in a dictionary that has just grown."""


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
    return commit, draw(st.integers(0, 2**62)), draw(st.sampled_from([-1, 2**62]))


@given(st.lists(commits() | st.tuples(PARTITION, VALUE) | PARTITION, max_size=30))
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
    kept = {
        p: at
        for _, columns in store.columns_of("g")
        for p, at in zip(columns.partitions, columns.log_offsets, strict=True)
    }
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


@pytest.mark.parametrize(
    ("groups", "topics", "partitions", "most"),
    [
        (10, 16, 1_000, MAX_BYTES_AN_ENTRY),
        (1_600, 1, 100, MAX_BYTES_AN_ENTRY),
        (1_000, 1, 25, MAX_BYTES_AN_ENTRY),
        (1_000, 1, 10, 120),
        (5_000, 1, 2, 420),
        (10_000, 1, 1, 130),
        (250, 40, 1, 600),
    ],
)
def test_an_entry_takes_at_most_64_bytes(groups: int, topics: int, partitions: int, most: int) -> None:
    """S1's requirement, in the shapes of 16 million entries, 160,000 of them here, and wherever a topic has 25 entries
    of a group. With fewer, each shares what its group and topic cost with fewer: these have bounds of their own, which
    docs/offset-store.md tells. Without metadata and names."""
    numbers = list(range(partitions))
    # Interned before it is measured: the interpreter's own table of interned names, which other code of the process
    # has filled, may double at any new name (3.8 MB at 175,000 names), and is not the store's.
    topic_names = [sys.intern(f"topic-{number:03d}") for number in range(topics)]
    group_names = [sys.intern(f"consumer-group-{number:06d}") for number in range(groups)]
    store = OffsetStore()
    tracemalloc.start()
    try:
        for group in group_names:
            for topic in topic_names:
                commit = TopicCommit(topic, numbers, [1 << 40] * partitions, [3] * partitions, None)
                store.apply(group, [commit], 7, 1_700_000_000_000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == groups * topics * partitions
    assert size / len(store) <= most


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
            columns = OffsetColumns()
            columns.put(partition, value, at)
            store.restore("g", topic, columns)
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
        plain = [store.plain("g", topic, one) for one in range(4)]
        has_texts = any(value.metadata or value.expire_timestamp_ms >= 0 for value in known)
        assert plain == [None if has_texts else value[:2] for value in known]
    if all(value.expire_timestamp_ms < 0 for value in model.values()):
        before = 2**61
        stale = {topic: [one for one in by_topic[topic] if model[topic, one][3] <= before] for topic in by_topic}
        assert dict(store.stale("g", before, 0)) == {topic: found for topic, found in stale.items() if found}


def test_a_group_of_one_offset_takes_little() -> None:
    names = [f"consumer-group-{number:06d}" for number in range(20_000)]
    store = OffsetStore()
    tracemalloc.start()
    try:
        for at, name in enumerate(names):
            store.put_plain(name, "topic", 3, (1 << 40) + at, 3, 1_700_000_000_000 + at, (1 << 30) + at)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(names) <= MAX_BYTES_A_GROUP_OF_ONE


def test_ended_topics_leave_nothing_behind() -> None:
    store = OffsetStore()
    for group in ("a", "b"):
        for topic in ("x", "y"):
            store.apply(group, [TopicCommit(topic, [0, 5], [1, 2], [0, 0], ["m", ""])], 0, 1)
    assert store.topics() == {"x", "y"}
    assert list(store.entries_of("x")) == [("a", [0, 5]), ("b", [0, 5])]
    for group, partitions in list(store.entries_of("x")):
        for partition in partitions:
            store.remove(group, "x", partition)
    store.remove("a", "x", 0)
    assert store.topics() == {"y"}
    assert (len(store), sorted(store.groups)) == (4, ["a", "b"])
