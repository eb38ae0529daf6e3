"""What one broker answers to administrators of a cluster, field by field: the same on ours and on Apache Kafka."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.wire.batches import NewRecord, encode_batch
from kit.protocol import ask, leader_epoch, part, until

if TYPE_CHECKING:
    from kit.protocol import ProtocolClient

MINUTE = datetime.timedelta(minutes=1)
NUMBERS = itertools.count()
NODE = 1
"""The only broker, of either kind."""


def create(client: ProtocolClient, partitions: int = 1, name: str | None = None) -> tuple[str, Any]:
    """A topic that is there for every API: its name and id."""
    name = name or f"admin-{next(NUMBERS)}"
    wanted = part(
        "create_topics", 7, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1,
        assignments=(), configs=(),
    )  # fmt: skip
    answer = client.ask("create_topics", 7, topics=(wanted,), timeout=MINUTE, validate_only=False).topics[0]
    assert answer.error_code == ErrorCode.none, answer.error_message
    until(
        lambda: {offset_at(client, name, -2, partition=index)[0] for index in range(partitions)},
        lambda codes: codes == {ErrorCode.none},
    )
    return name, answer.topic_id


def append(client: ProtocolClient, topic: str, *timestamps: int) -> int:
    """One record at each of these times; the bytes of it all."""
    size = 0
    for at in timestamps:
        records = encode_batch([NewRecord(None, b"value")], timestamp_ms=at)
        piece = part("produce", 9, "PartitionProduceData", index=0, records=records)
        topics = (part("produce", 9, "TopicProduceData", name=topic, partition_data=(piece,)),)
        answer = client.ask("produce", 9, transactional_id=None, acks=-1, timeout=MINUTE, topic_data=topics)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none
        size += len(records)
    return size


# --- ListOffsets ---


def offset_at(
    client: ProtocolClient, topic: str, timestamp: int, version: int = 11, partition: int = 0, isolation: int = 0
) -> tuple[ErrorCode, int, int, int]:
    """Error, offset, timestamp and leader epoch."""
    row = part(
        "list_offsets", version, "ListOffsetsPartition", partition_index=partition, current_leader_epoch=-1,
        timestamp=timestamp,
    )  # fmt: skip
    topics = (part("list_offsets", version, "ListOffsetsTopic", name=topic, partitions=(row,)),)
    answer = ask(
        client, "list_offsets", version, replica_id=-1, isolation_level=isolation, topics=topics, timeout=MINUTE
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset, found.timestamp, getattr(found, "leader_epoch", 0)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", range(7, 12))
def test_offsets_of_storage_that_is_not_tiered(client: ProtocolClient, version: int, isolation: int) -> None:
    topic, _ = create(client)
    now = time.time_ns() // 1_000_000
    append(client, topic, now, now + 5, now + 3)
    nothing, refused = (ErrorCode.none, -1, -1, -1), (ErrorCode.unsupported_version, -1, -1, -1)
    epoch = leader_epoch(client, topic)

    def found(timestamp: int) -> Any:
        return offset_at(client, topic, timestamp, version, isolation=isolation)

    assert found(-1) == (ErrorCode.none, 3, -1, epoch)
    assert found(-2) == (ErrorCode.none, 0, -1, epoch)
    assert found(-3) == (ErrorCode.none, 1, now + 5, epoch)
    assert found(-4) == ((ErrorCode.none, 0, -1, epoch) if version >= 8 else refused)
    assert found(-5) == (nothing if version >= 9 else refused)
    assert found(-6) == (nothing if version >= 11 else refused)
    assert found(-7) == refused
    assert found(now + 1) == (ErrorCode.none, 1, now + 5, epoch)
    assert found(now + 6) == nothing


# --- DescribeTopicPartitions ---


def described(client: ProtocolClient, *topics: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    names = tuple(part("describe_topic_partitions", 0, "TopicRequest", name=name) for name in topics)
    start = cursor and part("describe_topic_partitions", 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
    return client.ask("describe_topic_partitions", 0, topics=names, response_partition_limit=limit, cursor=start)


def rows(answer: Any) -> list[tuple[str, ErrorCode, list[int]]]:
    return [(one.name, one.error_code, [row.partition_index for row in one.partitions]) for one in answer.topics]


def after(answer: Any) -> tuple[str, int] | None:
    cursor = answer.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_a_topic_with_its_partitions(client: ProtocolClient) -> None:
    name, topic_id = create(client, 2)
    (topic,) = described(client, name).topics
    assert dataclasses.asdict(topic) == {
        "error_code": ErrorCode.none,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "topic_authorized_operations": 0b1101_1111_1000,
        "partitions": tuple(
            {
                "error_code": ErrorCode.none, "partition_index": index, "leader_id": NODE,
                "leader_epoch": leader_epoch(client, name, index),
                "replica_nodes": (NODE,), "isr_nodes": (NODE,), "eligible_leader_replicas": (), "last_known_elr": (),
                "offline_replicas": (),
            }
            for index in range(2)
        ),
    }  # fmt: skip


def test_topics_are_described_in_pieces(client: ProtocolClient) -> None:
    one, two, three = (create(client, 3, f"piece-{next(NUMBERS)}-{letter}")[0] for letter in "abc")
    none = ErrorCode.none
    answer = described(client, three, one, two, one, limit=4)
    assert rows(answer) == [(one, none, [0, 1, 2]), (two, none, [0])]
    assert after(answer) == (two, 1)
    answer = described(client, three, one, two, limit=2, cursor=after(answer))
    assert rows(answer) == [(two, none, [1, 2])]
    assert after(answer) == (three, 0), "where there is room for no more, the next topic is the cursor"
    answer = described(client, three, one, two, limit=3, cursor=after(answer))
    assert (rows(answer), after(answer)) == ([(three, none, [0, 1, 2])], None)
    for limit in (1, 0, -5):
        answer = described(client, one, limit=limit)
        assert (rows(answer), after(answer)) == ([(one, none, [0])], (one, 1)), "one partition at least"
    answer = described(client, one, two, cursor=(two, 2))
    assert (rows(answer), after(answer)) == ([(two, none, [2])], None)


def test_topics_that_are_not_there(client: ProtocolClient) -> None:
    name, _ = create(client, 1, f"piece-{next(NUMBERS)}")
    answer = described(client, name, "a-nobody", "no good", limit=1)
    assert rows(answer) == [
        ("a-nobody", ErrorCode.unknown_topic_or_partition, []),
        ("no good", ErrorCode.invalid_topic_exception, []),
        (name, ErrorCode.none, [0]),
    ]
    assert [one.topic_id for one in answer.topics[:2]] == [None, None]
    assert after(answer) is None
    answer = described(client, name, "z-nobody", limit=1)
    assert (rows(answer), after(answer)) == ([(name, ErrorCode.none, [0])], ("z-nobody", 0)), "it may not be there"
    answer = described(client, name, "z-nobody", limit=1, cursor=("z-nobody", 0))
    assert (rows(answer), after(answer)) == ([("z-nobody", ErrorCode.unknown_topic_or_partition, [])], None)


@pytest.mark.parametrize("cursor", [("other", 0), ("", -1), ("", 0)])
def test_a_cursor_that_is_none(client: ProtocolClient, cursor: tuple[str, int]) -> None:
    name, _ = create(client)
    at = (cursor[0] or name, cursor[1])
    answer = described(client, name, cursor=at)
    code = ErrorCode.none if at == (name, 0) else ErrorCode.invalid_request
    assert [(found, error) for found, error, _ in rows(answer)] == [(name, code)]
    assert after(answer) is None


def test_all_topics_are_described(client: ProtocolClient) -> None:
    made = sorted(create(client, 2)[0] for _ in range(3))
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = (made[0], 1)
    while cursor is not None:
        answer = described(client, limit=1, cursor=cursor)
        found = [(name, index) for name, code, indexes in rows(answer) for index in indexes if code == ErrorCode.none]
        assert len(found) == 1
        seen += found
        cursor = after(answer)
    assert seen == sorted(seen)
    assert [one for one in seen if one[0] in made] == [(name, index) for name in made for index in (0, 1)][1:]
    assert rows(described(client, cursor=("zzz", 7))) == []


# --- folders ---


@pytest.mark.parametrize("version", range(1, 6))
def test_how_large_partitions_are(client: ProtocolClient, version: int) -> None:
    name, _ = create(client, 2)
    other, _ = create(client)
    now = time.time_ns() // 1_000_000
    size = append(client, name, now, now, now)

    def sizes(*topics: tuple[str, tuple[int, ...]], everything: bool = False) -> dict[tuple[str, int], int]:
        wanted = tuple(
            part("describe_log_dirs", version, "DescribableLogDirTopic", topic=topic, partitions=indexes)
            for topic, indexes in topics
        )
        answer = client.ask("describe_log_dirs", version, topics=None if everything else wanted)
        if version >= 3:
            assert answer.error_code == ErrorCode.none
        (folder,) = answer.results
        assert folder.error_code == ErrorCode.none
        assert folder.log_dir.startswith("/")
        if version >= 4:
            assert 0 < folder.usable_bytes < folder.total_bytes
        if version >= 5:
            assert folder.is_cordoned is False
        found = [(topic.name, one) for topic in folder.topics for one in topic.partitions]
        assert {(one.offset_lag, one.is_future_key) for _, one in found} <= {(0, False)}
        return {(topic, one.partition_index): one.partition_size for topic, one in found}

    assert sizes((name, (0, 1, 9)), ("nobody", (0,))) == {(name, 0): size, (name, 1): 0}
    assert sizes((name, (1,)), (other, (0,))) == {(name, 1): 0, (other, 0): 0}
    assert sizes() == {}
    everything = sizes(everything=True)
    assert (everything[name, 0], everything[other, 0]) == (size, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_stays_in_the_folder_that_there_is(client: ProtocolClient, version: int) -> None:
    name, _ = create(client)
    (folder,) = client.ask("describe_log_dirs", 1, topics=None).results

    def moved(path: str, topic: str, *indexes: int) -> list[tuple[str, int, ErrorCode]]:
        wanted = part("alter_replica_log_dirs", version, "AlterReplicaLogDirTopic", name=topic, partitions=indexes)
        to = part("alter_replica_log_dirs", version, "AlterReplicaLogDir", path=path, topics=(wanted,))
        answer = client.ask("alter_replica_log_dirs", version, dirs=(to,))
        return [(of.topic_name, one.partition_index, one.error_code) for of in answer.results for one in of.partitions]

    assert moved(folder.log_dir, name, 0) == [(name, 0, ErrorCode.none)]
    assert moved("/somewhere/else", name, 0) == [(name, 0, ErrorCode.log_dir_not_found)]
    assert moved("/somewhere/else", "nobody", 0) == [("nobody", 0, ErrorCode.log_dir_not_found)]
    assert moved(folder.log_dir, name, 9) == [(name, 9, ErrorCode.unknown_topic_or_partition)]
    assert moved(folder.log_dir, "nobody", 0) == [("nobody", 0, ErrorCode.unknown_topic_or_partition)]


# --- one node ---


@pytest.mark.parametrize("kind", [0, 1, 7])
@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(client: ProtocolClient, version: int, kind: int) -> None:
    name, _ = create(client, 2)
    wanted = (
        part("elect_leaders", version, "TopicPartitions", topic=name, partitions=(0, 1, 5)),
        part("elect_leaders", version, "TopicPartitions", topic="nobody", partitions=(0,)),
    )
    answer = ask(client, "elect_leaders", version, election_type=kind, topic_partitions=wanted, timeout=MINUTE)
    found = {
        (topic.topic, one.partition_id): one.error_code
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }
    is_known = kind < 7 or version == 0
    not_needed, unknown = ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition
    if not is_known:
        not_needed = unknown = ErrorCode.invalid_request
    assert found == {(name, 0): not_needed, (name, 1): not_needed, (name, 5): unknown, ("nobody", 0): unknown}
    if version >= 1:
        assert answer.error_code == (ErrorCode.none if is_known else ErrorCode.invalid_request)


def test_an_election_everywhere_names_no_partition_that_needs_none(client: ProtocolClient) -> None:
    name, _ = create(client, 2)
    answer = client.ask("elect_leaders", 2, election_type=0, topic_partitions=None, timeout=MINUTE)
    found = {topic.topic: topic.partition_result for topic in answer.replica_election_results}
    assert answer.error_code == ErrorCode.none
    assert found[name] == ()
    assert set(found.values()) == {()}


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_are_on_the_only_broker(client: ProtocolClient, version: int) -> None:
    name, _ = create(client, 6)
    replicas: list[tuple[int, ...] | None] = [(NODE,), None, (), (NODE, 7), (NODE, NODE), (7,), (NODE,)]
    pieces = tuple(
        part("alter_partition_reassignments", version, "ReassignablePartition", partition_index=index, replicas=ones)
        for index, ones in enumerate(replicas)
    )
    nobody = part("alter_partition_reassignments", version, "ReassignablePartition", partition_index=0, replicas=None)
    topics = tuple(
        part("alter_partition_reassignments", version, "ReassignableTopic", name=topic, partitions=ones)
        for topic, ones in ((name, pieces), ("nobody", (nobody,)))
    )
    answer = ask(
        client, "alter_partition_reassignments", version, timeout=MINUTE, topics=topics,
        allow_replication_factor_change=True,
    )  # fmt: skip
    assert answer.error_code == ErrorCode.none
    found = {
        (topic.name, one.partition_index): one.error_code for topic in answer.responses for one in topic.partitions
    }
    wrong, unknown = ErrorCode.invalid_replica_assignment, ErrorCode.unknown_topic_or_partition
    assert found == {
        (name, 0): ErrorCode.none, (name, 1): ErrorCode.no_reassignment_in_progress, (name, 2): wrong,
        (name, 3): wrong, (name, 4): wrong, (name, 5): wrong, (name, 6): unknown, ("nobody", 0): unknown,
    }  # fmt: skip


def test_nothing_is_being_reassigned(client: ProtocolClient) -> None:
    name, _ = create(client)
    one = part(
        "list_partition_reassignments", 0, "ListPartitionReassignmentsTopics", name=name, partition_indexes=(0, 9)
    )
    for topics in (None, (one,), ()):
        answer = client.ask("list_partition_reassignments", 0, timeout=MINUTE, topics=topics)
        assert (answer.error_code, answer.error_message, answer.topics) == (ErrorCode.none, None, ())


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_is_one_node(client: ProtocolClient, version: int) -> None:
    def asked(*names: tuple[str, int]) -> Any:
        topics = tuple(
            part("describe_quorum", version, "TopicData", topic_name=name, partitions=(
                part("describe_quorum", version, "PartitionData", partition_index=index),
            ))
            for name, index in names
        )  # fmt: skip
        return client.ask("describe_quorum", version, topics=topics)

    answer = asked(("__cluster_metadata", 0))
    assert answer.error_code == ErrorCode.none
    ((partition,),) = (topic.partitions for topic in answer.topics)
    assert (partition.partition_index, partition.error_code, partition.leader_id) == (0, ErrorCode.none, NODE)
    (voter,) = partition.current_voters
    assert (voter.replica_id, partition.observers) == (NODE, ())
    assert voter.log_end_offset >= partition.high_watermark >= 0
    if version >= 1:
        assert abs(voter.last_caught_up_timestamp - time.time_ns() // 1_000_000) < 60_000
    if version >= 2:
        assert [one.node_id for one in answer.nodes] == [NODE]
        assert (answer.error_message, partition.error_message) == ("", "")
    for names in ((("flights", 0),), (("__cluster_metadata", 1),), (("__cluster_metadata", 0), ("flights", 0))):
        refused = asked(*names)
        assert refused.error_code == ErrorCode.none
        codes = {one.error_code for topic in refused.topics for one in topic.partitions}
        assert codes == {ErrorCode.unknown_topic_or_partition}


# --- what there is not ---

ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


@pytest.mark.parametrize("version", range(1, 4))
def test_there_are_no_acls(client: ProtocolClient, version: int) -> None:
    disabled = ErrorCode.security_disabled
    answer = client.ask("describe_acls", version, **ANY)
    assert (answer.error_code, answer.resources) == (disabled, ())
    made = part(
        "create_acls", version, "AclCreation", resource_type=2, resource_name="flights", resource_pattern_type=3,
        principal="User:ann", host="*", operation=3, permission_type=3,
    )  # fmt: skip
    answer = client.ask("create_acls", version, creations=(made, made))
    assert [one.error_code for one in answer.results] == [disabled, disabled]
    chosen = part("delete_acls", version, "DeleteAclsFilter", **ANY)
    answer = client.ask("delete_acls", version, filters=(chosen, chosen))
    assert [(one.error_code, one.matching_acls) for one in answer.filter_results] == [(disabled, ())] * 2


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((), ErrorCode.none),
        ((("user", 2, None),), ErrorCode.none),
        ((("user", 0, "ann"), ("client-id", 1, None)), ErrorCode.none),
        ((("ip", 0, "127.0.0.1"),), ErrorCode.none),
        ((("ip", 2, None), ("user", 2, None)), ErrorCode.invalid_request),
        ((("user", 2, None), ("user", 1, None)), ErrorCode.invalid_request),
        ((("user", 0, None),), ErrorCode.invalid_request),
        ((("user", 1, "ann"),), ErrorCode.invalid_request),
        ((("user", 9, None),), ErrorCode.invalid_request),
        ((("", 2, None),), ErrorCode.invalid_request),
        ((("house", 2, None),), ErrorCode.unsupported_version),
    ],
)
def test_no_quota_is_found(
    client: ProtocolClient, version: int, components: tuple[tuple[str, int, str | None], ...], code: ErrorCode
) -> None:
    asked = tuple(
        part("describe_client_quotas", version, "ComponentData", entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    )
    answer = client.ask("describe_client_quotas", version, components=asked, strict=False)
    assert (answer.error_code, answer.entries) == (code, () if code == ErrorCode.none else None)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_that_are_not_there_are_removed(client: ProtocolClient, version: int) -> None:
    def change(*kinds: str, keys: tuple[str, ...] = ("producer_byte_rate",)) -> ErrorCode:
        entities = tuple(
            part("alter_client_quotas", version, "EntityData", entity_type=kind, entity_name=None) for kind in kinds
        )
        ops = tuple(part("alter_client_quotas", version, "OpData", key=key, value=1.0, remove=True) for key in keys)
        entry = part("alter_client_quotas", version, "EntryData", entity=entities, ops=ops)
        (answer,) = client.ask("alter_client_quotas", version, entries=(entry,), validate_only=False).entries
        assert sorted(one.entity_type for one in answer.entity) == sorted(kinds)
        code: ErrorCode = answer.error_code
        return code

    assert change("user") == ErrorCode.none
    assert change("user", "client-id") == ErrorCode.none
    assert change("ip", keys=("connection_creation_rate",)) == ErrorCode.none
    assert change("ip", "user") == ErrorCode.invalid_request
    assert change("house") == ErrorCode.invalid_request
    assert change() == ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(3))
def test_features_are_at_their_levels(client: ProtocolClient, version: int) -> None:
    offered = client.ask("api_versions", 4, client_software_name="test", client_software_version="1")
    levels = {one.name: one.max_version_level for one in offered.finalized_features}
    assert levels["group.version"] == 1, "there are groups of the consumer protocol"
    assert offered.finalized_features_epoch >= 0

    def change(name: str, level: int) -> Any:
        how = {"allow_downgrade": False} if version == 0 else {"upgrade_type": 1}
        one = part("update_features", version, "FeatureUpdateKey", feature=name, max_version_level=level, **how)
        return ask(client, "update_features", version, timeout=MINUTE, feature_updates=(one,), validate_only=False)

    answer = change("group.version", 1)
    assert answer.error_code == ErrorCode.none
    if version < 2:
        assert [(one.feature, one.error_code) for one in answer.results] == [("group.version", ErrorCode.none)]
    for name, level in (("group.version", 99), ("house.version", 1)):
        answer = change(name, level)
        assert answer.error_code == ErrorCode.invalid_update_version
        assert answer.error_message


# --- authorized operations ---

ON_TOPICS, ON_GROUPS, ON_THE_CLUSTER, NOT_ASKED = 0b1101_1111_1000, 0b1101_0100_1000, 0b1_1111_1010_0000, -(2**31)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("version", range(8, 14))
def test_anyone_may_do_everything_with_topics_and_the_cluster(
    client: ProtocolClient, version: int, wanted: bool
) -> None:
    name, _ = create(client)
    one = part("metadata", version, "MetadataRequestTopic", name=name, topic_id=None)
    answer = ask(
        client, "metadata", version, topics=(one,), allow_auto_topic_creation=False,
        include_topic_authorized_operations=wanted, include_cluster_authorized_operations=wanted,
    )  # fmt: skip
    assert answer.topics[0].topic_authorized_operations == (ON_TOPICS if wanted else NOT_ASKED)
    if version <= 10:
        assert answer.cluster_authorized_operations == (ON_THE_CLUSTER if wanted else NOT_ASKED)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("version", range(3))
def test_anyone_may_do_everything_with_the_cluster(client: ProtocolClient, version: int, wanted: bool) -> None:
    for endpoint in (1, 2):
        answer = ask(
            client, "describe_cluster", version, include_cluster_authorized_operations=wanted, endpoint_type=endpoint,
            include_fenced_brokers=True,
        )  # fmt: skip
        is_known = answer.error_code == ErrorCode.none
        assert is_known is (endpoint == 1 or version == 0)
        assert [getattr(one, "is_fenced", False) for one in answer.brokers] == [False] * is_known
        assert answer.cluster_authorized_operations == (ON_THE_CLUSTER if wanted and is_known else NOT_ASKED)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("version", range(3, 6))
def test_anyone_may_do_everything_with_groups(client: ProtocolClient, version: int, wanted: bool) -> None:
    group = f"admin-{next(NUMBERS)}"
    until(
        lambda: client.ask("find_coordinator", 4, key_type=0, coordinator_keys=(group,)).coordinators[0].error_code,
        lambda code: code == ErrorCode.none,
    )
    (answer,) = until(
        lambda: client.ask("describe_groups", version, groups=(group,), include_authorized_operations=wanted).groups,
        lambda groups: groups[0].error_code == ErrorCode.none,
    )
    assert (answer.group_state, answer.authorized_operations) == ("Dead", ON_GROUPS if wanted else NOT_ASKED)


# --- FindCoordinator, DescribeGroups ---

SHARE_KEY = "g:AAAAAAAAAAAAAAAAAAAABw:0"


@pytest.mark.parametrize("version", [4, 5, 6])
def test_who_coordinates_a_partition_of_a_share_group(client: ProtocolClient, version: int) -> None:
    def errors(*keys: str) -> list[int]:
        found = client.ask("find_coordinator", version, key_type=2, coordinator_keys=keys).coordinators
        assert [one.key for one in found] == [*keys]
        assert all(
            (one.node_id, one.port > 0) == ((NODE, True) if one.error_code == 0 else (-1, False)) for one in found
        )
        return [int(one.error_code) for one in found]

    refused = ErrorCode.invalid_request
    if version < 6:
        assert errors(SHARE_KEY) == [refused]
        return
    until(lambda: errors(SHARE_KEY), lambda found: found == [0])
    assert errors(f"a:{SHARE_KEY}", "g:AAAAAAAAAAAAAAAAAAAABw:-1") == [0, 0]
    wrong = ["", "g", "g:0", "g:x:0", "g:AAAAAAAAAAAAAAAAAAAABw:x", "g:AAAAAAAAAAAAAAAAAAAABw:", SHARE_KEY[1:]]
    assert errors(*wrong) == [refused] * len(wrong)


def test_a_group_that_is_not_there_is_an_error_from_version_6_on(client: ProtocolClient) -> None:
    consumers, shared = f"admin-{next(NUMBERS)}", f"admin-{next(NUMBERS)}"
    topic, _ = create(client)
    until(
        lambda: client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("any",)).coordinators[0].error_code,
        lambda code: code == ErrorCode.none,
    )
    until(
        lambda: client.ask(
            "consumer_group_heartbeat", 1, group_id=consumers, member_id="a", member_epoch=0, instance_id=None,
            rack_id=None, rebalance_timeout=MINUTE, subscribed_topic_names=(topic,), subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=(),
        ).error_code,
        lambda code: code == ErrorCode.none,
    )  # fmt: skip
    until(
        lambda: client.ask(
            "share_group_heartbeat", 1, group_id=shared, member_id="a", member_epoch=0, rack_id=None,
            subscribed_topic_names=(topic,),
        ).error_code,
        lambda code: code == ErrorCode.none,
    )  # fmt: skip

    def described(version: int, group: str) -> tuple[int, str | None, str]:
        (row,) = client.ask("describe_groups", version, groups=(group,), include_authorized_operations=True).groups
        assert not row.members
        if row.error_code:
            assert row.authorized_operations == NOT_ASKED
        return int(row.error_code), getattr(row, "error_message", None), row.group_state

    until(lambda: described(5, "nobody")[0], lambda code: code == 0)
    for group, why in (
        ("nobody", "not found"),
        (consumers, "is not a classic group"),
        (shared, "is not a classic group"),
    ):
        assert described(5, group) == (0, None, "Dead")
        assert described(6, group) == (ErrorCode.group_id_not_found, f"Group {group} {why}.", "Dead")
