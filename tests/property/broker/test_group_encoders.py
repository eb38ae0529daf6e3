"""The hand-written group responses against kio's readers, in every version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from keylane.broker.handlers import heartbeat, offset_commit, offset_fetch
from keylane.broker.handlers.offset_commit import CommittedTopic
from keylane.broker.handlers.offset_fetch import FetchedGroup
from keylane.coordinator.offset_service import FetchedTopic
from keylane.coordinator.offsets.store import FetchedColumns
from keylane.wire.versions import response_type

if TYPE_CHECKING:
    from uuid import UUID

CODES = st.sampled_from([int(code) for code in ErrorCode if 0 <= int(code) < 100])
IDS = st.uuids(allow_nil=False)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(0, 4) | st.sampled_from([127, 128, 255, 256, 257, 600])


def read(api: str, version: int, parts: bytes | list[bytes]) -> Any:
    body = parts if isinstance(parts, bytes) else b"".join(parts)
    entity, size = entity_reader(response_type(api, version))(body, 0)
    assert size == len(body)
    return entity


def named(topic: Any) -> str | UUID:
    """A topic as an answer has it."""
    found: str | UUID = topic.topic_id if hasattr(topic, "topic_id") else topic.name
    return found


@st.composite
def committed(draw: st.DrawFn, *, by_id: bool) -> CommittedTopic:
    count = draw(COUNTS)
    partitions = range(7, 7 + count)
    return CommittedTopic(
        draw(IDS) if by_id else draw(NAMES), partitions, draw(st.none() | st.just([draw(CODES)] * count))
    )


@pytest.mark.parametrize("version", range(2, 11))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_offset_commit(version: int, data: st.DataObject) -> None:
    topics = data.draw(st.lists(committed(by_id=version >= 10), max_size=3))
    response = read("offset_commit", version, offset_commit.encode(version, topics))
    assert [
        (named(topic), [(p.partition_index, int(p.error_code)) for p in topic.partitions]) for topic in response.topics
    ] == [
        (topic, [(p, errors[row] if errors else 0) for row, p in enumerate(partitions)])
        for topic, partitions, errors in topics
    ]


@st.composite
def fetched(draw: st.DrawFn) -> FetchedTopic:
    count = draw(COUNTS)
    start = draw(st.integers(0, 1 << 30))
    columns = FetchedColumns(
        range(start, start + count),
        [draw(st.integers(-(1 << 63), (1 << 63) - 1))] * count,
        [draw(st.integers(-1, (1 << 31) - 1))] * count,
        draw(st.none() | st.just([draw(NAMES)] * count)),
    )
    return FetchedTopic(draw(NAMES), columns, draw(st.none() | st.just([draw(CODES)] * count)))


@st.composite
def fetched_groups(draw: st.DrawFn, *, by_id: bool) -> FetchedGroup:
    topics = draw(st.lists(fetched(), max_size=3))
    return FetchedGroup(draw(NAMES), draw(CODES), topics, [draw(IDS) for _ in topics] if by_id else ())


@pytest.mark.parametrize("version", range(1, 11))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_offset_fetch(version: int, data: st.DataObject) -> None:
    groups = data.draw(st.lists(fetched_groups(by_id=version >= 10), min_size=1, max_size=3))
    if version < 8:
        groups = groups[:1]
    response = read("offset_fetch", version, offset_fetch.encode(version, groups))
    found = response.groups if version >= 8 else [response]
    assert len(found) == len(groups)
    for got, (group, error, topics, ids) in zip(found, groups, strict=True):
        if version >= 8:
            assert got.group_id == group
        if version >= 2:
            assert got.error_code == error
        names: list[Any] = list(ids) or [topic.topic for topic in topics]
        assert [named(topic) for topic in got.topics] == names
        for topic, expected in zip(got.topics, topics, strict=True):
            columns = expected.columns
            rows = range(len(columns.partitions))
            assert [
                (p.partition_index, p.committed_offset, p.metadata, int(p.error_code)) for p in topic.partitions
            ] == [
                (
                    columns.partitions[row],
                    columns.offsets[row],
                    columns.metadata[row] if columns.metadata else "",
                    expected.errors[row] if expected.errors else 0,
                )
                for row in rows
            ]
            if version >= 5:
                assert [p.committed_leader_epoch for p in topic.partitions] == list(columns.leader_epochs)


@pytest.mark.parametrize("version", range(5))
@settings(max_examples=25, deadline=None)
@given(code=CODES)
def test_heartbeat(version: int, code: int) -> None:
    assert int(read("heartbeat", version, heartbeat.encode(version, code)).error_code) == code
