"""Metadata of offsets in transactions is what was sent, to the byte; and errors say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from keylane.broker.process import BrokerProcess
from keylane.kafka import exact_transactions
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 30.0
LONGEST = "m" * 4_096


class Entry(NamedTuple):
    name: tuple[str, int]
    offset: int
    metadata: str
    leader_epoch: int = -1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def producer(broker: BrokerProcess) -> Producer:
    made = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "exact", "log_level": 0})
    made.init_transactions(TIMEOUT_S)
    made.begin_transaction()
    made.produce("t", b"v", partition=0)
    return made


@pytest.fixture
def consumer(broker: BrokerProcess) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "exact", "log_level": 0})
    yield made
    made.close()


def stored(broker: BrokerProcess) -> str:
    """What the broker holds for partition 0, with no client in between."""
    with ProtocolClient(broker.bootstrap) as client:
        topic = OffsetFetchRequestTopic(name=TopicName("t"), partition_indexes=(i32(0),))
        error = ErrorCode.unstable_offset_commit
        while error == ErrorCode.unstable_offset_commit:  # the transaction is committed, and its marker on the way
            answer = client.ask("offset_fetch", 7, group_id="exact", topics=(topic,), require_stable=True)
            error = answer.topics[0].partitions[0].error_code
        metadata: str = answer.topics[0].partitions[0].metadata
        return metadata


@pytest.mark.parametrize("metadata", ["", "bAAGNgA=", LONGEST])
def test_metadata_arrives_as_it_was_sent(
    broker: BrokerProcess, producer: Producer, consumer: Consumer, metadata: str
) -> None:
    exact_transactions.send_offsets(producer, consumer, [Entry(("t", 0), 5, metadata)], TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert stored(broker) == metadata


def test_the_clients_own_call_sends_a_byte_more(broker: BrokerProcess, producer: Producer, consumer: Consumer) -> None:
    """Why there is another one; when this fails, it can go."""
    offsets = [TopicPartition("t", 0, 5, "map")]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert stored(broker) == "map\0"


def test_errors_say_what_to_do(producer: Producer, consumer: Consumer) -> None:
    with pytest.raises(KafkaException) as caught:
        exact_transactions.send_offsets(producer, consumer, [Entry(("t", 0), 5, LONGEST + "m")], TIMEOUT_S)
    error = caught.value.args[0]
    assert (error.name(), error.fatal(), error.retriable(), error.txn_requires_abort()) == (
        "OFFSET_METADATA_TOO_LARGE", False, False, True,
    )  # fmt: skip
    producer.abort_transaction(TIMEOUT_S)
