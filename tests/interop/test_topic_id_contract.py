"""What a broker answers to requests that give topics by their ids (KIP-516), field by field: the same on ours and on
Apache Kafka."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import time
import uuid
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from keylane.wire.batches import NewRecord, batches, decode_records, encode_batch
from keylane.wire.versions import entity, request_type
from kit.protocol import ProtocolClient, ask, decode_answer, leader_epoch, part, until

NO_TIME = datetime.timedelta(0)
LONG = datetime.timedelta(seconds=15)
MINUTE = datetime.timedelta(minutes=1)
NUMBERS = itertools.count()
FETCH_VERSIONS = range(13, 19)
NO_SESSION, INITIAL, FINAL = 0, 0, -1
NOBODY = uuid.UUID("2f6a7c9e-8a2e-4b57-9f63-0d1f3c1b5a77")
"""The id of no topic."""


class Topic(NamedTuple):
    name: str
    id: uuid.UUID


# --- topics ---


def create(client: ProtocolClient, name: str | None = None, partitions: int = 1) -> Topic:
    """A topic that is there for every API."""
    name = name or f"by-id-{next(NUMBERS)}"
    wanted = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1,
        assignments=(), configs=(),
    )  # fmt: skip

    def made() -> Any:
        return client.ask("create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False).topics[0]

    answer = until(made, lambda found: found.error_code != ErrorCode.topic_already_exists)
    assert answer.error_code == ErrorCode.none, answer.error_message
    topic = Topic(name, answer.topic_id)
    until(
        lambda: {fetch(client, topic, 0, index).error_code for index in range(partitions)},
        lambda codes: codes == {ErrorCode.none},
    )
    return topic


def delete(client: ProtocolClient, name: str | None = None, topic_id: uuid.UUID | None = None) -> Any:
    wanted = part("delete_topics", 6, "DeleteTopicState", name=name, topic_id=topic_id)
    (answer,) = client.ask("delete_topics", 6, topics=(wanted,), timeout=MINUTE).responses
    return answer


def drop(client: ProtocolClient, topic: Topic) -> None:
    """Delete it, and see it gone."""
    assert delete(client, topic_id=topic.id).error_code == ErrorCode.none
    until(lambda: found(client, 12, topic_id=topic.id).error_code, lambda code: code == ErrorCode.unknown_topic_id)


def again(client: ProtocolClient, topic: Topic) -> Topic:
    """Another topic of the same name."""
    drop(client, topic)
    other = create(client, topic.name)
    assert other.id != topic.id
    return other


def found(client: ProtocolClient, version: int, name: str | None = None, topic_id: uuid.UUID | None = None) -> Any:
    wanted = part("metadata", version, "MetadataRequestTopic", name=name, topic_id=topic_id)
    answer = ask(
        client, "metadata", version, topics=(wanted,), allow_auto_topic_creation=False,
        include_topic_authorized_operations=False, include_cluster_authorized_operations=False,
    )  # fmt: skip
    if version >= 13:
        assert answer.error_code == ErrorCode.none
    return answer.topics[0]


# --- records ---


def batch(*values: bytes) -> bytes:
    return encode_batch([NewRecord(None, value) for value in values], timestamp_ms=time.time_ns() // 1_000_000)


def produce(client: ProtocolClient, *pieces: tuple[uuid.UUID | None, int, bytes], acks: int = -1) -> Any:
    """The answer to Produce 13."""
    topics = tuple(
        part("produce", 13, "TopicProduceData", topic_id=topic_id, partition_data=(
            part("produce", 13, "PartitionProduceData", index=index, records=records),
        ))
        for topic_id, index, records in pieces
    )  # fmt: skip
    client.send(
        "produce", request_type("produce", 13)(transactional_id=None, acks=acks, timeout=MINUTE, topic_data=topics)
    )
    return decode_answer("produce", 13, client.receive())[1] if acks else None


def append(client: ProtocolClient, topic: Topic, *values: bytes) -> None:
    (row,) = produce(client, (topic.id, 0, batch(*values))).responses[0].partition_responses
    assert row.error_code == ErrorCode.none


Partition = tuple[uuid.UUID | None, int]


def send_fetch(
    client: ProtocolClient, version: int, wanted: dict[Partition, int], *forgotten: Partition, **options: Any
) -> None:
    values = {
        "max_wait": NO_TIME, "min_bytes": 1, "max_bytes": 10_000_000, "isolation_level": 0, "session_id": NO_SESSION,
        "session_epoch": FINAL,
        "topics": tuple(
            part("fetch", version, "FetchTopic", topic_id=topic_id, topic=options.get("name"), partitions=tuple(
                part(
                    "fetch", version, "FetchPartition", partition=index, fetch_offset=wanted[topic_id, index],
                    partition_max_bytes=1_000_000, current_leader_epoch=options.get("leader_epoch", -1),
                )
                for _, index in ones
            ))
            for topic_id, ones in itertools.groupby(wanted, lambda one: one[0])
        ),
        "forgotten_topics_data": tuple(
            part("fetch", version, "ForgottenTopic", topic_id=topic_id, partitions=(index,))
            for topic_id, index in forgotten
        ),
    }  # fmt: skip
    chosen = values | {name: value for name, value in options.items() if name in values}
    client.send("fetch", entity(request_type("fetch", version), **chosen))


class Answer(NamedTuple):
    """Of a fetch, with the values of its records in place of their bytes."""

    error_code: ErrorCode
    session_id: int
    told: list[tuple[Partition, dict[str, Any]]]


def fetched(
    client: ProtocolClient, version: int, wanted: dict[Partition, int], *forgotten: Partition, **options: Any
) -> Answer:
    send_fetch(client, version, wanted, *forgotten, **options)
    answer = decode_answer("fetch", version, client.receive())[1]
    told = []
    for topic in answer.responses:
        for one in topic.partitions:
            fields = dataclasses.asdict(one)
            data = fields.pop("records") or b""
            values = [record.value for at, _ in batches(data) for record in decode_records(data, at)]
            named = topic.topic_id if version >= 13 else topic.topic
            told.append(((named, fields.pop("partition_index")), fields | {"records": values}))
    return Answer(answer.error_code, answer.session_id, told)


def fetch(client: ProtocolClient, topic: Topic, offset: int, index: int = 0, version: int = 18) -> Any:
    send_fetch(client, version, {(topic.id, index): offset})
    return decode_answer("fetch", version, client.receive())[1].responses[0].partitions[0]


def fields_of(end: int, *values: bytes, **others: Any) -> dict[str, Any]:
    """What a partition's answer has, from version 13 on."""
    from kio.schema.fetch.v18.response import EpochEndOffset, LeaderIdAndEpoch, SnapshotId

    return {
        "error_code": ErrorCode.none, "high_watermark": end, "last_stable_offset": end, "log_start_offset": 0,
        "aborted_transactions": None, "records": list(values), "preferred_read_replica": -1,
        "diverging_epoch": dataclasses.asdict(EpochEndOffset()),
        "current_leader": dataclasses.asdict(LeaderIdAndEpoch()),
        "snapshot_id": dataclasses.asdict(SnapshotId()),
    } | others  # fmt: skip


