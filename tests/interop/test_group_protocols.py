"""Rebalances on Apache Kafka: eager, cooperative, KIP-848's protocol; partitions and topics that come while it runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined] # exported untyped

import keylane as kl
from kit.ledger import Ledger
from kit.stage import Stage, ThreadMember, until

if TYPE_CHECKING:
    from pathlib import Path

    import peers


PARTITIONS = 4
RECORDS = 600
KEYS = 60
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    "cooperative": {
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def stage(apache_kafka: peers.ApacheKafka, request: pytest.FixtureRequest) -> Stage:
    return Stage(apache_kafka.bootstrap, "".join(c if c.isalnum() else "-" for c in request.node.name))


def kafka(stage: Stage, protocol: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": stage.servers, "group.id": stage.group} | PROTOCOLS[protocol] | more


@pytest.mark.parametrize(
    "protocol", [pytest.param(name, marks=pytest.mark.soak if name != "consumer" else ()) for name in PROTOCOLS]
)
def test_members_come_and_go_and_each_record_runs_once_in_order(stage: Stage, tmp_path: Path, protocol: str) -> None:
    stage.create(PARTITIONS)
    keys = [b"%d" % (number % KEYS) for number in range(RECORDS)]
    stage.fill((key, number % KEYS % PARTITIONS) for number, key in enumerate(keys))
    ledger = Ledger(tmp_path / "ledger")

    def member(name: str) -> ThreadMember:
        noted = Ledger(ledger.path, name)

        def handler(record: kl.Record) -> None:
            noted.began(record)
            time.sleep(0.05)
            noted.done(record)

        made = stage.pipeline(handler, kafka=kafka(stage, protocol), workers=kl.Threads(2))
        return ThreadMember(made, name, ending_offsets="latest")

    first = member("first")
    until(lambda: first.consumer.snapshot().processed > 20, "the first works")
    second = member("second")
    until(lambda: (first.assigned, second.assigned) == (2, 2), "both have their share")
    until(lambda: second.consumer.snapshot().processed > 20, "the second works")
    second.consumer.stop()
    second.end()
    until(lambda: first.assigned == PARTITIONS, "the first has everything again")
    first.end()
    sources = stage.sources()
    assert ledger.disorders("key", sources) == []
    assert ledger.done_times() == {source: 1 for source, _ in sources}, "graceful rebalances repeat nothing"
    assert stage.all_is_committed()
    ledger.close()


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_while_partitions_are_being_revoked_the_others_are_read_and_committed_on(stage: Stage, protocol: str) -> None:
    stage.create(PARTITIONS)
    stage.fill((b"held", partition) for partition in range(PARTITIONS))
    gate = threading.Event()
    ran: Counter[tuple[int, int]] = Counter()

    def handler(record: kl.Record) -> None:
        if record.key == b"held":
            gate.wait(60)
        ran[record.partition, record.offset] += 1

    options: dict[str, Any] = {
        "kafka": kafka(stage, protocol),
        "revoke_timeout_ms": 60_000,
        "max_buffered_records": 400,
        "commit": kl.Commit(interval_ms=100),
    }
    first = ThreadMember(stage.pipeline(handler, **options), "first")
    until(lambda: first.consumer.snapshot().in_flight == PARTITIONS, "one of each partition is in its handler")
    second = ThreadMember(stage.pipeline(handler, **options), "second")
    until(lambda: len(stage.admin.describe_group(stage.group).members) == 2, "both are members")
    for _ in range(5):
        before = first.consumer.snapshot().processed
        stage.fill((b"%d" % (number % 50), number % PARTITIONS) for number in range(400))
        until(lambda: first.consumer.snapshot().processed >= before + 200, "the kept ones go on")  # noqa: B023
    until(lambda: sum(m.span for m in stage.committed().values()) > 600, "commits go on too")
    assert second.assigned == 0
    gate.set()
    until(lambda: len(ran) == sum(stage.ends().values()), "all ran")
    until(stage.all_is_committed, "all is committed")
    for one in (first, second):
        one.consumer.close()
        one.end()
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_new_partitions_and_new_topics_are_read_while_it_runs(stage: Stage, protocol: str) -> None:
    stage.create(1)
    seen: Counter[str] = Counter()

    def handler(record: kl.Record) -> None:
        seen[f"{record.topic.removeprefix(stage.topic)}-{record.partition}"] += 1

    # Under KIP-848's protocol the broker finds the topics that match, and looks for new ones every 10 minutes.
    topics = [stage.topic] if protocol == "consumer" else f"^{stage.topic}.*"
    settings = kafka(stage, protocol, **{"topic.metadata.refresh.interval.ms": 300})
    member = ThreadMember(stage.pipeline(handler, topics=topics, kafka=settings), "only")
    try:
        stage.fill([(b"k", 0)])
        until(lambda: seen == {"-0": 1}, "the first partition is read")
        admin = AdminClient({"bootstrap.servers": stage.servers})
        for made in admin.create_partitions([NewPartitions(stage.topic, 3)]).values():
            made.result(20)
        until(lambda: stage.admin.topics()[stage.topic] == 3, "the partitions are there")
        stage.fill([(b"k", 2)])
        expected = {"-0": 1, "-2": 1}
        if protocol != "consumer":
            stage.create(1, f"{stage.topic}-late")
            stage.fill([(b"k", 0)], f"{stage.topic}-late")
            expected["-late-0"] = 1
        until(lambda: seen == expected, "what came later is read")
    finally:
        member.consumer.close()
        member.end()
