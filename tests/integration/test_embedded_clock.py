"""The clock of a broker in tests is moved: what is due by then has happened on return, and nobody is disconnected."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from keylane.errors import UsageError
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.records import Output
from keylane.testing.embedded import EmbeddedBroker
from kit.protocol import ProtocolClient, ask, part, until
from kit.transaction_requests import Tx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
TIMEOUT_S = 30
ANY_TRANSACTION = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": None}


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": 1}) as broker:
        yield broker


@pytest.fixture
def client(kafka: EmbeddedBroker) -> Iterator[ProtocolClient]:
    """Stays connected, whatever the time is."""
    with ProtocolClient(kafka.bootstrap_servers) as client:
        yield client


def described_group(client: ProtocolClient) -> tuple[str, int]:
    """State and number of members of the group `billing`."""
    answer = client.ask("describe_groups", 5, groups=("billing",), include_authorized_operations=False)
    return answer.groups[0].group_state, len(answer.groups[0].members)


def join(client: ProtocolClient) -> None:
    protocol = part("join_group", 5, "JoinGroupRequestProtocol", name="range", metadata=b"")
    answer = client.ask(
        "join_group",
        5,
        group_id="billing",
        session_timeout=timedelta(seconds=45),
        rebalance_timeout=MINUTE,
        member_id="",
        group_instance_id="one",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    assert answer.error_code == ErrorCode.none


def test_a_silent_members_session_ends(kafka: EmbeddedBroker, client: ProtocolClient) -> None:
    join(client)
    kafka.advance_clock(timedelta(seconds=40))
    assert described_group(client)[1] == 1
    kafka.advance_clock(timedelta(seconds=6))
    assert described_group(client) == ("Dead", 0), "nothing is left of a group without offsets"


def test_a_group_that_waits_for_more_members_goes_on() -> None:
    settings = {"group.initial.rebalance.delay.ms": "240000"}
    with EmbeddedBroker(settings=settings) as broker, ProtocolClient(broker.bootstrap_servers) as client:
        joining = threading.Thread(target=join, args=[client])
        joining.start()
        with ProtocolClient(broker.bootstrap_servers) as other:
            until(lambda: described_group(other), lambda group: group == ("PreparingRebalance", 1))
        broker.advance_clock(4 * MINUTE)
        joining.join(TIMEOUT_S)
        assert not joining.is_alive()


def test_offsets_of_an_empty_group_expire(kafka: EmbeddedBroker, client: ProtocolClient) -> None:
    committed = part(
        "offset_commit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=7, committed_metadata=""
    )
    topic = part("offset_commit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(committed,))
    client.ask(
        "offset_commit", 2, group_id="billing", generation_id_or_member_epoch=-1, member_id="",
        retention_time=timedelta(milliseconds=-1), topics=(topic,),
    )  # fmt: skip

    def committed_offset() -> int:
        wanted = part("offset_fetch", 5, "OffsetFetchRequestTopic", name="orders", partition_indexes=(0,))
        answer = client.ask("offset_fetch", 5, group_id="billing", topics=(wanted,))
        found: int = answer.topics[0].partitions[0].committed_offset
        return found

    kafka.advance_clock(6 * DAY)
    assert committed_offset() == 7
    kafka.advance_clock(DAY + MINUTE)
    assert committed_offset() == -1


def test_a_transaction_that_takes_too_long_is_aborted(kafka: EmbeddedBroker, client: ProtocolClient) -> None:
    tx = Tx(client).start()
    tx.begin("orders", 0)
    assert tx.produce("orders", 0, b"never") == ErrorCode.none
    kafka.advance_clock(timedelta(seconds=30))
    assert tx.state() == "Ongoing"
    listed = ask(client, "list_transactions", 1, duration_filter=29_000, **ANY_TRANSACTION)
    assert [one.transactional_id for one in listed.transaction_states] == [tx.name], "it is open for so long"
    kafka.advance_clock(MINUTE)
    assert tx.state() == "CompleteAbort"
    assert tx.end() == ErrorCode.producer_fenced
    kafka.advance_clock(7 * DAY)
    assert client.ask("list_transactions", 0, state_filters=(), producer_id_filters=()).transaction_states == ()


def active_producers(client: ProtocolClient) -> int:
    wanted = part("describe_producers", 0, "TopicRequest", name="orders", partition_indexes=(0,))
    return len(client.ask("describe_producers", 0, topics=(wanted,)).topics[0].partitions[0].active_producers)


def test_producers_are_forgotten_and_records_go(kafka: EmbeddedBroker, client: ProtocolClient) -> None:
    with BulkProducer(kafka.bootstrap_servers, {"enable.idempotence": True}) as producer:
        producer.produce(Output("orders", value=b"old"))
    assert active_producers(client) == 1
    kafka.advance_clock(DAY + MINUTE)
    assert active_producers(client) == 0
    assert values(kafka) == [b"old"]
    kafka.advance_clock(6 * DAY)  # log.retention.hours
    assert values(kafka) == []


def values(kafka: EmbeddedBroker) -> list[bytes | None]:
    return [record.value for batch in read_to_end(kafka.bootstrap_servers, "orders") for record in batch]


def test_locks_of_a_share_group_end(kafka: EmbeddedBroker) -> None:
    """What a member has and does not acknowledge is given to another one."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "workers"}
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    with BulkProducer(kafka.bootstrap_servers) as producer:
        producer.produce(Output("orders", value=b"one"))
    explicit = settings | {"share.acknowledgement.mode": "explicit"}
    with ShareConsumer(explicit) as idle, ShareConsumer(explicit) as other:
        idle.subscribe(["orders"])
        assert given(idle).delivery_count() == 1
        other.subscribe(["orders"])
        kafka.advance_clock(timedelta(seconds=31))
        assert given(other).delivery_count() == 2