def failed(error_code: ErrorCode, **others: Any) -> dict[str, Any]:
    return fields_of(-1, error_code=error_code, log_start_offset=-1, **others)


UNKNOWN_ID = failed(ErrorCode.unknown_topic_id, aborted_transactions=())
IS_DELETED = failed(ErrorCode.unknown_topic_or_partition, aborted_transactions=())
IS_ANOTHER = failed(ErrorCode.inconsistent_topic_id)


# --- offsets ---


def commit(client: ProtocolClient, group: str, *rows: tuple[uuid.UUID | None, int, int], **member: Any) -> Any:
    """Code by topic id and partition, as OffsetCommit 10 answers."""
    topics = tuple(
        part("offset_commit", 10, "OffsetCommitRequestTopic", topic_id=topic_id, partitions=(
            part(
                "offset_commit", 10, "OffsetCommitRequestPartition", partition_index=index, committed_offset=offset,
                committed_leader_epoch=-1, committed_metadata="",
            ),
        ))
        for topic_id, index, offset in rows
    )  # fmt: skip
    known = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}

    def once() -> Any:
        answer = client.ask("offset_commit", 10, group_id=group, topics=topics, **(known | member))
        return {
            (topic.topic_id, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions
        }

    return until(once, is_served)


def is_served(answer: dict[Any, Any]) -> bool:
    """A coordinator that has only just come up says so."""
    loading = {ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available}
    found = itertools.chain.from_iterable(one if type(one) is tuple else (one,) for one in answer.values())
    return loading.isdisjoint(found)


def committed(client: ProtocolClient, group: str, *wanted: Partition, everything: bool = False) -> Any:
    """Offset, leader epoch, metadata and error by topic id and partition, as OffsetFetch 10 answers."""
    topics = None if everything else tuple(
        part("offset_fetch", 10, "OffsetFetchRequestTopics", topic_id=topic_id, partition_indexes=(index,))
        for topic_id, index in wanted
    )  # fmt: skip
    asked = part("offset_fetch", 10, "OffsetFetchRequestGroup", group_id=group, topics=topics)

    def once() -> Any:
        (answer,) = client.ask("offset_fetch", 10, groups=(asked,), require_stable=False).groups
        rows = {
            (topic.topic_id, one.partition_index): (
                one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code
            )
            for topic in answer.topics
            for one in topic.partitions
        }  # fmt: skip
        return rows | ({"group": answer.error_code} if answer.error_code else {})

    return until(once, is_served)


NOTHING = (-1, -1, "", ErrorCode.none)
NO_SUCH_ID = (-1, -1, "", ErrorCode.unknown_topic_id)


def new_group(client: ProtocolClient) -> str:
    """A group whose coordinator is there."""
    group = f"by-id-{next(NUMBERS)}"
    until(
        lambda: client.ask("find_coordinator", 4, key_type=0, coordinator_keys=(group,)).coordinators[0].error_code,
        lambda code: code == ErrorCode.none,
    )
    return group


# --- the contract ---


@pytest.mark.parametrize("version", range(10, 14))
def test_metadata_tells_the_id_that_the_topic_was_made_with(client: ProtocolClient, version: int) -> None:
    topic = create(client, partitions=2)
    named = found(client, version, name=topic.name)
    assert (named.error_code, named.name, named.topic_id) == (ErrorCode.none, *topic)
    if version >= 12:
        by_id = found(client, version, topic_id=topic.id)
        assert by_id == named
        assert found(client, version, name="", topic_id=topic.id) == named, "as Java's clients ask"
        assert found(client, version, name="no-such-topic", topic_id=topic.id) == named, "the id counts"
        unknown = found(client, version, topic_id=NOBODY)
        assert (unknown.error_code, unknown.name, unknown.topic_id, unknown.partitions) == (
            ErrorCode.unknown_topic_id, None, NOBODY, (),
        )  # fmt: skip


def test_topics_are_deleted_by_id(client: ProtocolClient) -> None:
    topic = create(client)
    answer = delete(client, topic_id=NOBODY)
    assert (answer.error_code, answer.name, answer.topic_id) == (ErrorCode.unknown_topic_id, None, NOBODY)
    answer = delete(client, topic_id=topic.id)
    assert (answer.error_code, answer.name, answer.topic_id) == (ErrorCode.none, *topic)
    answer = until(lambda: delete(client, topic_id=topic.id), lambda answer: answer.error_code != ErrorCode.none)
    assert (answer.error_code, answer.name, answer.topic_id) == (ErrorCode.unknown_topic_id, None, topic.id)
    answer = delete(client, name=topic.name)
    assert (answer.error_code, answer.name, answer.topic_id) == (
        ErrorCode.unknown_topic_or_partition, topic.name, None,
    )  # fmt: skip


def test_either_the_name_or_the_id_is_given(client: ProtocolClient) -> None:
    topic = create(client)
    for name, topic_id in ((topic.name, topic.id), (None, None)):
        assert delete(client, name, topic_id).error_code == ErrorCode.invalid_request
    assert found(client, 12, topic_id=topic.id).error_code == ErrorCode.none


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_records_are_fetched_by_id(client: ProtocolClient, version: int) -> None:
    first, second = create(client, partitions=2), create(client)
    append(client, first, b"a", b"b")
    wanted: dict[Partition, int] = {
        (first.id, 1): 0,
        (NOBODY, 3): 0,
        (first.id, 0): 1,
        (second.id, 0): 0,
        (second.id, 7): 0,
    }
    answer = fetched(client, version, wanted)
    assert answer == (ErrorCode.none, NO_SESSION, [
        ((first.id, 1), fields_of(0)),
        ((first.id, 0), fields_of(2, b"a", b"b")),
        ((second.id, 0), fields_of(0)),
        ((NOBODY, 3), UNKNOWN_ID),
        ((second.id, 7), IS_DELETED),
    ])  # fmt: skip
    assert fetched(client, version, {(first.id, 0): 9}).told == [
        ((first.id, 0), failed(ErrorCode.offset_out_of_range)),
    ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_who_believes_in_an_older_leader_is_told_where_it_is(
    client: ProtocolClient, bootstrap: str, version: int
) -> None:
    """KIP-951. An epoch below 0 is none: no leader of a topic is older than the first on Apache Kafka, which is 0."""
    topic = create(client)
    present = leader_epoch(client, topic.name)
    send_fetch(client, version, {(topic.id, 0): 0}, leader_epoch=-2)
    assert decode_answer("fetch", version, client.receive())[1].responses[0].partitions[0].error_code == ErrorCode.none
    if present == 0:
        return
    send_fetch(client, version, {(topic.id, 0): 0}, leader_epoch=present - 1)
    answer = decode_answer("fetch", version, client.receive())[1]
    found = answer.responses[0].partitions[0]
    assert found.error_code == ErrorCode.fenced_leader_epoch
    nodes = [(one.node_id, f"{one.host}:{one.port}", one.rack) for one in getattr(answer, "node_endpoints", ())]
    if version < 16:
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch, nodes) == (-1, -1, [])
        return
    ((node, address, rack),) = nodes
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (
        node,
        present,
    )
    assert (address, rack) == (bootstrap, None)
    assert fetch(client, topic, 0, version=version).current_leader.leader_id == -1, "nothing is wrong"


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_session_of_ids(client: ProtocolClient, version: int) -> None:
    topic, other = create(client), create(client)
    one, two = (topic.id, 0), (other.id, 0)
    opened = fetched(client, version, {one: 0, two: 0, (NOBODY, 0): 0}, session_epoch=INITIAL)
    session = opened.session_id
    assert (opened.error_code, session > 0) == (ErrorCode.none, True)
    assert opened.told == [(one, fields_of(0)), (two, fields_of(0)), ((NOBODY, 0), UNKNOWN_ID)]

    def told(epoch: int, wanted: dict[Partition, int] | None = None, *forgotten: Partition) -> Any:
        answer = fetched(client, version, wanted or {}, *forgotten, session_id=session, session_epoch=epoch)
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, session)
        return answer.told

    assert told(1) == [((NOBODY, 0), UNKNOWN_ID)], "an error is told as long as it is there"
    append(client, topic, b"a")
    assert told(2, {}, (NOBODY, 0)) == [(one, fields_of(1, b"a"))]
    assert told(3, {one: 1}) == []
    append(client, other, b"b")
    assert told(4, {}, two) == []
    assert told(5, {two: 0}) == [(two, fields_of(1, b"b"))]


