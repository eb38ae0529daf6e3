"""Apache Kafka's tools of administrators on our broker: topics with ids, folders, quorum, elections, features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import peers
import pytest
from confluent_kafka import Producer

from keylane.kafka.admin import Admin
from keylane.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 3
TIMEOUT_S = 30.0
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def broker(jvm_peers: None) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"flights": PARTITIONS}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("flights", b"value", partition=1)
        assert producer.flush(TIMEOUT_S) == 0
        yield broker


def run(tool: str, *arguments: str) -> str:
    done = peers.kafka_tool(tool, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_topics_are_described_with_their_ids(broker: EmbeddedBroker) -> None:
    text = run(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.bootstrap_servers, "--describe",
        "--topic", "flights", "--partition-size-limit-per-response", "2",
    )  # fmt: skip
    found = Admin({"bootstrap.servers": broker.bootstrap_servers}).topic_id("flights")
    topic_id = found.replace("+", "-").replace("/", "_")  # as Kafka writes what librdkafka has in plain Base64
    head, *rows = text.splitlines()
    assert f"TopicId: {topic_id}" in head
    assert f"PartitionCount: {PARTITIONS}" in head
    assert len(rows) == PARTITIONS


def test_folders_are_described(broker: EmbeddedBroker) -> None:
    text = run(
        "org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", broker.bootstrap_servers, "--describe",
        "--topic-list", "flights",
    )  # fmt: skip
    assert '"partition":"flights-1"' in text
    assert '"error":null' in text


def test_the_quorum_is_described(broker: EmbeddedBroker) -> None:
    text = run(
        "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", broker.bootstrap_servers, "describe",
        "--status",
    )  # fmt: skip
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    assert found["LeaderId"].strip() == "1"


def test_no_leader_is_elected_and_nothing_is_reassigned(broker: EmbeddedBroker) -> None:
    text = run(
        "org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", broker.bootstrap_servers,
        "--election-type", "preferred", "--topic", "flights", "--partition", "0",
    )  # fmt: skip
    assert "Valid replica already elected for partitions flights-0" in text
    text = run(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--bootstrap-server", broker.bootstrap_servers,
        "--list",
    )  # fmt: skip
    assert "No partition reassignments found." in text


def test_features_are_described(broker: EmbeddedBroker) -> None:
    text = run("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap_servers, "describe")
    (line,) = [one for one in text.splitlines() if "group.version" in one]
    assert "FinalizedVersionLevel: 1" in line


def test_the_level_of_transactions_is_changed(broker: EmbeddedBroker) -> None:
    command = ("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap_servers)
    for change, level in (("downgrade", 1), ("upgrade", 2)):
        assert f"transaction.version was {change}d to {level}." in run(
            *command, change, "--feature", f"transaction.version={level}"
        )
        (line,) = [one for one in run(*command, "describe").splitlines() if "transaction.version" in one]
        assert f"FinalizedVersionLevel: {level}" in line


def test_a_transaction_that_hangs_is_aborted(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "hangs"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("flights", b"hangs", partition=2)
    producer.flush(TIMEOUT_S)
    run(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", servers, "abort", "--topic", "flights",
        "--partition", "2", "--start-offset", "0",
    )  # fmt: skip
    admin = Admin({"bootstrap.servers": servers})
    assert admin.log_ends([("flights", 2)], read_committed=True) == {("flights", 2): 2}, "nothing is open behind it"


def test_all_topics_are_described_the_brokers_own_too(broker: EmbeddedBroker) -> None:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    Admin({"bootstrap.servers": broker.bootstrap_servers}).commit_offsets("readers", {("flights", 0): 0})
    text = run("org.apache.kafka.tools.TopicCommand", *servers, "--describe")
    assert {line.split("\t")[0] for line in text.splitlines() if line.startswith("Topic:")} == {
        "Topic: flights", "Topic: __consumer_offsets",
    }  # fmt: skip
    text = run(peers.config_command(), *servers, "--describe", "--entity-type", "topics", "--all")
    assert "All configs for topic __consumer_offsets are:" in text
