"""Transactions of aiokafka and kafka-python: the same as librdkafka's, each with records, offsets and an abort."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiokafka
import kafka
import pytest
from aiokafka.errors import ProducerFenced

from keylane.broker.process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.bootstrap


async def read_committed(bootstrap: str, topic: str, end: int) -> list[bytes | None]:
    """What aiokafka reads of partition 0 until its last stable offset is `end`."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[bytes | None] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += (record.value for record in records)
        return found
    finally:
        await consumer.stop()


def test_aiokafka(bootstrap: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
        await producer.start()
        partition = aiokafka.TopicPartition("aio", 0)
        async with producer.transaction():
            await producer.send_and_wait("aio", b"one", partition=0)
            offsets = {partition: aiokafka.OffsetAndMetadata(5, "map")}
            await producer.send_offsets_to_transaction(offsets, "aio-group")
        await producer.begin_transaction()
        await producer.send_and_wait("aio", b"aborted", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("aio", b"two", partition=0)
        assert await read_committed(bootstrap, "aio", 6) == [b"one", b"two"]
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id="aio-group", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([partition])
        assert await consumer.committed(partition) == 5
        await consumer.stop()
        successor = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
        await successor.start()
        await producer.begin_transaction()
        with pytest.raises(ProducerFenced):
            await producer.send_and_wait("aio", b"zombie", partition=0)
        await producer.stop()
        await successor.stop()

    asyncio.run(run())


def test_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kafka-python")
    producer.init_transactions()
    partition = kafka.TopicPartition("py", 0)
    for value, is_committed in ((b"one", True), (b"aborted", False), (b"two", True)):
        producer.begin_transaction()
        producer.send("py", value, partition=0).get(30)
        if is_committed:
            offsets = {partition: kafka.OffsetAndMetadata(len(value), f"map-{value.decode()}", -1)}
            producer.send_offsets_to_transaction(offsets, "py-group")
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    assert asyncio.run(read_committed(bootstrap, "py", 6)) == [b"one", b"two"]

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id="py-group", enable_auto_commit=False, isolation_level="read_committed"
    )
    committed = consumer.committed(partition, metadata=True)
    assert (committed.offset, committed.metadata) == (3, "map-two")
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    while consumer.position(partition) < 6:
        for records in consumer.poll(timeout_ms=100).values():
            found += (record.value for record in records)
    consumer.close()
    assert found == [b"one", b"two"]
