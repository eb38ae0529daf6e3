"""Hand-written encoders against kio's readers, byte for byte: every field is where the reader expects it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers

from keylane.broker.dispatch import load_apis
from keylane.broker.handlers import fetch, produce
from keylane.broker.handlers.produce import ProducedPartition
from keylane.broker.reads import FetchedPartition
from keylane.wire import codes, primitives
from keylane.wire.versions import encode_response
from kit.protocol import decode_answer

if TYPE_CHECKING:
    from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
names = st.text(max_size=30).filter(lambda text: len(text.encode()) < 100)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
error_codes = st.sampled_from([0, 1, 2, 3, 10, 45, 56, 74, 87, -1])


def response(api: str, version: int, parts: list[bytes]) -> Any:
    """Decode a body as a client does, and check that kio writes the very same bytes."""
    body = b"".join(parts)
    is_flexible = version >= {"produce": 9, "fetch": 12}[api]
    correlation_id, entity = decode_answer(api, version, b"\0\0\0\7" + (b"\0" if is_flexible else b"") + body)
    assert correlation_id == 7
    return entity, body


times_ms = st.just(-1) | st.integers(0, 2**41)
produced = st.builds(ProducedPartition, int32s, error_codes, int64s, int64s, st.none() | st.text(max_size=50), times_ms)
topic_ids = st.uuids(allow_nil=False)
produced_topics = st.lists(st.tuples(names, topic_ids, st.lists(produced, max_size=4)), max_size=4)


@given(st.integers(3, 13), produced_topics)
def test_produce(version: int, given_topics: list[tuple[str, UUID, list[ProducedPartition]]]) -> None:
    topics = [(topic_id if version >= 13 else name, ones) for name, topic_id, ones in given_topics]
    entity, body = response("produce", version, produce.encode(version, topics))
    assert len(entity.responses) == len(topics)
    for found, (name, partitions) in zip(entity.responses, topics, strict=True):
        assert (found.topic_id if version >= 13 else found.name) == name
        for answer, partition in zip(found.partition_responses, partitions, strict=True):
            assert answer.index == partition.partition
            assert answer.error_code == partition.error_code
            assert answer.base_offset == partition.base_offset
            time = None if partition.append_time_ms == -1 else EPOCH + timedelta(milliseconds=partition.append_time_ms)
            assert answer.log_append_time == time
            if version >= 5:
                assert answer.log_start_offset == partition.log_start_offset
            if version >= 8:
                assert answer.error_message == partition.error_message
                assert answer.record_errors == ()
    assert encode_response(entity) == body


aborted = st.none() | st.lists(st.tuples(int64s, int64s), max_size=3)
diverging = st.none() | st.tuples(int32s, int64s)
fetched = st.builds(
    FetchedPartition, int32s, error_codes, int64s, int64s, st.binary(max_size=300), int64s, aborted, int32s, diverging
)
fetched_topics = st.lists(st.tuples(names, topic_ids, st.lists(fetched, max_size=4)), max_size=4)


leaders = st.builds(fetch.Leader, int32s, names, int32s)


@given(st.integers(4, 18), fetched_topics, error_codes, int32s, leaders)
def test_fetch(
    version: int,
    given_topics: list[tuple[str, UUID, list[FetchedPartition]]],
    error_code: int,
    session_id: int,
    leader: fetch.Leader,
) -> None:
    topics = [(topic_id if version >= 13 else name, ones) for name, topic_id, ones in given_topics]
    parts = fetch.encode(version, topics, error_code=error_code, session_id=session_id, leader=leader)
    entity, body = response("fetch", version, parts)
    if version >= 7:
        assert (entity.error_code, entity.session_id) == (error_code, session_id)
    for found, (name, partitions) in zip(entity.responses, topics, strict=True):
        assert (found.topic_id if version >= 13 else found.topic) == name
        for answer, partition in zip(found.partitions, partitions, strict=True):
            assert answer.partition_index == partition.partition
            assert answer.error_code == partition.error_code
            assert answer.high_watermark == partition.high_watermark
            assert answer.last_stable_offset == partition.last_stable_offset
            if version >= 12:
                parted = (-1, -1) if version >= 16 and partition.error_code == 74 else partition.diverging or (-1, -1)
                assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == parted
            assert answer.records == partition.records
            found_aborted = answer.aborted_transactions
            assert partition.aborted == (
                None if found_aborted is None else [(one.producer_id, one.first_offset) for one in found_aborted]
            )
            if version >= 5:
                assert answer.log_start_offset == partition.log_start_offset
            if version >= 11:
                assert answer.preferred_read_replica == -1
            if version >= 16:
                is_told = partition.error_code == codes.FENCED_LEADER_EPOCH
                current = answer.current_leader
                told = (leader.node_id, partition.leader_epoch) if is_told else (-1, -1)
                assert (current.leader_id, current.leader_epoch) == told
                assert not is_told or [(one.node_id, one.host, one.port) for one in entity.node_endpoints] == [leader]
    assert encode_response(entity) == body


@given(st.integers(0, 2**31 - 1), st.none() | names)
def test_primitives(number: int, text: str | None) -> None:
    assert readers.read_compact_string_nullable(primitives.compact_string(text), 0)[0] == text
    assert readers.read_nullable_legacy_string(primitives.string(text), 0)[0] == text
    assert readers.read_legacy_array_length(primitives.array_length(number), 0)[0] == number
    assert readers.read_compact_array_length(primitives.compact_array_length(number % 2**30), 0)[0] == number % 2**30


def test_every_version_that_is_offered_has_a_test_here() -> None:
    apis = {api.name: api for api in load_apis().values()}
    assert (apis["produce"].min_version, apis["produce"].max_version) == (3, 13)
    assert (apis["fetch"].min_version, apis["fetch"].max_version) == (4, 18)
