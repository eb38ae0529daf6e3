"""The Java client reads many partitions of our broker in fetch sessions (KIP-227): all records, once, in order."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import peers
import pytest
from confluent_kafka import Producer

from keylane.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from keylane.broker.fetch_sessions import Session

PARTITIONS, RECORDS = 60, 200
DEADLINE_S = 60.0


def session_of(broker: EmbeddedBroker) -> Session:
    """The one that there is, once it is."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert broker._node is not None
        found = list(broker._node.fetch_sessions._sessions.values())
        if found:
            assert len(found) == 1
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no session within {DEADLINE_S} s")


@pytest.mark.soak
def test_few_of_many_partitions_have_records(jvm_peers: None) -> None:
    printed: list[str] = []

    def consume() -> None:
        arguments = (
            "--bootstrap-server", broker.bootstrap_servers, "--topic", "many", "--from-beginning",
            "--max-messages", str(RECORDS), "--formatter-property", "print.partition=true",
        )  # fmt: skip
        done = peers.kafka_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments)
        assert done.returncode == 0, done.stderr
        printed.extend(done.stdout.splitlines())

    with EmbeddedBroker(topics={"many": PARTITIONS}) as broker:
        consumer = threading.Thread(target=consume)
        consumer.start()
        session = session_of(broker)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        sent: dict[int, list[str]] = {}
        for number in range(RECORDS):
            partition = number % 7
            producer.produce("many", b"%d" % number, partition=partition)
            assert producer.flush(DEADLINE_S) == 0
            sent.setdefault(partition, []).append(str(number))
        consumer.join(DEADLINE_S)
        assert not consumer.is_alive()
        assert len(session.partitions) == PARTITIONS
        assert session.epoch > 3
        assert not broker._node.fetch_sessions._sessions, "a client that closes closes its session"  # type: ignore[union-attr]
    found: dict[int, list[str]] = {}
    for line in printed:
        name, value = line.split("\t")
        found.setdefault(int(name.removeprefix("Partition:")), []).append(value)
    assert found == sent
