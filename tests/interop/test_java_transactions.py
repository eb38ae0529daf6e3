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
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def bootstrap(jvm_peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.bootstrap


def older(*arguments: str) -> list[str]:
    return jvm.command(jvm.TRANSACTIONS, *arguments)


async def read_committed(bootstrap: str, name: str, end: int) -> tuple[list[bytes | None], int | None, str]:
    """Records of partition 0 up to `end`; the group's offset and metadata."""
    partition = aiokafka.TopicPartition(name, 0)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=f"{name}-group",
        enable_auto_commit=False,
        isolation_level="read_committed",
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
        offsets = await admin.list_consumer_group_offsets(f"{name}-group")
        return found, offset, offsets[partition].metadata
    finally:
        await admin.close()


@pytest.mark.soak
@pytest.mark.parametrize(("start", "epochs"), [(older, 0), (jvm.transactions, 3)], ids=["3.9", "4.3"])
def test_java_transactions(bootstrap: str, start: Callable[..., list[str]], epochs: int) -> None:
    """The older client has classic transactions, today's has an epoch for each."""
    name = f"java-{epochs}"
    command = start(bootstrap, name, name, f"{name}-group")
    with jvm.LineProcess(command) as first:
        lines = first.lines()
        assert next(lines) == "ready"
        assert first.ask("commit one 1") == "done"
        assert first.ask("abort aborted 2") == "done"
        assert first.ask("commit two 3") == "done"
        assert asyncio.run(read_committed(bootstrap, name, 6)) == ([b"one", b"two"], 3, "map-3")
        with ProtocolClient(bootstrap) as client:
            assert Tx(client, name).described()[3] == epochs
        with jvm.LineProcess(command) as second:
            assert next(second.lines()) == "ready"
            assert first.ask("commit zombie 9") in ("ProducerFencedException", "InvalidProducerEpochException")
            assert second.ask("commit three 4") == "done"
        assert asyncio.run(read_committed(bootstrap, name, 8)) == ([b"one", b"two", b"three"], 4, "map-4")