def test_a_session_has_ids_or_names(client: ProtocolClient) -> None:
    topic = create(client)
    by_id = fetched(client, 13, {(topic.id, 0): 0}, session_epoch=INITIAL).session_id
    by_name = fetched(client, 12, {(None, 0): 0}, session_epoch=INITIAL, name=topic.name).session_id
    refused = Answer(ErrorCode.fetch_session_topic_id_error, NO_SESSION, [])
    assert fetched(client, 12, {}, session_id=by_id, session_epoch=1) == refused
    assert fetched(client, 13, {}, session_id=by_name, session_epoch=1) == refused
    assert fetched(client, 12, {}, session_id=by_id, session_epoch=9).error_code == (
        ErrorCode.invalid_fetch_session_epoch
    ), "that is looked at first"
    assert fetched(client, 14, {}, session_id=by_id, session_epoch=1) == (ErrorCode.none, by_id, [])
    assert fetched(client, 11, {}, session_id=by_name, session_epoch=1) == (ErrorCode.none, by_name, [])


@pytest.mark.parametrize("version", [13, 18])
def test_a_session_is_told_that_its_topic_is_gone_and_that_another_has_its_name(
    client: ProtocolClient, version: int
) -> None:
    topic, other = create(client), create(client)
    append(client, topic, b"a")
    one, two = (topic.id, 0), (other.id, 0)
    session = fetched(client, version, {one: 1, two: 0}, session_epoch=INITIAL).session_id
    epochs = itertools.count(1)

    def told(wanted: dict[Partition, int] | None = None) -> Any:
        answer = fetched(client, version, wanted or {}, session_id=session, session_epoch=next(epochs))
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, session)
        return answer.told

    drop(client, topic)
    assert told() == [(one, IS_DELETED)]
    made = create(client, topic.name)
    append(client, made, b"other")
    assert told() == [(one, IS_ANOTHER)]
    assert told({one: 0}) == [(one, IS_ANOTHER)]
    append(client, other, b"b")
    assert told() == [(one, IS_ANOTHER), (two, fields_of(1, b"b"))]
    assert fetched(client, version, {one: 0}).told == [(one, UNKNOWN_ID)], "without a session nobody knows the id"
    assert fetched(client, version, {(made.id, 0): 0}).told == [((made.id, 0), fields_of(1, b"other"))]


