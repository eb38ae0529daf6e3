"""What brokers make of a request that names a partition, a topic or a resource more than once: the same on ours and on
Apache Kafka, whatever the order of the answer's rows."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from interop.test_topic_contract import batch, describe, starts_at, value_of
from keylane.wire.versions import request_type
from kit.protocol import ask, decode_answer, part, until
from kit.transaction_requests import (
    MINUTE,
    NOT_YET,
    Tx,
    client_list_offsets,
    commit,
    committed,
    content,
    create_topic,
    fetch,
    find_group,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kit.protocol import ProtocolClient

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
UNKNOWN = ErrorCode.unknown_topic_or_partition
NOBODY = "nobody"
"""A topic that there is not."""
AT_ONCE = datetime.timedelta(0)
FETCH = {"max_wait": AT_ONCE, "min_bytes": 0, "max_bytes": 1_000_000, "isolation_level": 0, "session_id": 0}
TOPIC = 2
SET = 0

Named = tuple[str, tuple[Any, ...]]
"""A topic, and what is said of each of its partitions, the number of it first."""


def topics_of(
    api: str,
    version: int,
    entities: tuple[str, str],
    fields: tuple[str, ...],
    named: Iterable[Named],
    *,
    topic: str = "name",
    **same: Any,
) -> tuple[Any, ...]:
    """A request's topics, with their partitions: `entities` are kio's names of both, `fields` take what is said of each
    partition, and `same` is said of all."""
    of_topic, of_partition = entities
    return tuple(
        part(
            api,
            version,
            of_topic,
            **{topic: name},
            partitions=tuple(
                part(api, version, of_partition, **dict(zip(fields, one, strict=True)), **same) for one in partitions
            ),
        )
        for name, partitions in named
    )


def rows(found: Iterable[Any], *fields: str, topic: str = "name", partitions: str = "partitions") -> Counter[Any]:
    """Topic and these fields of each partition in an answer, and how often."""
    return Counter(
        (getattr(one, topic), *(getattr(partition, field) for field in fields))
        for one in found
        for partition in getattr(one, partitions)
    )


def test_list_offsets_refuses_the_partition_once(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)

    def asked(version: int, *named: Named) -> Counter[Any]:
        entities = ("ListOffsetsTopic", "ListOffsetsPartition")
        topics = topics_of("list_offsets", version, entities, ("partition_index", "timestamp"), named)
        values = {"replica_id": -1, "isolation_level": 0, "timeout": MINUTE}
        answer = ask(client, "list_offsets", version, **values, topics=topics)
        names = [one.name for one in answer.topics]
        assert len(names) == len(set(names)), "each topic once"
        return rows(answer.topics, "partition_index", "error_code", "timestamp", "offset")

    for version in (1, 4, 7, 11):
        assert asked(version, (a, ((0, -1), (0, -2), (0, -1), (1, -1)))) == {
            (a, 0, INVALID, -1, -1): 1,
            (a, 1, NONE, -1, 0): 1,
        }
        assert asked(version, (a, ((0, -1),)), (b, ((0, -1),)), (a, ((0, -1), (1, -2)))) == {
            (a, 0, INVALID, -1, -1): 1,
            (a, 1, NONE, -1, 0): 1,
            (b, 0, NONE, -1, 0): 1,
        }
        assert asked(version, (NOBODY, ((0, -1), (0, -1)))) == {(NOBODY, 0, INVALID, -1, -1): 1}


def test_fetch_gives_the_partition_once(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)

    def fetched(version: int, *named: Named) -> Counter[Any]:
        entities, fields = ("FetchTopic", "FetchPartition"), ("partition", "fetch_offset")
        topics = topics_of("fetch", version, entities, fields, named, topic="topic", partition_max_bytes=99)
        extra = {"session_epoch": -1, "forgotten_topics_data": ()}
        answer = ask(client, "fetch", version, **FETCH, **extra, topics=topics)
        return rows(answer.responses, "partition_index", "error_code", topic="topic")

    for version in (4, 7, 12):
        # The last offset holds: 7 is out of range.
        assert fetched(version, (a, ((0, 7), (0, 0), (1, 0)))) == {(a, 0, NONE): 1, (a, 1, NONE): 1}
        out = ErrorCode.offset_out_of_range
        assert fetched(version, (a, ((0, 0),)), (b, ((0, 0),)), (a, ((0, 7),))) == {(a, 0, out): 1, (b, 0, NONE): 1}
        assert fetched(version, (a, ((0, 0), (9, 0), (9, 0)))) == {(a, 0, NONE): 1, (a, 9, UNKNOWN): 1}


def test_produce_keeps_the_last_batch(client: ProtocolClient) -> None:
    """Ours keeps them all, with an answer for each; Apache Kafka drops those before it without a word."""
    a, b = create_topic(client), create_topic(client)

    def produced(*named: Named) -> set[Any]:
        topics = tuple(
            part(
                "produce", 9, "TopicProduceData", name=topic,
                partition_data=tuple(
                    part("produce", 9, "PartitionProduceData", index=one, records=batch((b"key", value)))
                    for one, value in partitions
                ),
            )
            for topic, partitions in named
        )  # fmt: skip
        client.send(
            "produce", request_type("produce", 9)(transactional_id=None, acks=-1, timeout=MINUTE, topic_data=topics)
        )
        answer = decode_answer("produce", 9, client.receive())[1]
        return set(rows(answer.responses, "index", "error_code", partitions="partition_responses"))

    def values(topic: str) -> list[Any]:
        return [value for _, value in content(fetch(client, topic, 0))]

    assert produced((a, ((0, b"1"), (0, b"2"), (1, b"3")))) == {(a, 0, NONE), (a, 1, NONE)}
    assert values(a) in ([b"2"], [b"1", b"2"])
    assert produced((b, ((0, b"1"),)), (a, ((1, b"2"),)), (b, ((0, b"3"),))) == {(a, 1, NONE), (b, 0, NONE)}
    assert values(b) in ([b"3"], [b"1", b"3"])
    assert produced((a, ((9, b"1"), (9, b"2"), (1, b"3")))) == {(a, 9, UNKNOWN), (a, 1, NONE)}


def test_records_are_deleted_up_to_the_last_offset(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)
    for topic in (a, b):
        client.send(
            "produce",
            request_type("produce", 9)(
                transactional_id=None, acks=-1, timeout=MINUTE,
                topic_data=(
                    part(
                        "produce", 9, "TopicProduceData", name=topic,
                        partition_data=(
                            part(
                                "produce", 9, "PartitionProduceData", index=0,
                                records=batch(*[(b"key", b"%d" % number) for number in range(5)]),
                            ),
                        ),
                    ),
                ),
            ),
        )  # fmt: skip
        client.receive()

    def deleted(version: int, *named: Named) -> Counter[Any]:
        entities = ("DeleteRecordsTopic", "DeleteRecordsPartition")
        topics = topics_of("delete_records", version, entities, ("partition_index", "offset"), named)
        answer = client.ask("delete_records", version, topics=topics, timeout=MINUTE)
        return rows(answer.topics, "partition_index", "error_code", "low_watermark")

    assert deleted(0, (a, ((0, 3), (0, 1)))) == {(a, 0, NONE, 1): 1}
    assert starts_at(client, a) == 1
    assert deleted(2, (a, ((0, 4),)), (b, ((0, 1),)), (a, ((0, 2),))) == {(a, 0, NONE, 2): 1, (b, 0, NONE, 1): 1}
    assert starts_at(client, a) == 2
    out = ErrorCode.offset_out_of_range
    assert deleted(2, (a, ((0, 99), (0, 3))), (b, ((0, 3), (0, 99)))) == {(a, 0, NONE, 3): 1, (b, 0, out, -1): 1}
    assert starts_at(client, b) == 1
    assert deleted(2, (NOBODY, ((0, 1), (0, 2)))) == {(NOBODY, 0, UNKNOWN, -1): 1}


@pytest.mark.parametrize("version", [2, 7, 9])
def test_the_last_offset_that_is_committed_holds(client: ProtocolClient, version: int) -> None:
    a, b = create_topic(client), create_topic(client)
    group = f"group-of-{a}"
    find_group(client, group)

    def commits(*named: Named) -> Counter[Any]:
        entities = ("OffsetCommitRequestTopic", "OffsetCommitRequestPartition")
        fields = ("partition_index", "committed_offset", "committed_metadata")
        topics = topics_of("offset_commit", version, entities, fields, named, committed_leader_epoch=-1)
        answer = ask(
            client, "offset_commit", version, group_id=group, generation_id_or_member_epoch=-1, member_id="",
            group_instance_id=None, retention_time=datetime.timedelta(days=1), topics=topics,
        )  # fmt: skip
        return rows(answer.topics, "partition_index", "error_code")

    assert commits((a, ((0, 5, "a"), (0, 3, "b"), (1, 1, "")))) == {(a, 0, NONE): 2, (a, 1, NONE): 1}
    assert committed(client, group, a, 0) == (3, "b", NONE)
    assert commits((a, ((0, 7, ""),)), (b, ((0, 1, ""),)), (a, ((0, 6, "c"),))) == {(a, 0, NONE): 2, (b, 0, NONE): 1}
    assert committed(client, group, a, 0) == (6, "c", NONE)
    # What is too large is refused alone, and the one before it holds.
    large = ErrorCode.offset_metadata_too_large
    assert commits((a, ((1, 8, "d"), (1, 9, "x" * 5_000)))) == {(a, 1, NONE): 1, (a, 1, large): 1}
    assert committed(client, group, a, 1) == (8, "d", NONE)
    assert commits((NOBODY, ((0, 1, ""), (0, 2, "")))) == {(NOBODY, 0, UNKNOWN): 2}


def test_offsets_are_fetched_as_often_as_asked(client: ProtocolClient) -> None:
    a = create_topic(client)
    group = f"group-of-{a}"
    find_group(client, group)
    commit(client, group, a, 0, 5)
    twice = tuple(
        part("offset_fetch", 7, "OffsetFetchRequestTopic", name=a, partition_indexes=wanted)
        for wanted in ((0, 0), (0,))
    )
    answer = client.ask("offset_fetch", 7, group_id=group, topics=twice, require_stable=False)
    assert rows(answer.topics, "partition_index", "committed_offset", "error_code") == {(a, 0, 5, NONE): 3}
    topics = tuple(
        part("offset_fetch", 8, "OffsetFetchRequestTopics", name=a, partition_indexes=wanted)
        for wanted in ((0, 0), (1,))
    )
    groups = tuple(part("offset_fetch", 8, "OffsetFetchRequestGroup", group_id=group, topics=(one,)) for one in topics)
    found = client.ask("offset_fetch", 8, groups=groups, require_stable=False).groups
    assert [(one.group_id, one.error_code) for one in found] == [(group, NONE)] * 2
    assert [rows(one.topics, "partition_index", "committed_offset") for one in found] == [
        {(a, 0, 5): 2},
        {(a, 1, -1): 1},
    ]


def test_offsets_are_deleted_however_often_they_are_named(client: ProtocolClient) -> None:
    a = create_topic(client)
    group = f"group-of-{a}"
    find_group(client, group)
    for partition in (0, 1):
        commit(client, group, a, partition, 5)

    def deleted(*named: tuple[str, Sequence[int]]) -> Any:
        topics = tuple(
            part(
                "offset_delete", 0, "OffsetDeleteRequestTopic", name=topic,
                partitions=tuple(
                    part("offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=one) for one in partitions
                ),
            )
            for topic, partitions in named
        )  # fmt: skip
        answer = client.ask("offset_delete", 0, group_id=group, topics=topics)
        return answer.error_code, rows(answer.topics, "partition_index", "error_code")

    assert deleted((a, (0, 0)), (NOBODY, (0, 0)), (a, (0, 99, 99))) == (
        NONE, {(a, 0, NONE): 3, (a, 99, UNKNOWN): 2, (NOBODY, 0, UNKNOWN): 2},
    )  # fmt: skip
    assert committed(client, group, a, 0)[0] == -1
    assert committed(client, group, a, 1)[0] == 5


def test_topics_that_are_to_be_made_or_deleted_or_to_grow_are_refused_once(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)
    for version in (0, 3):
        wanted = tuple(
            part("create_partitions", version, "CreatePartitionsTopic", name=name, count=count, assignments=None)
            for name, count in ((a, 4), (b, 3 + version), (a, 6), (NOBODY, 2), (NOBODY, 3))
        )
        answer = client.ask("create_partitions", version, topics=wanted, timeout=MINUTE, validate_only=False)
        assert Counter((one.name, one.error_code) for one in answer.results) == {
            (a, INVALID): 1, (b, NONE): 1, (NOBODY, INVALID): 1,
        }  # fmt: skip
    new = [f"new-{a}", f"other-{a}"]
    wanted = tuple(
        part(
            "create_topics", 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1, assignments=(),
            configs=(),
        )
        for name in (new[0], new[1], new[0])
    )  # fmt: skip
    answer = client.ask("create_topics", 7, topics=wanted, timeout=MINUTE, validate_only=False)
    assert Counter((one.name, one.error_code) for one in answer.topics) == {(new[0], INVALID): 1, (new[1], NONE): 1}
    for version in (1, 5):
        answer = client.ask("delete_topics", version, topic_names=(a, a, NOBODY, NOBODY, "none"), timeout=MINUTE)
        assert Counter((one.name, one.error_code) for one in answer.responses) == {
            (a, INVALID): 1, (NOBODY, INVALID): 1, ("none", UNKNOWN): 1,
        }  # fmt: skip
    by_name = tuple(part("delete_topics", 6, "DeleteTopicState", name=name, topic_id=None) for name in (a, a, b))
    answer = client.ask("delete_topics", 6, topics=by_name, timeout=MINUTE)
    assert Counter((one.name, one.error_code) for one in answer.responses) == {(a, INVALID): 1, (b, NONE): 1}
    assert client_list_offsets(client, a, 0, 0) == (NONE, 0), "it is still there"


def test_metadata_and_log_dirs_tell_of_each_once(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)
    for version in (4, 9, 12):
        wanted = tuple(
            part("metadata", version, "MetadataRequestTopic", name=name, topic_id=None)
            for name in (a, b, a, NOBODY, NOBODY)
        )
        asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        answer = ask(
            client, "metadata", version, topics=wanted, include_cluster_authorized_operations=False, **asked
        )  # fmt: skip
        assert Counter((one.name, one.error_code) for one in answer.topics if one.name != NOBODY) == {
            (a, NONE): 1, (b, NONE): 1,
        }  # fmt: skip
        assert [one.name for one in answer.topics].count(NOBODY) == 1
    wanted = tuple(
        part("describe_log_dirs", 4, "DescribableLogDirTopic", topic=a, partitions=some) for some in ((0, 0), (1, 0))
    )
    (folder,) = client.ask("describe_log_dirs", 4, topics=wanted).results
    assert rows(folder.topics, "partition_index") == {(a, 0): 1, (a, 1): 1}


@pytest.mark.parametrize("version", [0, 1])
def test_a_resource_whose_configs_are_changed_twice_keeps_them(client: ProtocolClient, version: int) -> None:
    """AlterConfigs is not asked: Apache Kafka does not answer, ours refuses it as here."""
    a, b = create_topic(client), create_topic(client)
    wanted = tuple(
        part(
            "incremental_alter_configs", version, "AlterConfigsResource", resource_type=TOPIC, resource_name=topic,
            configs=(
                part(
                    "incremental_alter_configs", version, "AlterableConfig", name=name, config_operation=SET,
                    value="90000",
                ),
            ),
        )
        for topic, name in ((a, "segment.ms"), (b, "segment.ms"), (a, "retention.ms"))
    )  # fmt: skip
    answer = client.ask("incremental_alter_configs", version, resources=wanted, validate_only=False)
    assert Counter((one.resource_name, one.error_code) for one in answer.responses) == {(a, INVALID): 2, (b, NONE): 1}
    until(lambda: value_of(client, b, "segment.ms")[0], lambda value: value == "90000")
    assert [one.value for one in describe(client, a, "segment.ms", "retention.ms").configs] == ["604800000"] * 2


def test_configs_leaders_and_producers_are_told_as_often_as_asked(client: ProtocolClient) -> None:
    a, b = create_topic(client), create_topic(client)
    wanted = tuple(
        part(
            "describe_configs", 4, "DescribeConfigsResource", resource_type=TOPIC, resource_name=topic,
            configuration_keys=keys,
        )
        for topic, keys in ((a, ("segment.ms", "segment.ms")), (b, ("segment.ms",)), (a, ("retention.ms",)))
    )  # fmt: skip
    flags = {"include_synonyms": False, "include_documentation": False}
    answer = client.ask("describe_configs", 4, resources=wanted, **flags)
    assert [(one.resource_name, [config.name for config in one.configs]) for one in answer.results] == [
        (a, ["segment.ms"]), (b, ["segment.ms"]), (a, ["retention.ms"]),
    ]  # fmt: skip
    named = ((a, (0, 0, 1)), (b, (0,)), (a, (0,)), (NOBODY, (0, 0)))
    answer = client.ask(
        "elect_leaders", 2, election_type=0, timeout=MINUTE,
        topic_partitions=tuple(
            part("elect_leaders", 2, "TopicPartitions", topic=topic, partitions=some) for topic, some in named
        ),
    )  # fmt: skip
    unneeded = ErrorCode.election_not_needed
    assert rows(
        answer.replica_election_results, "partition_id", "error_code", topic="topic", partitions="partition_result"
    ) == {(a, 0, unneeded): 3, (a, 1, unneeded): 1, (b, 0, unneeded): 1, (NOBODY, 0, UNKNOWN): 2}
    answer = client.ask(
        "describe_producers", 0,
        topics=tuple(
            part("describe_producers", 0, "TopicRequest", name=topic, partition_indexes=some) for topic, some in named
        ),
    )  # fmt: skip
    assert rows(answer.topics, "partition_index", "error_code") == {
        (a, 0, NONE): 3, (a, 1, NONE): 1, (b, 0, NONE): 1, (NOBODY, 0, UNKNOWN): 2,
    }  # fmt: skip


def test_groups_are_deleted_once(client: ProtocolClient) -> None:
    a = create_topic(client)
    group = f"group-of-{a}"
    find_group(client, group)
    commit(client, group, a, 0, 5)
    for version in (0, 2):
        answer = client.ask("delete_groups", version, groups_names=(NOBODY, NOBODY, ""))
        missing = ErrorCode.group_id_not_found
        assert Counter((one.group_id, one.error_code) for one in answer.results) == {
            (NOBODY, missing): 1, ("", missing): 1,
        }  # fmt: skip
    answer = client.ask("delete_groups", 2, groups_names=(group, group))
    assert [(one.group_id, one.error_code) for one in answer.results] == [(group, NONE)]
    assert client.ask("offset_delete", 0, group_id="", topics=()).error_code == ErrorCode.invalid_group_id


@pytest.mark.parametrize("version", [0, 3])
def test_a_transaction_takes_partitions_and_offsets_however_often(client: ProtocolClient, version: int) -> None:
    a, b = create_topic(client), create_topic(client)
    tx = Tx(client).start()
    find_group(client, tx.group)

    def added(*named: tuple[str, Sequence[int]]) -> set[Any]:
        topics = tuple(
            part("add_partitions_to_txn", version, "AddPartitionsToTxnTopic", name=topic, partitions=some)
            for topic, some in named
        )
        answer = client.ask(
            "add_partitions_to_txn", version, v3_and_below_topics=topics, v3_and_below_transactional_id=tx.name,
            v3_and_below_producer_id=tx.id, v3_and_below_producer_epoch=tx.epoch,
        )  # fmt: skip
        return set(
            rows(
                answer.results_by_topic_v3_and_below, "partition_index", "partition_error_code",
                partitions="results_by_partition",
            )
        )  # fmt: skip

    codes = until(
        lambda: added((a, (0, 0, 1)), (b, (0,)), (a, (0,))), lambda found: not {code for *_, code in found} & NOT_YET
    )
    assert codes == {(a, 0, NONE), (a, 1, NONE), (b, 0, NONE)}
    not_tried = ErrorCode.operation_not_attempted
    assert added((a, (99, 99)), (b, (0,)), (a, (0,))) == {(a, 99, UNKNOWN), (b, 0, not_tried), (a, 0, not_tried)}
    until(tx.add_offsets, lambda code: code not in NOT_YET)
    topics = tuple(
        part(
            "txn_offset_commit", version, "TxnOffsetCommitRequestTopic", name=topic,
            partitions=tuple(
                part(
                    "txn_offset_commit", version, "TxnOffsetCommitRequestPartition", partition_index=one,
                    committed_offset=offset, committed_leader_epoch=-1, committed_metadata="",
                )
                for one, offset in some
            ),
        )
        for topic, some in ((a, ((0, 5), (0, 4))), (b, ((0, 3),)), (a, ((1, 9),)), (a, ((1, 8),)))
    )  # fmt: skip

    def commits() -> Counter[Any]:
        answer = ask(
            client, "txn_offset_commit", version, transactional_id=tx.name, group_id=tx.group, producer_id=tx.id,
            producer_epoch=tx.epoch, generation_id=-1, member_id="", group_instance_id=None, topics=topics,
        )  # fmt: skip
        return rows(answer.topics, "partition_index", "error_code")

    found = until(commits, lambda found: not {code for *_, code in found} & NOT_YET)
    assert found == {(a, 0, NONE): 2, (a, 1, NONE): 2, (b, 0, NONE): 1}
    tx.finish()
    until(lambda: committed(client, tx.group, a, 0)[0], lambda offset: offset == 4)
    assert committed(client, tx.group, a, 1)[0] == 8


@pytest.mark.parametrize("version", [1, 2])
def test_markers_of_a_producer_that_is_named_twice(client: ProtocolClient, version: int) -> None:
    """A partition that one marker names twice is not asked for: Apache Kafka does not answer then."""
    a = create_topic(client)
    tx = Tx(client).start()
    tx.begin(a, 0, 1)
    assert tx.produce(a, 0, b"value") == NONE
    marker = part(
        "write_txn_markers", version, "WritableTxnMarker", producer_id=tx.id, producer_epoch=tx.epoch,
        transaction_result=False, coordinator_epoch=0, **({"transaction_version": 0} if version == 2 else {}),
        topics=(part("write_txn_markers", version, "WritableTxnMarkerTopic", name=a, partition_indexes=(0, 1)),),
    )  # fmt: skip
    answer = client.ask("write_txn_markers", version, markers=(marker, marker))
    assert {one.producer_id for one in answer.markers} == {tx.id}
    found = Counter[Any]()
    for one in answer.markers:
        found += rows(one.topics, "partition_index", "error_code")
    assert set(found) == {(a, 0, NONE), (a, 1, NONE)}
    assert False in [value for _, value in content(fetch(client, a, 0, level=0))], "it was aborted"
