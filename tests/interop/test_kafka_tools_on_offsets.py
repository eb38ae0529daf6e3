"""Apache Kafka's own tools on our offset store: the log's bytes and records, and the end of offsets and groups."""

from __future__ import annotations

import datetime
import importlib
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import peers
import pytest
from confluent_kafka import Consumer, TopicPartition

from keylane.broker.process import BrokerProcess
from keylane.coordinator.formats import OFFSETS_TOPIC, partition_for
from keylane.kafka.admin import Admin
from kit.protocol import ProtocolClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

fetch_schema: Any = importlib.import_module("kio.schema.fetch.v11.request")
commit_schema: Any = importlib.import_module("kio.schema.offset_commit.v3.request")

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
MANY = 60
"""Partitions of one commit that is worth compressing. (confluent-kafka ends metadata with a NUL, which is kept.)"""


def start(folder: Path, codec: int) -> BrokerProcess:
    settings = {"offsets.topic.compression.codec": str(codec), "offsets.topic.num.partitions": "4"}
    process = BrokerProcess(folder / "data", settings=settings)
    Admin({"bootstrap.servers": process.bootstrap}).create_topics({"flights": MANY, "weather": 1})
    return process


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, jvm_peers: None) -> Iterator[BrokerProcess]:
    with start(tmp_path_factory.mktemp("broker"), 4) as process:
        yield process


def commit(broker: BrokerProcess, group: str, offsets: list[TopicPartition]) -> None:
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as consumer:
        for row in consumer.commit(offsets=offsets, asynchronous=False) or []:
            assert row.error is None


def stable_member(broker: BrokerProcess, group: str) -> Consumer:
    """A member that is assigned everything; the caller closes it."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe(["weather"])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


def commit_with_expiry(broker: BrokerProcess, group: str) -> None:
    """An old request with a retention time of its own."""
    row = commit_schema.OffsetCommitRequestPartition(partition_index=1, committed_offset=17, committed_metadata="old")
    topic = commit_schema.OffsetCommitRequestTopic(name="flights", partitions=(row,))
    with ProtocolClient(broker.bootstrap) as client:
        client.ask("offset_commit", 3, group_id=group, generation_id_or_member_epoch=-1, member_id="",
                   retention_time=datetime.timedelta(hours=1), topics=(topic,))  # fmt: skip


def offsets_log(broker: BrokerProcess, partition: int) -> bytes:
    """The record batches of a partition of `__consumer_offsets`, as consumers get them."""
    wanted = fetch_schema.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=10_000_000)
    topic = fetch_schema.FetchTopic(topic=OFFSETS_TOPIC, partitions=(wanted,))
    with ProtocolClient(broker.bootstrap) as client:
        answer = client.ask(
            "fetch", 11, max_wait=datetime.timedelta(0), min_bytes=1, topics=(topic,), forgotten_topics_data=()
        )
    (found,) = answer.responses[0].partitions
    return bytes(found.records)


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["none", "gzip", "zstd"])
def test_dump_log_segments_decodes_the_log(tmp_path: Path, jvm_peers: None, codec: int) -> None:
    with start(tmp_path, codec) as broker:
        check_dump(broker, tmp_path)


def check_dump(broker: BrokerProcess, tmp_path: Path) -> None:
    group = "dumped"
    commit(broker, group, [TopicPartition("flights", one, one * 10, metadata=f"map {one}") for one in range(MANY)])
    commit_with_expiry(broker, group)
    stable_member(broker, group).close()
    Admin({"bootstrap.servers": broker.bootstrap}).delete_topics(["weather"])
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"weather": 1})
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(offsets_log(broker, partition_for(group, 4)))
    done = peers.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files", str(segment)
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "isvalid: false" in line or "CRC" in line or "Found" in line] == []
    said = re.findall(r"key: (\{.*?\}) payload: (.*)$", done.stdout, re.MULTILINE)
    offsets = [row for row in said if '"topic":"flights"' in row[0] and f'"group":"{group}"' in row[0]]
    assert len(offsets) == MANY + 1
    assert all('"type":"1"' in key or '"type":1' in key for key, _ in offsets)
    assert '"partition":59' in offsets[59][0]
    assert re.search(r'"offset":590.*"metadata":"map 59(\\u0000)?"', offsets[59][1])
    assert re.search(r'"offset":17.*"metadata":"old".*"expireTimestamp":\d+', offsets[-1][1])
    groups = [payload for key, payload in said if f'"group":"{group}"' in key and '"topic"' not in key]
    assert len(groups) == 2
    assert '"protocolType":"consumer"' in groups[0]
    assert '"assignment"' in groups[0]
    assert '"members":[]' in groups[1]


def test_the_console_consumer_formats_the_topic(broker: BrokerProcess) -> None:
    commit(broker, "formatted", [TopicPartition("flights", 3, 32)])
    place = (OFFSETS_TOPIC, partition_for("formatted", 4))
    end = Admin({"bootstrap.servers": broker.bootstrap}).log_ends([place], read_committed=False)[place]
    commit(broker, "formatted", [TopicPartition("flights", 3, 33, metadata="m")])
    done = peers.kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap,
        "--topic", OFFSETS_TOPIC, "--partition", str(place[1]), "--offset", str(end),
        "--max-messages", "1", "--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if '"formatted"' in line]
    assert len(lines) == 1, done.stderr
    assert '"offset":33' in lines[0]
    assert '"metadata":"m' in lines[0]


def groups_tool(broker: BrokerProcess, *arguments: str) -> str:
    done = peers.kafka_tool(GROUPS_TOOL, "--bootstrap-server", broker.bootstrap, *arguments)
    return done.stdout + done.stderr


def test_the_groups_tool_deletes_offsets_and_groups(broker: BrokerProcess) -> None:
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    commit(broker, "tool", [TopicPartition("flights", 0, 1), TopicPartition("weather", 0, 0)])
    said = groups_tool(broker, "--delete-offsets", "--group", "tool", "--topic", "flights:0")
    assert re.search(r"flights\s+0\s+Successful", said), said
    assert list(admin.committed_offsets("tool")) == [("weather", 0)]
    with closing(stable_member(broker, "tool")):
        said = groups_tool(broker, "--delete-offsets", "--group", "tool", "--topic", "weather")
        assert "subscribed" in said, said
        said = groups_tool(broker, "--delete", "--group", "tool")
        assert "not empty" in said.lower(), said
    assert "successful" in groups_tool(broker, "--delete", "--group", "tool")
    assert admin.committed_offsets("tool") == {}
    assert "tool" not in {one.group for one in admin.groups()}