def test_records_are_produced_by_id(client: ProtocolClient) -> None:
    topic = create(client, partitions=2)
    answer = produce(
        client, (topic.id, 1, batch(b"a")), (NOBODY, 0, batch(b"b")), (None, 0, batch(b"c")), (topic.id, 9, batch(b"d"))
    )
    found = {
        (one.topic_id, row.index): (row.error_code, row.base_offset, row.log_append_time, row.record_errors)
        for one in answer.responses
        for row in one.partition_responses
    }
    assert found == {
        (topic.id, 1): (ErrorCode.none, 0, None, ()),
        (NOBODY, 0): (ErrorCode.unknown_topic_id, -1, None, ()),
        (None, 0): (ErrorCode.unknown_topic_id, -1, None, ()),
        (topic.id, 9): (ErrorCode.unknown_topic_or_partition, -1, None, ()),
    }
    assert answer.node_endpoints == ()
    assert fetch(client, topic, 0, 1).high_watermark == 1


def test_who_waits_for_no_answer_is_cut_off_when_nobody_has_the_id(client: ProtocolClient) -> None:
    produce(client, (NOBODY, 0, batch(b"a")), acks=0)
    assert client.is_closed_by_peer()


def test_offsets_are_committed_and_fetched_by_id(client: ProtocolClient) -> None:
    topic, other, group = create(client, partitions=2), create(client), new_group(client)
    assert commit(client, group, (topic.id, 1, 7), (NOBODY, 0, 8), (other.id, 0, 9), (other.id, 3, 9)) == {
        (topic.id, 1): ErrorCode.none,
        (NOBODY, 0): ErrorCode.unknown_topic_id,
        (other.id, 0): ErrorCode.none,
        (other.id, 3): ErrorCode.unknown_topic_or_partition,
    }
    assert committed(client, group, (topic.id, 0), (NOBODY, 0), (topic.id, 1)) == {
        (topic.id, 0): NOTHING,
        (topic.id, 1): (7, -1, "", ErrorCode.none),
        (NOBODY, 0): NO_SUCH_ID,
    }
    assert committed(client, group, everything=True) == {
        (topic.id, 1): (7, -1, "", ErrorCode.none),
        (other.id, 0): (9, -1, "", ErrorCode.none),
    }
    assert commit(client, group, (NOBODY, 0, 1)) == {(NOBODY, 0): ErrorCode.unknown_topic_id}
    assert committed(client, group, (NOBODY, 0)) == {(NOBODY, 0): NO_SUCH_ID}