def given(consumer: ShareConsumer) -> Message:
    (record,) = until(lambda: consumer.poll(0.1), bool)
    found: Message = record
    return found


def test_the_clock_stays_moved_over_a_stop_and_moves_meanwhile(kafka: EmbeddedBroker) -> None:
    with BulkProducer(kafka.bootstrap_servers) as producer:
        producer.produce(Output("orders", value=b"old"))
    kafka.advance_clock(6 * DAY)
    kafka.stop()
    kafka.advance_clock(6 * DAY)
    kafka.start()
    assert abs(kafka.now_ms / 1_000 - time.time() - 12 * 86_400) < 60
    assert values(kafka) == [b"old"], "a start looks at no ages"
    kafka.advance_clock(MINUTE)
    assert values(kafka) == []


def test_records_have_the_brokers_time() -> None:
    with EmbeddedBroker(topics={"orders": 1}, settings={"log.message.timestamp.type": "LogAppendTime"}) as broker:
        broker.advance_clock(365 * DAY)
        with BulkProducer(broker.bootstrap_servers) as producer:
            producer.produce(Output("orders", value=b"new"))
        (record,) = [record for batch in read_to_end(broker.bootstrap_servers, "orders") for record in batch]
    assert record.timestamp_ms is not None
    assert abs(record.timestamp_ms / 1_000 - time.time() - 365 * 86_400) < 60


def test_a_delay_that_a_fault_waits_for_is_over(kafka: EmbeddedBroker, client: ProtocolClient) -> None:
    fault = kafka.fault("Metadata", delay_ms=3_600_000)
    asking = threading.Thread(target=lambda: client.ask("metadata", 1, topics=()))
    asking.start()
    until(lambda: fault.met, bool)
    kafka.advance_clock(timedelta(hours=1))
    asking.join(TIMEOUT_S)
    assert not asking.is_alive()


@pytest.mark.parametrize("by", [timedelta(0), -DAY, 36_501 * DAY])
def test_a_clock_goes_forward_and_not_too_far(kafka: EmbeddedBroker, by: timedelta) -> None:
    before = kafka.now_ms
    with pytest.raises(UsageError, match=r"a clock goes forward, and 36,500 days in all; it is 0:00:00 ahead"):
        kafka.advance_clock(by)
    assert kafka.now_ms - before < 60_000
