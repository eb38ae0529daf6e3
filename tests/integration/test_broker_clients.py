"""confluent-kafka against the broker: what an application sees, also when the broker is killed under it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from keylane.broker.process import BrokerProcess
from kit.processes import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    create(admin, name, 3)
    return name


def create(admin: AdminClient, name: str, partitions: int, **config: str) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(TIMEOUT_S)


def consumer(broker: BrokerProcess, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def read_all(broker: BrokerProcess, topic: str, partitions: int) -> dict[int, list[Message]]:
    """Every record of a topic, by partition, up to its end now."""
    reader = consumer(broker, fetch_wait_max_ms=50)
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[Message]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{sorted(ended)} of {partitions} partitions ended"
        for message in reader.consume(1_000, 0.1):
            error = message.error()
            if error is None:
                found[partition_of(message)].append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition_of(message))
    reader.close()
    return found


def partition_of(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_is_consumed(broker: BrokerProcess, topic: str, codec: str, idempotent: bool) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "enable.idempotence": idempotent}
    )
    sent: dict[int, list[Any]] = {}
    for number in range(500):
        key, value = b"key-%d" % (number % 7), b"%d" % number * (number % 50)
        headers: list[tuple[str, str | bytes | None]] = [("number", b"%d" % number), ("empty", None)]
        producer.produce(
            topic, key=key, value=value, partition=number % 3, timestamp=1_000_000 + number, headers=headers
        )
        sent.setdefault(number % 3, []).append((key, value, headers, 1_000_000 + number))
    assert producer.flush(TIMEOUT_S) == 0
    found = {
        partition: [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in messages]
        for partition, messages in read_all(broker, topic, 3).items()
    }
    assert found == sent


def test_a_waiting_consumer_gets_a_record_at_once(broker: BrokerProcess, topic: str) -> None:
    reader = consumer(broker, fetch_wait_max_ms=30_000, enable_partition_eof=False)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert reader.poll(0.5) is None  # its fetch is waiting by now
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    producer.produce(topic, b"now", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    watch = Stopwatch()
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"now"
    assert watch.took_s() < 5
    reader.close()


def test_watermarks_and_offsets_by_time(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(topic, b"x", partition=1, timestamp=5_000 + 10 * number)
    assert producer.flush(TIMEOUT_S) == 0
    reader = consumer(broker)
    assert reader.get_watermark_offsets(TopicPartition(topic, 1), timeout=TIMEOUT_S) == (0, 10)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 0)
    (found,) = reader.offsets_for_times([TopicPartition(topic, 1, 5_041)], timeout=TIMEOUT_S)
    assert found.offset == 5
    reader.close()


def test_topics_are_made_on_first_use_or_not(broker: BrokerProcess, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("made-on-first-use", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    settings = {"auto.create.topics.enable": "false", "num.partitions": "4"}
    with BrokerProcess(tmp_path / "strict", settings=settings) as strict:
        metadata = AdminClient({"bootstrap.servers": strict.bootstrap}).list_topics("unknown", timeout=TIMEOUT_S)
        assert metadata.topics["unknown"].error == KafkaError.UNKNOWN_TOPIC_OR_PART
        admin = AdminClient({"bootstrap.servers": strict.bootstrap})
        admin.create_topics([NewTopic("defaults")])["defaults"].result(TIMEOUT_S)
        assert len(admin.list_topics("defaults", timeout=TIMEOUT_S).topics["defaults"].partitions) == 4


def test_topics_grow(broker: BrokerProcess, admin: AdminClient) -> None:
    def grow(name: str, count: int, **options: bool) -> None:
        admin.create_partitions([NewPartitions(name, count)], **options)[name].result(TIMEOUT_S)

    def count(name: str) -> int:
        return len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)

    create(admin, "growing", 1)
    grow("growing", 3, validate_only=True)
    assert count("growing") == 1
    grow("growing", 3)
    assert count("growing") == 3
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("growing", b"in a new partition", partition=2)
    assert producer.flush(TIMEOUT_S) == 0
    reader = consumer(broker)
    reader.assign([TopicPartition("growing", 2, OFFSET_BEGINNING)])
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"in a new partition"
    reader.close()
    for wrong in (3, 2, 10_001):
        with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
            grow("growing", wrong)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        grow("nobody", 2)


def test_admin_errors_say_what_to_do(admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException, match=r"Unknown topic config name: flush\.second"):
        create(admin, "refused", 1, **{"flush.second": "5"})
    with pytest.raises(KafkaException, match="already exists"):
        create(admin, topic, 1)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.delete_topics(["nobody"])["nobody"].result(TIMEOUT_S)


def test_deleting_a_topic_ends_its_offsets_in_every_group(broker: BrokerProcess, admin: AdminClient) -> None:
    create(admin, "short-lived", 2)
    member = consumer(broker, group_id="group-of-short-lived")
    offsets = [TopicPartition("short-lived", 0, 11), TopicPartition("short-lived", 1, 12)]
    member.commit(offsets=offsets, asynchronous=False)
    assert [p.offset for p in member.committed(offsets, TIMEOUT_S)] == [11, 12]
    admin.delete_topics(["short-lived"])["short-lived"].result(TIMEOUT_S)
    create(admin, "short-lived", 2)
    assert [p.offset for p in member.committed(offsets, TIMEOUT_S)] == [-1001, -1001]
    broker.restart()
    assert [p.offset for p in member.committed(offsets, TIMEOUT_S)] == [-1001, -1001]
    member.close()


def test_offsets_of_what_does_not_exist_are_unknown_at_once(broker: BrokerProcess, topic: str) -> None:
    member = consumer(broker, group_id="asks-for-nothing")
    watch = Stopwatch()
    asked = [TopicPartition("no-such-topic", 0), TopicPartition(topic, 99), TopicPartition(topic, 0)]
    assert [p.offset for p in member.committed(asked, TIMEOUT_S)] == [-1001, -1001, -1001]
    assert watch.took_s() < TIMEOUT_S / 2
    member.close()


def test_the_offsets_topic_can_be_read(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    member = consumer(broker, group_id="read-back")
    member.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    member.close()
    assert len(admin.list_topics("__consumer_offsets", timeout=TIMEOUT_S).topics["__consumer_offsets"].partitions) == 50
    records = [m for messages in read_all(broker, "__consumer_offsets", 50).values() for m in messages]
    keys = [m.key() for m in records]
    assert b"\0\1\0\x09read-back" + len(topic).to_bytes(2, "big") + topic.encode() + bytes(4) in keys


def produce_over_kills(broker: BrokerProcess, topic: str, partitions: int, kills: int) -> dict[int, dict[int, bytes]]:
    """Produce, kill the broker in the middle, start it again, produce on; what was acknowledged, by offset."""
    acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in range(partitions)}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        acknowledged[partition_of(message)][offset] = value

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 20}
    )
    total = 0
    for kill in range(1, kills + 1):
        while sum(map(len, acknowledged.values())) < 500 * kill:
            if len(producer) < 200:
                producer.produce(topic, b"%d" % total, partition=total % partitions, on_delivery=delivered)
                total += 1
            producer.poll(0 if len(producer) < 200 else 0.01)
        broker.kill()
        broker.start()
    assert producer.flush(TIMEOUT_S) == 0
    assert sum(map(len, acknowledged.values())) == total
    return acknowledged


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_what_was_acknowledged_survives_kills_once_and_in_order(broker: BrokerProcess, topic: str, kills: int) -> None:
    acknowledged = produce_over_kills(broker, topic, 3, kills)
    for partition, messages in read_all(broker, topic, 3).items():
        assert {m.offset(): m.value() for m in messages} == acknowledged[partition], "nothing lost, nothing twice"
        values = [int(m.value() or b"") for m in messages]
        assert values == sorted(values)
        assert [m.offset() for m in messages] == list(range(len(messages)))
    reader = consumer(broker)
    for partition, found in acknowledged.items():
        assert reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S) == (0, len(found))
    reader.close()


def test_a_clean_restart_keeps_everything(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"log.segment.bytes": "4096"}) as broker:
        create(AdminClient({"bootstrap.servers": broker.bootstrap}), "t", 1)
        for start in (0, 300):
            producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 10})
            for number in range(start, start + 300):
                producer.produce("t", b"%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
            assert broker.terminate() == 0
            broker.start()
        assert [int(m.value() or b"") for m in read_all(broker, "t", 1)[0]] == list(range(600))


def test_a_group_shares_partitions_and_goes_on_after_a_kill(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(3_000):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(TIMEOUT_S) == 0
    settings = {"group_id": "kill-group", "auto_offset_reset": "earliest", "enable_partition_eof": False}
    members = [consumer(broker, **settings) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    seen: set[bytes] = set()
    deadline = time.monotonic() + 2 * TIMEOUT_S
    is_killed = False
    while len(seen) < 3_000 or not all(member.assignment() for member in members):
        assert time.monotonic() < deadline, f"{len(seen)} of 3000 records"
        for member in members:
            messages = [message for message in member.consume(100, 0.1) if message.error() is None]
            seen |= {message.value() or b"" for message in messages}
            if messages:
                commit(member)
        if len(seen) > 1_000 and not is_killed:
            is_killed = True
            broker.restart()
    assert sorted(p.partition for member in members for p in member.assignment()) == [0, 1, 2]
    for member in members:
        commit(member)
        member.close()
    reader = consumer(broker, group_id="kill-group")
    committed = reader.committed([TopicPartition(topic, partition) for partition in range(3)], TIMEOUT_S)
    assert [partition.offset for partition in committed] == [1_000, 1_000, 1_000]
    reader.close()


def commit(member: Consumer) -> None:
    """Commit what was consumed; a rebalance may come between, and then the next commit has it."""
    retriable = {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError._NO_OFFSET}
    try:
        member.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in retriable | {KafkaError.UNKNOWN_MEMBER_ID}:
            raise