def test_a_member_that_may_not_commit_is_told_so_of_the_topics_that_there_are(client: ProtocolClient) -> None:
    topic, group = create(client), new_group(client)
    assert commit(client, group, (topic.id, 0, 7)) == {(topic.id, 0): ErrorCode.none}
    member = {"generation_id_or_member_epoch": 3, "member_id": "nobody"}
    assert commit(client, group, (topic.id, 0, 8), (NOBODY, 0, 8), **member) == {
        (topic.id, 0): ErrorCode.unknown_member_id,
        (NOBODY, 0): ErrorCode.unknown_topic_id,
    }
    assert commit(client, group, (NOBODY, 0, 8), **member) == {(NOBODY, 0): ErrorCode.unknown_topic_id}
    assert committed(client, group, (topic.id, 0)) == {(topic.id, 0): (7, -1, "", ErrorCode.none)}


def test_a_topic_made_anew_under_its_name_is_another_one(client: ProtocolClient) -> None:
    """To records and to offsets; the short ways for requests that come again included."""
    topic, group = create(client), new_group(client)
    append(client, topic, b"a")
    for offset in (1, 1, 1):
        assert commit(client, group, (topic.id, 0, offset)) == {(topic.id, 0): ErrorCode.none}
        assert committed(client, group, (topic.id, 0)) == {(topic.id, 0): (1, -1, "", ErrorCode.none)}
    made = again(client, topic)
    assert commit(client, group, (topic.id, 0, 1)) == {(topic.id, 0): ErrorCode.unknown_topic_id}
    assert committed(client, group, (topic.id, 0)) == {(topic.id, 0): NO_SUCH_ID}
    (row,) = produce(client, (topic.id, 0, batch(b"b"))).responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (ErrorCode.unknown_topic_id, -1)
    assert fetched(client, 18, {(topic.id, 0): 0, (made.id, 0): 0}).told == [
        ((made.id, 0), fields_of(0)), ((topic.id, 0), UNKNOWN_ID),
    ]  # fmt: skip
    until(lambda: committed(client, group, (made.id, 0)), lambda rows: rows == {(made.id, 0): NOTHING})
    assert committed(client, group, everything=True) == {}
    assert commit(client, group, (made.id, 0, 5)) == {(made.id, 0): ErrorCode.none}
    assert committed(client, group, everything=True) == {(made.id, 0): (5, -1, "", ErrorCode.none)}


def test_offsets_have_an_id_like_any_topic(client: ProtocolClient) -> None:
    topic, group = create(client), new_group(client)
    assert commit(client, group, (topic.id, 0, 1)) == {(topic.id, 0): ErrorCode.none}
    named = until(
        lambda: found(client, 12, name="__consumer_offsets"), lambda answer: answer.error_code == ErrorCode.none
    )
    assert found(client, 12, topic_id=named.topic_id) == named
    whole = {(named.topic_id, one.partition_index): 0 for one in named.partitions}
    told = fetched(client, 18, whole).told
    assert {fields["error_code"] for _, fields in told} == {ErrorCode.none}
    assert any(fields["records"] for _, fields in told)
