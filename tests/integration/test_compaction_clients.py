"""Compacted topics, read with the clients that people use: what is left of batches in every codec, and what is not."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TIMEOUT_S = 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
IN_PYTHON = ("none", "gzip")
"""What the clients in Python read without further libraries."""
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
Found = dict[str, list[bytes | None]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"log.cleaner.backoff.ms": "20"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


def expected(codecs: Sequence[str]) -> Found:
    return {f"{codec}-{key}": [b"last of %d" % key] for codec in codecs for key in range(5)}


def fill(bootstrap: str, topic: str, codecs: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=CONFIGS)])[topic].result(TIMEOUT_S)
    for codec in codecs:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.codec": codec, "linger.ms": 100})
        for turn in range(40):
            for key in range(5):
                value = b"last of %d" % key if turn == 39 else b"superseded " * 20
                producer.produce(topic, value, key=f"{codec}-{key}")
            if turn % 10 == 9:
                producer.flush(TIMEOUT_S)
    for _ in range(3):  # the active segment is not compacted
        producer.produce(topic, os.urandom(1_000), key="end")
        assert producer.flush(TIMEOUT_S) == 0


def read_librdkafka(bootstrap: str, topic: str) -> Found:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: Found = {}
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        key = message.key()
        assert key is not None
        found.setdefault(key.decode(), []).append(message.value())
    assert message is not None, "no end of the partition"
    consumer.close()
    return found


async def read_aiokafka(bootstrap: str, topic: str) -> Found:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    partition = AioPartition(topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    end = (await consumer.end_offsets([partition]))[partition]
    found: Found = {}
    while await consumer.position(partition) < end:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            for record in records:
                found.setdefault(record.key.decode(), []).append(record.value)
    await consumer.stop()
    return found


def read_kafka_python(bootstrap: str, topic: str) -> Found:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    partition = PythonPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    found: Found = {}
    while consumer.position(partition) < end:
        for records in consumer.poll(100).values():
            for record in records:
                found.setdefault(record.key.decode(), []).append(record.value)
    consumer.close()
    return found


def when_compacted(bootstrap: str, topic: str, codecs: Sequence[str]) -> Found:
    """All that a reader finds, once it is no more than the last records of the keys."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = read_librdkafka(bootstrap, topic)
        if {key: values for key, values in found.items() if key != "end"} == expected(codecs):
            return found
        assert time.monotonic() < deadline, f"not compacted: {found.keys()}"


def test_every_codec_is_compacted(broker: BrokerProcess) -> None:
    fill(broker.bootstrap, "codecs", CODECS)
    when_compacted(broker.bootstrap, "codecs", CODECS)
    broker.kill()
    broker.start()
    again = read_librdkafka(broker.bootstrap, "codecs")
    assert {key: values for key, values in again.items() if key != "end"} == expected(CODECS)


def test_every_client_reads_what_is_left(broker: BrokerProcess) -> None:
    fill(broker.bootstrap, "clients", IN_PYTHON)
    found = when_compacted(broker.bootstrap, "clients", IN_PYTHON)
    for other in (
        asyncio.run(read_aiokafka(broker.bootstrap, "clients")),
        read_kafka_python(broker.bootstrap, "clients"),
    ):
        assert {key: other[key] for key in expected(IN_PYTHON)} == {key: found[key] for key in expected(IN_PYTHON)}
