"""A broker that may not make its files longer, under clients of librdkafka: they are told, and go on when they may.

`RLIMIT_FSIZE` of the broker's process stands for a full disk: a write beyond it is refused with EFBIG, as one on a full
disk is with ENOSPC, and it can be raised from outside.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from keylane.broker.process import BrokerProcess
from keylane.errors import PeerError
from keylane.kafka.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPIC = "orders"
ROOM_BYTES = 60_000
VALUE_BYTES = 1_000
WAIT_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as made:
        Admin({"bootstrap.servers": made.bootstrap}).create_topics({TOPIC: 1})
        yield made


def limit(broker: BrokerProcess, size: int) -> None:
    """How long a file of the broker may be. The hard limit stays, so that it can be raised again."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Sender:
    """A producer, and which of its records were acknowledged or failed."""

    def __init__(self, broker: BrokerProcess, **settings: Any) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[bytes] = []
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0, **given})

    def send(self, number: int) -> None:
        value = (b"%06d" % number).ljust(VALUE_BYTES, b".")

        def answered(error: Any, _: Any) -> None:
            (self.acknowledged if error is None else self.failed).append(value[:6])

        self.producer.produce(TOPIC, value, on_delivery=answered, partition=0)
        self.producer.poll(0)


def values(broker: BrokerProcess, isolation: str = "read_committed") -> list[bytes]:
    """All that a reader sees, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes] = []
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, "no answer"
            if message.error() is not None:
                return found
            found.append((message.value() or b"")[:6])
    finally:
        consumer.close()


def told(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if "no room for" in line]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producers_records_are_there_as_acknowledged_once_there_is_room(
    broker: BrokerProcess, idempotent: bool
) -> None:
    sender = Sender(broker, enable_idempotence=idempotent)
    limit(broker, ROOM_BYTES)
    for number in range(150):
        sender.send(number)
    until(lambda: len(told(broker)) > 0, "the full disk is not told")
    assert sender.producer.flush(2) > 0, "all went in, without room"
    before = len(sender.acknowledged)
    assert before < 70
    assert values(broker)[:before] == sender.acknowledged, "what was acknowledged is there while the disk is full"
    limit(broker, resource.RLIM_INFINITY)
    assert sender.producer.flush(WAIT_S) == 0
    assert sender.failed == []
    found = values(broker)
    if idempotent:
        assert found == sender.acknowledged == [b"%06d" % number for number in range(150)]
    assert Counter(found).keys() == set(sender.acknowledged)
    (line,) = told(broker)
    assert f"{TOPIC}-0/" in line
    assert "File too large" in line
    assert f"a file may have {ROOM_BYTES}" in line
    broker.restart()
    assert values(broker) == found


def test_a_transaction_waits_for_room_and_is_whole(broker: BrokerProcess) -> None:
    sender = Sender(broker, transactional_id="t", transaction_timeout_ms=120_000)
    sender.producer.init_transactions(WAIT_S)
    limit(broker, ROOM_BYTES)
    sender.producer.begin_transaction()
    for number in range(150):
        sender.send(number)
    until(lambda: len(told(broker)) > 0, "the full disk is not told")
    assert values(broker) == []
    limit(broker, resource.RLIM_INFINITY)
    sender.producer.commit_transaction(WAIT_S)
    until(lambda: len(values(broker)) == 150, "the marker was not written")
    assert values(broker) == sender.acknowledged == [b"%06d" % number for number in range(150)]


def test_the_end_of_a_transaction_that_finds_no_room_in_the_journal_is_asked_for_again(broker: BrokerProcess) -> None:
    sender = Sender(broker, transactional_id="t", transaction_timeout_ms=120_000)
    sender.producer.init_transactions(WAIT_S)
    sender.producer.begin_transaction()
    sender.send(0)
    assert sender.producer.flush(WAIT_S) == 0
    limit(broker, 0)
    with pytest.raises(KafkaException) as refused:
        sender.producer.commit_transaction(2.0)
    assert refused.value.args[0].retriable(), refused.value
    limit(broker, resource.RLIM_INFINITY)
    sender.producer.commit_transaction(WAIT_S)
    until(lambda: values(broker) == [b"000000"], "the transaction has not ended")


def test_a_marker_that_finds_no_room_in_its_topic_is_written_later(broker: BrokerProcess) -> None:
    sender = Sender(broker, transactional_id="t", transaction_timeout_ms=120_000)
    sender.producer.init_transactions(WAIT_S)
    sender.producer.begin_transaction()
    for number in range(50):
        sender.send(number)
    assert sender.producer.flush(WAIT_S) == 0
    (file,) = (broker.data_dir / "topics" / f"{TOPIC}-0").glob("*.log")
    limit(broker, file.stat().st_size)  # more than the journal's content has
    sender.producer.commit_transaction(WAIT_S)
    until(lambda: len(told(broker)) > 0, "the full disk is not told")
    assert values(broker) == []
    limit(broker, resource.RLIM_INFINITY)
    until(lambda: len(values(broker)) == 50, "the marker was not written")


@pytest.mark.full
def test_commits_and_topics_are_refused_and_go_on(broker: BrokerProcess) -> None:
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.commit_offsets("g", {(TOPIC, 0): 1})
    limit(broker, 0)
    with pytest.raises(PeerError):
        Admin({"bootstrap.servers": broker.bootstrap}, timeout_ms=2_000).commit_offsets("g", {(TOPIC, 0): 2})
    with pytest.raises(PeerError, match=r"topics\.json.*File too large; nothing was changed: make room"):
        admin.create_topics({"another": 1})
    limit(broker, resource.RLIM_INFINITY)
    assert admin.committed_offsets("g")[TOPIC, 0].offset == 1
    admin.commit_offsets("g", {(TOPIC, 0): 2})
    admin.create_topics({"another": 1})
    broker.restart()
    assert admin.committed_offsets("g")[TOPIC, 0].offset == 2
    assert admin.topics()["another"] == 1
