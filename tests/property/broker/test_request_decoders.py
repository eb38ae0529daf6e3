"""The hand-written request decoders against kio's writers, in every version."""

from __future__ import annotations

import datetime
import importlib
import io
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from keylane.broker.handlers import offset_commit, offset_fetch

if TYPE_CHECKING:
    from uuid import UUID

NAME = st.text(max_size=5) | st.just("n" * 200)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(INT32, INT64, INT32, st.sampled_from([None, None, "", "m", "map" * 60]))
ROWS = st.lists(ROW, max_size=5) | st.integers(250, 1_100).map(
    lambda count: [(at, at, at, None) for at in range(count)]
)
IDS = st.uuids(allow_nil=False)
BEFORE = b"frame head"


def named(version: int, name: str, topic_id: UUID) -> dict[str, Any]:
    """How a request of this version says which topic it means."""
    return {"topic_id": topic_id} if version >= 10 else {"name": name}


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return BEFORE + out.getvalue()


@pytest.mark.parametrize("version", range(2, 11))
@settings(deadline=None, max_examples=40)
@given(
    group=NAME,
    member=NAME,
    instance=st.none() | NAME,
    generation=INT32,
    retention_ms=st.integers(-1, 2**40),
    topics=st.lists(st.tuples(NAME, ROWS), max_size=3),
    ids=st.lists(IDS, min_size=3, max_size=3),
)
def test_offset_commit(
    version: int,
    group: str,
    member: str,
    instance: str | None,
    generation: int,
    retention_ms: int,
    topics: list[tuple[str, list[tuple[int, int, int, str | None]]]],
    ids: list[UUID],
) -> None:
    schema: Any = importlib.import_module(f"kio.schema.offset_commit.v{version}.request")
    has_epochs = version >= 6
    rows = [
        schema.OffsetCommitRequestTopic(
            **named(version, name, topic_id),
            partitions=tuple(
                schema.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_metadata=text,
                    **({"committed_leader_epoch": epoch} if has_epochs else {}),
                )
                for partition, offset, epoch, text in partitions
            ),
        )
        for (name, partitions), topic_id in zip(topics, ids, strict=False)
    ]
    more: dict[str, Any] = {}
    if version >= 7:
        more["group_instance_id"] = instance
    if version <= 4:
        more["retention_time"] = datetime.timedelta(milliseconds=retention_ms)
    request = schema.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=tuple(rows), **more
    )
    data = written(request)
    found = offset_commit.decode(version, data, len(BEFORE))
    if isinstance(found, offset_commit.CommitById):
        assert (version, found.ids) == (10, ids[: len(topics)])
        names = iter([name for name, _ in topics])
        found = found.commit._replace(topics=[one._replace(topic=next(names)) for one in found.commit.topics])
    assert (found.group, found.generation, found.member_id) == (group, generation, member)
    assert found.instance_id == (instance if version >= 7 else None)
    assert found.retention_ms == (retention_ms if version <= 4 else -1)
    assert [topic for topic, *_ in found.topics] == [name for name, _ in topics]
    for (_, indexes, offsets, epochs, metadata), (_, expected) in zip(found.topics, topics, strict=True):
        texts = metadata or [""] * len(expected)
        wanted = [(p, o, e if has_epochs else -1, text or "") for p, o, e, text in expected]
        assert list(zip(indexes, offsets, epochs, texts, strict=True)) == wanted
        assert (metadata is None) is not any(text for *_, text in expected)


@pytest.mark.parametrize("version", range(1, 11))
@settings(deadline=None, max_examples=40)
@given(
    groups=st.lists(
        st.tuples(NAME, st.none() | st.lists(st.tuples(NAME, st.lists(INT32, max_size=4)), max_size=3)),
        min_size=1,
        max_size=3,
    ),
    stable=st.booleans(),
    ids=st.lists(IDS, min_size=3, max_size=3),
)
def test_offset_fetch(
    version: int, groups: list[tuple[str, list[tuple[str, list[int]]] | None]], stable: bool, ids: list[UUID]
) -> None:
    schema: Any = importlib.import_module(f"kio.schema.offset_fetch.v{version}.request")
    if version < 8:
        groups = groups[:1]
    if version < 2:
        groups = [(group, topics or []) for group, topics in groups]
    more: dict[str, Any] = {"require_stable": stable} if version >= 7 else {}
    if version >= 8:
        made = tuple(
            schema.OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else tuple(
                    schema.OffsetFetchRequestTopics(**named(version, name, topic_id), partition_indexes=tuple(ones))
                    for (name, ones), topic_id in zip(topics, ids, strict=False)
                ),
            )
            for group, topics in groups
        )
        request = schema.OffsetFetchRequest(groups=made, **more)
    else:
        group, topics = groups[0]
        plain = (
            None
            if topics is None
            else tuple(
                schema.OffsetFetchRequestTopic(name=name, partition_indexes=tuple(ones)) for name, ones in topics
            )
        )
        request = schema.OffsetFetchRequest(group_id=group, topics=plain, **more)
    found = offset_fetch.decode(version, written(request), len(BEFORE))
    is_stable = stable and version >= 7
    expected = []
    for group, topics in groups:
        rows: Any = topics or None if version < 2 else topics
        if version >= 10 and topics:
            rows = [(topic_id, ones) for (_, ones), topic_id in zip(topics, ids, strict=False)]
        expected.append((group, rows, is_stable))
    read = [
        (one.group, one.topics and [(topic, list(ones)) for topic, ones in one.topics], one.require_stable)
        for one in found
    ]
    assert read == expected


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(2, 10))
def test_other_bytes_are_refused(data: bytes, version: int) -> None:
    """Whatever comes, it is read or refused with one of these, never by another error or without an end."""
    for decode in (offset_commit.decode, offset_fetch.decode):
        try:
            decode(version, data, 0)
        except (ValueError, IndexError, struct.error):
            continue
