"""A broker with few descriptors, and more silent connections than it may have."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from keylane.broker.listener import most_connections
from keylane.kafka.admin import Admin
from kit.processes import Started
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import KafkaError, Message

DESCRIPTORS = 150
SEGMENT = 16_384


def limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def send(producer: Producer, count: int) -> None:
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(count):
        producer.produce("t", bytes(500), on_delivery=told)
    assert producer.flush(30) == 0
    assert failed == []


def test_silent_connections_keep_nobody_out_and_leave_descriptors_for_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keylane.broker", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as errors, ExitStack() as connected:
        broker = connected.enter_context(
            Started(command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=limit_descriptors)
        )
        assert broker.stdout is not None
        address = broker.stdout.readline().decode().split()[4]
        host, _, port = address.rpartition(":")
        Admin({"bootstrap.servers": address}).create_topics({"t": 1}, config={"segment.bytes": str(SEGMENT)})
        producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 20_000, "log_level": 0})
        send(producer, 1)
        silent = [
            connected.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(2 * DESCRIPTORS)
        ]
        send(producer, 4 * SEGMENT // 500)  # over several ends of segments
        with ProtocolClient(address) as other:
            assert other.ask("metadata", 4, topics=None, allow_auto_topic_creation=False).topics
        silent[0].settimeout(10)
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest of those that never sent a request made room"
        broker.terminate()
    said = log.read_text()
    assert said.count("the other descriptors of the process are kept for files") == 1
    assert len(said) < 5_000


def test_files_keep_a_third_of_the_descriptors() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections() == int(limit * 2 / 3)
