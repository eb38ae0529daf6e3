"""MirrorMaker 2: topics, their configs, and what groups have committed, copied to other topics of the same broker."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined] # exported untyped
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from peers.mirror import mirroring

from compat.results import Outcome, check, until
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.records import Output

WAIT_S = 180.0
"""For a JVM that starts Connect on a crowded machine."""
COUNT, PARTITIONS = 500, 2
TOPIC, COPY = "mirrored", "here.mirrored"
PROPERTIES = """\
clusters = here, there
here.bootstrap.servers = {bootstrap}
there.bootstrap.servers = {bootstrap}
here->there.enabled = true
there->here.enabled = false
here->there.topics = {topic}
here->there.groups = readers
refresh.topics.interval.seconds = 1
refresh.groups.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
sync.topic.acls.enabled = false
emit.checkpoints.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
offset.lag.max = 0
"""


def mirror(bootstrap: str, folder: str) -> list[Outcome]:
    """Each check finds what the one before has left."""
    client, admin = AdminClient({"bootstrap.servers": bootstrap}), Admin({"bootstrap.servers": bootstrap})
    admin.create_topics({TOPIC: PARTITIONS}, config={"retention.ms": "7777000"})
    _produce(bootstrap, 0)
    admin.commit_offsets("readers", {(TOPIC, 0): 100})

    def copied() -> None:
        until(lambda: COPY in admin.topics(), f"the topic {COPY}", WAIT_S)
        _produce(bootstrap, COUNT)
        until(lambda: len(_read(bootstrap, COPY)) >= 2 * COUNT, "all records are copied", WAIT_S)
        assert _read(bootstrap, COPY) == _read(bootstrap, TOPIC), "the copy differs"

    def configs() -> None:
        until(lambda: admin.topic_configs(COPY).get("retention.ms") == "7777000", "the config is copied", WAIT_S)
        entry = ConfigEntry("retention.ms", "8888000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(WAIT_S)
        until(lambda: admin.topic_configs(COPY).get("retention.ms") == "8888000", "the change is copied", WAIT_S)

    def partitions() -> None:
        client.create_partitions([NewPartitions(TOPIC, PARTITIONS + 1)])[TOPIC].result(WAIT_S)
        until(lambda: admin.topics()[COPY] == PARTITIONS + 1, "the new partition is copied", WAIT_S)

    def offsets() -> None:
        def is_copied() -> bool:
            found = admin.committed_offsets("readers", [COPY])
            return (COPY, 0) in found and 0 < found[COPY, 0].offset <= 100

        until(is_copied, "the group's offsets are copied", WAIT_S)

    with mirroring(PROPERTIES.format(bootstrap=bootstrap, topic=TOPIC), Path(folder)):
        tests = {
            "records": copied,
            "configs of topics, and their changes": configs,
            "new partitions": partitions,
            "offsets of groups": offsets,
        }
        return [check(name, test) for name, test in tests.items()]


def _produce(bootstrap: str, first: int) -> None:
    with BulkProducer(bootstrap) as producer:
        for number in range(first, first + COUNT):
            producer.produce(Output(TOPIC, b"%d" % (number % 7), b"%d" % number, partition=number % PARTITIONS))


def _read(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    records = [one for some in read_to_end(bootstrap, topic) for one in some]
    return sorted((one.partition, one.key, one.value) for one in records)
