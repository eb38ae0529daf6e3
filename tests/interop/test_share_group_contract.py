"""What a broker answers about share groups (KIP-932): the same asserts on ours and on Apache Kafka. Each test has a
group and topics of its own."""

from __future__ import annotations

import datetime
import functools
import itertools
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.coordinator.formats import partition_for
from keylane.coordinator.share_groups.partition import NOT_BEGUN
from keylane.coordinator.share_groups.records import (
    TOPICS,
    TYPES,
    Place,
    PlacedTopic,
    Topics,
    decode,
    decode_state,
    decode_state_key,
    encode,
)
from keylane.wire.batches import batches
from kit import protocol
from kit.either_broker import either_broker
from kit.protocol import ProtocolClient, part

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = itertools.count()
DEADLINE_S = 30.0
LOCK_MS = 1_000
until = functools.partial(protocol.until, within_s=DEADLINE_S)
MS = datetime.timedelta(milliseconds=1)
UNKNOWN_SERVER_ERROR, NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = -1, 0, 3, 100
INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, INVALID_CONFIG, INVALID_REQUEST = 23, 25, 40, 42
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, FENCED_MEMBER_EPOCH = 68, 69, 110
INVALID_RECORD_STATE, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH = 121, 122, 123
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP_RESOURCE = 32
SETTINGS = {
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.assignment.interval.ms": "0",
    "group.share.record.lock.duration.ms": "60000",  # however slow this machine is, none ends
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
}
APACHE_SETTINGS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
}


