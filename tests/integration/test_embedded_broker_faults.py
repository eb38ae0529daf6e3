"""Faults of every API that the broker offers, of one group of many, and what clients do that are fenced."""

from __future__ import annotations

import struct
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from kio.schema.errors import ErrorCode

import keylane.testing
from keylane.broker.dispatch import load_apis
from keylane.coordinator.coordinator import Coordinator
from keylane.errors import UsageError
from keylane.testing.faults import group_api_names, kafka_name
from keylane.wire import conditional_commit
from keylane.wire.primitives import string
from kit.protocol import ProtocolClient, decode_answer, encode_request
from kit.samples import sample_request
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keylane.broker.dispatch import Api
    from keylane.testing.embedded import EmbeddedBroker

CLIENT = "keylane-testing"
TIMEOUT_S = 30
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
}
APIS = list(load_apis().values())


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with keylane.testing.broker(topics={"orders": 1}, settings=SETTINGS) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(100):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0
        yield broker


@pytest.fixture(autouse=True)
def no_faults_left(kafka: EmbeddedBroker) -> Iterator[None]:
    yield
    kafka.clear_faults()


def frame(api: Api, group: str = "sample") -> bytes:
    """A request of its newest version, with its size; where it names a group, this one."""
    if api.key == conditional_commit.API_KEY:
        condition = conditional_commit.Condition(0, -1, 5, -1, None)
        request = conditional_commit.Request(group, -1, "", None, [("orders", [condition])])
        body = struct.pack(">hhi", api.key, 0, 1) + string(CLIENT) + conditional_commit.encode_request(request)
        return struct.pack(">i", len(body)) + body
    one = dict.fromkeys(("group_id", "group_ids", "groups_names", "coordinator_keys"), group)
    named = one | ({"groups": group} if api.name == "describe_groups" else {})
    return encode_request(api.name, sample_request(api.name, api.max_version, **named), 1, CLIENT)


def code_of(api: Api, answer: bytes) -> int:
    """The one error of an answer's frame. Metadata's has none at the top: that is about all topics."""
    if api.key == conditional_commit.API_KEY:
        return int.from_bytes(answer[8:10], "big", signed=True)
    (code,) = set(errors(decode_answer(api.name, api.max_version, answer)[1])) - {ErrorCode.none}
    return int(code)


def errors(entity: Any) -> Iterator[ErrorCode]:
    for name in entity.__dataclass_fields__:
        value = getattr(entity, name)
        if isinstance(value, ErrorCode):
            yield value
        for one in value if isinstance(value, tuple) else ():
            if hasattr(one, "__dataclass_fields__"):
                yield from errors(one)


@pytest.mark.parametrize("api", APIS, ids=kafka_name)
def test_every_api_answers_an_error_is_cut_off_and_is_late(kafka: EmbeddedBroker, api: Api) -> None:
    name = kafka_name(api)
    refused = kafka.fault(name, error="UNKNOWN_SERVER_ERROR", client_id=CLIENT)
    late = kafka.fault(name, error="UNKNOWN_SERVER_ERROR", delay_ms=60, client_id=CLIENT)
    cut = kafka.fault(name, disconnect="before", client_id=CLIENT)
    other = kafka.fault(name, error="UNKNOWN_SERVER_ERROR", client_id="another")
    with ProtocolClient(kafka.bootstrap_servers) as client:
        client.send_bytes(frame(api))
        assert code_of(api, client.receive()) == ErrorCode.unknown_server_error
        began = time.monotonic()
        client.send_bytes(frame(api))
        assert code_of(api, client.receive()) == ErrorCode.unknown_server_error
        assert time.monotonic() - began >= 0.06
        client.send_bytes(frame(api))
        assert client.is_closed_by_peer()
    assert (refused.met, late.met, cut.met, other.met) == (1, 1, 1, 0)


def test_the_groups_of_a_request_are_found() -> None:
    """In every API that has groups, whatever it calls them; the offsets' APIs of all newer and older protocols."""
    assert group_api_names() == [
        *("OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup"),
        *("DescribeGroups", "AddOffsetsToTxn", "TxnOffsetCommit", "DeleteGroups", "OffsetDelete"),
        *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "ShareGroupHeartbeat", "ShareGroupDescribe"),
        *("ShareFetch", "ShareAcknowledge", "DescribeShareGroupOffsets", "AlterShareGroupOffsets"),
        *("DeleteShareGroupOffsets", "ConditionalCommit"),
    ]


@pytest.mark.parametrize("api", [api for api in APIS if kafka_name(api) in group_api_names()], ids=kafka_name)
def test_every_api_that_names_groups_has_faults_of_one_group(kafka: EmbeddedBroker, api: Api) -> None:
    fault = kafka.fault(kafka_name(api), group="mine", disconnect="before")
    other = kafka.fault(kafka_name(api), group="another", disconnect="before")
    with ProtocolClient(kafka.bootstrap_servers) as client:
        client.send_bytes(frame(api, "mine"))
        assert client.is_closed_by_peer()
    assert (fault.met, other.met) == (1, 0)


