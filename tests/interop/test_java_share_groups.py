"""Java's share consumer and Apache Kafka's tools on our broker (KIP-932); their dead letters on both (KIP-1191)."""

from __future__ import annotations

import threading

import peers
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.testing.embedded import EmbeddedBroker

RECORDS = 300
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
DEADLINE_S = 60.0


def tool(main_class: str, broker: EmbeddedBroker | str, *arguments: str) -> str:
    address = broker if isinstance(broker, str) else broker.bootstrap_servers
    done = peers.kafka_tool(main_class, "--bootstrap-server", address, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
def test_two_consumers_and_the_tools(jvm_peers: None) -> None:
    read: list[list[int]] = [[], []]

    def consume(found: list[int]) -> None:
        lines = tool(CONSOLE, broker, "--topic", "jobs", "--group", "workers", "--timeout-ms", "15000").splitlines()
        found.extend(int(line) for line in lines)

    def offsets() -> list[list[str]]:
        lines = tool(GROUPS, broker, "--describe", "--group", "workers", "--offsets").splitlines()
        return [line.split() for line in lines if line.strip()]

    with EmbeddedBroker(topics={"jobs": 2}) as broker:
        configs = ("--entity-type", "groups", "--entity-name", "workers", "--alter", "--add-config")
        tool(peers.config_command(), broker, *configs, "share.auto.offset.reset=earliest")
        consumers = [threading.Thread(target=consume, args=(found,)) for found in read]
        for consumer in consumers:
            consumer.start()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 10})
        for number in range(RECORDS):
            producer.produce("jobs", b"%d" % number, partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        for consumer in consumers:
            consumer.join(2 * DEADLINE_S)
        assert sorted(read[0] + read[1]) == list(range(RECORDS))
        assert tool(GROUPS, broker, "--list").split() == ["workers"]
        assert [row[:4] for row in offsets()[1:]] == [["workers", "jobs", "0", "150"], ["workers", "jobs", "1", "150"]]
        state = tool(GROUPS, broker, "--describe", "--group", "workers", "--state")
        assert "Empty" in state
        where = ("--group", "workers", "--topic", "jobs:0", "--reset-offsets", "--to-earliest", "--execute")
        tool(GROUPS, broker, *where)
        assert [row[3] for row in offsets()[1:]] == ["0", "150"]
        tool(GROUPS, broker, "--delete-offsets", "--group", "workers", "--topic", "jobs")
        tool(GROUPS, broker, "--delete", "--group", "workers")
        assert tool(GROUPS, broker, "--list").split() == []


@pytest.mark.soak
def test_what_java_rejects_leaves_dead_letters(jvm_peers: None, bootstrap: str) -> None:
    if older := peers.older_than("4.4"):
        pytest.skip(older)
    topics = "org.apache.kafka.tools.TopicCommand"
    tool(topics, bootstrap, "--create", "--topic", "refused")
    tool(
        topics, bootstrap, "--create", "--topic", "dlq.refused", "--config", "errors.deadletterqueue.group.enable=true"
    )
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.refused",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    added = ",".join(f"{name}={value}" for name, value in configs.items())
    tool(peers.config_command(), bootstrap, "--entity-type", "groups", "--entity-name", "refusers", "--alter",
         "--add-config", added)  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        producer.produce("refused", b"%d" % number)
    assert producer.flush(DEADLINE_S) == 0
    where = ("--topic", "refused", "--group", "refusers", "--max-messages", "20", "--timeout-ms", "60000")
    tool(CONSOLE, bootstrap, *where, "--reject")
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "letters", "enable.auto.commit": False})
    try:
        reader.assign([TopicPartition("dlq.refused", 0, 0)])
        letters = [reader.poll(DEADLINE_S) for _ in range(20)]
    finally:
        reader.close()
    assert [letter is not None and letter.value() for letter in letters] == [b"%d" % number for number in range(20)]
