"""Share groups (KIP-932) with confluent-kafka's `ShareConsumer` on the embedded broker."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from keylane.cli import main
from keylane.kafka.admin import Admin
from keylane.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 60.0
RECORDS = 200


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    settings = {
        "group.share.heartbeat.interval.ms": "500",
        "group.share.min.heartbeat.interval.ms": "500",
        "group.share.record.lock.duration.ms": "60000",  # however slow this machine is, none ends
    }
    with EmbeddedBroker(topics={"jobs": 1}, settings=settings) as made:
        yield made


def begin_at_the_beginning(servers: str, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": servers})
    for done in client.incremental_alter_configs([resource]).values():
        done.result(DEADLINE_S)


def produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "batch.num.messages": 10})
    for number in range(RECORDS):
        producer.produce("jobs", b"%d" % number, partition=0)
    assert producer.flush(DEADLINE_S) == 0


class Worker(threading.Thread):
    """A member that accepts what it is given, until all is done; it releases each tenth record when it comes first."""

    def __init__(self, servers: str, group: str, name: str, done: dict[int, list[str]]) -> None:
        super().__init__(name=name)
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": group,
            "client.id": name,
            "share.acknowledgement.mode": "explicit",
        }
        self._done = done
        self.released: set[int] = set()
        self.stop = threading.Event()

    def run(self) -> None:
        with ShareConsumer(self._settings) as consumer:
            consumer.subscribe(["jobs"])
            while not self.stop.is_set():
                for message in consumer.poll(0.2):
                    assert message.error() is None, message.error()
                    offset = message.offset()
                    assert offset is not None
                    if offset % 10 == 0 and message.delivery_count() == 1:
                        self.released.add(offset)
                        consumer.acknowledge(message, AcknowledgeType.RELEASE)
                    else:
                        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                        self._done.setdefault(offset, []).append(self.name)
                consumer.commit_sync(DEADLINE_S)


def test_members_share_the_records_of_a_partition(broker: EmbeddedBroker) -> None:
    """More members than partitions: each record is one member's, and what is released comes back."""
    servers, done = broker.bootstrap_servers, dict[int, list[str]]()
    begin_at_the_beginning(servers, "workers")
    workers = [Worker(servers, "workers", f"worker-{number}", done) for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        produce(servers)
        deadline = time.monotonic() + DEADLINE_S
        while len(done) < RECORDS:
            assert time.monotonic() < deadline, sorted(set(range(RECORDS)) - done.keys())
            assert all(worker.is_alive() for worker in workers)
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join(DEADLINE_S)
    assert {offset: len(names) for offset, names in done.items()} == dict.fromkeys(range(RECORDS), 1)
    assert set[int]().union(*(worker.released for worker in workers)) == set(range(0, RECORDS, 10))


def test_the_command_line_tells_share_groups_from_others(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = broker.bootstrap_servers
    consumer = ShareConsumer({"bootstrap.servers": servers, "group.id": "sharers"})
    consumer.subscribe(["jobs"])
    try:
        until = time.monotonic() + DEADLINE_S
        while Admin({"bootstrap.servers": servers}).share_groups() != {"sharers": "stable"}:
            consumer.poll(0.1)
            assert time.monotonic() < until
        assert main(["groups", "list", "--json", "--bootstrap", servers]) == 0
        listed = json.loads(capsys.readouterr().out)["groups"]
        unknown = {"members": None, "lag": None, "remaining": None}
        assert listed == [{"group": "sharers", "state": "stable", "protocol": "share"} | unknown]
        for verb in ("describe", "offsets", "delete"):
            assert main(["groups", verb, "sharers", "--bootstrap", servers]) == 2
            assert "the group 'sharers' is a share group" in capsys.readouterr().err
    finally:
        consumer.close()
