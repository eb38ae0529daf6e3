"""Committed metadata is what was committed, to the byte: on the wire, and read back, whoever wrote it."""

from __future__ import annotations

import random
import socket
import string
import struct
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from keylane.broker.process import BrokerProcess
from keylane.errors import InternalError
from keylane.kafka import exact
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOPIC, PARTITIONS, ANSWER_S = "exact", 4, 10
ALPHABET = string.ascii_letters + string.digits + "+/"


class Entry(NamedTuple):
    name: tuple[str, int]
    offset: int
    metadata: str
    leader_epoch: int = -1


class RawClient:
    """OffsetCommit v2 and OffsetFetch v1 byte by byte: what the broker holds, with no client in between."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), ANSWER_S)

    def close(self) -> None:
        self._socket.close()

    def commit(self, group: str, metadata: Sequence[str]) -> None:
        """Commit offset 5 with each metadata, for the partitions in order, as no member of the group."""
        body = _text(group) + struct.pack(">i", -1) + _text("") + struct.pack(">qi", -1, 1) + _text(TOPIC)
        body += struct.pack(">i", len(metadata))
        for partition, one in enumerate(metadata):
            body += struct.pack(">iq", partition, 5) + _text(one)
        answered = self._ask(8, 2, body)[4 + 2 + len(TOPIC) + 4 :]
        assert list(struct.iter_unpack(">ih", answered)) == [(partition, 0) for partition in range(len(metadata))]

    def metadata(self, group: str, partition: int = 0) -> bytes:
        body = _text(group) + struct.pack(">i", 1) + _text(TOPIC) + struct.pack(">ii", 1, partition)
        answered = self._ask(9, 1, body)[4 + 2 + len(TOPIC) + 4 :]
        (length,) = struct.unpack_from(">h", answered, 12)
        return answered[14 : 14 + length]

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhi", api, version, 1) + _text("raw") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        return self._socket.recv(size, socket.MSG_WAITALL)[4:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("exact") / "data") as running:
        assert Admin({"bootstrap.servers": running.bootstrap}).create_topics({TOPIC: PARTITIONS}) == {TOPIC}
        yield running


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with closing(RawClient(broker)) as client:
        yield client


@pytest.fixture
def answers() -> list[KafkaError | None]:
    """What the client's `on_commit` was told."""
    return []


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"group-{request.node.name}"


@pytest.fixture
def consumer(broker: BrokerProcess, group: str, answers: list[KafkaError | None]) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "exact"}
    with closing(Consumer(settings | {"on_commit": lambda error, _: answers.append(error)})) as client:
        yield client


def one(metadata: str, partition: int = 0) -> list[Entry]:
    return [Entry((TOPIC, partition), 7, metadata)]


def test_a_commit_writes_the_metadata_and_nothing_else(
    raw: RawClient, consumer: Consumer, group: str, answers: list[KafkaError | None]
) -> None:
    found = exact.commit_now(consumer, one("bAAGNgA=") + one("", 1))
    assert [(f.partition, f.offset, f.metadata, f.error) for f in found] == [(0, 7, "bAAGNgA=", None), (1, 7, "", None)]
    assert raw.metadata(group) == b"bAAGNgA="
    assert raw.metadata(group, 1) == b""
    consumer.poll(0)
    assert not answers, "the answer was returned, and goes nowhere else"

    commits = exact.CommitQueue(consumer)
    assert commits.answer() is None
    commits.send(one("bgABAAIAAQAC"))
    answer = commits.answer(ANSWER_S)
    commits.close()
    assert answer is not None
    assert (answer[0], [found.error for found in answer[1]]) == (None, [None])
    consumer.poll(0)
    assert not answers, "the answer was given where it was asked for, and goes nowhere else"
    assert raw.metadata(group) == b"bgABAAIAAQAC"


def test_all_of_the_cap_can_be_used_and_beyond_it_the_broker_says_no(consumer: Consumer) -> None:
    """confluent-kafka's own commit of 4,096 characters sends 4,097 and is refused."""
    assert exact.commit_now(consumer, one("A" * 4096))[0].error is None
    assert exact.committed(consumer, [(TOPIC, 0)], ANSWER_S)[0].metadata == "A" * 4096
    refused = exact.commit_now(consumer, one("A" * 4097))[0].error
    assert refused is not None
    assert refused.code() == KafkaError.OFFSET_METADATA_TOO_LARGE


def test_metadata_of_other_clients_is_read_to_the_byte(raw: RawClient, consumer: Consumer, group: str) -> None:
    """Of every length, since what lies behind it in memory depends on that; also as `Admin` reads it."""
    rng = random.Random(3)
    names = [(TOPIC, partition) for partition in range(PARTITIONS)]
    for length in range(4, 600, 4):
        written = ["".join(rng.choices(ALPHABET, k=length)) for _ in names]
        raw.commit(group, written)
        assert [found.metadata for found in exact.committed(consumer, names, ANSWER_S)] == written


def test_admin_reads_the_metadata_of_other_clients_to_the_byte(
    raw: RawClient, broker: BrokerProcess, group: str
) -> None:
    rng, admin = random.Random(4), Admin({"bootstrap.servers": broker.bootstrap})
    for length in (24, 40, 56, 72, 88, 104):
        written = ["".join(rng.choices(ALPHABET, k=length)) for _ in range(PARTITIONS)]
        raw.commit(group, written)
        assert [found.metadata for found in admin.committed_offsets(group).values()] == written


def test_the_nul_of_confluent_kafkas_own_commits_is_left_out(raw: RawClient, consumer: Consumer, group: str) -> None:
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 5, "bAAGNgA=")], asynchronous=False)
    assert raw.metadata(group) == b"bAAGNgA=\0"
    assert exact.committed(consumer, [(TOPIC, 0)], ANSWER_S)[0].metadata == "bAAGNgA="


def test_a_partition_without_a_commit_has_a_negative_offset(consumer: Consumer) -> None:
    (found,) = exact.committed(consumer, [(TOPIC, 3)], ANSWER_S)
    assert (found.offset < 0, found.metadata, found.error) == (True, "", None)


def test_a_broker_that_is_gone_is_an_error(consumer: Consumer, broker: BrokerProcess) -> None:
    broker.pause()
    try:
        with pytest.raises(KafkaException):
            exact.committed(consumer, [(TOPIC, 0)], 0.2)
    finally:
        broker.resume()


def test_the_client_is_looked_for_before_it_is_used(consumer: Consumer) -> None:
    exact.check(consumer, "exact")
    with pytest.raises(InternalError, match="keeps its client where keylane does not find it"):
        exact.check(consumer, "another")


def test_a_closed_client_is_an_error() -> None:
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "client.id": "exact"})
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        exact.committed(consumer, [(TOPIC, 0)], 0.1)
