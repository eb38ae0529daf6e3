"""confluent-kafka, aiokafka and kafka-python read many partitions, of which few have records, each by the fetches that
it negotiates: kafka-python in sessions (KIP-227), the others without."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TIMEOUT_S = 30.0
TOPIC, PARTITIONS = "many", 30
Row = tuple[int, bytes | None]
"""Partition and value."""


class Reader(Protocol):
    """A consumer without a group."""

    def __init__(self, bootstrap: str) -> None: ...
    def assign(self, partitions: Iterable[int]) -> None:
        """Read these, each from where it was, or from its beginning."""
        ...

    def poll(self) -> list[Row]: ...
    def seek(self, partition: int, offset: int) -> None: ...
    def close(self) -> None: ...


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "nobody", "auto.offset.reset": "earliest",
             "enable.auto.commit": False, "fetch.wait.max.ms": 100, "topic.metadata.refresh.interval.ms": 200}
        )  # fmt: skip
        self._next: dict[int, int] = {}

    def assign(self, partitions: Iterable[int]) -> None:
        self._consumer.assign([TopicPartition(TOPIC, one, self._next.get(one, 0)) for one in partitions])

    def poll(self) -> list[Row]:
        rows: list[Row] = []
        for message in self._consumer.consume(100, 0.1):
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self._next[partition] = offset + 1
                rows.append((partition, message.value()))
        return rows

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(TOPIC, partition, offset))

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100, metadata_max_age_ms=200,
            enable_auto_commit=False,
        )  # fmt: skip
        self._next: dict[int, int] = {}

    def assign(self, partitions: Iterable[int]) -> None:
        names = [kafka.TopicPartition(TOPIC, one) for one in partitions]
        self._consumer.assign(names)
        for name in names:
            self._consumer.seek(name, self._next.get(name.partition, 0))

    def poll(self) -> list[Row]:
        rows: list[Row] = []
        for records in self._consumer.poll(timeout_ms=100).values():
            for record in records:
                self._next[record.partition] = record.offset + 1
                rows.append((record.partition, record.value))
        return rows

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(kafka.TopicPartition(TOPIC, partition), offset)

    def close(self) -> None:
        self._consumer.close()


class Aiokafka:
    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._start(bootstrap))
        self._next: dict[int, int] = {}

    async def _start(self, bootstrap: str) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100, metadata_max_age_ms=200,
            enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        return consumer

    def assign(self, partitions: Iterable[int]) -> None:
        self._loop.run_until_complete(self._assign(partitions))

    async def _assign(self, partitions: Iterable[int]) -> None:
        names = [aiokafka.TopicPartition(TOPIC, one) for one in partitions]
        self._consumer.assign(names)
        for name in names:
            self._consumer.seek(name, self._next.get(name.partition, 0))

    def poll(self) -> list[Row]:
        rows: list[Row] = []
        for records in self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100)).values():
            for record in records:
                self._next[record.partition] = record.offset + 1
                rows.append((record.partition, record.value))
        return rows

    def seek(self, partition: int, offset: int) -> None:
        async def in_loop() -> None:
            self._consumer.seek(aiokafka.TopicPartition(TOPIC, partition), offset)

        self._loop.run_until_complete(in_loop())

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


IN_SESSIONS = {KafkaPython}


class Scene:
    """A broker, what was sent, and a reader that is to have it."""

    def __init__(self, broker: EmbeddedBroker, kind: type[Reader]) -> None:
        self.broker = broker
        self.kind = kind
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        self._count = 0
        self.reader = kind(broker.bootstrap_servers)
        self.reader.assign(range(PARTITIONS))

    @property
    def sessions(self) -> dict[int, Any]:
        node = self.broker._node
        assert node is not None
        return node.fetch_sessions._sessions

    def send(self, *partitions: int) -> list[Row]:
        """A record to each, one after the other."""
        rows: list[Row] = []
        for partition in partitions:
            self._count += 1
            rows.append((partition, b"%d" % self._count))
            self._producer.produce(TOPIC, rows[-1][1], partition=partition)
            assert self._producer.flush(TIMEOUT_S) == 0
        return rows

    def reads(self, expected: list[Row]) -> None:
        """All of it, each partition's in its order, and nothing else."""
        deadline = time.monotonic() + TIMEOUT_S
        found: list[Row] = []
        while len(found) < len(expected):
            assert time.monotonic() < deadline, f"{len(found)} of {len(expected)} records were read"
            found += self.reader.poll()
        assert sorted(found, key=lambda row: row[0]) == sorted(expected, key=lambda row: row[0])


@pytest.fixture(params=[Confluent, KafkaPython, Aiokafka])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    settings = {"auto.create.topics.enable": "false"}
    with EmbeddedBroker(topics={TOPIC: PARTITIONS}, settings=settings) as broker:
        scene = Scene(broker, request.param)
        yield scene
        scene.reader.close()


def test_few_of_many_partitions_have_records(scene: Scene) -> None:
    for number in range(10):
        scene.reads(scene.send(number, 7, 29 - number))
    if scene.kind in IN_SESSIONS:
        (session,) = scene.sessions.values()
        assert len(session.partitions) == PARTITIONS
        assert session.epoch >= 10
    else:
        assert not scene.sessions


def test_partitions_come_and_go(scene: Scene) -> None:
    scene.reads(scene.send(1, 2, 3, 2))
    scene.reader.assign([2, 5])
    late = scene.send(3, 4)
    scene.reads(scene.send(2, 5))
    scene.reader.assign(range(PARTITIONS))
    scene.reads(late + scene.send(2, 3))
    scene.reader.seek(2, 1)
    scene.reads([(2, b"4"), (2, b"7"), (2, b"9")])


def test_answers_are_lost_and_the_broker_restarts(scene: Scene) -> None:
    scene.reads(scene.send(1, 2))
    for _ in range(3):
        scene.broker.fault("Fetch", disconnect="after")
        scene.reads(scene.send(1, 9))
    scene.broker.stop()
    scene.broker.start()
    scene.reads(scene.send(2, 9))


def test_a_session_that_is_gone_is_opened_anew(scene: Scene) -> None:
    scene.reads(scene.send(1, 2))
    scene.broker.fault("Fetch", error="FETCH_SESSION_ID_NOT_FOUND", times=2)
    scene.reads(scene.send(3, 2))
    scene.broker.fault("Fetch", error="INVALID_FETCH_SESSION_EPOCH", times=2)
    scene.reads(scene.send(4, 2))


def test_a_topic_that_is_deleted_and_made_anew(scene: Scene) -> None:
    scene.reads(scene.send(1, 2, 3, 1, 2, 3))
    admin = AdminClient({"bootstrap.servers": scene.broker.bootstrap_servers})
    admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
    for _ in range(3):
        assert scene.reader.poll() == []
    scene.broker.create_topics({TOPIC: PARTITIONS})
    scene.reads(scene.send(2, 8))
