"""Consumer groups of real clients: sharing, rebalances, static members, and a broker that is killed under them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 6
DEADLINE_S = 30.0
EVERYTHING = set(range(PARTITIONS))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that a test may kill."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def make_topic(broker: BrokerProcess, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(DEADLINE_S)
    return name


def produce(broker: BrokerProcess, topic: str, each: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(each * PARTITIONS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


class Member:
    """A consumer that notes what it is told."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, **settings: Any) -> None:
        self._is_static = "group_instance_id" in settings
        self.revoked: list[int] = []
        self.lost: list[int] = []
        self.fatal: KafkaError | None = None
        self.seen: dict[int, int] = {}
        """By partition: the offset behind the last record."""
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
            | {name.replace("_", "."): value for name, value in settings.items()}
        )
        self.consumer.subscribe([topic], on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += (partition.partition for partition in partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost += (partition.partition for partition in partitions)

    @property
    def owned(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is None:
            return
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._FATAL:
                self.fatal = error
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.seen[partition] = offset + 1

    def close(self) -> None:
        """Gives everything back first, unless that would end a static membership: a revocation that librdkafka finds
        while it closes may wait for ever (https://github.com/confluentinc/librdkafka/issues/4884)."""
        if not self._is_static:
            self.consumer.unsubscribe()
            poll_until([self], lambda: not self.owned)
        self.consumer.close()


def poll_until(members: list[Member], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, [(member.owned, member.seen) for member in members]
        for member in members:
            member.poll()


def is_shared(members: list[Member]) -> bool:
    """Every partition has one owner, and every member has some."""
    owned = [partition for member in members for partition in member.owned]
    return len(owned) == PARTITIONS and set(owned) == EVERYTHING and all(member.owned for member in members)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go(shared: BrokerProcess, strategy: str) -> None:
    topic = make_topic(shared, f"come-and-go-{strategy}")
    produce(shared, topic, 5)
    settings = {"partition_assignment_strategy": strategy}
    members = [Member(shared, topic, topic, **settings)]
    for count in (1, 2, 3):
        if count > 1:
            members.append(Member(shared, topic, topic, **settings))
        poll_until(members, lambda: is_shared(members))
    poll_until(members, lambda: {p for member in members for p in member.seen} == EVERYTHING)
    if strategy == "cooperative-sticky":
        assert len(members[0].revoked) < PARTITIONS, "the first member kept what it could"
    else:
        assert set(members[0].revoked) >= EVERYTHING, "every rebalance begins with nothing"
    gone = members.pop(0)
    gone.close()
    poll_until(members, lambda: is_shared(members))
    for member in members:
        assert not member.lost
        member.close()


def test_a_static_member_that_restarts_rebalances_nobody(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "static")
    first = Member(shared, topic, topic, group_instance_id="one")
    second = Member(shared, topic, topic, group_instance_id="two")
    members = [first, second]
    poll_until(members, lambda: is_shared(members))
    before = second.owned
    kept = first.owned
    first.revoked.clear()
    second.close()
    second = Member(shared, topic, topic, group_instance_id="two")
    members = [first, second]
    poll_until(members, lambda: bool(second.owned))
    assert second.owned == before
    assert (first.owned, first.revoked, first.lost) == (kept, [], [])
    for member in members:
        member.close()


def test_two_members_with_one_instance_id(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "fenced")
    first = Member(shared, topic, topic, group_instance_id="one")
    poll_until([first], lambda: first.owned == EVERYTHING)
    second = Member(shared, topic, topic, group_instance_id="one")
    poll_until([first, second], lambda: second.owned == EVERYTHING and first.fatal is not None)
    assert first.fatal is not None
    assert "same group.instance.id" in first.fatal.str()
    first.close()
    second.close()


def test_a_group_survives_the_death_of_its_broker(own: BrokerProcess) -> None:
    """Commits through three SIGKILLs: none that was acknowledged is lost, and the members stay members."""
    topic = make_topic(own, "survives")
    produce(own, topic, 5)
    # No member is polled while the broker restarts three times, so its session must outlive that on a busy machine.
    members = [Member(own, "survivors", topic, session_timeout_ms=45_000) for _ in range(2)]
    poll_until(members, lambda: is_shared(members))
    owners = [member.owned for member in members]
    for member in members:
        member.revoked.clear()
    acknowledged: dict[int, int] = {}
    for life in range(3):
        for number in range(20):
            for member in members:
                wanted = [
                    TopicPartition(topic, p, life * 100 + number, metadata=f"map-{life}-{number}") for p in member.owned
                ]
                for row in member.consumer.commit(offsets=wanted, asynchronous=False):
                    assert row.error is None
                    acknowledged[row.partition] = row.offset
        own.restart()
        for member in members:
            rows = member.consumer.committed([TopicPartition(topic, p) for p in member.owned], DEADLINE_S)
            assert {row.partition: row.offset for row in rows} == {p: acknowledged[p] for p in member.owned}
            assert {row.metadata for row in rows} == {f"map-{life}-19"}
    assert acknowledged == dict.fromkeys(EVERYTHING, 219)
    assert [member.owned for member in members] == owners
    assert [(member.revoked, member.lost) for member in members] == [([], []), ([], [])]
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    described = admin.describe_consumer_groups(["survivors"])["survivors"].result(DEADLINE_S)
    assert described.state == ConsumerGroupState.STABLE
    for member in members:
        member.close()


def test_a_rebalance_goes_on_after_the_death_of_its_broker(own: BrokerProcess) -> None:
    topic = make_topic(own, "goes-on")
    produce(own, topic, 3)
    members = [Member(own, "group", topic)]
    poll_until(members, lambda: is_shared(members))
    members.append(Member(own, "group", topic))
    own.restart()
    members.append(Member(own, "group", topic))
    poll_until(members, lambda: is_shared(members))
    poll_until(members, lambda: {p for member in members for p in member.seen} == EVERYTHING)
    for member in members:
        member.close()


def test_the_admin_client(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "administered")
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    member = Member(shared, "managed", topic, client_id="the-client")
    poll_until([member], lambda: member.owned == EVERYTHING)
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(DEADLINE_S)
    assert not listed.errors
    assert "managed" in {row.group_id for row in listed.valid}
    group = admin.describe_consumer_groups(["managed"])["managed"].result(DEADLINE_S)
    assert (group.state, group.partition_assignor, group.is_simple_consumer_group) == (
        ConsumerGroupState.STABLE,
        "range",
        False,
    )
    (only,) = group.members
    assert (only.client_id, only.host) == ("the-client", "/127.0.0.1")
    assert {row.partition for row in only.assignment.topic_partitions} == EVERYTHING

    request = ConsumerGroupTopicPartitions("managed", [TopicPartition(topic, 1, 42)])
    altered = admin.alter_consumer_group_offsets([request])["managed"].result(DEADLINE_S)
    refused = altered.topic_partitions[0].error
    assert refused.code() == KafkaError.UNKNOWN_MEMBER_ID, "only its members commit for a live group"
    member.close()

    altered = admin.alter_consumer_group_offsets([request])["managed"].result(DEADLINE_S)
    assert altered.topic_partitions[0].error is None
    listing = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("managed")])["managed"].result(DEADLINE_S)
    assert [(row.partition, row.offset) for row in listing.topic_partitions] == [(1, 42)]
    assert admin.describe_consumer_groups(["managed"])["managed"].result(DEADLINE_S).state == ConsumerGroupState.EMPTY


def test_groups_and_offsets_are_deleted_by_clients(shared: BrokerProcess) -> None:
    """confluent-kafka and kafka-python; the Java tool is in tests/interop."""
    topic = make_topic(shared, "deleted-by-clients")
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    for group in ("by-confluent", "by-python"):
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p, 5) for p in range(3)])
        admin.alter_consumer_group_offsets([request])[group].result(DEADLINE_S)
    assert admin.delete_consumer_groups(["by-confluent"])["by-confluent"].result(DEADLINE_S) is None
    with pytest.raises(KafkaException) as raised:
        admin.delete_consumer_groups(["by-confluent"])["by-confluent"].result(DEADLINE_S)
    assert raised.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
    member = Member(shared, "by-confluent", topic)
    poll_until([member], lambda: member.owned == EVERYTHING)
    with pytest.raises(KafkaException) as raised:
        admin.delete_consumer_groups(["by-confluent"])["by-confluent"].result(DEADLINE_S)
    assert raised.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()

    kafka = pytest.importorskip("kafka")
    other = kafka.KafkaAdminClient(bootstrap_servers=shared.bootstrap)
    names = [kafka.TopicPartition(topic, partition) for partition in range(3)]
    other.delete_group_offsets("by-python", names[:2])
    assert {name: row.offset for name, row in other.list_group_offsets({"by-python": names})["by-python"].items()} == {
        names[0]: -1,
        names[1]: -1,
        names[2]: 5,
    }
    other.delete_groups(["by-python"])
    assert "by-python" not in {row.group_id for row in admin.list_consumer_groups().result(DEADLINE_S).valid}
    other.close()


def test_a_group_reads_the_offsets_topic(shared: BrokerProcess) -> None:
    """And commits what it has read of it, like of any topic."""
    topic = make_topic(shared, "read-about")
    writer = Member(shared, "written-about", topic)
    poll_until([writer], lambda: writer.owned == EVERYTHING)
    writer.consumer.commit(offsets=[TopicPartition(topic, 1, 42)], asynchronous=False)
    reader = Member(shared, "readers", "__consumer_offsets")
    poll_until([reader], lambda: bool(reader.seen))
    rows = reader.consumer.commit(
        offsets=[TopicPartition("__consumer_offsets", p, end) for p, end in reader.seen.items()], asynchronous=False
    )
    assert [row.error for row in rows] == [None] * len(reader.seen)
    reader.close()
    writer.close()
