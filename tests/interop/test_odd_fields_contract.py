"""What brokers make of requests with odd but valid fields: empty names, nulls, -1, ids of nobody, a name beside its id;
the same on ours and on Apache Kafka."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from keylane.wire.versions import request_type
from kit.protocol import ask, decode_answer, part, until
from kit.transaction_requests import (
    MINUTE,
    NOT_YET,
    NUMBERS,
    client_list_offsets,
    commit,
    committed,
    create_topic,
    find_group,
)

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
UNKNOWN = ErrorCode.unknown_topic_or_partition
ILLEGAL = ErrorCode.invalid_topic_exception
NOBODY = UUID("2f6a7c9e-8a2e-4b57-9f63-0d1f3c1b5a99")
"""The id of no topic."""
TOPIC = 2


def topic_id_of(client: ProtocolClient, topic: str) -> UUID:
    wanted = part("metadata", 12, "MetadataRequestTopic", name=topic, topic_id=None)
    answer = client.ask(
        "metadata", 12, topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    found: UUID = answer.topics[0].topic_id
    return found


def deleted(client: ProtocolClient, *wanted: tuple[str | None, UUID | None]) -> list[tuple[Any, Any, Any]]:
    topics = tuple(part("delete_topics", 6, "DeleteTopicState", name=name, topic_id=one) for name, one in wanted)
    answer = client.ask("delete_topics", 6, topics=topics, timeout=MINUTE)
    return [(one.name, one.topic_id, one.error_code) for one in answer.responses]


@pytest.mark.parametrize("is_name_first", [True, False])
def test_a_topic_that_is_named_and_given_by_its_id_is_not_deleted(client: ProtocolClient, is_name_first: bool) -> None:
    topic = create_topic(client)
    topic_id = topic_id_of(client, topic)
    wanted: list[tuple[str | None, UUID | None]] = [(topic, None), (None, topic_id)]
    assert deleted(client, *(wanted if is_name_first else wanted[::-1])) == [(topic, topic_id, INVALID)]
    assert client_list_offsets(client, topic, 0, 0) == (NONE, 0), "it is still there"


def test_topics_beside_one_that_is_refused_are_deleted(client: ProtocolClient) -> None:
    both, named, by_id = (create_topic(client) for _ in range(3))
    found = deleted(
        client, (both, None), (named, None), (None, topic_id_of(client, both)), (None, topic_id_of(client, by_id)),
        (None, NOBODY), (None, None), (both, NOBODY),
    )  # fmt: skip
    assert sorted((name or "", code.name) for name, _, code in found) == sorted(
        [
            ("", "invalid_request"), ("", "unknown_topic_id"), (both, "invalid_request"), (both, "invalid_request"),
            (by_id, "none"), (named, "none"),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("version", range(2, 10))
def test_a_commit_to_the_group_without_a_name_is_taken(client: ProtocolClient, version: int) -> None:
    topic = create_topic(client)
    find_group(client, "")
    one = part(
        "offset_commit", version, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5,
        committed_leader_epoch=-1, committed_metadata="",
    )  # fmt: skip
    topics = (part("offset_commit", version, "OffsetCommitRequestTopic", name=topic, partitions=(one,)),)
    asked = {"group_id": "", "group_instance_id": None, "retention_time": MINUTE, "topics": topics}

    def commits(member_id: str, generation: int) -> Any:
        answer = ask(
            client, "offset_commit", version, **asked, member_id=member_id, generation_id_or_member_epoch=generation
        )
        return answer.topics[0].partitions[0].error_code

    assert commits("", -1) == NONE
    assert committed(client, "", topic, 0) == (5, "", NONE)
    assert commits("nobody", 3) == ErrorCode.unknown_member_id


def test_a_transaction_takes_no_offsets_of_the_group_without_a_name(client: ProtocolClient) -> None:
    topic = create_topic(client)
    find_group(client, "")
    for version in range(5):
        one = part(
            "txn_offset_commit", version, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=1,
            committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        answer = ask(
            client, "txn_offset_commit", version, transactional_id="nobody", group_id="", producer_id=1,
            producer_epoch=0, generation_id=-1, member_id="", group_instance_id=None,
            topics=(part("txn_offset_commit", version, "TxnOffsetCommitRequestTopic", name=topic, partitions=(one,)),),
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == ErrorCode.invalid_group_id


@pytest.mark.parametrize("group", ["", "sync-of-nobody"])
def test_a_sync_names_the_protocol_before_anything_else_is_looked_at(client: ProtocolClient, group: str) -> None:
    find_group(client, group)

    def synced(version: int, protocol_type: str | None = None, name: str | None = None) -> Any:
        return ask(
            client, "sync_group", version, group_id=group, generation_id=0, member_id="", group_instance_id=None,
            protocol_type=protocol_type, protocol_name=name, assignments=(),
        ).error_code  # fmt: skip

    of_nobody = ErrorCode.unknown_member_id if group else ErrorCode.invalid_group_id
    assert [synced(version) for version in (0, 3, 4)] == [of_nobody] * 3
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert (synced(5), synced(5, "a"), synced(5, None, "b"), synced(5, "a", "b"), synced(5, "", "")) == (
        inconsistent, inconsistent, inconsistent, of_nobody, of_nobody,
    )  # fmt: skip


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_has_both_an_id_and_an_epoch_or_neither(
    client: ProtocolClient, version: int, producer_id: int, epoch: int
) -> None:
    answer = ask(
        client, "init_producer_id", version, transactional_id=None, transaction_timeout=MINUTE, producer_id=producer_id,
        producer_epoch=epoch,
    )  # fmt: skip
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (INVALID, -1, -1)


@pytest.mark.parametrize("name", ["", ".", "a b", "x" * 250])
def test_no_topic_can_have_such_a_name(client: ProtocolClient, name: str) -> None:
    for version in (1, 4):
        wanted = part(
            "describe_configs", version, "DescribeConfigsResource", resource_type=TOPIC, resource_name=name,
            configuration_keys=None,
        )  # fmt: skip
        answer = ask(
            client, "describe_configs", version, resources=(wanted,), include_synonyms=False,
            include_documentation=False,
        )  # fmt: skip
        assert [(one.error_code, one.resource_name, one.configs) for one in answer.results] == [(ILLEGAL, name, ())]
    topic = part("describe_producers", 0, "TopicRequest", name=name, partition_indexes=(0, -1))
    (found,) = client.ask("describe_producers", 0, topics=(topic,)).topics
    assert [(one.partition_index, one.error_code) for one in found.partitions] == [(0, ILLEGAL), (-1, ILLEGAL)]


def test_there_are_no_configs_of_all_topics(client: ProtocolClient) -> None:
    one = part("incremental_alter_configs", 1, "AlterableConfig", name="retention.ms", config_operation=0, value="5")
    wanted = part(
        "incremental_alter_configs", 1, "AlterConfigsResource", resource_type=TOPIC, resource_name="", configs=(one,)
    )
    answer = client.ask("incremental_alter_configs", 1, resources=(wanted,), validate_only=True)
    assert [one.error_code for one in answer.responses] == [INVALID]
    whole = part("alter_configs", 2, "AlterableConfig", name="retention.ms", value="5")
    wanted = part("alter_configs", 2, "AlterConfigsResource", resource_type=TOPIC, resource_name="", configs=(whole,))
    answer = client.ask("alter_configs", 2, resources=(wanted,), validate_only=True)
    assert [one.error_code for one in answer.responses] == [INVALID]


def test_nothing_is_said_of_a_topic_without_partitions(client: ProtocolClient) -> None:
    topic = create_topic(client)
    group = f"group-of-{topic}"
    find_group(client, group)
    commit(client, group, topic, 0, 5)
    wanted = part("offset_delete", 0, "OffsetDeleteRequestTopic", name=topic, partitions=())
    answer = client.ask("offset_delete", 0, group_id=group, topics=(wanted,))
    assert (answer.error_code, answer.topics) == (NONE, ())
    for version in (3, 9, 12):
        data = part("produce", version, "TopicProduceData", name=topic, partition_data=())
        request = request_type("produce", version)(transactional_id=None, acks=-1, timeout=MINUTE, topic_data=(data,))
        client.send("produce", request)
        assert decode_answer("produce", version, client.receive())[1].responses == ()


def test_an_unknown_transaction_has_producer_0(client: ProtocolClient) -> None:
    name = f"nobody-{next(NUMBERS)}"
    until(lambda: client.ask("find_coordinator", 2, key=name, key_type=1).error_code, lambda code: code == NONE)
    answer = until(
        lambda: client.ask("describe_transactions", 0, transactional_ids=("", name)),
        lambda answer: not any(one.error_code in NOT_YET for one in answer.transaction_states),
    )
    found = {one.transactional_id: one for one in answer.transaction_states}
    assert {one.error_code for one in found.values()} == {INVALID, ErrorCode.transactional_id_not_found}
    assert {(one.producer_id, one.producer_epoch, one.topics) for one in found.values()} == {(0, 0, ())}
    assert {one.transaction_timeout for one in found.values()} == {datetime.timedelta(0)}


def test_no_epoch_ends_nowhere(client: ProtocolClient) -> None:
    topic = create_topic(client)
    for version in (2, 3, 4):
        wanted = part(
            "offset_for_leader_epoch", version, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1,
            leader_epoch=-1,
        )  # fmt: skip
        topics = (part("offset_for_leader_epoch", version, "OffsetForLeaderTopic", topic=topic, partitions=(wanted,)),)
        answer = ask(client, "offset_for_leader_epoch", version, replica_id=-1, topics=topics)
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.leader_epoch, found.end_offset) == (NONE, -1, -1)


@pytest.mark.parametrize(
    ("endpoint", "error"),
    [
        (2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type),
        (3, ErrorCode.unsupported_endpoint_type), (-1, ErrorCode.unsupported_endpoint_type),
    ],
)  # fmt: skip
def test_a_broker_tells_of_brokers_alone(client: ProtocolClient, endpoint: int, error: ErrorCode) -> None:
    answer = client.ask("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=endpoint)
    assert (answer.error_code, answer.endpoint_type, answer.brokers) == (error, 1, ())
