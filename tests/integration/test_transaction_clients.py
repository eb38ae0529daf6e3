"""Transactions of real clients: whole or not at all, offsets with them, fenced zombies, timeouts, through SIGKILL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that a test may kill."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


def make_topic(broker: BrokerProcess, name: str, partitions: int = 2) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(TIMEOUT_S)
    return name


def producer_of(broker: BrokerProcess, transactional_id: str, **settings: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
        }
        | settings
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[tuple[int, int, bytes]]:
    """Everything up to the end that a consumer of this isolation sees, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[tuple[int, int, bytes]] = []
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"no end of {topic} in {TIMEOUT_S} s"
        error = message.error()
        if error is None:
            found.append((message.partition() or 0, message.offset() or 0, message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return sorted(found)


def values(rows: list[tuple[int, int, bytes]]) -> list[bytes]:
    return sorted(value for _, _, value in rows)


def test_committed_records_are_read_and_aborted_ones_are_not(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "mixed")
    producer = producer_of(shared, "mixed")
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"%d" % number, partition=partition)
        if number % 2:
            producer.flush(TIMEOUT_S)  # else they never reach the broker
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    assert values(read(shared, topic)) == sorted([b"0", b"2", b"4"] * 2)
    assert values(read(shared, topic, "read_uncommitted")) == sorted(
        b"%d" % number for number in (*range(6), *range(6))
    )


def test_readers_of_committed_records_stop_at_an_open_transaction(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "open", 1)
    plain = Producer({"bootstrap.servers": shared.bootstrap, "linger.ms": 0})
    plain.produce(topic, b"before", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    producer = producer_of(shared, "open")
    producer.begin_transaction()
    producer.produce(topic, b"inside", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    plain.produce(topic, b"after", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    assert values(read(shared, topic)) == [b"before"]
    assert values(read(shared, topic, "read_uncommitted")) == [b"after", b"before", b"inside"]
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    for isolation, end in ((IsolationLevel.READ_COMMITTED, 1), (IsolationLevel.READ_UNCOMMITTED, 3)):
        assert end_of(admin, topic, isolation) == end
    producer.commit_transaction(TIMEOUT_S)
    assert values(read(shared, topic)) == [b"after", b"before", b"inside"]


def end_of(admin: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    (future,) = admin.list_offsets({TopicPartition(topic, 0): latest}, isolation_level=isolation).values()
    offset: int = future.result(TIMEOUT_S).offset
    return offset


def member_of(broker: BrokerProcess, group: str, topic: str) -> Consumer:
    """A consumer with an assignment."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_go_with_the_transaction_and_keep_their_metadata(shared: BrokerProcess, committed: bool) -> None:
    topic = make_topic(shared, f"offsets-{committed}")
    group = f"group-{committed}"
    consumer = member_of(shared, group, topic)
    producer = producer_of(shared, f"offsets-{committed}")
    producer.begin_transaction()
    producer.produce(topic, b"out", partition=0)
    offsets = [TopicPartition(topic, 0, 5, "bAAGNgA="), TopicPartition(topic, 1, 7)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    assert offsets_of(admin, group) == {}, "nothing before the end of the transaction"
    (future,) = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])], require_stable=True, request_timeout=1
    ).values()
    (unstable,) = future.result(TIMEOUT_S).topic_partitions
    assert unstable.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    if committed:
        producer.commit_transaction(TIMEOUT_S)
        committed_now = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], TIMEOUT_S)
        assert [(one.offset, one.metadata) for one in committed_now] == [(5, "bAAGNgA="), (7, None)]
    else:
        producer.abort_transaction(TIMEOUT_S)
        committed_now = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        assert committed_now[0].offset < 0
    consumer.close()


def offsets_of(admin: AdminClient, group: str) -> dict[int, int]:
    """What the group has committed, unstable or not."""
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {one.partition: one.offset for one in future.result(TIMEOUT_S).topic_partitions}


def test_offsets_of_an_earlier_generation_are_refused(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "generations")
    first = member_of(shared, "generations", topic)
    stale = first.consumer_group_metadata()
    first.close()
    second = member_of(shared, "generations", topic)
    producer = producer_of(shared, "generations")
    producer.begin_transaction()
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], stale, TIMEOUT_S)
    error = caught.value.args[0]
    assert error.txn_requires_abort(), error
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 6)], second.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert second.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset == 6
    second.close()


def test_a_zombie_is_fenced(shared: BrokerProcess) -> None:
    topic = make_topic(shared, "zombies", 1)
    zombie = producer_of(shared, "zombies")
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    assert zombie.flush(TIMEOUT_S) == 0
    successor = producer_of(shared, "zombies")
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError._FENCED
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=0)
    successor.commit_transaction(TIMEOUT_S)
    assert values(read(shared, topic)) == [b"successor"]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(own: BrokerProcess) -> None:
    topic = make_topic(own, "slow", 1)
    producer = producer_of(own, "slow", **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, b"slow", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    while end_of(admin, topic, IsolationLevel.READ_COMMITTED) != 2:  # the record and its marker
        pass
    assert read(own, topic) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)


def test_open_prepared_and_complete_transactions_live_through_a_kill(own: BrokerProcess) -> None:
    topic = make_topic(own, "killed", 2)
    done, going = producer_of(own, "done"), producer_of(own, "going")
    done.begin_transaction()
    done.produce(topic, b"done", partition=0)
    going.begin_transaction()
    going.produce(topic, b"going", partition=0)
    assert going.flush(TIMEOUT_S) == 0
    done.commit_transaction(TIMEOUT_S)  # answered when it is decided: its markers may or may not be there yet
    own.restart()
    # `done` stands before `going` or after it; what stands after is not shown while `going` is open.
    assert values(read(own, topic)) in ([b"done"], [])
    going.produce(topic, b"going on", partition=1)
    going.commit_transaction(TIMEOUT_S)
    assert values(read(own, topic)) == [b"done", b"going", b"going on"]
    own.restart()
    done.begin_transaction()
    done.produce(topic, b"again", partition=1)
    done.commit_transaction(TIMEOUT_S)
    assert values(read(own, topic)) == [b"again", b"done", b"going", b"going on"]


def test_the_admin_client_describes_the_cluster(shared: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert [(node.host, node.port) for node in cluster.nodes] == [(shared.host, shared.port)]
    assert cluster.controller.id == cluster.nodes[0].id