def test_commits_take_the_way_that_they_take_at_a_real_broker_while_there_is_no_fault(
    kafka: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    short: list[int] = []
    plain = Coordinator.commit_known

    def commit_known(self: Coordinator, known: Any, offset: int, leader_epoch: int) -> Any:
        short.append(offset)
        return plain(self, known, offset, leader_epoch)

    monkeypatch.setattr(Coordinator, "commit_known", commit_known)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "short-way"})

    def commit(offset: int) -> None:
        consumer.commit(offsets=[TopicPartition("faults", 0, offset)], asynchronous=False)

    kafka.create_topics({"faults": 1})
    for offset in range(4):
        commit(offset)
    assert short == [1, 2, 3], "the first is decoded"
    fault = kafka.fault("Metadata", times=1, delay_ms=1)
    commit(4)
    assert short == [1, 2, 3], "faults are looked for in every request"
    fault.remove()
    commit(5)
    assert short == [1, 2, 3, 5]
    (committed,) = consumer.committed([TopicPartition("faults", 0)], 30)
    assert committed.offset == 5
    consumer.close()


def test_a_fault_of_one_group_is_not_another_ones(kafka: EmbeddedBroker) -> None:
    fault = kafka.fault("OffsetCommit", group="bad", error="OFFSET_METADATA_TOO_LARGE", times=None)
    for group in ("good", "bad"):
        with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})) as consumer:
            offsets = [TopicPartition("orders", 0, 5)]
            if group == "good":
                consumer.commit(offsets=offsets, asynchronous=False)
                continue
            with pytest.raises(KafkaException) as raised:
                consumer.commit(offsets=offsets, asynchronous=False)
            assert raised.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert fault.met == 1


def test_an_api_without_groups_has_no_fault_of_one(kafka: EmbeddedBroker) -> None:
    with pytest.raises(UsageError, match="group='g': a request of Produce names no group; those of OffsetCommit, "):
        kafka.fault("Produce", group="g", delay_ms=1)


# --- fencing ---


class Reader:
    """A group's member, and how often it was given and lost its partition."""

    def __init__(self, kafka: EmbeddedBroker, group: str, **settings: Any) -> None:
        self.given = self.lost = 0
        self.error: KafkaError | None = None
        told = {name.replace("_", "."): value for name, value in settings.items()}
        self.consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 0} | told
        )
        self.consumer.subscribe(["orders"], on_assign=self._give, on_revoke=self._lose, on_lost=self._lose)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        def step() -> bool:
            message = self.consumer.poll(0.05)
            self.error = self.error or (None if message is None else message.error())
            return is_so()

        until(step, what, TIMEOUT_S)

    def _give(self, *_: Any) -> None:
        self.given += 1

    def _lose(self, *_: Any) -> None:
        self.lost += 1


@pytest.mark.parametrize(
    ("protocol", "api", "error"),
    [
        ("consumer", "ConsumerGroupHeartbeat", "FENCED_MEMBER_EPOCH"),
        ("consumer", "ConsumerGroupHeartbeat", "UNKNOWN_MEMBER_ID"),
        ("classic", "Heartbeat", "ILLEGAL_GENERATION"),
    ],
)
def test_a_fenced_member_loses_its_partitions_and_joins_again(
    kafka: EmbeddedBroker, protocol: str, api: str, error: str
) -> None:
    group = f"fenced-{error}"
    settings = {"group_protocol": protocol} | ({"heartbeat_interval_ms": 100} if protocol == "classic" else {})
    reader, other = Reader(kafka, group, **settings), Reader(kafka, f"{group}-not", **settings)
    with closing(reader.consumer), closing(other.consumer):
        for one in (reader, other):
            one.until(lambda one=one: one.given == 1, "it has its partition")  # type: ignore[misc]
        fault = kafka.fault(api, group=group, error=error)
        reader.until(lambda: reader.given == 2, "it has joined again")
        other.consumer.poll(0.2)
        assert (reader.lost, fault.met, other.lost) == (1, 1, 0)


def test_a_static_member_whose_name_another_one_has_ends(kafka: EmbeddedBroker) -> None:
    reader = Reader(kafka, "named", group_instance_id="one", heartbeat_interval_ms=100)
    with closing(reader.consumer):
        reader.until(lambda: reader.given == 1, "it has its partition")
        kafka.fault("Heartbeat", group="named", error="FENCED_INSTANCE_ID")
        reader.until(lambda: reader.error is not None, "it is told")
    assert reader.error is not None
    assert reader.error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


def test_a_fenced_producer_ends(kafka: EmbeddedBroker) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "fenced", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("orders", b"never seen")
    kafka.fault("EndTxn", error="PRODUCER_FENCED")
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal()
    next_one = Producer(settings)
    next_one.init_transactions(TIMEOUT_S)  # which aborts it


def test_a_share_consumer_whose_session_and_membership_are_gone_opens_others(kafka: EmbeddedBroker) -> None:
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "queue",
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    faults = [
        kafka.fault("ShareGroupHeartbeat", group="queue", error="COORDINATOR_LOAD_IN_PROGRESS"),
        kafka.fault("ShareFetch", group="queue", error="SHARE_SESSION_NOT_FOUND"),
    ]
    done: set[int] = set()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    with ShareConsumer(settings) as consumer:
        consumer.subscribe(["orders"])

        def step() -> bool:
            producer.produce("orders", b"work")
            producer.poll(0)
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                done.add(message.offset() or 0)
            consumer.commit_sync(TIMEOUT_S)
            return len(done) >= 5

        until(step, "records come", TIMEOUT_S)
        faults += [kafka.fault("ShareGroupHeartbeat", group="queue", error="UNKNOWN_MEMBER_ID")]
        done.clear()
        until(lambda: step() and faults[-1].met == 1, "records come again", TIMEOUT_S)
        done.clear()
        until(step, "and again", TIMEOUT_S)
    assert [fault.met for fault in faults] == [1, 1, 1]
    assert producer.flush(TIMEOUT_S) == 0