@pytest.fixture(scope="module", params=["keylane", pytest.param("apache", marks=pytest.mark.soak)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with either_broker(request.param, tmp_path_factory.mktemp("broker"), SETTINGS, of_apache=APACHE_SETTINGS) as broker:
        yield broker.bootstrap


class Member:
    """A member with its session, on a connection of its own."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.name = str(uuid.uuid4())
        self.client = ProtocolClient(group.bootstrap)
        group.members.append(self)
        self.epoch = 0

    def join(self, **said: Any) -> Any:
        return self.group.ask(self.name, **said)

    def fetch(self, *said: tuple[int, int, list[int]], epoch: int | None = None, **how: Any) -> Any:
        """What it is given, when it says of the records of partition 0 from the first offset to the second that."""
        values = {
            "max_wait": 0 * MS, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 100, "batch_size": 100,
            "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": (), **how,
        }  # fmt: skip
        topic = part(
            "share_fetch", 2, "FetchTopic", topic_id=self.group.topic_id,
            partitions=(
                *self.rows("share_fetch", "FetchPartition", said),
                *(part("share_fetch", 2, "FetchPartition", partition_index=one, acknowledgement_batches=())
                  for one in range(1, self.group.partition_count)),
            ),
        )  # fmt: skip
        answer = self.client.ask(
            "share_fetch", 2, group_id=self.group.name, member_id=self.name, topics=(topic,),
            share_session_epoch=self.epoch if epoch is None else epoch, **values,
        )  # fmt: skip
        if answer.error_code == NONE and epoch is None:
            self.epoch += 1
        return answer

    def rows(self, api: str, name: str, said: tuple[tuple[int, int, list[int]], ...]) -> tuple[Any, ...]:
        """Of partition 0 alone."""
        batches_said = tuple(
            part(api, 2, "AcknowledgementBatch", first_offset=first, last_offset=last, acknowledge_types=tuple(kinds))
            for first, last, kinds in said
        )
        return (part(api, 2, name, partition_index=0, acknowledgement_batches=batches_said),)

    def acquired(self, *said: tuple[int, int, list[int]], **how: Any) -> list[tuple[int, int, int]]:
        """First and last offset, and deliveries, of what it is given; every one of them is there."""
        return joined([run for runs in self.runs(*said, **how).values() for run in runs])

    def runs(self, *said: tuple[int, int, list[int]], **how: Any) -> dict[int, list[tuple[int, int, int]]]:
        """The same by partition, as the answer has them."""
        answer = self.fetch(*said, **how)
        assert answer.error_code == NONE, answer
        found: dict[int, list[tuple[int, int, int]]] = {}
        for topic in answer.responses:
            for row in topic.partitions:
                assert (row.error_code, row.acknowledge_error_code) == (NONE, NONE), row
                held = [(one.base_offset, one.last_offset) for _, one in batches(bytes(row.records or b""))]
                for one in row.acquired_records:
                    assert held[0][0] <= one.first_offset <= one.last_offset <= held[-1][1]
                    run = (one.first_offset, one.last_offset, one.delivery_count)
                    found.setdefault(row.partition_index, []).append(run)
        return found

    def take(self, wanted: list[tuple[int, int, int]], **how: Any) -> None:
        """It is given this, when all of it is there."""
        found: list[tuple[int, int, int]] = []
        deadline = time.monotonic() + DEADLINE_S
        while joined(found) != wanted:
            assert time.monotonic() < deadline, found
            found += self.acquired(max_wait=500 * MS, **how)

    def acknowledge(self, *said: tuple[int, int, list[int]], epoch: int | None = None, is_renewal: bool = False) -> Any:
        topic = part(
            "share_acknowledge", 2, "AcknowledgeTopic", topic_id=self.group.topic_id,
            partitions=self.rows("share_acknowledge", "AcknowledgePartition", said),
        )  # fmt: skip
        answer = self.client.ask(
            "share_acknowledge", 2, group_id=self.group.name, member_id=self.name, is_renew_ack=is_renewal,
            share_session_epoch=self.epoch if epoch is None else epoch, topics=(topic,) if said else (),
        )  # fmt: skip
        if answer.error_code == NONE and epoch is None:
            self.epoch += 1
        return answer

    def told(self, *said: tuple[int, int, list[int]], is_renewal: bool = False) -> int:
        """The error code of what it says."""
        answer = self.acknowledge(*said, is_renewal=is_renewal)
        assert answer.error_code == NONE, answer
        return int(answer.responses[0].partitions[0].error_code)


def joined(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Neighbours that were delivered as often, as one."""
    rows: list[tuple[int, int, int]] = []
    for first, last, count in sorted(found):
        if rows and (rows[-1][1] + 1, rows[-1][2]) == (first, count):
            rows[-1] = (rows[-1][0], last, count)
        else:
            rows.append((first, last, count))
    return rows


class Group:
    """One group, which reads one topic from its beginning."""

    def __init__(self, bootstrap: str, client: ProtocolClient, partition_count: int = 1) -> None:
        self.bootstrap, self.client, self.partition_count = bootstrap, client, partition_count
        number = next(NUMBERS)
        self.name, self.topic = f"share-{number}", f"shared-{number}"
        self.members: list[Member] = []
        wanted = part(
            "create_topics", 7, "CreatableTopic", name=self.topic, num_partitions=partition_count, replication_factor=1,
            assignments=(), configs=(),
        )  # fmt: skip
        client.ask("create_topics", 7, topics=(wanted,), timeout=10_000 * MS, validate_only=False)
        self.topic_id: uuid.UUID | None = until(self._topic_id, lambda found: found is not None)
        self.configure("share.auto.offset.reset", "earliest")
        until(lambda: self.ask("nobody", epoch=5).error_code, lambda code: code == GROUP_ID_NOT_FOUND)

    def _topic_id(self) -> uuid.UUID | None:
        row = part("metadata", 12, "MetadataRequestTopic", topic_id=None, name=self.topic)
        answer = self.client.ask(
            "metadata", 12, topics=(row,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        found: uuid.UUID | None = answer.topics[0].topic_id
        return found or None

    def configure(self, name: str, value: str) -> tuple[int, str | None]:
        config = part("incremental_alter_configs", 1, "AlterableConfig", name=name, config_operation=0, value=value)
        resource = part(
            "incremental_alter_configs", 1, "AlterConfigsResource", resource_type=GROUP_RESOURCE,
            resource_name=self.name, configs=(config,),
        )  # fmt: skip
        answer = self.client.ask("incremental_alter_configs", 1, resources=(resource,), validate_only=False)
        return int(answer.responses[0].error_code), answer.responses[0].error_message

    def ask(self, member: str, epoch: int = 0, **said: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": self.name, "member_id": member, "member_epoch": epoch, "rack_id": None,
            "subscribed_topic_names": (self.topic,) if epoch == 0 else None,
        }  # fmt: skip
        return self.client.ask("share_group_heartbeat", 1, **(values | said))

    def given(self, answer: Any) -> set[int] | None:
        assert answer.error_code == NONE, answer
        if answer.assignment is None:
            return None
        return {one for row in answer.assignment.topic_partitions for one in row.partitions}

    def refused(self, member: str = "x", epoch: int = 0, **said: Any) -> tuple[int, str]:
        answer = self.ask(member, epoch, **said)
        assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
        return int(answer.error_code), answer.error_message

    def member(self) -> Member:
        """One that has joined, and reads the topic's partitions."""
        member, all_of_them = Member(self), set(range(self.partition_count))
        answer = member.join()

        def heartbeat() -> set[int] | None:
            nonlocal answer
            answer = self.ask(member.name, answer.member_epoch, subscribed_topic_names=(self.topic,))
            return self.given(answer)

        if self.given(answer) != all_of_them:
            until(heartbeat, lambda given: given == all_of_them)
        return member

    def produce(self, *counts: int, size: int = 0, partition: int = 0) -> None:
        """Batches of so many records each, of so many bytes at least."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5_000})
        for count in counts:
            for number in range(count):
                producer.produce(self.topic, b"%d" % number + bytes(size), partition=partition)
            assert producer.flush(DEADLINE_S) == 0

    def describe(self) -> Any:
        answer = self.client.ask("share_group_describe", 1, group_ids=(self.name,), include_authorized_operations=False)
        return answer.groups[0]

    def offsets(self, *topics: str, is_all: bool = False) -> Any:
        rows = tuple(
            part(
                "describe_share_group_offsets",
                1,
                "DescribeShareGroupOffsetsRequestTopic",
                topic_name=name,
                partitions=(0,),
            )
            for name in topics
        )
        one = part(
            "describe_share_group_offsets", 1, "DescribeShareGroupOffsetsRequestGroup", group_id=self.name,
            topics=None if is_all else rows,
        )  # fmt: skip
        return self.client.ask("describe_share_group_offsets", 1, groups=(one,)).groups[0]

    def start(self) -> tuple[int, int]:
        """Where it is, and how many records are not done. Apache Kafka tells the start as it was before the last that
        was said."""
        row = self.offsets(self.topic).topics[0].partitions[0]
        assert row.error_code == NONE, row
        return row.start_offset, row.lag

    def lag(self) -> int:
        return self.start()[1]

    def move(self, offset: int, partition: int = 0) -> Any:
        row = part(
            "alter_share_group_offsets",
            0,
            "AlterShareGroupOffsetsRequestPartition",
            partition_index=partition,
            start_offset=offset,
        )
        topic = part(
            "alter_share_group_offsets",
            0,
            "AlterShareGroupOffsetsRequestTopic",
            topic_name=self.topic,
            partitions=(row,),
        )
        return self.client.ask("alter_share_group_offsets", 0, group_id=self.name, topics=(topic,))

    def drop(self, *topics: str) -> Any:
        rows = tuple(
            part("delete_share_group_offsets", 0, "DeleteShareGroupOffsetsRequestTopic", topic_name=one)
            for one in topics
        )
        return self.client.ask("delete_share_group_offsets", 0, group_id=self.name, topics=rows)

    def listed(self) -> list[tuple[str, str, str]]:
        answer = self.client.ask("list_groups", 5, states_filter=(), types_filter=("share",))
        return [
            (one.protocol_type, one.group_state, one.group_type) for one in answer.groups if one.group_id == self.name
        ]

    def leave(self) -> None:
        for member in self.members:
            assert self.ask(member.name, -1).error_code == NONE


@pytest.fixture
def client(bootstrap: str) -> Iterator[ProtocolClient]:
    with ProtocolClient(bootstrap) as connection:
        yield connection


@pytest.fixture
def group(bootstrap: str, client: ProtocolClient) -> Iterator[Group]:
    client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("any",))
    made = Group(bootstrap, client)
    yield made
    for member in made.members:
        member.client.close()


def test_the_feature_is_there(client: ProtocolClient) -> None:
    answer = client.ask("api_versions", 3, client_software_name="tests", client_software_version="1")
    rows = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    has_letters = rows[18][1] >= 5  # as from Apache Kafka 4.4 on
    level = 2 if has_letters else 1
    assert [one.max_version_level for one in answer.finalized_features if one.name == "share.version"] == [level]
    assert [rows[key] for key in (76, 77, 78, 79)] == [(1, 1), (1, 1), (1, 2), (1, 2)]
    assert [rows[key] for key in (90, 91, 92)] == [(0, 1), (0, 0), (0, 0)]


def test_a_member_joins_and_leaves(group: Group) -> None:
    first = group.member()
    answer = first.join()
    assert (answer.member_id, answer.heartbeat_interval) == (first.name, 500 * MS)
    assert group.given(answer) == {0}
    again = group.ask(first.name, answer.member_epoch)
    assert (again.error_code, again.member_epoch, again.assignment) == (NONE, answer.member_epoch, None)
    second = group.member()
    described = group.describe()
    assert (described.error_code, described.group_state, described.assignor_name) == (NONE, "Stable", "simple")
    assert {one.member_id for one in described.members} == {first.name, second.name}
    row = next(one for one in described.members if one.member_id == first.name)
    assert row.subscribed_topic_names == (group.topic,)
    assert [(one.topic_name, one.partitions) for one in row.assignment.topic_partitions] == [(group.topic, (0,))]
    assert group.listed() == [("share", "Stable", "share")]
    gone = group.ask(first.name, -1)
    assert (gone.error_code, gone.member_id, gone.member_epoch) == (NONE, first.name, -1)
    assert group.ask(second.name, -1).error_code == NONE
    assert group.describe().group_state == "Empty"
    assert group.listed() == [("share", "Empty", "share")]


def test_epochs_grow_and_fence(group: Group) -> None:
    answer = group.ask("m")
    epoch = until(lambda: group.ask("m", answer.member_epoch).member_epoch, lambda epoch: epoch > 0)
    assert group.describe().group_epoch == epoch
    assert group.refused("m", epoch + 9) == (
        FENCED_MEMBER_EPOCH,
        (
            f"The share group member has a greater member epoch ({epoch + 9}) than the one known by the group "
            f"coordinator ({epoch}). The member must abandon all its partitions and rejoin."
        ),
    )
    group.ask("n")
    assert group.describe().group_epoch == epoch + 1
    group.ask("n", -1)
    assert group.describe().group_epoch == epoch + 2


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": ()}, "SubscribedTopicNames must be set in first request."),
        ({"epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_malformed_requests(group: Group, said: dict[str, Any], message: str) -> None:
    assert group.refused(**said) == (INVALID_REQUEST, message)


def test_a_member_without_an_id(group: Group) -> None:
    """Apache Kafka gives no reason."""
    code, message = group.refused("")
    assert (code, message or "MemberId can't be empty.") == (INVALID_REQUEST, "MemberId can't be empty.")


def test_unknown_groups_and_members(group: Group) -> None:
    assert group.refused(epoch=5) == (GROUP_ID_NOT_FOUND, f"Share group {group.name} not found.")
    assert group.refused(epoch=-1) == (GROUP_ID_NOT_FOUND, f"Group {group.name} not found.")
    unknown = group.describe()
    assert (unknown.error_code, unknown.error_message) == (GROUP_ID_NOT_FOUND, f"Group {group.name} not found.")
    group.ask("m")
    message = f"Member x is not a member of group {group.name}."
    assert group.refused(epoch=5) == (UNKNOWN_MEMBER_ID, message)
    assert group.refused(epoch=-1) == (UNKNOWN_MEMBER_ID, message)


def test_offsets_of_a_group_that_is_not_there(group: Group) -> None:
    answer = group.offsets(is_all=True)
    assert (answer.error_code, answer.error_message, answer.topics) == (NONE, None, ())
    answer = group.offsets(group.topic, "nope")
    assert (answer.error_code, answer.error_message) == (NONE, None)
    rows = [(topic.topic_name, row.start_offset, row.error_code) for topic in answer.topics for row in topic.partitions]
    assert sorted(rows) == sorted([(group.topic, -1, NONE), ("nope", -1, NONE)])


def test_ids_of_groups_of_other_types(group: Group) -> None:
    group.ask("m")
    answer = group.client.ask(
        "consumer_group_heartbeat", 1, group_id=group.name, member_id="c", member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=30_000 * MS, subscribed_topic_names=(group.topic,), server_assignor=None,
        topic_partitions=(), subscribed_topic_regex=None,
    )  # fmt: skip
    assert answer.error_code == GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Group {group.name} is not a consumer group."
    joining = group.client.ask(
        "join_group", 9, group_id=group.name, session_timeout=10_000 * MS, rebalance_timeout=10_000 * MS,
        member_id="", group_instance_id=None, protocol_type="consumer", reason=None,
        protocols=(part("join_group", 9, "JoinGroupRequestProtocol", name="range", metadata=b""),),
    )  # fmt: skip
    assert joining.error_code == INCONSISTENT_GROUP_PROTOCOL
    other = f"{group.name}-consumer"
    group.client.ask(
        "consumer_group_heartbeat", 1, group_id=other, member_id="c", member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=30_000 * MS, subscribed_topic_names=(group.topic,), server_assignor=None,
        topic_partitions=(), subscribed_topic_regex=None,
    )  # fmt: skip
    assert group.refused(group_id=other) == (GROUP_ID_NOT_FOUND, f"Group {other} is not a share group.")


def test_a_group_that_is_not_there_is_begun_where_somebody_says(group: Group) -> None:
    group.produce(5)
    until(lambda: group.move(3).error_code, lambda code: code == NONE)
    assert group.describe().group_state == "Empty"
    assert group.start()[0] == 3
    other = f"{group.name}-consumer"
    group.client.ask(
        "consumer_group_heartbeat", 1, group_id=other, member_id="c", member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=30_000 * MS, subscribed_topic_names=(group.topic,), server_assignor=None,
        topic_partitions=(), subscribed_topic_regex=None,
    )  # fmt: skip
    group.name = other
    assert group.move(3).error_code == GROUP_ID_NOT_FOUND


def test_records_are_given_once(group: Group) -> None:
    group.produce(3, 4)
    first, second = group.member(), group.member()
    first.take([(0, 6, 1)])
    assert second.acquired() == []
    assert second.told((0, 0, [ACCEPT])) == INVALID_RECORD_STATE
    assert first.told((0, 4, [ACCEPT]), (5, 6, [RELEASE])) == NONE
    second.take([(5, 6, 2)])
    assert first.told((5, 6, [ACCEPT])) == INVALID_RECORD_STATE
    assert second.told((5, 6, [ACCEPT, REJECT])) == NONE
    assert first.acquired() == []
    assert group.lag() == 0


def test_what_is_said_in_a_fetch(group: Group) -> None:
    group.produce(3)
    member = group.member()
    member.take([(0, 2, 1)])
    found = member.acquired((0, 2, [ACCEPT, RELEASE, ACCEPT]))
    if not found:
        member.take([(1, 1, 2)])
    assert found in ([], [(1, 1, 2)])
    assert group.lag() == 1


def test_a_wrong_word_changes_nothing(group: Group) -> None:
    group.produce(4)
    member = group.member()
    member.take([(0, 3, 1)])
    assert member.told((0, 1, [ACCEPT]), (2, 9, [ACCEPT])) == INVALID_REQUEST
    assert member.told((0, 1, [ACCEPT, ACCEPT, ACCEPT])) == INVALID_REQUEST
    assert member.told((0, 1, [9])) == INVALID_REQUEST
    assert member.told((1, 0, [ACCEPT])) == INVALID_REQUEST
    assert member.told((0, 0, [ACCEPT]), (2, 2, [RELEASE])) == NONE
    assert member.told((1, 3, [ACCEPT])) == INVALID_RECORD_STATE
    assert member.told((1, 1, [ACCEPT]), (3, 3, [ACCEPT])) == NONE
    member.take([(2, 2, 2)])


def test_a_record_is_given_up_at_the_limit(group: Group) -> None:
    assert group.configure("share.delivery.count.limit", "2") == (NONE, None)
    group.produce(1, 1)
    member = group.member()
    member.take([(0, 1, 1)])
    assert member.told((0, 0, [RELEASE]), (1, 1, [ACCEPT])) == NONE
    member.take([(0, 0, 2)])
    assert member.told((0, 0, [RELEASE])) == NONE
    assert member.acquired() == []
    assert group.lag() == 0


def test_a_lock_ends(group: Group) -> None:
    assert group.configure("share.record.lock.duration.ms", str(LOCK_MS)) == (NONE, None)
    group.produce(2)
    first, second = group.member(), group.member()
    first.take([(0, 1, 1)])
    second.take([(0, 1, 2)])
    assert first.told((0, 1, [ACCEPT])) == INVALID_RECORD_STATE
    assert second.told((0, 1, [ACCEPT])) == NONE


def test_a_lock_is_renewed(group: Group) -> None:
    """Often: a busy machine may take most of its time."""
    lock_ms = 2 * LOCK_MS
    assert group.configure("share.record.lock.duration.ms", str(lock_ms)) == (NONE, None)
    group.produce(1)
    first, second = group.member(), group.member()
    first.take([(0, 0, 1)])
    began = time.monotonic()
    while time.monotonic() < began + 2.5 * lock_ms / 1000:
        assert first.told((0, 0, [RENEW]), is_renewal=True) == NONE
        assert second.acquired(max_wait=lock_ms // 20 * MS) == []
    assert first.told((0, 0, [RENEW])) == INVALID_REQUEST
    assert first.told((0, 0, [ACCEPT])) == NONE


def test_a_session_that_closes_gives_back(group: Group) -> None:
    group.produce(2)
    first, second = group.member(), group.member()
    first.take([(0, 1, 1)])
    assert first.acknowledge((0, 0, [ACCEPT]), epoch=-1).error_code == NONE
    second.take([(1, 1, 2)])
    assert first.acknowledge((1, 1, [ACCEPT])).error_code == SHARE_SESSION_NOT_FOUND


def test_a_connection_that_ends_gives_back(group: Group) -> None:
    """At once, and not when the locks end."""
    group.produce(2)
    first, second = group.member(), group.member()
    first.take([(0, 1, 1)])
    first.client.close()
    second.take([(0, 1, 2)])


def test_sessions(group: Group) -> None:
    group.produce(1)
    member = group.member()
    assert member.fetch(epoch=1).error_code == SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=1).error_code == SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=-1).error_code == SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0).error_code == INVALID_SHARE_SESSION_EPOCH
    assert member.fetch((0, 0, [ACCEPT]), epoch=0).error_code == INVALID_REQUEST
    member.take([(0, 0, 1)])
    assert member.fetch(epoch=member.epoch + 1).error_code == INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=member.epoch - 1).error_code == INVALID_SHARE_SESSION_EPOCH
    assert member.told((0, 0, [ACCEPT])) == NONE


@pytest.mark.parametrize("topic_id", [pytest.param(None, id="zeros"), uuid.UUID(int=7)])
def test_a_topic_that_is_not_there(group: Group, topic_id: uuid.UUID | None) -> None:
    """Zeros, which are None here, are an id as well. Apache Kafka answers a fetch with UNKNOWN_SERVER_ERROR."""
    group.produce(1)
    member = group.member()
    member.take([(0, 0, 1)])
    group.topic_id, there = topic_id, group.topic_id
    (topic,) = member.acknowledge((0, 0, [ACCEPT])).responses
    assert (topic.topic_id, topic.partitions[0].error_code) == (topic_id, UNKNOWN_TOPIC_ID)
    answer = member.fetch((0, 0, [ACCEPT]))
    if answer.error_code != UNKNOWN_SERVER_ERROR:
        (row,) = [topic.partitions[0] for topic in answer.responses if topic.topic_id == topic_id]
        assert (row.error_code, row.acknowledge_error_code) == (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_ID)
        group.topic_id = there
        assert member.told((0, 0, [ACCEPT])) == NONE


def test_a_fetch_that_renews_takes_no_more(group: Group) -> None:
    group.produce(2)
    member = group.member()
    member.take([(0, 1, 1)])
    assert member.fetch((0, 0, [RENEW]), is_renew_ack=True).error_code == INVALID_REQUEST
    none = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "is_renew_ack": True}
    assert member.acquired((0, 0, [RENEW]), **none) == []


def test_a_fetch_waits(group: Group) -> None:
    member = group.member()
    assert member.acquired() == []
    began = time.monotonic()
    assert member.acquired(max_wait=300 * MS) == []
    assert time.monotonic() - began >= 0.3
    member.client.send("share_fetch", _fetch_request(member))
    group.produce(1)
    _, answer = protocol.decode_answer("share_fetch", 2, member.client.receive())
    assert [(one.first_offset, one.last_offset) for one in answer.responses[0].partitions[0].acquired_records] == [
        (0, 0)
    ]


def test_a_fetch_waits_for_so_many_bytes(group: Group) -> None:
    """Or until its time is over: it is given what there is, then."""
    member = group.member()
    assert member.acquired(max_wait=300 * MS) == []
    group.produce(1)
    began = time.monotonic()
    assert member.acquired(max_wait=300 * MS, min_bytes=1_000) == [(0, 0, 1)]
    assert time.monotonic() - began >= 0.3
    member.client.send("share_fetch", _fetch_request(member, min_bytes=1_000))
    group.produce(1)
    group.produce(1, size=1_000)
    _, answer = protocol.decode_answer("share_fetch", 2, member.client.receive())
    found = answer.responses[0].partitions[0].acquired_records
    assert [(one.first_offset, one.last_offset) for one in found] == [(1, 2)]


def _fetch_request(member: Member, min_bytes: int = 1) -> Any:
    from keylane.wire.versions import request_type

    return request_type("share_fetch", 2)(
        group_id=member.group.name, member_id=member.name, topics=(), share_session_epoch=member.epoch,
        max_wait=20_000 * MS, min_bytes=min_bytes, max_bytes=1_000_000, max_records=100, batch_size=100,
        share_acquire_mode=0, is_renew_ack=False, forgotten_topics_data=(),
    )  # fmt: skip


def test_how_many_records_a_fetch_takes(group: Group) -> None:
    group.produce(5, 5)
    strict, loose = group.member(), group.member()
    strict.take([(0, 2, 1)], max_records=3, share_acquire_mode=1)
    assert loose.acquired(max_records=1) == [(3, 4, 1)]
    assert loose.acquired(max_records=1) == [(5, 9, 1)]


def test_how_many_bytes_a_fetch_takes(group: Group) -> None:
    """One batch at least."""
    member = group.member()
    assert member.acquired(max_wait=300 * MS) == []
    group.produce(1, 1, 1, size=1_000)
    assert member.acquired(max_wait=500 * MS, max_bytes=2_500) == [(0, 1, 1)]
    assert member.acquired(max_wait=500 * MS, max_bytes=10) == [(2, 2, 1)]


def test_partitions_share_what_a_fetch_takes(bootstrap: str, client: ProtocolClient) -> None:
    """Bytes in equal parts, and records as they come."""
    group = Group(bootstrap, client, partition_count=2)
    member = group.member()
    with member.client:
        assert member.runs(max_wait=300 * MS) == {}
        for partition in range(2):
            group.produce(1, 1, 1, 1, size=1_000, partition=partition)
        assert member.runs(max_bytes=2_500) == {0: [(0, 0, 1)], 1: [(0, 0, 1)]}
        (alone,) = member.runs(max_bytes=1_500).values()
        assert alone == [(1, 1, 1)]
        (alone,) = member.runs(max_records=1).values()
        assert len(alone) == 1
        assert alone[0][0] == alone[0][1]


def test_runs_end_with_a_batch_at_so_many_records(group: Group) -> None:
    """Of those that a strict fetch is given there is one, whatever it asks for."""
    member = group.member()
    assert member.acquired(max_wait=300 * MS) == []
    group.produce(4, 3, 3, 2)
    assert member.runs(max_wait=500 * MS, batch_size=5) == {0: [(0, 6, 1), (7, 11, 1)]}
    group.produce(2, 2)
    assert member.runs(max_wait=500 * MS, batch_size=100) == {0: [(12, 15, 1)]}
    group.produce(2, 2)
    assert member.runs(max_wait=500 * MS, batch_size=2, share_acquire_mode=1) == {0: [(16, 19, 1)]}


def test_at_most_so_many_records_are_in_flight(group: Group) -> None:
    assert group.configure("share.partition.max.record.locks", "100") == (NONE, None)
    group.produce(60, 60, 30)
    member = group.member()
    member.take([(0, 119, 1)], max_records=1_000)
    assert member.acquired(max_records=1_000) == []
    assert member.told((0, 59, [ACCEPT])) == NONE
    member.take([(120, 149, 1)], max_records=1_000)


def test_records_of_transactions(group: Group, bootstrap: str) -> None:
    assert group.configure("share.isolation.level", "read_committed") == (NONE, None)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group.name, "linger.ms": 5_000})
    producer.init_transactions(DEADLINE_S)
    member = group.member()
    assert member.acquired() == []
    for is_kept in (True, False, True):
        producer.begin_transaction()
        producer.produce(group.topic, b"1", partition=0)
        producer.produce(group.topic, b"2", partition=0)
        producer.flush(DEADLINE_S)
        if is_kept:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    found: set[int] = set()

    def more() -> set[int]:
        for first, last, _ in member.acquired(max_wait=200 * MS):
            found.update(range(first, last + 1))
        return found

    until(more, lambda found: {0, 1, 6, 7} <= found)
    assert not {3, 4} & found


def test_a_group_begins_at_the_end_by_default(group: Group) -> None:
    assert group.configure("share.auto.offset.reset", "latest") == (NONE, None)
    group.produce(3)
    member = group.member()
    assert member.acquired() == []
    until(lambda: member.acquired(max_wait=100 * MS), lambda found: found == [])
    group.produce(1)
    member.take([(3, 3, 1)])


def test_a_group_begins_some_time_back(group: Group) -> None:
    assert group.configure("share.auto.offset.reset", "by_duration:PT1H") == (NONE, None)
    group.produce(3)
    group.member().take([(0, 2, 1)])


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        ("share.auto.offset.reset", "by_duration:PT1H", True),
        ("share.auto.offset.reset", "by_duration:soon", False),
        ("share.auto.offset.reset", "never", False),
        ("share.isolation.level", "read_committed", True),
        ("share.isolation.level", "some", False),
        ("share.record.lock.duration.ms", "20000", True),
        ("share.record.lock.duration.ms", "999", False),
        ("share.session.timeout.ms", "1", False),
        ("share.delivery.count.limit", "11", False),
        ("share.renew.acknowledge.enable", "maybe", False),
        ("share.unknown", "1", False),
    ],
)
def test_configs(group: Group, name: str, value: str, is_taken: bool) -> None:
    assert group.configure(name, value)[0] == (NONE if is_taken else INVALID_CONFIG)


def test_where_a_group_is(group: Group) -> None:
    group.produce(4)
    member = group.member()
    member.take([(0, 3, 1)])
    assert member.told((0, 0, [ACCEPT]), (2, 2, [ACCEPT])) == NONE
    assert group.lag() == 2
    found = group.offsets(is_all=True)
    assert [(one.topic_name, [row.start_offset for row in one.partitions]) for one in found.topics] in (
        [(group.topic, [0])],
        [(group.topic, [1])],
    )
    assert group.move(0).error_code == NON_EMPTY_GROUP
    assert group.drop(group.topic).error_code == NON_EMPTY_GROUP
    group.leave()
    dropped = group.drop(group.topic, "nowhere")
    assert [one.error_code for one in dropped.responses] == [NONE, UNKNOWN_TOPIC_OR_PARTITION]
    assert group.offsets(is_all=True).topics == ()


def test_a_group_is_moved(group: Group) -> None:
    group.produce(4)
    group.member()
    group.leave()
    moved = group.move(1)
    assert (moved.error_code, moved.responses[0].partitions[0].error_code) == (NONE, NONE)
    assert group.move(1, partition=7).responses[0].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert group.start() == (1, 3)
    group.member().take([(1, 3, 1)])


def test_what_is_written(group: Group, bootstrap: str) -> None:
    """The records of the group, byte for byte; and Apache Kafka's records of where it is can be read here."""
    group.produce(3)
    member = group.member()
    member.take([(0, 2, 1)])
    assert member.told((1, 1, [ACCEPT])) == NONE
    group.leave()
    found = []
    for key, value in read_topic(
        bootstrap, "__consumer_offsets", partition_for(group.name, offsets_partitions(bootstrap))
    ):
        decoded = decode(key, value)
        if decoded is not None and decoded[0] == group.name:
            found.append((decoded[1], (key, value)))
    assert {record.kind for record, _ in found} == TYPES
    topics = [one for one in found if one[0].kind == TOPICS]
    for record, raw in [one for one in found if one[0].kind != TOPICS] + topics[-1:]:
        assert encode(group.name, record) == raw, record
    placed = topics[-1][0].value
    assert isinstance(placed, Topics)
    assert group.topic_id is not None
    assert placed.by_id == {group.topic_id: PlacedTopic(group.topic, frozenset({0}))}
    if "__share_group_state" in topic_names(bootstrap):
        states = [
            decode_state(value)
            for index in range(2)
            for key, value in read_topic(bootstrap, "__share_group_state", index)
            if key[:2] == b"\0\0" and value and decode_state_key(key) == Place(group.name, group.topic_id, 0)
        ]
        assert states[0].start == NOT_BEGUN


def topic_names(bootstrap: str) -> set[str]:
    return set(Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"}).list_topics(timeout=DEADLINE_S).topics)


def offsets_partitions(bootstrap: str) -> int:
    topics = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"}).list_topics(timeout=DEADLINE_S).topics
    return len(topics["__consumer_offsets"].partitions)


def read_topic(bootstrap: str, topic: str, partition: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of all that there is."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        yield key, value
    consumer.close()


def test_a_group_is_deleted(group: Group) -> None:
    def delete() -> int:
        return int(group.client.ask("delete_groups", 2, groups_names=(group.name,)).results[0].error_code)

    member = group.member()
    assert delete() == NON_EMPTY_GROUP
    assert group.ask(member.name, -1).error_code == NONE
    assert delete() == NONE
    assert group.describe().error_code == GROUP_ID_NOT_FOUND
    assert delete() == GROUP_ID_NOT_FOUND
