"""Transactions of the Java producer on our broker: committed, aborted, with offsets and their metadata, fenced."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from peers import jvm

from keylane.broker.process import BrokerProcess
from kit.protocol import ProtocolClient
from kit.transaction_requests import Tx

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def bootstrap(jvm_peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.bootstrap


async def read_committed(bootstrap: str, end: int) -> tuple[list[bytes | None], int | None, str]:
    """Records of partition 0 up to `end`; the group's offset and metadata."""
    partition = aiokafka.TopicPartition("java", 0)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id="java-group", enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[bytes | None] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += (record.value for record in records)
        offset = await consumer.committed(partition)
    finally:
        await consumer.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets("java-group")
        return found, offset, offsets[partition].metadata
    finally:
        await admin.close()


@pytest.mark.soak
def test_java_transactions(bootstrap: str) -> None:
    command = jvm.command(jvm.TRANSACTIONS, bootstrap, "java", "java", "java-group")
    with jvm.LineProcess(command) as first:
        lines = first.lines()
        assert next(lines) == "ready"
        assert first.ask("commit one 1") == "done"
        assert first.ask("abort aborted 2") == "done"
        assert first.ask("commit two 3") == "done"
        assert asyncio.run(read_committed(bootstrap, 6)) == ([b"one", b"two"], 3, "map-3")
        with ProtocolClient(bootstrap) as client:
            epoch = Tx(client, "java").described()[3]
        assert epoch == 3, "each transaction had one of its own"
        with jvm.LineProcess(command) as second:
            assert next(second.lines()) == "ready"
            assert first.ask("commit zombie 9") in ("ProducerFencedException", "InvalidProducerEpochException")
            assert second.ask("commit three 4") == "done"
        assert asyncio.run(read_committed(bootstrap, 8)) == ([b"one", b"two", b"three"], 4, "map-4")
