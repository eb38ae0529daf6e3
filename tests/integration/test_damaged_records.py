"""A record that was altered on the broker's disk: no handler sees it, and who reads is told which one it is.

Where the broker has read it since its start, only the client can find it; else the broker does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from crc32c import crc32c

from keylane.broker.process import BrokerProcess
from keylane.cli import main
from keylane.errors import PeerError
from keylane.kafka import unreadable
from keylane.kafka.ranges import RangeReader
from keylane.wire.batches import CRC_START, batches
from kit.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import keylane as kl

RECORDS = 40
DAMAGED = 20
When = Literal["while it runs", "while it is stopped"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def damaged(broker: BrokerProcess, when: When) -> Stage:
    """A topic with a batch for each record, one of which was altered."""

    def alter(batch: bytearray) -> None:
        at = batch.index(b"value-20")
        batch[at : at + 5] = b"VALUE"

    return altered(broker, when, alter)


def altered(broker: BrokerProcess, when: When, alter: Callable[[bytearray], None]) -> Stage:
    stage = Stage(broker.bootstrap, "damage")
    stage.create(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(stage.topic, b"value-%d" % number, key=b"%d" % (number % 3), partition=0)
        assert producer.flush(30) == 0
    assert len(stage.read(stage.topic)) == RECORDS
    if when == "while it is stopped":
        assert broker.terminate() == 0
    path = broker.data_dir / "topics" / f"{stage.topic}-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    ((position, length),) = [
        (at, header.length) for at, header in batches(bytes(data)) if header.base_offset == DAMAGED
    ]
    batch = data[position : position + length]
    alter(batch)
    with path.open("r+b") as file:  # in place: a running broker has the file open
        file.seek(position)
        file.write(batch)
    if when == "while it is stopped":
        broker.start()
    return stage


class Seen:
    """A handler that notes what it was given."""

    def __init__(self) -> None:
        self.values: dict[int, bytes | None] = {}
        self._lock = threading.Lock()

    def __call__(self, record: kl.Record) -> None:
        with self._lock:
            self.values[record.offset] = record.value


@pytest.mark.parametrize("when", ["while it runs", "while it is stopped"])
@pytest.mark.parametrize("ordering", ["key", "unordered"])
def test_a_consumer_ends_at_a_damaged_record_and_goes_on_behind_it_when_it_is_told_to(
    broker: BrokerProcess, when: When, ordering: Literal["key", "unordered"], capsys: pytest.CaptureFixture[str]
) -> None:
    stage = damaged(broker, when)
    seen = Seen()
    name = f"{stage.topic}-0@{DAMAGED}: the record is damaged"
    with pytest.raises(PeerError, match=name) as caught:
        stage.run(seen, ordering=ordering)
    assert "\n" not in str(caught.value)
    assert "alue-20" not in str(caught.value)
    committed = stage.admin.committed_offsets(stage.group)
    assert all(one.offset <= DAMAGED for one in committed.values())
    assert max(seen.values, default=0) < DAMAGED
    reset = ["groups", "reset", stage.group, "--bootstrap", broker.bootstrap, "--topic", f"{stage.topic}:0"]
    assert main([*reset, "--to-offset", str(DAMAGED + 1), "--execute"]) == 0
    capsys.readouterr()
    stage.run(seen, ordering=ordering)
    later = range(DAMAGED + 1, RECORDS)
    assert {offset: seen.values[offset] for offset in later} == {offset: b"value-%d" % offset for offset in later}
    assert DAMAGED not in seen.values
    if when == "while it is stopped":
        lines = [
            line for line in broker.log.read_text().splitlines() if "offsets 20 to 20, records are damaged" in line
        ]
        assert len(lines) == 1, "told once, however often clients ask"
        assert f"{stage.topic}-0/{0:020d}.log at byte " in lines[0]


def test_a_user_who_turns_the_check_off_is_given_what_is_there(broker: BrokerProcess) -> None:
    stage = damaged(broker, "while it runs")
    seen = Seen()
    stage.run(seen, kafka=stage.kafka | {"check.crcs": False})
    assert seen.values[DAMAGED] == b"VALUE-20"


@pytest.mark.parametrize("when", ["while it runs", "while it is stopped"])
def test_all_that_reads_without_a_group_checks_too(broker: BrokerProcess, when: When) -> None:
    stage = damaged(broker, when)
    name = f"{stage.topic}-0@{DAMAGED}: the record is damaged"
    with pytest.raises(PeerError, match=name):
        stage.read(stage.topic)
    reader = RangeReader({"bootstrap.servers": broker.bootstrap}, "reader")
    with pytest.raises(PeerError, match=name):
        list(reader.read(stage.topic, 0, [(0, RECORDS)]))
    reader.close()
    whole = RangeReader({"bootstrap.servers": broker.bootstrap}, "reader")
    offsets = [offset for part in whole.read(stage.topic, 0, [(0, DAMAGED)]) for offset in part.offsets]
    assert offsets == list(range(DAMAGED))
    whole.close()


def test_another_client_is_told_too(broker: BrokerProcess) -> None:
    """One that does not check: the broker does not give it the record, and says which one it is."""
    stage = damaged(broker, "while it is stopped")
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "other", "enable.auto.commit": False})
    client.assign([TopicPartition(stage.topic, 0, 0)])
    values = []
    while (message := client.poll(10)) is not None and message.error() is None:
        values.append(message.value())
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.INVALID_MSG
    assert message.offset() == DAMAGED
    assert values == [b"value-%d" % number for number in range(DAMAGED)]
    client.close()


def test_a_pipeline_names_records_that_no_client_can_read(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum is right, so librdkafka asks for them again and again, without a word."""

    def alter(batch: bytearray) -> None:
        batch[batch.index(b"value-20") - 1] = 0x7E  # the value's length
        batch[CRC_START - 4 : CRC_START] = crc32c(batch[CRC_START:]).to_bytes(4, "big")

    monkeypatch.setattr(unreadable, "AFTER_S", 0.5)
    stage = altered(broker, "while it is stopped", alter)
    seen = Seen()
    with pytest.raises(PeerError, match=f"{stage.topic}-0@{DAMAGED}: .* cannot be read by any client .*-offset 21`"):
        stage.run(seen, ordering="key")
    assert sorted(seen.values) == list(range(DAMAGED))
