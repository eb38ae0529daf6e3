"""OffsetForLeaderEpoch, DescribeCluster and DescribeProducers over a plain socket, in every version."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from keylane.broker.process import BrokerProcess
from keylane.wire.batches import NewRecord, encode_batch
from keylane.wire.versions import request_type
from kit.protocol import ProtocolClient, leader_epoch, part

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = datetime.timedelta(seconds=10)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[ProtocolClient]:
    """A connection to a broker with the topic `t`, which holds three records of producer 7."""
    with ProtocolClient(broker.bootstrap) as connection:
        wanted = part(
            "create_topics", 7, "CreatableTopic", name="t", num_partitions=1, replication_factor=1, assignments=(),
            configs=(),
        )  # fmt: skip
        connection.ask("create_topics", 7, topics=(wanted,), timeout=SOON, validate_only=False)
        records = encode_batch(
            [NewRecord(None, b"v")] * 3, timestamp_ms=1, producer_id=7, producer_epoch=2, base_sequence=0
        )
        data = part("produce", 9, "PartitionProduceData", index=0, records=records)
        topics = (part("produce", 9, "TopicProduceData", name="t", partition_data=(data,)),)
        connection.ask("produce", 9, transactional_id=None, acks=-1, timeout=SOON, topic_data=topics)
        yield connection


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch(client: ProtocolClient, version: int) -> None:
    api = "offset_for_leader_epoch"

    def ask(topic: str, partition: int, epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
        row = part(
            api, version, "OffsetForLeaderPartition", partition=partition, current_leader_epoch=current,
            leader_epoch=epoch,
        )  # fmt: skip
        topics = (part(api, version, "OffsetForLeaderTopic", topic=topic, partitions=(row,)),)
        fields = request_type(api, version).__dataclass_fields__
        values = {"replica_id": -1, "topics": topics}
        answer = client.ask(api, version, **{name: value for name, value in values.items() if name in fields})
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    epoch = leader_epoch(client, "t")
    assert ask("t", 0, epoch) == (ErrorCode.none, epoch, 3)
    assert ask("t", 0, epoch, current=epoch) == (ErrorCode.none, epoch, 3)
    assert ask("t", 0, epoch + 1) == (ErrorCode.none, -1, -1)
    assert ask("t", 0, epoch, current=epoch + 1) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert ask("t", 1, 0) == (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert ask("nobody", 0, 0) == (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert ask("__consumer_offsets", 0, 0) == (ErrorCode.none, 0, 0)


@pytest.mark.parametrize("version", [0, 1])
def test_describe_cluster(client: ProtocolClient, broker: BrokerProcess, version: int) -> None:
    values = {"endpoint_type": 1} if version else {}
    answer = client.ask("describe_cluster", version, include_cluster_authorized_operations=False, **values)
    assert answer.error_code == ErrorCode.none
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [
        (answer.controller_id, broker.host, broker.port)
    ]
    if version:
        answer = client.ask("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=2)
        assert (answer.error_code, answer.brokers) == (ErrorCode.mismatched_endpoint_type, ())


def test_describe_producers(client: ProtocolClient) -> None:
    topics = tuple(
        part("describe_producers", 0, "TopicRequest", name=name, partition_indexes=(0,)) for name in ("t", "nobody")
    )
    known, unknown = client.ask("describe_producers", 0, topics=topics).topics
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 2)
    assert producer.current_txn_start_offset == -1
    assert unknown.partitions[0].error_code == ErrorCode.unknown_topic_or_partition
